"""Every mistake in a file, with its place; and no input that does anything worse than be refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import tree
from jobs.load import FileMistakes, check, load_cluster, load_workflow
from jobs.spec import Cluster, Workflow
from jobs.wire import Mistake

DATA = Path(__file__).parents[2] / "data"


def found(text: str | bytes) -> list[tuple[int, int, str, str]]:
    """The mistakes of a text as line, column, message, suggestion."""
    with pytest.raises(FileMistakes) as caught:
        check(text, "f.yaml")
    return [(m.line, m.column, m.message, m.suggestion) for m in caught.value.mistakes]


def workflow(body: str) -> Workflow:
    return load_workflow(f"workflow:\n  name: w\n{body}", "f.yaml")


def test_the_documented_files_load_unmodified() -> None:
    cluster = load_cluster((DATA / "configs/cluster.yaml").read_bytes(), "cluster.yaml")
    assert [node.host for node in cluster.worker_nodes] == ["worker-01", "worker-02"]
    assert cluster.network.required_ports == ["6379", "8265", "10001-10100"]
    assert cluster.scheduler.default_queue == "general"
    assert cluster.head.metadata_store == "/data/cluster/meta"
    loaded = load_workflow((DATA / "configs/workflow.yaml").read_text(), "workflow.yaml")
    assert loaded.resources.accelerators == 8
    assert loaded.training.max_retry == 2
    assert isinstance(check((DATA / "configs/cluster.yaml").read_text(), "c"), Cluster)
    assert isinstance(check((DATA / "configs/workflow.yaml").read_text(), "w"), Workflow)


def test_all_mistakes_at_once_each_at_its_place() -> None:
    mistakes = found((DATA / "yaml/mistakes.yaml").read_text())
    places = {(line, column): (message, suggestion) for line, column, message, suggestion in mistakes}
    expected = {
        (2, 9): "letters, digits and dashes",
        (3, 9): "must be one of train or ray",
        (4, 3): "unknown key 'batch_size'",
        (5, 3): "unknown key 'resorces'",
        (7, 22): "resources.nodes must be a whole number, not text",
        (7, 50): "must be at least 0",
        (7, 74): "must be a whole number, not a number with a fraction",
        (9, 15): "HF_TOKEN looks like a secret",
        (10, 11): "no is false to some readers",
        (12, 5): "'1x' is no name for an environment variable",
        (13, 18): "start_timeout must be a duration",
        (16, 17): "training.batch_size must be a whole number, not text in quotes",
        (17, 27): "yes is true to some readers",
        (17, 39): "begins with a 0",
        (18, 10): "sweep needs parameters",
        (20, 15): "a quote that is never closed",
        (21, 3): "'name' stands here a second time",
        (23, 31): "resources.nodes must be a whole number",
        (24, 5): "unknown overlay 'prd'",
    }
    assert places.keys() == expected.keys()
    for place, words in expected.items():
        assert words in places[place][0], place
    assert places[(3, 9)][1] == "train"
    assert places[(4, 3)][1] == "training.batch_size"
    assert places[(5, 3)][1] == "resources"
    assert places[(10, 11)][1] == "false"
    assert places[(24, 5)][1] == "prod"
    assert mistakes == sorted(mistakes, key=lambda mistake: mistake[:2])


def test_a_secret_never_shows_in_what_is_said_of_it() -> None:
    with pytest.raises(FileMistakes) as caught:
        check((DATA / "yaml/mistakes.yaml").read_text(), "f.yaml")
    assert "anybody" not in str(caught.value)
    assert all("anybody" not in mistake.message for mistake in caught.value.mistakes)
    number = found("workflow:\n  name: w\n  env: {DB_PASSWORD: 31415926}\n")
    assert number[0][:2] == (3, 22)
    assert "31415926" not in number[0][2]


def test_numbers_in_the_environment_are_taken_as_written() -> None:
    loaded = workflow("  env: {A: 1.10, B: 0x10, C: 1e3, D: '007', E: 12}\n  data: {version: 2024.10}\n")
    assert loaded.env == {"A": "1.10", "B": "0x10", "C": "1e3", "D": "007", "E": "12"}
    assert loaded.data.version == "2024.10"


def test_numbers_are_read_as_people_write_them() -> None:
    loaded = workflow(
        "  training: {learning_rate: 1e-3, parameters: {a: 1E5, b: 0x10, c: 1_000, d: 2024-01-01, e: .5}}\n"
    )
    assert loaded.training.learning_rate == pytest.approx(0.001)
    assert loaded.training.parameters == {"a": 1e5, "b": 16, "c": 1000, "d": "2024-01-01", "e": 0.5}


@pytest.mark.parametrize("number", [".inf", "-.inf", ".nan", "1e999", "9" * 5000])
def test_numbers_that_no_json_can_carry_are_mistakes(number: str) -> None:
    assert len(found(f"workflow:\n  name: w\n  training: {{parameters: {{a: {number}}}}}\n")) == 1


def test_an_empty_section_is_one_that_is_not_there() -> None:
    loaded = workflow("  training:\n  env:\n  overlays:\n  resources: ~\n  entrypoint: [a.py]\n")
    assert loaded.training == Workflow(name="x").training
    assert found("workflow:\n  name: w\n  kind:\n")[0] == (
        3,
        8,
        "kind has no value; write one, or leave the line out",
        "",
    )


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("  kind: ray\n", 3, "kind ray needs an entrypoint"),
        ("  entrypoint: a.py\n  train_script: b.py\n", 4, "not both"),
        ("  entrypoint: python a.py\n", 3, "name the script itself"),
        ("  entrypoint: [/usr/bin/a.py]\n", 3, "must lie in the code folder"),
        ("  train_script: ../a.py\n", 3, "must lie in the code folder"),
        ("  code: /src\n", 3, "relative to this file's folder"),
        ("  storage: {output_root: s3://bucket/x}\n", 3, "every node mounts"),
        ("  storage: {data_root: ../../etc}\n", 3, "climb out"),
        ("  storage: {data_root: '${HOME}/x'}\n", 3, "does not resolve"),
        ("  storage: {data_root: '${env:DATA}'}\n", 3, "references are resolved in env only"),
        ("  training: {parameters: {deep: [{a: '${env:X}'}]}}\n", 3, "references are resolved in env only"),
        ("  env: {A: '${file:relative}'}\n", 3, "does not resolve"),
        ("  env: {RAYDECK_RUN: x}\n", 3, "raydeck's own"),
        ("  serve: {port: 1}\n", 3, "serve is not supported by this version"),
        ("  training:\n    epochs: true\n", 4, "a whole number, not true"),
        ("  queue: 5\n", 3, "must be text, not a number; put it in quotes"),
        ("  resources: 5\n", 3, "must be a mapping"),
        ("  env: [a]\n", 3, "must be a mapping (lines of key: value), not a list"),
        ("  priority: urgent\n", 3, "must be low, normal, high"),
        ("  stop_grace: 0\n", 3, "longer than nothing"),
    ],
)
def test_one_mistake(body: str, line: int, words: str) -> None:
    mistakes = found(f"workflow:\n  name: w\n{body}")
    assert len(mistakes) == 1
    assert mistakes[0][0] == line
    assert words in mistakes[0][2]


@pytest.mark.parametrize(
    ("body", "line", "words"),
    [
        ("  control_nodes: []\n", 3, "needs at least 1"),
        ("", 2, "cluster needs control_nodes"),
        ("  control_nodes: [{role: x}]\n", 3, "control_nodes[1] needs host"),
        ("  control_nodes: [{host: a}]\n  network: {internal_network: 10.0.0.1/24}\n", 4, "must be a network"),
        ("  control_nodes: [{host: a}]\n  network: {required_ports: [6379, 9-1]}\n", 4, "runs backwards"),
        ("  control_nodes: [{host: a}]\n  worker_nodes: [{host: b}, {host: b}]\n", 4, "already"),
        ("  control_nodes: [{host: a}]\n  scheduler: {queues: [{name: q}, {name: q}]}\n", 4, "a queue q already"),
        ("  control_nodes: [{host: a}]\n  storage: {log_path: var/log}\n", 4, "absolute"),
        ("  control_nodes: [{host: a}]\n  access: {dashboard: 'http://u:p@h:1'}\n", 4, "without user"),
        ("  control_nodes: [{host: a}]\n  roles: {admins: ['@ops', 'a b']}\n", 4, "no user name"),
        ("  control_nodes: [{host: '-oProxyCommand=x'}]\n", 3, "no host name"),
    ],
)
def test_one_mistake_in_a_cluster(body: str, line: int, words: str) -> None:
    mistakes = found(f"cluster:\n  name: c\n{body}")
    assert [(mistake[0], words in mistake[2]) for mistake in mistakes] == [(line, True)]


OVERLAID = """
workflow:
  name: w
  env: {A: a, B: b}
  resources: {nodes: 4, accelerators_per_node: 8}
  overlays:
    dev:
      resources: {nodes: 1}
      env: {A: dev}
      queue: small
