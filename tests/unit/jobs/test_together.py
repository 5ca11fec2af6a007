"""A workflow file against a cluster file: what can never run there is said at its line in the workflow's file."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.load import FileMistakes, check_together, load_workflow

CONFIGS = Path(__file__).parents[2] / "data/configs"
WORKFLOW = (CONFIGS / "workflow.yaml").read_text()
CLUSTER = (CONFIGS / "cluster.yaml").read_text()


def found(workflow: str, cluster: str = CLUSTER) -> list[tuple[str, int, int, str, str]]:
    with pytest.raises(FileMistakes) as caught:
        check_together(workflow, "w.yaml", cluster, "c.yaml")
    return [(m.file, m.line, m.column, m.message, m.suggestion) for m in caught.value.mistakes]


def replaced(text: str, *pairs: tuple[str, str]) -> str:
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def test_the_documented_files_go_together() -> None:
    assert check_together(WORKFLOW, "w", CLUSTER, "c") == load_workflow(WORKFLOW, "w")


@pytest.mark.parametrize(
    ("changes", "line", "column", "sentence", "suggestion"),
    [
        (
            [("  resources:", "  queue: trainin\n  resources:")],
            5, 10, "there is no queue trainin; c.yaml has training, inference, general", "training",
        ),
        (
            [("  resources:", "  queue: inference\n  resources:"), ("rs_per_node: 4", "rs_per_node: 8")],
            7, 12, "it asks for 16 accelerators, and queue inference may hold 8 at most; training may hold more", "",
        ),
        (
            [("  resources:", "  pool: trainng\n  resources:")],
            5, 9,
            "no worker in c.yaml has the label pool: trainng; the workers have pool inference, training", "training",
        ),
        (
            [("  resources:", "  pool: {zone: a}\n  resources:")],
            5, 16, "no worker in c.yaml has the label zone: a; none has a label zone", "",
        ),
        (
            [("  resources:", "  pool: training\n  resources:")],
            7, 12, "it asks for 2 nodes, and c.yaml has 1 worker with those labels and enough of everything", "",
        ),
        (
            [("nodes: 2", "nodes: 3")],
            6, 12, "it asks for 3 nodes, and c.yaml has 2 workers with enough of everything", "",
        ),
        (
            [("nodes: 2", "nodes: 1"), ("accelerators_per_node: 4", "accelerators_per_node: 16")],
            7, 28, "no worker in c.yaml has 16 accelerators; the most that one has is 8", "",
        ),
        (
            [("cpu_cores_per_node: 32", "cpu_cores_per_node: 65")],
            8, 25, "no worker in c.yaml has 65 CPU cores; the most that one has is 64", "",
        ),
        (
            [("memory_gb_per_node: 256", "memory_gb_per_node: 1024")],
            9, 25, "no worker in c.yaml has 1024 GB of memory; the most that one has is 512", "",
        ),
    ],
)  # fmt: skip
def test_what_a_cluster_can_never_run(
    changes: list[tuple[str, str]], line: int, column: int, sentence: str, suggestion: str
) -> None:
    assert found(replaced(WORKFLOW, *changes)) == [("w.yaml", line, column, sentence, suggestion)]


def test_more_than_any_user_may_hold() -> None:
    limited = replaced(CLUSTER, ("  scheduler:\n", "  scheduler:\n    limits: {max_accelerators_per_user: 4}\n"))
    (only,) = found(WORKFLOW, limited)
    assert only == ("w.yaml", 6, 12, "it asks for 8 accelerators, and in c.yaml no user may hold more than 4", "")
    privileged = replaced(limited, ("  scheduler:\n", "  scheduler:\n    user_quotas: {alice: 8}\n"))
    check_together(WORKFLOW, "w", privileged, "c")


def test_folders_that_the_cluster_cannot_complete() -> None:
    (only,) = found(WORKFLOW, replaced(CLUSTER, ('    output_path: "/mnt/output"\n', "")))
    assert only[:3] == ("w.yaml", 17, 18)
    assert "'object-storage/training-output/task-id' is relative" in only[3]


def test_an_overlay_is_judged_too_and_said_once() -> None:
    overlays = WORKFLOW + "  overlays:\n    dev: {seed: 1}\n    prod: {resources: {nodes: 3}}\n"
    assert found(overlays) == [
        ("w.yaml", 23, 31, "with overlay prod: it asks for 3 nodes, and c.yaml has 2 workers with enough of everything",
         "")
    ]  # fmt: skip
    every = replaced(overlays, ("  resources:", "  queue: nosuch\n  resources:"))
    assert [mistake[1] for mistake in found(every)] == [5, 24], "what the file says by itself is said once"


def test_mistakes_of_both_files_at_once() -> None:
    both = found(
        replaced(WORKFLOW, ("nodes: 2", "nodes: two")), replaced(CLUSTER, ("accelerators: 8", "accelerators: x"))
    )
    assert [mistake[:3] for mistake in both] == [("c.yaml", 11, 21), ("w.yaml", 6, 12)]


def test_a_cluster_that_lists_no_workers_tells_nothing_of_nodes() -> None:
    bare = "cluster:\n  name: c\n  control_nodes: [{host: h}]\n  storage: {output_path: /o, dataset_path: /d}\n"
    check_together(replaced(WORKFLOW, ("nodes: 2", "nodes: 99")), "w", bare, "c")


SWEEP = """
workflow:
  name: w
  training: {{parameters: {{width: 64, deep: {{a: 1}}}}}}
  sweep:
    parameters: {{{0}}}
