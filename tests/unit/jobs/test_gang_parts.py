"""The parts of a gang that need no Ray: what is missing, who failed first, copied lines, processes by their mark."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.errors import Refused
from jobs.gang import environment, placing, processes
from jobs.gang.echo import LINES_PER_SECOND, Echo
from jobs.gang.record import End, Record
from jobs.gang.verdict import MAX_LINE, Blame, Ended, culprit, last_error, sentence
from jobs.model import Failure, GangStatus, Launch, Outcome


def launch(**fields: Any) -> Launch:
    given: dict[str, Any] = {
        "run": "r1",
        "attempt": 1,
        "workflow": "w",
        "script": ["train.py"],
        "nodes": 2,
        "processes_per_node": 4,
        "gpus_per_node": 4,
        "cpus_per_node": 8,
        "run_directory": "/nowhere",
    }
    return Launch(**{**given, **fields})


def room(name: str, gpus: float, free: float, **labels: str) -> placing.NodeRoom:
    total, left = {"GPU": gpus, "CPU": 16.0}, {"GPU": free, "CPU": 16.0}
    return placing.NodeRoom(f"id-{name}", name, "10.0.0.1", total, left, labels)


def test_a_bundle_asks_for_what_the_launch_says_and_no_more() -> None:
    assert placing.bundle(launch(memory_bytes_per_node=5)) == {"GPU": 4.0, "CPU": 8.0, "memory": 5.0}
    assert placing.bundle(launch(gpus_per_node=0, cpus_per_node=0)) == {"CPU": 0.001}
    assert placing.selectors(launch()) == [{}, {}]
    chosen = placing.selectors(launch(excluded_node_ids=["a", "b"], node_labels={"pool": "h100"}))[1]
    assert chosen == {"pool": "h100", "ray.io/node-id": "!in(a,b)"}


def test_busy_and_never_are_told_apart() -> None:
    busy = placing.missing(launch(), [room("n1", 4, 4), room("n2", 4, 1), room("n3", 4, 0)])
    assert busy == (
        "needs 2 nodes with 4 GPUs, 8 CPUs each; n1 could take it; n2 has 1 GPU of 4 free; n3 has 0 GPUs of 4 free"
    )
    never = placing.missing(launch(nodes=1, gpus_per_node=8), [room("n1", 4, 4), room("cpu", 0, 0)])
    assert never == (
        "needs 1 node with 8 GPUs, 8 CPUs; no node could take it now; cpu has no GPU; n1 has 4 GPUs in all; "
        "this can never start here: no node is large enough"
    )
    assert placing.missing(launch(), [room("n1", 4, 4), room("n2", 4, 4)]) == ""


def test_nodes_that_may_not_be_used_say_so_and_many_are_counted() -> None:
    asked = launch(nodes=1, excluded_node_ids=["id-n1"], node_labels={"pool": "a"})
    text = placing.missing(asked, [room("n1", 4, 4, pool="a"), room("n2", 4, 4, pool="b")])
    assert "n1 is excluded (cordoned or suspected); n2 is not in the pool (pool=a)" in text
    crowd = placing.missing(launch(nodes=200), [room(f"n{i:03}", 4, 4 * (i % 2)) for i in range(100)])
    assert "and 42 more could take it" in crowd
    assert "42 more nodes cannot take it either" in crowd
    assert len(crowd) < 800


@given(
    st.lists(st.tuples(st.sampled_from([0.0, 2.0, 4.0, 8.0]), st.sampled_from([0.0, 0.5, 1.0])), max_size=12),
    st.integers(1, 6),
)
def test_it_is_silent_exactly_when_enough_nodes_could_take_it(nodes: list[tuple[float, float]], wanted: int) -> None:
    rooms = [room(f"n{index}", gpus, gpus * part) for index, (gpus, part) in enumerate(nodes)]
    text = placing.missing(launch(nodes=wanted), rooms)
    assert (text == "") == (sum(gpus * part >= 4 for gpus, part in nodes) >= wanted)
    if text:
        assert ("never start" in text) == (sum(gpus >= 4 for gpus, _ in nodes) < wanted)


def test_rays_listing_becomes_rooms_and_the_dead_are_left_out() -> None:
    listing = [
        {"NodeID": "a", "Alive": True, "NodeManagerHostname": "host-a", "Resources": {"CPU": 2.0}, "Labels": {}},
        {"NodeID": "b", "Alive": True, "NodeManagerHostname": "h", "Labels": {placing.NODE_LABEL: "worker-1"}},
        {"NodeID": "c", "Alive": False, "NodeManagerHostname": "host-c"},
    ]
    found = placing.rooms(listing, {"a": {"CPU": 1.0}})
    assert [(each.node_id, each.name, dict(each.free)) for each in found] == [
        ("a", "host-a", {"CPU": 1.0}),
        ("b", "worker-1", {}),
    ]


def ended(rank: int, code: int, at: float, error: str = "") -> Ended:
    return Ended(rank, f"node-{rank}", f"10.0.0.{rank}", code, at, log=error)


def test_the_first_in_time_is_to_blame_but_for_those_that_only_followed() -> None:
    reset = "RuntimeError: [pair.cc:537] Read error [10.0.0.1]:4: Connection reset by peer"
    cause = ended(1, 1, 10.2, "ValueError: bad batch")
    assert culprit([ended(0, 1, 10.1, reset), cause, ended(2, -15, 10.0), ended(3, 1, 10.3, reset)]) == cause
    assert culprit([ended(0, 1, 5.0, reset), ended(2, -9, 5.1)]) == ended(2, -9, 5.1)
    assert culprit([ended(0, 1, 5.1, reset), ended(2, 1, 5.0, reset)]) == ended(2, 1, 5.0, reset)
    assert culprit([]) is None


@pytest.mark.parametrize(
    ("end", "said"),
    [
        (ended(1, 1, 0, "ValueError: no"), "rank 1 on node-1 (10.0.0.1) exited 1: ValueError: no"),
        (ended(1, 3, 0), "rank 1 on node-1 (10.0.0.1) exited 3, without a word in its log"),
        (ended(1, -11, 0, "x"), "rank 1 on node-1 (10.0.0.1) was ended by SIGSEGV; its last line: x"),
        (ended(1, -63, 0, "x"), "rank 1 on node-1 (10.0.0.1) was ended by signal 63; its last line: x"),
    ],
)
def test_a_failure_is_a_sentence(end: Ended, said: str) -> None:
    assert sentence(end) == said


def test_a_kill_says_what_it_often_means() -> None:
    assert sentence(ended(1, -9, 0, "step 4")).endswith(
        "was killed by SIGKILL, possibly for want of memory; its last line: step 4"
    )


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("", ""),
        ("one\n\n  two  \n\n", "two"),
        ("Traceback:\n  File\nValueError: bad\nlater words\n", "ValueError: bad"),
        ("[rank1]: torch.distributed.DistStoreError: late\n[rank1]: end", "torch.distributed.DistStoreError: late"),
        ("KeyboardInterrupt\n", "KeyboardInterrupt"),
        ("UserWarning: hm\nNo Error: here\n", "No Error: here"),
        ("RuntimeError: " + "x" * 999, ("RuntimeError: " + "x" * 999)[:MAX_LINE]),
    ],
)
def test_the_last_error_line_is_found(log: str, error: str) -> None:
    assert last_error(log) == error


def test_lines_are_copied_with_their_rank_and_a_flood_is_counted(tmp_path: Path) -> None:
    written: list[str] = []
    echo = Echo(tmp_path, 2, written.append)
    (tmp_path / "rank-1.log").write_text("hello\n 1%\r50%\r99%\r\nhalf")
    echo.copy(1.0)
    assert written == ["[rank 1] hello", "[rank 1] 99%"]
    with (tmp_path / "rank-0.log").open("w") as log:
        log.writelines(f"{number}\n" for number in range(LINES_PER_SECOND + 50))
    echo.copy(1.5)
    echo.copy(2.0)
    assert len(written) == LINES_PER_SECOND + 1
    assert written[-1] == "[rank 0] … 52 lines left out, see rank-0.log"
    echo.copy(2.5, final=True)
    assert written[-1] == "[rank 1] half"


def test_references_are_resolved_and_never_repeated(tmp_path: Path) -> None:
    secret = tmp_path / "key"
    secret.write_text("s3cr3t\n")
    values = {"A": "x${env:NAME}y", "B": f"${{file:{secret}}}", "C": "plain"}
    assert environment.resolve(values, {"NAME": "v"}) == {"A": "xvy", "B": "s3cr3t", "C": "plain"}
    with pytest.raises(Refused, match=r"env.A refers to the environment variable NAME, which this node does not have"):
        environment.resolve(values, {})
    with pytest.raises(Refused, match=r"env.B refers to the file /none, which cannot be read on this node: No such"):
        environment.resolve({"B": "${file:/none}"}, {})


def test_a_gang_gets_its_settings_and_not_the_launch() -> None:
    asked = launch(config={"batch_size": 8}, resume_from_step=40, environment={"OMP_NUM_THREADS": "4"})
    made = environment.of_gang(asked, "worker-1", "127.0.0.5", {"RAYDECK_LAUNCH": "{}", "PATH": "/bin"})
    assert made["RAYDECK_CONFIG"] == '{"batch_size": 8}'
    assert (made["RAYDECK_RUN"], made["RAYDECK_ATTEMPT"], made["RAYDECK_NODE"]) == ("r1", "1", "worker-1")
    assert (made["RAYDECK_RESUME_STEP"], made["OMP_NUM_THREADS"], made["PATH"]) == ("40", "4", "/bin")
    assert made["GLOO_SOCKET_IFNAME"] == "lo"
    assert "RAYDECK_LAUNCH" not in made
    # An address that no device here has says nothing of the device to use.
    assert "GLOO_SOCKET_IFNAME" not in environment.of_gang(asked, "n", "192.0.2.77", {})
    assert environment.of_gang(asked, "n", "127.0.0.1", {"GLOO_SOCKET_IFNAME": "ib0"})["GLOO_SOCKET_IFNAME"] == "ib0"


@pytest.fixture
def mark() -> Generator[dict[str, str]]:
    """A mark of this test's own; what still carries it afterwards is ended."""
    marks = {"RAYDECK_TEST_MARK": uuid.uuid4().hex, "RAYDECK_TEST_PART": "1"}
    yield marks
    assert processes.end(lambda: processes.marked(marks), 0.0, 5.0) == []


