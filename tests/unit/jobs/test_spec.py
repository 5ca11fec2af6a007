"""Values that operators write, what fields allow, and what is worked out from them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs import values
from jobs.errors import Refused
from jobs.spec import (
    Cluster,
    ControlNode,
    Paths,
    Queue,
    Resources,
    Scheduler,
    Storage,
    Training,
    Workflow,
    resolve_roots,
)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [
        ("10m", 600),
        ("1h30m", 5400),
        ("45s", 45),
        ("45", 45),
        (90, 90),
        (1.5, 1.5),
        ("1.5h", 5400),
        ("500ms", 0.5),
        ("2d", 172800),
    ],
)
def test_durations(written: object, seconds: float) -> None:
    assert values.seconds(written) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "written", ["", "m", "-5m", "10x", "1m 1", "1:30", 0, -1, True, None, [], float("nan"), "999999999d", 1e400]
)
def test_what_is_no_duration(written: object) -> None:
    with pytest.raises(ValueError, match=r"duration|longer than nothing"):
        values.seconds(written)


@settings(deadline=None)
@given(st.integers(0, 99), st.integers(0, 99), st.integers(1, 99))
def test_duration_parts_add_up(hours: int, minutes: int, rest: int) -> None:
    assert values.seconds(f"{hours}h{minutes}m{rest}s") == hours * 3600 + minutes * 60 + rest


def test_priorities_stand_in_order() -> None:
    assert values.priority_value("low") < values.priority_value("normal") < values.priority_value("high")
    assert values.priority_text("HIGH") == "high"
    assert values.priority_text(-7) == "-7"
    assert values.priority_value("101") > values.priority_value("high")
    for wrong in ("urgent", "1.5", 1001, True, None, "", "١"):
        with pytest.raises(ValueError, match="must be low, normal, high"):
            values.priority_text(wrong)


@pytest.mark.parametrize(
    ("written", "kept"),
    [(6379, "6379"), ("10001-10100", "10001-10100"), ("1 - 3", "1-3"), ("7-7", "7"), (65535, "65535")],
)
def test_ports(written: object, kept: str) -> None:
    assert values.ports(written) == kept


@pytest.mark.parametrize("written", [0, 65536, "10100-10001", "a-b", "1-2-3", "", True, -1, "1-99999", 1.5])
def test_what_is_no_port(written: object) -> None:
    with pytest.raises(ValueError, match=r"port|backwards"):
        values.ports(written)


def test_command_lines_are_split_as_a_shell_would_and_never_given_to_one() -> None:
    assert values.command("train.py --name 'a b' $HOME") == ["train.py", "--name", "a b", "$HOME"]
    assert values.command(["train.py", "; rm"]) == ["train.py", "; rm"]
    with pytest.raises(ValueError, match="never closed"):
        values.command("train.py 'x")
    with pytest.raises(ValueError, match="command line"):
        values.command(["train.py", 3])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "abcdef"),
        ("AWS_SECRET_ACCESS_KEY", "x"),
        ("PASSWORD", "12345678"),
        ("apiKey", "zzz"),
        ("WANDB_API_KEY", "0123456789abcdef"),
        ("DATABASE", "postgres://me:hunter2@db/x"),
        ("HARMLESS", "hf_0123456789abcdefghij"),
        ("CERT", "-----BEGIN RSA PRIVATE KEY-----"),
    ],
)
def test_plaintext_secrets_are_seen(name: str, value: str) -> None:
    assert values.is_plaintext_secret(name, value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("HF_TOKEN", "${env:HF_TOKEN}"),
        ("HF_TOKEN", "${file:/run/secrets/hf}"),
        ("AUTH_HEADER", "Bearer ${env:TOKEN}"),
        ("TOKENIZERS_PARALLELISM", "false"),
        ("MAX_TOKENS", "4096"),
        ("HF_TOKEN_PATH", "/run/secrets/hf"),
        ("HF_TOKEN", ""),
        ("NCCL_DEBUG", "INFO"),
        ("PROXY", "http://proxy:3128"),
    ],
)
def test_what_is_no_plaintext_secret(name: str, value: str) -> None:
    assert not values.is_plaintext_secret(name, value)


@pytest.mark.parametrize("text", ["${env:A}", "x ${env:A_1}/${file:/a/b}", "plain", "$HOME", "${file:~/t}"])
def test_references_of_the_right_form(text: str) -> None:
    assert values.reference_fault(text) == ""


@pytest.mark.parametrize(
    "text", ["${A}", "${env:}", "${env:1A}", "${file:relative}", "${env:A", "${envs:A}", "${env:A} ${B}", "${env:A B}"]
)
def test_references_of_a_wrong_form(text: str) -> None:
    assert "does not resolve" in values.reference_fault(text)


def test_what_a_workflow_does_without_words() -> None:
    workflow = Workflow(name="w")
    assert workflow.script == ["train.py"]
    assert workflow.processes_per_node == 1
    assert (workflow.start_timeout, workflow.stop_grace, workflow.max_duration) == (600.0, 30.0, None)
    gpus = Workflow(name="w", resources=Resources(nodes=2, accelerators_per_node=4))
    assert gpus.processes_per_node == 4
    assert gpus.resources.accelerators == 8
    assert Workflow(name="w", training=Training(processes_per_node=3)).processes_per_node == 3
    assert Workflow(name="w", train_script="t.py").script == ["t.py"]


def test_a_default_is_not_shared_between_workflows() -> None:
    Workflow(name="a").training.parameters["x"] = 1
    assert Workflow(name="b").training.parameters == {}


def _cluster(**paths: str) -> Cluster:
    return Cluster(name="c", control_nodes=[ControlNode(host="h")], storage=Paths(**paths))


def test_relative_roots_lie_under_the_clusters() -> None:
    cluster = _cluster(dataset_path="/mnt/data", output_path="/mnt/out")
    workflow = Workflow(name="w", storage=Storage(data_root="a/b", output_root="/elsewhere/"))
    assert resolve_roots(workflow, cluster) == ("/mnt/data/a/b", "/elsewhere")
    assert resolve_roots(Workflow(name="w"), cluster) == ("/mnt/data", "/mnt/out")


def test_roots_that_cannot_be_made_absolute_are_refused() -> None:
    relative = Workflow(name="w", storage=Storage(output_root="out"))
    with pytest.raises(Refused, match="output_root 'out' is relative"):
        resolve_roots(relative, None)
    with pytest.raises(Refused, match="says nowhere where to write"):
        resolve_roots(Workflow(name="w"), _cluster(dataset_path="/d"))
    only_out = resolve_roots(Workflow(name="w", storage=Storage(output_root="/o")), None)
    assert only_out == ("", "/o")


def test_the_default_queue_need_not_be_listed() -> None:
    scheduler = Scheduler(default_queue="general", queues=[Queue(name="training", max_accelerators=4)])
    general = scheduler.queue(None)
    assert general is not None
    assert (general.name, general.max_accelerators) == ("general", None)
    training = scheduler.queue("training")
    assert training is not None
    assert training.max_accelerators == 4
    assert scheduler.queue("nosuch") is None