"""


@pytest.mark.parametrize(
    ("grid", "column", "sentence", "suggestion"),
    [
        ("lerning_rate: [1]", 18,
         "there is no training.lerning_rate to vary; a parameter of the script's own is parameters.NAME",
         "learning_rate"),
        ("width: [1]", 18, "there is no training.width to vary; a parameter of the script's own is parameters.NAME",
         "parameters.width"),
        ("training.epochs: [1]", 18, "a sweep's paths begin below training: leave out training.", "epochs"),
        ("parameters: [1]", 18, "parameters names none of the script's parameters; write parameters.NAME", ""),
        ("parameters.width.x: [1]", 18,
         "training.parameters.width is a value here, so there is no parameters.width.x", ""),
        ("learning_rate: [1e-3, fast]", 40, "learning_rate must be a number, not text", ""),
        ("learning_rate: [1e-3, '1']", 40, "learning_rate must be a number, not text in quotes", "1"),
        ("learning_rate: [1e-3, -1]", 40, "learning_rate must be more than 0", ""),
        ("batch_size: [8, 8.5]", 34, "batch_size must be a whole number, not a number with a fraction", ""),
        ("epochs: [1, 2, 1]", 33, "the sweep has this value of epochs already", ""),
        ("parameters.x: ['${env:A}']", 33,
         "a value of parameters.x has a reference, and references are resolved in env only", ""),
        ("epochs: []", 26, "sweep.parameters.epochs needs at least 1 of them", ""),
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_sweep(grid: str, column: int, sentence: str, suggestion: str) -> None:
    with pytest.raises(FileMistakes) as caught:
        load_workflow(SWEEP.format(grid), "w.yaml")
    assert [(m.line, m.column, m.message, m.suggestion) for m in caught.value.mistakes] == [
        (6, column, sentence, suggestion)
    ]


def test_a_sweep_has_a_thousand_points_at_most() -> None:
    wide = ", ".join(str(number) for number in range(1, 42))
    with pytest.raises(FileMistakes) as caught:
        load_workflow(SWEEP.format(f"epochs: [{wide}], parameters.width: [{wide}]"), "w.yaml")
    (only,) = caught.value.mistakes
    assert (only.line, only.column) == (6, 5)
    assert only.message == "the sweep has 1,681 points (41 × 41), and 1,000 is the most"
    load_workflow(SWEEP.format(f"epochs: [{wide}], parameters.width: [1, 2, 3]"), "w.yaml")


def test_a_sweep_varies_fields_and_parameters_and_overlays_change_it() -> None:
    text = SWEEP.format("learning_rate: [1e-3, 1e-4], parameters.deep.b: [x, [1], true, 1], parameters.new: [1]")
    workflow = load_workflow(
        text + "  overlays:\n    dev: {sweep: {parallel: 1}}\n    prod: {sweep: ~}\n", "w.yaml", "dev"
    )
    assert workflow.sweep is not None
    assert (workflow.sweep.parallel, len(workflow.sweep.parameters)) == (1, 3)
    prod = load_workflow(text + "  overlays:\n    prod: {sweep: ~}\n", "w.yaml", "prod")
    assert prod.sweep is None
    with pytest.raises(FileMistakes, match="learning_rate must be a number"):
        load_workflow(text + "  overlays: {dev: {sweep: {parameters: {learning_rate: [a]}}}}\n", "w.yaml")
