"""How a rank fares: what the kernel and the rank tell its node's agent, and how the driver tells it on."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import jobs
from jobs import pulse
from jobs.gang import asked, environment, gather, vitals
from jobs.gang.told import LARGE_EVERY_SECONDS, Heard, Told
from jobs.gang.vitals import Vitals, Watch
from jobs.looks import NodeLook, RankLook
from jobs.model import Launch, Rank

ROOT = Path(jobs.__file__).parents[1]
LIMIT_SECONDS = 20.0

RANK = """
import os, sys, time
os.environ["RAYDECK_RANK_PID"] = str(os.getpid())
import jobs
for step in (1, 2, 3):
    jobs.report(step=step)
if not os.fork():
    jobs.report(step=99)  # a child is no rank
    os._exit(0)
os.wait()
print("up", flush=True)

def stand_here():
    time.sleep(600)

stand_here()
"""


def until(what: str, condition: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (value := condition()):
        assert time.monotonic() < deadline, what
        time.sleep(0.02)
    return value


@pytest.fixture
def rank(tmp_path: Path) -> Generator[subprocess.Popen[bytes]]:
    """A rank without a gang: rank 3, of whose folder the test is the agent. It stands in a function of its own."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("RAYDECK_")}
    variables |= {"RANK": "3", "RAYDECK_PULSE": str(tmp_path), "PYTHONPATH": str(ROOT)}
    log = (tmp_path / "log").open("wb")
    child = subprocess.Popen([sys.executable, "-c", RANK], env=variables, stdout=log, stderr=log)
    until("a rank", lambda: (tmp_path / "log").read_bytes() == b"up\n" or child.poll() is not None)
    assert child.poll() is None, (tmp_path / "log").read_text()
    yield child
    child.kill()
    child.wait(LIMIT_SECONDS)
    log.close()


def request(rank: subprocess.Popen[bytes], look: str = "one", **fields: Any) -> dict[str, Any]:
    one = {"rank": 3, "pid": rank.pid, "exit_code": None, "gpu": "1", "node": "n", "state": "S", "state_seconds": 5.0}
    return {"id": look, "node": "n", "index": 0, "ras": "", "ranks": [{**one, **fields}]}


def taken(folder: Path, asked_for: dict[str, Any], spy: str) -> tuple[NodeLook, RankLook]:
    (folder / "look.json").write_text(json.dumps(asked_for))
    found = gather.look(folder, asked_for, spy)
    return NodeLook(**found["node"]), RankLook(**found["ranks"][0])


def functions(rank: RankLook) -> list[str]:
    return [frame.function for frame in rank.threads[0].frames if not frame.native]


def test_a_rank_tells_its_step_and_its_child_does_not(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    told = pulse.read(tmp_path, 3)
    assert told is not None
    assert told.step == 3
    assert 0 <= time.monotonic() - told.monotonic < LIMIT_SECONDS
    assert abs(time.time() - told.wall) < LIMIT_SECONDS
    assert pulse.read(tmp_path, 4) is None
    (tmp_path / "pulse-4").write_bytes((tmp_path / "pulse-3").read_bytes()[:-8] + bytes(8))
    assert pulse.read(tmp_path, 4) is None  # half of it is of the write before


def test_what_a_rank_took_without_waiting_is_the_mean_of_its_last_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pulse, "_begun_in", None)
    monkeypatch.setattr(pulse, "_rank", None)
    for name, value in {"RANK": "2", pulse.FOLDER: str(tmp_path), pulse.RANK_PID: str(os.getpid())}.items():
        monkeypatch.setenv(name, value)

    def own() -> float | None:
        told = pulse.read(tmp_path, 2)
        assert told is not None
        return told.own_seconds

    jobs.report(step=1)
    assert own() is None
    jobs.report(step=2, own_seconds=9.0)
    assert own() == 9.0
    for step in range(3, 19):
        jobs.report(step=step, own_seconds=0.5)
    assert own() == 0.5, "the first ones load and warm up"
    pulse.reached(19)
    assert own() == 0.5
    assert Watch(tmp_path).of(2, None)[1].own_seconds == 0.5


def test_outside_of_a_gang_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pulse, "_begun_in", None)
    monkeypatch.setattr(pulse, "_rank", None)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("RAYDECK_PULSE", str(tmp_path))
    monkeypatch.setenv("RAYDECK_RANK_PID", "1")
    pulse.reached(5)
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(pulse, "_begun_in", None)