DEAF = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
helper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
print(helper.pid, flush=True)
time.sleep(60)
"""


def test_marked_processes_are_found_and_ended_wherever_they_went(mark: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", DEAF], stdout=subprocess.PIPE, text=True, env={**os.environ, **mark}
    ) as child:
        assert child.stdout is not None
        helper = int(child.stdout.readline())
        assert {process.pid for process in processes.marked(mark)} == {child.pid, helper}
        assert {process.pid for process in processes.tree(child.pid)} == {child.pid, helper}
        assert processes.marked({**mark, "RAYDECK_TEST_PART": "2"}) == []
        assert processes.end(lambda: processes.marked(mark), 0.2, 10.0) == []
        assert processes.of(helper) is None
        assert child.wait(5) == -signal.SIGKILL


def test_a_process_is_not_taken_for_a_later_one_with_its_id(mark: dict[str, str]) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env={**os.environ, **mark}
    ) as child:
        real = processes.of(child.pid)
        assert real is not None
        processes.send(processes.Process(child.pid, real.started - 1), signal.SIGKILL)
        assert processes.alive(real)
        processes.send(real, signal.SIGKILL)
        assert child.wait(5) == -signal.SIGKILL
        assert not processes.alive(real)


def test_the_guard_ends_what_its_agent_left_when_it_goes(mark: dict[str, str], tmp_path: Path) -> None:
    folder = tmp_path / "agent"
    folder.mkdir()
    arguments = [f"{name}={value}" for name, value in mark.items()]
    command = [sys.executable, "-m", "jobs.gang.guard", str(folder), *arguments]
    with (
        subprocess.Popen(["sleep", "60"], env={**os.environ, **mark}) as left,
        subprocess.Popen(command, stdin=subprocess.PIPE) as guard,
    ):
        assert guard.wait(20) == 0
        assert left.poll() is None
        assert guard.stdin is not None
        guard.stdin.close()
        assert left.wait(20) == -signal.SIGTERM
    deadline = time.monotonic() + 20
    while folder.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_what_a_log_tells_in_an_outcome_holds_no_secret(tmp_path: Path) -> None:
    record = Record(launch(run_directory=str(tmp_path), attempt=1))
    record.keeper.start()
    line = "RuntimeError: cannot reach s3://user:hunter2@store/data, api_key=abcdefgh12345"
    blame = Blame(f"rank 0 exited 1: {line}", Failure.DATA, line, line)
    outcome = record.conclude("failed", blame.reason, "", blame, End([], []))
    assert outcome.reason.startswith("rank 0 exited 1: RuntimeError: cannot reach s3://user:")
    written = (tmp_path / "attempt-1" / "outcome.json").read_text() + (
        tmp_path / "attempt-1" / "status.json"
    ).read_text()
    assert not any(secret in written for secret in ("hunter2", "abcdefgh12345"))


def test_the_record_keeps_to_its_own_attempt(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text('{"step": 1, "attempt": 1}\n')
    record = Record(launch(run_directory=str(tmp_path), attempt=2))
    with metrics.open("a") as file:
        file.write('{"step": 2, "attempt": 1}\nnoise\n{"step": 3, "attempt": 2, "loss": "nan"}\n')
        file.write('{"step": 3, "attempt": 2, "rank": 1}\n{"step": 4}\n')
    assert [point.step for point in record.read_progress()] == [3, 4]
    assert record.read_progress() == []
    assert not record.stop_now
    (tmp_path / "attempt-2" / "stop-now").touch()
    assert record.stop_now
    record.keeper.start()
    blame = Blame("why", Failure.DATA, "no space", "no space", ["node-1"], 3, [7], ["node-2"])
    written = record.conclude("failed", "why", "; and more", blame, End([8], ["node-3"]))
    outcome = Outcome.model_validate_json((tmp_path / "attempt-2" / "outcome.json").read_text())
    assert outcome == written
    assert (outcome.failure, outcome.reason, outcome.last_step) == (Failure.DATA, "why; and more", 4)
    assert (outcome.survivors, outcome.unanswered, outcome.suspects) == ([7, 8], ["node-2", "node-3"], ["node-1"])
    status = GangStatus.model_validate_json((tmp_path / "attempt-2" / "status.json").read_text())
    assert (status.phase, status.detail) == ("ended", "why; and more")
    assert status.warnings[0] == "loss is not a number at step 3"
    assert status.progress is not None
    assert status.progress.step == 4
    assert sorted(path.name for path in (tmp_path / "attempt-2").iterdir()) == [
        "outcome.json",
        "progress.jsonl",
        "status.json",
        "stop-now",
    ]
