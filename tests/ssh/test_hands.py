"""Hands on a node through a real sshd: processes ended, commands run, and what is said when they cannot be."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from console.hands import node, sweep
from console.hands.sweep import GpuProcess
from jobs.errors import Refused, Unreachable
from jobs.model import Attempt, RunState
from tests.unit.console.desk import a_run, status

from .handlab import DEAF, PARENT, SLEEPER, Lab, Start, running, seen, seen_pid
from .handlab import lab as lab
from .handlab import start as start
from .servers import Sshd, until


async def end(lab: Lab, *processes: GpuProcess, kill: bool = False, even_living: bool = False) -> list[tuple[str, str]]:
    done = await sweep.end(
        lab.session, lab.client, lab.entry, processes, "left over", kill=kill, even_living=even_living
    )  # fmt: skip
    assert [each.pid for each in done] == [each.pid for each in processes]
    return [(each.result, each.detail) for each in done]


# --- ending processes -------------------------------------------------------------------------------------------------


async def test_a_process_is_ended_and_the_audit_has_it_before_and_after(lab: Lab, start: Start) -> None:
    child = start(SLEEPER)
    assert await end(lab, seen(child)) == [("ended", "")]
    assert child.wait(5) == -15
    (permit,) = lab.asked("/v1/nodes/permit")
    assert (permit["action"], permit["reason"]) == ("end processes", "left over")
    assert str(permit["detail"]).startswith(f"SIGTERM to {child.pid} (root: ")
    assert lab.outcomes == [(True, f"process {child.pid} ended")]


async def test_another_process_with_the_same_pid_is_left_alone(lab: Lab, start: Start) -> None:
    child, meant = start(SLEEPER), start(SLEEPER)
    reused = seen(child, started=seen(child).started - 100)
    results = await end(lab, reused, seen(meant, user="bob"))
    assert [result for result, _ in results] == ["another"] * 2
    assert "time.sleep(600) of root" in results[0][1]
    assert results[1][1] == "it is root's by now"
    assert (await end(lab, seen(meant, command="python other.py")))[0][1].startswith("it runs ")
    assert child.poll() is None
    assert meant.poll() is None
    assert lab.outcomes[0][0] is False
    assert f"process {child.pid} is another process by now, and was left alone" in lab.outcomes[0][1]


async def test_one_that_has_ended_is_no_error(lab: Lab, start: Start) -> None:
    child = start(SLEEPER)
    process = seen(child)
    child.kill()
    child.wait(5)
    assert await end(lab, process) == [("gone", "")]
    assert lab.outcomes[0][0] is True


async def test_a_deaf_one_is_still_there_unless_it_is_killed(
    lab: Lab, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweep, "GRACE_SECONDS", 0.1)
    child = start(DEAF)
    assert await end(lab, seen(child)) == [("still there", "it does not heed SIGTERM")]
    assert child.poll() is None
    assert await end(lab, seen(child), kill=True) == [("killed", "")]
    assert child.wait(5) == -9


async def test_what_belongs_to_a_run_that_lives_is_spared(lab: Lab, start: Start) -> None:
    run = a_run("lm-a1", RunState.RUNNING, attempts=[Attempt(number=2, job_id="j")])
    lab.session.work.snapshot(status(), [run], 0.0, None)
    child = start(SLEEPER, run="lm-a1", attempt=2)
    assert await end(lab, seen(child)) == [("spared", "run lm-a1, which lives")]
    assert child.poll() is None
    assert await end(lab, seen(child), even_living=True) == [("ended", "")]


async def test_the_mark_of_a_parent_counts_where_a_process_has_none(lab: Lab, start: Start, tmp_path: Path) -> None:
    run = a_run("lm-a1", RunState.RUNNING, attempts=[Attempt(number=2, job_id="j")])
    lab.session.work.snapshot(status(), [run], 0.0, None)
    start(PARENT, str(tmp_path / "started"), run="lm-a1", attempt=2)
    pid = int((tmp_path / "started").read_text())
    assert await end(lab, seen_pid(pid)) == [("spared", "run lm-a1, which lives")]
    assert running(pid)


async def test_an_older_attempt_of_a_run_that_lives_is_left_over(lab: Lab, start: Start) -> None:
    run = a_run("lm-a1", RunState.RUNNING, attempts=[Attempt(number=2, job_id="j")])
    lab.answers.given[("GET", "/v1/runs/lm-a1")] = run
    child = start(SLEEPER, run="lm-a1", attempt=1)
    assert await end(lab, seen(child, run="lm-a1", attempt=1)) == [("ended", "")]


async def test_what_belongs_to_a_run_that_nobody_knows_is_spared(lab: Lab, start: Start) -> None:
    child = start(SLEEPER, run="of-another-cluster", attempt=1)
    found = await end(lab, seen(child, run="of-another-cluster", attempt=1))
    assert found == [("spared", "run of-another-cluster, of which nothing is known")]


async def test_one_that_the_node_does_not_show_is_told_of_and_not_asked_for(lab: Lab) -> None:
    hidden = GpuProcess(4321, 0, "", "", None, (0,), None)
    assert await end(lab, hidden) == [("not permitted", "the node does not show it: it lives in a container")]
    assert not lab.answers.asked


async def test_refused_by_the_controller_nothing_is_done(lab: Lab, start: Start) -> None:
    child = start(SLEEPER)
    lab.answers.given[("POST", "/v1/nodes/permit")] = {"error": {"sentence": "bob is a viewer", "hint": "Ask an admin"}}
    with pytest.raises(Refused, match=f"nothing was done to {lab.entry.name}: bob is a viewer") as caught:
        await end(lab, seen(child))
    assert caught.value.hint == "Ask an admin"
    assert child.poll() is None
    assert not lab.outcomes


async def test_without_a_controller_nothing_is_done(lab: Lab, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    child = start(SLEEPER)

    async def gone(*_: object, **__: object) -> None:
        raise ConnectionError("no such file")

    monkeypatch.setattr(lab.answers, "request", gone)
    with pytest.raises(Unreachable, match="the controller has to allow it and write it down first"):
        await end(lab, seen(child))
    assert child.poll() is None


async def test_what_was_done_is_told_although_the_audit_does_not_get_it(lab: Lab, start: Start) -> None:
    child = start(SLEEPER)
    del lab.answers.given[("POST", "/v1/permits/p1/done")]
    done = await sweep.end(lab.session, lab.client, lab.entry, [seen(child)], "", tell=lab.told.append)
    assert done[0].well
    assert lab.told == ["the audit does not have its outcome: there is no /v1/permits/p1/done"]


async def test_what_is_broken_off_is_in_the_audit_as_that(lab: Lab, start: Start) -> None:
    child = start(DEAF)
    ending = asyncio.create_task(end(lab, seen(child)))
    await until(lambda: lab.asked("/v1/nodes/permit"), what="the permit")
    ending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await ending
    assert lab.outcomes == [(False, "not known: it was broken off (CancelledError)")]


# --- one command, and what is there -----------------------------------------------------------------------------------


async def test_a_command_runs_in_a_login_shell_and_its_end_is_known(lab: Lab, sshd: Sshd) -> None:
    (sshd.folder / ".bash_profile").write_text("export FROM_PROFILE=yes\n")
    (sshd.folder / ".profile").write_text("export FROM_PROFILE=yes\n")
    connection = lab.session.connection(lab.entry.name)
    ran = await node.run(connection, "echo \"profile $FROM_PROFILE\"; echo 'it''s' ö >&2; exit 3", 10)
    assert (ran.code, ran.late, ran.tail) == (3, False, "profile yes\nits ö\n")
    assert ran.last_words == "profile yes / its ö"


async def test_a_command_that_leaves_something_running_ends_all_the_same(lab: Lab, tmp_path: Path) -> None:
    began = time.monotonic()
    ran = await node.run(lab.session.connection(lab.entry.name), f"sleep 600 & echo $! > {tmp_path}/started", 20)
    assert ran.code == 0
    assert time.monotonic() - began < 10


async def test_a_command_that_hangs_is_ended_with_all_that_it_started(lab: Lab, tmp_path: Path) -> None:
    ran = await node.run(lab.session.connection(lab.entry.name), f"sleep 600 & echo $! > {tmp_path}/pid; wait", 0.3)
    assert ran.late
    assert not running(int((tmp_path / "pid").read_text()))


async def test_no_python_on_the_node_is_said(make_sshd: Callable[..., Sshd], lab: Lab) -> None:
    server = make_sshd("SetEnv PATH=/nowhere")
    connection = lab.session.connections.add(server.host("bare"))
    with pytest.raises(Refused, match="bare: python3 is not found there"):
        await node.look(connection)