"""


def test_an_overlay_is_laid_over_mapping_by_mapping() -> None:
    plain, dev = load_workflow(OVERLAID, "f"), load_workflow(OVERLAID, "f", "dev")
    assert (plain.resources.nodes, plain.queue, plain.env) == (4, None, {"A": "a", "B": "b"})
    assert (dev.resources.nodes, dev.resources.accelerators_per_node) == (1, 8)
    assert (dev.queue, dev.env) == ("small", {"A": "dev", "B": "b"})


def test_an_overlay_that_is_not_there() -> None:
    with pytest.raises(FileMistakes, match="no overlay 'dve'") as caught:
        load_workflow(OVERLAID, "f", "dve")
    assert caught.value.mistakes[0].suggestion == "dev"


def test_an_overlay_cannot_change_the_name() -> None:
    assert "cannot change name" in found("workflow:\n  name: w\n  overlays: {dev: {name: x}}\n")[0][2]


@pytest.mark.parametrize(
    ("text", "line", "column", "words"),
    [
        ("workflow:\n  name: w\n\tqueue: q\n", 3, 1, "a tab indents this line"),
        ("workflow:\n  name: a: b\n", 2, 10, "a colon is one too many"),
        ("workflow:\n  name: [a\n", 2, 9, "not closed"),
        ("workflow:\n  name: 'a\n", 2, 9, "never closed"),
        ("workflow:\n  name: w\n   queue: q\n", 3, 9, "a colon is one too many"),
        ("workflow:\n  name: !!str w\n", 2, 9, "tags"),
        ("workflow:\n  name: !!python/object:os.system w\n", 2, 9, "tags"),
        ("workflow:\n  name: w\n---\nworkflow: {}\n", 3, 1, "a second document"),
        ("workflow:\n  name: *x\n", 2, 9, "stands for nothing named before it"),
        ("workflow: &a\n  name: w\n  env: *a\n", 3, 8, "contains it"),
        ("workflow:\n  <<: {name: w}\n  name: w\n", 2, 3, "merge keys"),
        ("workflow:\n  ? [a]\n  : b\n  name: w\n", 2, 5, "a key must be a plain word"),
        ("", 1, 1, "must begin with workflow: or cluster:"),
        ("# nothing\n", 1, 1, "must begin with workflow: or cluster:"),
        ("[1]\n", 1, 1, "must begin with workflow: or cluster:"),
        ("workflw:\n  name: w\n", 1, 1, "neither workflow nor cluster"),
        ("workflow: 5\n", 1, 11, "must be a mapping"),
        ("workflow:\n  name: w\x07\n", 2, 10, "U+0007"),
        ("workflow:\r\n  name: w\r\n  kind: x\r\n", 3, 9, "one of train or ray"),
        ("\ufeffworkflow:\n  kind: x\n  name: w\n", 2, 9, "one of train or ray"),
        ("workflow:\n  name: w\n  name2: ünïcode\n  kind: x\n", 4, 9, "one of train or ray"),
    ],
)
def test_broken_yaml(text: str, line: int, column: int, words: str) -> None:
    for mistake in found(text):
        if words in mistake[2]:
            assert mistake[:2] == (line, column)
            return
    pytest.fail(f"no mistake says {words!r}: {found(text)}")


def test_a_file_of_the_other_kind() -> None:
    with pytest.raises(FileMistakes, match="this is a cluster file"):
        load_workflow((DATA / "configs/cluster.yaml").read_text(), "f")


def test_bytes_that_are_no_text() -> None:
    assert found(b"workflow:\n  name: \xff\n") == [(2, 9, "the file is not UTF-8 text from here on", "")]


def bomb(levels: int) -> str:
    lines = ["workflow:", "  name: w", "  training:", "    parameters:", "      a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"      a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, levels)]
    return "\n".join(lines)


def test_a_few_lines_cannot_stand_for_millions_of_values() -> None:
    assert any("stands for more than" in mistake[2] for mistake in found(bomb(10)))
    chain = "\n".join(f"      b{i}: &b{i} [*b{i - 1}]" for i in range(1, 100))
    deep = f"workflow:\n  name: w\n  training:\n    parameters:\n      b0: &b0 [x]\n{chain}\n"
    assert any("levels deep" in mistake[2] for mistake in found(deep))


def test_an_alias_within_bounds_is_followed() -> None:
    loaded = workflow("  training: {parameters: {a: &a [1, 2], b: *a}}\n")
    assert loaded.training.parameters["b"] == [1, 2]


def test_depth_and_size_are_bounded() -> None:
    assert any("levels deep" in mistake[2] for mistake in found(f"workflow: {'[' * 60}{']' * 60}"))
    assert len(found("workflow: " + "[" * 100_000)) == 1
    assert "at most 1,000,000 are read" in found("#" * 1_000_001)[0][2]
    assert len(found("workflow:\n" + "".join(f"  k{i}: 1\n" for i in range(5000)))) == tree.MAX_MISTAKES


# fmt: off
_WORDS = [
    "workflow", "cluster", "name", "env", "overlays", "dev", "resources", "nodes", "training", "parameters", "pool",
    "queue", "control_nodes", "host", "scheduler", "queues", "entrypoint", "a", "<<", "sweep", "kind",
]
_SCALARS = [
    "1", "1.5", "1e3", "no", "yes", "~", "'x'", '"y"', "10m", "${env:A}", "${B}", "007", "0x1F", "*a", "[", "{", "]",
    "}", "|", ">", "\t", "2024-01-01", "1:30", "ü", "@", "%", ".inf", "=", "_", "1__0", "", "&a b", "!!int 3", "- x",
    "# c",
]
# fmt: on
_LINE = st.builds(
    lambda indent, key, value: f"{' ' * indent}{key}: {value}",
    st.integers(0, 6),
    st.sampled_from(_WORDS),
    st.sampled_from(_SCALARS),
)
_BEGIN = [
    "",
    "workflow:\n",
    "cluster:\n",
    "workflow:\n  name: w\n",
    "cluster:\n  name: c\n  control_nodes: [{host: h}]\n",
]
_FILE = st.builds(
    lambda top, lines, end: top + end.join(lines) + end,
    st.sampled_from(_BEGIN),
    st.lists(st.one_of(_LINE, st.sampled_from(_SCALARS))),
    st.sampled_from(["\n", "\r\n", "\r", "\x85", "\u2028"]),
)


def _only_mistakes_inside(content: str | bytes) -> None:
    text = content.decode("utf-8-sig", "replace") if isinstance(content, bytes) else content.removeprefix("\ufeff")
    lines = re.split(r"\r\n|\n|\r", text)
    for load in (check, load_workflow, load_cluster):
        mistakes: list[Mistake] | None = None
        try:
            load(content, "f.yaml")
        except FileMistakes as error:
            mistakes = error.mistakes
        assert mistakes != []
        for mistake in mistakes or ():
            assert mistake.message
            assert 1 <= mistake.line <= len(lines)
            assert 1 <= mistake.column <= len(lines[mistake.line - 1]) + 1


@settings(deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_do_worse_than_be_refused(content: bytes) -> None:
    _only_mistakes_inside(content)


@settings(deadline=None)
@given(st.text(max_size=200))
def test_no_text_does_worse_than_be_refused(content: str) -> None:
    _only_mistakes_inside(content)


@given(_FILE)
@settings(max_examples=300, deadline=None)
def test_no_file_that_is_nearly_right_does_worse_than_be_refused(content: str) -> None:
    _only_mistakes_inside(content)


@given(_FILE)
@settings(max_examples=60, deadline=None)
def test_the_same_without_the_c_library(content: str) -> None:
    fast = tree._LOADER
    tree._LOADER = yaml.BaseLoader
    try:
        _only_mistakes_inside(content)
    finally:
        tree._LOADER = fast
