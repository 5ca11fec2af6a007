"""The two documented files, each broken in one way: the mistake stands at its line and column, in words that help."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.load import FileMistakes, check

CONFIGS = Path(__file__).parents[2] / "data/configs"

Found = tuple[int, int, str, str]
"""Line, column, sentence, suggestion."""

# fmt: off
WORKFLOW: list[tuple[str, str, list[Found]]] = [
    ("name: model-finetune", "name: model_finetune", [
        (4, 9, "name may have letters, digits and dashes, at most 40 in all, and no dash at either end", ""),
    ]),
    ("  name: model-finetune\n", "", [
        (4, 3, "workflow needs name", ""),
    ]),
    ("  name: model-finetune", "  name: model-finetune\n  name: again", [
        (5, 3, "'name' stands here a second time", ""),
    ]),
    ("workflow:", "worklow:", [
        (3, 1, "'worklow' is neither workflow nor cluster", "workflow"),
    ]),
    ("workflow:\n", "workflow: model-finetune\nspec:\n", [
        (3, 11, "workflow must be a mapping (lines of key: value)", ""),
        (4, 1, "unknown key 'spec'; the file holds workflow: alone", ""),
    ]),
    ("  resources:", "  resorces:", [
        (5, 3, "unknown key 'resorces'", "resources"),
    ]),
    ("    nodes: 2", "    node: 2", [
        (6, 5, "unknown key 'node'", "nodes"),
    ]),
    ("    nodes: 2", "    nodes: two", [
        (6, 12, "resources.nodes must be a whole number, not text", ""),
    ]),
    ("    nodes: 2", "    nodes: 0", [
        (6, 12, "resources.nodes must be at least 1", ""),
    ]),
    ("    nodes: 2", "    nodes: 2.0", [
        (6, 12, "resources.nodes must be a whole number, not a number with a fraction", ""),
    ]),
    ("    nodes: 2", '    nodes: "2"', [
        (6, 12, "resources.nodes must be a whole number, not text in quotes", "2"),
    ]),
    ("    accelerators_per_node: 4", "    accelerators_per_node: -4", [
        (7, 28, "resources.accelerators_per_node must be at least 0", ""),
    ]),
    ("    accelerators_per_node: 4", "    accelerators_per_node: 04", [
        (7, 28, "'04' begins with a 0: some readers of YAML count it in eights; drop the 0, or put it in quotes", ""),
    ]),
    ("    accelerators_per_node: 4", "    accelerators: 4", [
        (7, 5, "unknown key 'accelerators'", "accelerators_per_node"),
    ]),
    ("    cpu_cores_per_node: 32", "    cpu_cores_per_node:", [
        (8, 24, "resources.cpu_cores_per_node has no value; write one, or leave the line out", ""),
    ]),
    ("    memory_gb_per_node: 256", "    memory_gb_per_node: 256GB", [
        (9, 25, "resources.memory_gb_per_node must be a number, not text", ""),
    ]),
    ("    memory_gb_per_node: 256", "   memory_gb_per_node: 256", [
        (9, 4, "this line is not indented like the ones around it", ""),
    ]),
    ("    memory_gb_per_node: 256", "\tmemory_gb_per_node: 256", [
        (9, 1, "a tab indents this line; YAML wants spaces", ""),
    ]),
    ("    processes_per_node: 4", "    processes_per_node: yes", [
        (11, 25, 'yes is true to some readers of YAML and text to others; say true, or "yes" for the text', "true"),
    ]),
    ("    batch_size: 64", "    batch_size: 64: 8", [
        (12, 19, "a colon is one too many here; a value with a colon in it needs quotes", ""),
    ]),
    ("    batch_size: 64", "    batchsize: 64", [
        (12, 5, "unknown key 'batchsize'", "batch_size"),
    ]),
    ("    checkpoint_interval_steps: 500", "    checkpoint_interval_steps: 1e3", [
        (13, 32, "training.checkpoint_interval_steps must be a whole number, not a number with an exponent", ""),
    ]),
    ("    max_retry: 2", "    max_retry: -1", [
        (14, 16, "training.max_retry must be at least 0", ""),
    ]),
    ("    max_retry: 2", "    max_retries: 2", [
        (14, 5, "unknown key 'max_retries'", "max_retry"),
    ]),
    ("    data_root: shared-storage/dataset/version", "    data_root: s3://bucket/dataset", [
        (16, 16, "storage.data_root must be a folder that every node mounts, not an address", ""),
    ]),
    ("    data_root: shared-storage/dataset/version", "    data_root: ../dataset", [
        (16, 16, "storage.data_root must not climb out of its folder with ..", ""),
    ]),
    ("    output_root: object-storage/training-output/task-id", "    output_root: ${HOME}/out", [
        (17, 18, "storage.output_root has a ${…} that raydeck does "
         "not resolve; only ${env:NAME} and ${file:/ABSOLUTE/PATH} are", ""),
    ]),
    ("    output_root: object-storage/training-output/task-id", "    output_root: [out", [
        (17, 18, "a list that is opened with [ is not closed, or a comma is missing in it", ""),
    ]),
    ("    log_level: info", "    log_level: inof", [
        (19, 16, "observability.log_level must be one of debug, info, warning or error", "info"),
    ]),
    ("    metrics_interval_seconds: 30", "    metrics_interval_seconds: 0", [
        (20, 31, "observability.metrics_interval_seconds must be more than 0", ""),
    ]),
    ("    metrics_interval_seconds: 30", "    metrics_interval_seconds: 30\n  queue: 7", [
        (21, 10, "queue must be text, not a number; put it in quotes", ""),
    ]),
    ("    metrics_interval_seconds: 30", "    metrics_interval_seconds: 30\n  max_duration: 2 fortnights", [
        (21, 17, "max_duration must be a duration such as 45s, 10m or 1h30m", ""),
    ]),
    ("    metrics_interval_seconds: 30", "    metrics_interval_seconds: 30\n  priority: urgent", [
        (21, 13, "priority must be low, normal, high or a whole number from -1000 to 1000", ""),
    ]),
    ("    metrics_interval_seconds: 30", "    metrics_interval_seconds: 30\n  image: nvcr.io/x", [
        (21, 3, "image is not supported by this version", ""),
    ]),
    ("    metrics_interval_seconds: 30", "    metrics_interval_seconds: 30\n  env: {HF_TOKEN: hf_abcdefghijklmnop}", [
        (21, 19, "HF_TOKEN looks like a secret in plain text; write ${env:HF_TOKEN} or ${file:/PATH}", ""),
    ]),
    ("    metrics_interval_seconds: 30", "    metrics_interval_seconds: 30\n  sweep: {parameters: {batchsize: [1]}}", [
        (21, 24, "there is no training.batchsize to vary; a "
         "parameter of the script's own is parameters.NAME", "batch_size"),
    ]),
    ("    metrics_interval_seconds: 30", "    metrics_interval_seconds: 30\n  overlays: {production: {queue: a}}", [
        (21, 14, "unknown overlay 'production'; there are dev, test and prod", "prod"),
    ]),
]
CLUSTER: list[tuple[str, str, list[Found]]] = [
    ('  name: "ai-workload-cluster"', '  name: "ai workload cluster"', [
        (4, 9, "name may have letters, digits, dots, dashes and underscores, at most 63 in all", ""),
    ]),
    ("  control_nodes:", "  control_node:", [
        (4, 3, "cluster needs control_nodes", ""),
        (5, 3, "unknown key 'control_node'", "control_nodes"),
    ]),
    ('    - host: "control-01"', '    - hots: "control-01"', [
        (6, 7, "control_nodes[1] needs host", ""),
        (6, 7, "unknown key 'hots'", "host"),
    ]),
    ('    - host: "control-01"', '    - host: "control 01"', [
        (6, 13, "control_nodes[1].host is no host name or address", ""),
    ]),
    ('      metadata_store: "/data/cluster/meta"', '      metadata_store: "data/cluster/meta"', [
        (8, 23, "control_nodes[1].metadata_store must be an absolute path", ""),
    ]),
    ('    - host: "worker-02"', '    - host: "worker-01"', [
        (16, 13, "worker-01 is among the worker nodes already", ""),
    ]),
    ('    - host: "worker-02"\n      accelerators: 8', '    - host: "worker-02"\n      accelerators: eight', [
        (17, 21, "worker_nodes[2].accelerators must be a whole number, not text", ""),
    ]),
    ("      memory_gb: 512", '      memory_gb: "512"', [
        (13, 18, "worker_nodes[1].memory_gb must be a number, not text in quotes", "512"),
    ]),
    ('        pool: "inference"', '        pool: "inference pool"', [
        (21, 15, "worker_nodes[2].labels.pool is no label (letters, "
         "digits, dots, dashes, underscores and slashes)", ""),
    ]),
    ('      labels:\n        pool: "training"', '      label:\n        pool: "training"', [
        (14, 7, "unknown key 'label'", "labels"),
    ]),
    ('"10.0.0.0/24"', '"10.0.0.0/33"', [
        (23, 23, "network.internal_network must be a network such as 10.0.0.0/24", ""),
    ]),
    ("      - 8265\n", "      - 82650\n", [
        (26, 9, "network.required_ports[2] is outside the ports there are, 1 to 65535", ""),
    ]),
    ("      - 10001-10100", "      - 10100-10001", [
        (27, 9, "network.required_ports[3] runs backwards; write 10001-10100", ""),
    ]),
    ("    tls_enabled: true", "    tls_enabled: on", [
        (28, 18, 'on is true to some readers of YAML and text to others; say true, or "on" for the text', "true"),
    ]),
    ("    tls_enabled: true", "    tls_enabled: 1", [
        (28, 18, "network.tls_enabled must be true or false, not a number", ""),
    ]),
    ('    dataset_path: "/mnt/dataset"', '    dataset_path: "mnt/dataset"', [
        (30, 19, "storage.dataset_path must be an absolute path", ""),
    ]),
    ('    output_path: "/mnt/output"', '    output_path: "s3://output"', [
        (32, 18, "storage.output_path must be a folder that every node mounts, not an address", ""),
    ]),
    ('    log_path: "/var/log/ai-workload"', '    log_path: "/var/log/ai-workload', [
        (34, 18, "something follows the end of a value here; a quote may be missing, on this line or above it", ""),
    ]),
    ("    cache_path:", "    cachepath:", [
        (34, 5, "unknown key 'cachepath'", "cache_path"),
    ]),
    ('    default_queue: "general"', "    default_queue: general queue", [
        (36, 20, "scheduler.default_queue may have letters, digits, dots, dashes "
         "and underscores, at most 63 in all", ""),
    ]),
    ("    queues:\n", "    queue:\n", [
        (37, 5, "unknown key 'queue'", "queues"),
    ]),
    ("        max_accelerators: 16", "        max_accelerator: 16", [
        (39, 9, "unknown key 'max_accelerator'", "max_accelerators"),
    ]),
    ("        max_accelerators: 16", "        max_accelerators: unlimited", [
        (39, 27, "scheduler.queues[1].max_accelerators must be a whole number, not text", ""),
    ]),
    ('        priority: "high"', '        priority: "hihg"', [
        (43, 19, "scheduler.queues[2].priority must be low, normal, high or a whole number from -1000 to 1000", "high"),
    ]),
    ('      - name: "inference"', '      - name: "training"', [
        (41, 15, "there is a queue training already", ""),
    ]),
    ("    alert_on_failure: true", "    alert_on_failure: sometimes", [
        (48, 23, "observability.alert_on_failure must be true or false, not text", ""),
    ]),
    ("    alert_on_failure: true", "    services: {chat: {p95_milliseconds: 0}}", [
        (48, 41, "observability.services.chat.p95_milliseconds must be more than 0", ""),
    ]),
    ("    health_check_interval_seconds: 15", "    health_check_interval_seconds: 0", [
        (47, 36, "observability.health_check_interval_seconds must be more than 0", ""),
    ]),
    ("  scheduler:\n", "  scheduler:\n    ageing: never\n", [
        (36, 13, "scheduler.ageing must be a duration such as 45s, 10m or 1h30m", ""),
    ]),
    ("  scheduler:\n", "  scheduler:\n    preemption: yes\n", [
        (36, 17, 'yes is true to some readers of YAML and text to others; say true, or "yes" for the text', "true"),
    ]),
    ("  scheduler:\n", "  scheduler:\n    limits: {max_active_runs: 0}\n", [
        (36, 31, "scheduler.limits.max_active_runs must be at least 1", ""),
    ]),
    ("  scheduler:\n", "  scheduler:\n    user_quotas: {alice: -1}\n", [
        (36, 26, "scheduler.user_quotas.alice must be at least 0", ""),
    ]),
    ("  scheduler:\n", "  scheduler:\n    user_quota: {alice: 1}\n", [
        (36, 5, "unknown key 'user_quota'", "user_quotas"),
    ]),
    ("  storage:\n", "  roles: {operator: [alice]}\n  storage:\n", [
        (29, 11, "unknown key 'operator'", "operators"),
    ]),
    ("  storage:\n", '  access: {ray: {start: "ray start --address={haed}:6379"}}\n  storage:\n', [
        (29, 25, "start has a {haed} that stands for nothing; there are {head}, {host}, {accelerators} "
         "(and {{haed}} for the word itself)", "{head}"),
    ]),
    ("  storage:\n", "  access: {ray: {begin: ray start}}\n  storage:\n", [
        (29, 18, "unknown key 'begin'", ""),
    ]),
    ("      cpu: 64", "      cpu: 64\n      ray_start: ray start --num-gpus={gpus}", [
        (13, 18, "ray_start has a {gpus} that stands for nothing; there are {head}, {host}, {accelerators} "
         "(and {{gpus}} for the word itself)", ""),
    ]),
    ("      cpu: 64", "      cpu: 64\n      ray_strat: ray start", [
        (13, 7, "unknown key 'ray_strat'", "ray_start"),
    ]),
]
# fmt: on


def _broken(file: str, old: str, new: str) -> list[Found]:
    text = (CONFIGS / file).read_text()
    assert text.count(old) >= 1, f"{file} has no {old!r} to break"
    with pytest.raises(FileMistakes) as caught:
        check(text.replace(old, new, 1), file)
    assert {mistake.file for mistake in caught.value.mistakes} == {file}
    return [(m.line, m.column, m.message, m.suggestion) for m in caught.value.mistakes]


@pytest.mark.parametrize(("old", "new", "expected"), WORKFLOW)
def test_a_broken_workflow_file(old: str, new: str, expected: list[Found]) -> None:
    assert _broken("workflow.yaml", old, new) == expected


@pytest.mark.parametrize(("old", "new", "expected"), CLUSTER)
def test_a_broken_cluster_file(old: str, new: str, expected: list[Found]) -> None:
    assert _broken("cluster.yaml", old, new) == expected


def test_there_are_thirty_of_each_kind() -> None:
    assert min(len(WORKFLOW), len(CLUSTER)) >= 30
    variants = [new for _, new, _ in (*WORKFLOW, *CLUSTER)]
    assert len(set(variants)) == len(variants)


@pytest.mark.parametrize("file", ["workflow.yaml", "cluster.yaml"])
def test_unbroken_they_load(file: str) -> None:
    check((CONFIGS / file).read_bytes(), file)
