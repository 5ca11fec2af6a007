"""`probes.stuck`: a process that really waits in the kernel (for its child, after vfork), and trees of ``/proc``."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from probes.stuck import HOLDERS_SECONDS, LONGEST_SECONDS, SHORTEST_SECONDS, StuckLooks
from tests.unit.probes.live import until

_SOURCE = """
#include <unistd.h>
int main(void) { if (vfork() == 0) { pause(); _exit(0); } return 0; }
"""


@pytest.fixture
def stuck(tmp_path: Path) -> Generator[int]:
    """A process in state D: its child shares its memory, and has neither ended nor become another program."""
    source, program = tmp_path / "stuck.c", tmp_path / "a (stuck) b"
    source.write_text(_SOURCE)
    subprocess.run(["gcc", "-o", str(program), str(source)], check=True, timeout=60)
    process = subprocess.Popen([str(program)], start_new_session=True)
    until(lambda: _state(process.pid) == "D")
    yield process.pid
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        subprocess.run(["kill", "-9", child], check=True, timeout=10)
    process.wait(timeout=10)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def test_a_stuck_process_is_told_when_it_was_seen_twice(stuck: int) -> None:
    looks = StuckLooks()
    assert stuck not in [each.pid for each in looks.look(0.0, [], lambda pid: "")]
    (mine,) = [each for each in looks.look(10.0, [], lambda pid: "lm-1" if pid == stuck else "") if each.pid == stuck]
    assert (mine.command, mine.seconds, mine.run) == ("a (stuck) b", 10.0, "lm-1")
    assert mine.user
    if os.geteuid() == 0:
        assert re.match(r"\w*(vfork|clone|fork)", mine.where)
    (mine,) = [each for each in looks.look(30.0, [], lambda pid: "") if each.pid == stuck]
    assert mine.seconds == 30.0


def test_of_a_simulated_node_only_its_runs_are_told(stuck: int) -> None:
    looks = StuckLooks()
    looks.look(0.0, [], lambda pid: "")
    assert looks.look(10.0, [], lambda pid: "", runs_only=True) == []
    told = looks.look(20.0, [], lambda pid: "lm-1" if pid == stuck else "", runs_only=True)
    assert [each.pid for each in told] == [stuck]


def process(proc: Path, pid: int, state: str, parent: int = 1, started: int = 100) -> None:
    (proc / str(pid)).mkdir(exist_ok=True)
    (proc / str(pid) / "stat").write_text(f"{pid} (work er) {state} {parent} " + "0 " * 17 + f"{started} 0 0\n")
    (proc / str(pid) / "wchan").write_text("rpc_wait_bit_killable")


def seen(looks: StuckLooks, now: float, *holders: int, soon: bool = False) -> list[int]:
    return [each.pid for each in looks.look(now, holders, lambda pid: "", soon=soon)]


def test_one_that_moved_on_in_between_begins_anew(tmp_path: Path) -> None:
    looks = StuckLooks(str(tmp_path))
    process(tmp_path, 7, "D")
    assert seen(looks, 0.0) == []
    (told,) = looks.look(10.0, [], lambda pid: "")
    assert (told.pid, told.command, told.where, told.seconds) == (7, "work er", "rpc_wait_bit_killable", 10.0)
    process(tmp_path, 7, "S")
    assert seen(looks, 20.0) == []
    process(tmp_path, 7, "D")
    assert seen(looks, LONGEST_SECONDS + 20) == []
    # Another process with the same number is another process.
    process(tmp_path, 7, "D", started=999)
    assert seen(looks, LONGEST_SECONDS + 30) == []
    assert seen(looks, LONGEST_SECONDS + 40) == [7]


def test_all_are_gone_through_seldom_holders_more_often_and_at_once_when_something_hangs(tmp_path: Path) -> None:
    looks = StuckLooks(str(tmp_path))
    assert seen(looks, 0.0) == []
    process(tmp_path, 7, "D")
    process(tmp_path, 8, "D")
    assert [seen(looks, at, 8) for at in (10.0, 20.0)] == [[], []]
    assert [seen(looks, at, 8) for at in (HOLDERS_SECONDS, HOLDERS_SECONDS + 10)] == [[], [8]]
    assert seen(looks, HOLDERS_SECONDS + 11, 8, soon=True) == [8]
    assert sorted(seen(looks, HOLDERS_SECONDS + 12, 8)) == [7, 8]
    assert HOLDERS_SECONDS + 12 < SHORTEST_SECONDS


def test_the_kernels_own_threads_are_left_out(tmp_path: Path) -> None:
    looks = StuckLooks(str(tmp_path))
    process(tmp_path, 5, "D", parent=2)
    process(tmp_path, 6, "I", parent=2)
    process(tmp_path, 9, "S", parent=2222)
    assert [seen(looks, at) for at in (0.0, 400.0, 800.0)] == [[], [], []]
    # What is no kernel's thread is looked at again.
    process(tmp_path, 9, "D", parent=2222)
    assert [seen(looks, at) for at in (1200.0, 1210.0)] == [[], [9]]


def test_broken_files_are_nobody(tmp_path: Path) -> None:
    looks = StuckLooks(str(tmp_path))
    for pid, text in ((3, ""), (4, "4 (x) D"), (5, "5 (x) D a b"), (6, ") D 1")):
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "stat").write_text(text)
    (tmp_path / "9").mkdir()
    assert [seen(looks, at) for at in (0.0, 1.0)] == [[], []]