def test_a_watch_sees_step_output_state_and_that_it_is_stopped(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    watch = Watch(tmp_path)
    _, seen = watch.of(3, rank.pid)
    assert (seen.step, seen.state, seen.output_bytes) == (3, "S", 3)
    assert seen.wchan in ("hrtimer_nanosleep", "")
    assert watch.of(3, rank.pid)[1] is seen  # once a second is enough
    rank.send_signal(signal.SIGSTOP)
    stopped = until("state T", lambda: found if (found := watch.of(3, rank.pid)[1]).state == "T" else None)
    assert stopped.cpu is not None
    assert stopped.cpu < 0.5
    assert stopped.state_seconds == 0.0
    later = until("an age", lambda: found if (found := watch.of(3, rank.pid)[1]).state_seconds else None)
    assert later.output_seconds > 0.5
    rank.kill()
    rank.wait(LIMIT_SECONDS)
    until("its end", lambda: watch.of(3, rank.pid)[1].state == "")
    assert watch.of(9, None)[1] == Vitals()


def test_a_look_has_the_stack_and_what_the_rank_says_itself(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    node, found = taken(tmp_path, request(rank), gather.py_spy())
    assert (node.problem, found.stack_by, found.stack_problem) == ("", "py-spy", "")
    assert functions(found)[:2] == ["stand_here", "<module>"]
    assert any(frame.native for frame in found.threads[0].frames), found.native_problem
    assert (found.state, found.step, found.recorder_problem) == ("S", 3, "torch.distributed is not loaded")
    assert found.state_seconds is not None
    assert found.state_seconds >= 5.0


def test_without_py_spy_the_rank_tells_its_stack_and_it_is_said_why(
    rank: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    _, found = taken(tmp_path, request(rank), "")
    assert (found.stack_by, found.stack_problem) == ("the rank itself", "py-spy is not installed beside Ray")
    assert functions(found)[:2] == ["stand_here", "<module>"]
    refusing = tmp_path / "refusing"
    refusing.write_text(
        "#!/bin/sh\necho 'Permission Denied: Try running again with elevated permissions' >&2\nexit 1\n"
    )
    refusing.chmod(0o755)
    _, found = taken(tmp_path, request(rank, "two"), str(refusing))
    assert found.stack_by == "the rank itself"
    assert found.stack_problem == "py-spy: Permission Denied: Try running again with elevated permissions"


def test_a_stopped_rank_is_read_without_waking_it(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    rank.send_signal(signal.SIGSTOP)
    until("state T", lambda: vitals.stat(rank.pid)[0] == "T")
    _, found = taken(tmp_path, request(rank), gather.py_spy())
    assert (found.state, found.stack_by) == ("T", "py-spy")
    assert functions(found)[:2] == ["stand_here", "<module>"]
    assert found.recorder_problem == "its process is stopped, and cannot answer"
    assert found.native_problem == "native calls cannot be read in state T"
    assert vitals.stat(rank.pid)[0] == "T"


def test_what_hangs_is_left_behind_at_the_limit(
    rank: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hanging = tmp_path / "hanging"
    hanging.write_text("#!/bin/sh\nexec sleep 60\n")
    hanging.chmod(0o755)
    monkeypatch.setattr(gather, "LIMIT_SECONDS", 0.5)
    monkeypatch.setattr(gather, "_PYTHON_SECONDS", 1.0)
    monkeypatch.setattr(gather, "_NATIVE_SECONDS", 1.0)
    began = time.monotonic()
    node, found = taken(tmp_path, request(rank), str(hanging))
    assert time.monotonic() - began < 2.0
    assert node.problem == "not all of it came within 0.5 s"
    assert found.stack_problem == "the look at it did not end in time"


def test_a_process_that_is_gone_or_never_was_is_said(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    _, found = taken(tmp_path, request(rank, pid=2**22 + 1), "")
    assert (found.missing, found.state) == (True, "")
    _, found = taken(tmp_path, request(rank, pid=None), "")
    assert (found.missing, found.stack_problem) == (False, "its process has not started")
    _, found = taken(tmp_path, request(rank, exit_code=0), "")
    assert found.stack_problem == "its process has ended"


def test_the_agent_takes_one_look_at_a_time_in_a_child(rank: subprocess.Popen[bytes], tmp_path: Path) -> None:
    looks = asked.Asked(tmp_path, "n", 0)
    assert looks.result("one") == "{}"
    looks.start("one", request(rank)["ranks"], "")
    looks.start("two", request(rank)["ranks"], "")
    assert looks.result("one") == "{}"
    found = json.loads(until("a look", lambda: looks.result("two")))
    assert RankLook(**found["ranks"][0]).stack_by == "py-spy"
    assert not (tmp_path / "look-one.json").exists()


def test_ras_is_read_where_it_is_and_nothing_else_is_taken_for_it() -> None:
    def answer(text: bytes) -> str:
        with socket.create_server(("127.0.0.1", 0)) as server:

            def serve() -> None:
                client, _ = server.accept()
                with client:
                    assert client.recv(100) == b"verbose status\n"
                    client.sendall(text)

            thread = threading.Thread(target=serve)
            thread.start()
            told = gather._ras(f"127.0.0.1:{server.getsockname()[1]}")
            thread.join(LIMIT_SECONDS)
            port = server.getsockname()[1]
        assert gather._ras(f"127.0.0.1:{port}") == ""
        return told

    assert answer(b"NCCL version 2.24.3 compiled with CUDA 12.4\nJob summary\n").startswith("NCCL version 2.24.3")
    assert answer(b"HTTP/1.1 400 Bad Request\r\n\r\n") == ""
    assert asked.ras_address({}, []) == ""
    assert asked.ras_address({"NCCL_RAS_ENABLE": "0"}, ["0"]) == ""
    assert asked.ras_address({"NCCL_RAS_ADDR": "localhost:9"}, ["0"]) == "localhost:9"


def heard(rank: int, ago: float = 0.0, silent: float | None = None, **fields: Any) -> Heard:
    usual = Vitals(step=5, step_wall=50.0, step_seconds=2.0, state="S", state_seconds=1.0)
    return Heard(Rank(rank=rank), replace(usual, **fields), ago, silent)


def test_what_is_told_is_on_the_drivers_clock_and_keeps_its_time() -> None:
    told = Told()
    first = heard(0, ago=0.5, output_bytes=7, output_seconds=3.0)
    told.fill([first], 10.0, 1000.0)
    assert (first.rank.step_at, first.rank.output_at, first.rank.state_at) == (997.5, 996.5, 998.5)
    again = heard(0, ago=0.1, step_seconds=3.04, output_bytes=7, output_seconds=4.03, state_seconds=2.02, silent=9.0)
    told.fill([again], 11.0, 1001.0)
    assert (again.rank.step_at, again.rank.output_at, again.rank.state_at) == (997.5, 996.5, 998.5)
    assert again.rank.silent_at == 992.0
    moved = heard(0, step=6, step_seconds=0.0, output_bytes=9, output_seconds=0.0, state="T", state_seconds=0.0)
    told.fill([moved], 12.0, 1002.0)
    assert (moved.rank.step, moved.rank.step_at, moved.rank.output_at) == (6, 1002.0, 1002.0)
    assert (moved.rank.state, moved.rank.state_at, moved.rank.silent_at) == ("T", 1002.0, None)


def test_a_large_gang_is_told_every_five_seconds_and_at_once_when_one_is_stopped() -> None:
    told = Told()

    def steps(step: int, monotonic: float, **fields: Any) -> list[Heard]:
        gang = [heard(rank, step=step, **(fields if rank == 3 else {})) for rank in range(100)]
        told.fill(gang, monotonic, 1000.0 + monotonic)
        return gang

    assert steps(1, 0.0)[3].rank.step == 1
    assert steps(2, 1.0)[3].rank.step == 1
    assert steps(3, 2.0, state="R")[3].rank.step == 1
    stopped = steps(4, 3.0, state="T")
    assert (stopped[3].rank.state, stopped[3].rank.step, stopped[4].rank.step) == ("T", 4, 4)
    assert steps(5, 4.0, state="T")[3].rank.step == 4
    assert steps(6, 3.0 + LARGE_EVERY_SECONDS, state="T")[3].rank.step == 6


def test_ranks_with_gpus_have_a_flight_recorder_and_the_workflow_goes_before_it() -> None:
    launch = Launch(
        run="r", attempt=1, workflow="w", script=["x"], nodes=1, processes_per_node=1, gpus_per_node=1, cpus_per_node=1,
        run_directory="/out", environment={"TORCH_FR_BUFFER_SIZE": "9"},
    )  # fmt: skip
    made = environment.of_gang(launch, "n", "127.0.0.1", {})
    assert made["TORCH_FR_BUFFER_SIZE"] == "9"
    assert made["TORCH_NCCL_TRACE_BUFFER_SIZE"] == "2000"
    assert made["TORCH_FR_DUMP_TEMP_FILE"] == "/out/attempt-1/flight-rank-"
    without = environment.of_gang(launch.model_copy(update={"gpus_per_node": 0}), "n", "127.0.0.1", {})
    assert "TORCH_FR_DUMP_TEMP_FILE" not in without
