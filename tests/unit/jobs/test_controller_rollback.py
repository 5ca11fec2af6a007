"""Releases and how they fared; a rollback to an earlier one, and the way back out of it."""

from __future__ import annotations

import asyncio
import os
import time
import uuid
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from jobs import checkpoint
from jobs.client import ControllerClient
from jobs.controller.access import Access, Caller, NotAllowed, Role
from jobs.controller.record import StopWanted
from jobs.errors import Refused, Unreachable, Usage
from jobs.model import Attempt, GangStatus, Outcome, Progress, Run, RunState
from jobs.spec import Roles
from jobs.wire import ReleaseRow, Rollback, RollbackRequest, UndoRequest
from tests.unit.jobs.controller_harness import Harness, controller, short_folder, stop_request
from tests.unit.jobs.ray_stand_in import RayStandIn


@pytest.fixture
async def desk() -> AsyncGenerator[Harness]:
    """A controller that takes in and does nothing yet."""
    async with short_folder() as store, RayStandIn().serving() as ray, controller(ray, store, ticks=False) as harness:
        yield harness


def back(to: str = "", reason: str = "", dry_run: bool = False) -> RollbackRequest:
    return RollbackRequest(request_id=uuid.uuid4().hex, to=to, reason=reason, dry_run=dry_run)


def out(reason: str = "", dry_run: bool = False) -> UndoRequest:
    return UndoRequest(request_id=uuid.uuid4().hex, reason=reason, dry_run=dry_run)


async def launched(desk: Harness, batch: int, **request: Any) -> Run:
    """A run of the release of ``lm`` with this batch size."""
    return await desk.launch(desk.request(f"workflow: {{name: lm, training: {{batch_size: {batch}}}}}", **request))


async def going(desk: Harness, run: Run, step: int, saved: int | None = None) -> Run:
    """It runs, and has come so far."""
    status = GangStatus(
        phase="running", progress=Progress(step=step, loss=step / 100, throughput=5.0, throughput_unit="tokens"),
        checkpoint_step=saved, environment={"torch": "2.13.0", "driver": "580.95"},
    )  # fmt: skip
    attempt = Attempt(number=1, job_id="job", state=RunState.RUNNING, started_at=time.time(), status=status)
    if saved is not None:
        save(run, saved)
    return await desk.put(run.id, state=RunState.RUNNING, started_at=time.time(), attempts=[attempt])


async def ended(desk: Harness, run: Run, state: RunState, step: int, saved: int | None = None) -> Run:
    """It has ended, so far."""
    attempt = (await going(desk, run, step, saved)).attempts[0]
    outcome = Outcome(verdict=state.value, last_step=step, checkpoint_step=saved)
    last = attempt.model_copy(update={"state": state, "ended_at": time.time(), "outcome": outcome})
    return await desk.put(run.id, state=state, reason=f"it {state.value}", ended_at=time.time(), attempts=[last])


def save(run: Run, step: int) -> None:
    draft = checkpoint.begin(run.run_directory, step)
    (draft.path / "model.pt").write_bytes(b"weights")
    checkpoint.finish(draft, world_size=1)


def spoil(run: Run, step: int) -> None:
    (checkpoint.folder(run.run_directory, step) / "model.pt").write_bytes(b"")


async def good_and_bad(desk: Harness) -> tuple[Run, Run]:
    """A release that succeeded, and a worse one that runs."""
    good = await ended(desk, await launched(desk, 1), RunState.SUCCEEDED, 100, saved=80)
    return good, await going(desk, await launched(desk, 2, queue="default", priority="high"), 50, saved=40)


async def rows(desk: Harness) -> dict[str, ReleaseRow]:
    return {row.id: row for row in await desk.client.releases("lm")}


# --- releases -------------------------------------------------------------------------------------------------------


async def test_a_release_tells_how_its_runs_fared(desk: Harness) -> None:
    good, bad = await good_and_bad(desk)
    again = await ended(desk, await launched(desk, 1), RunState.FAILED, 10)
    found = await rows(desk)
    assert list(found) == [bad.release, good.release]
    first, second = found[good.release], found[bad.release]
    assert (first.runs, first.active, first.last_run, first.outcome, first.reason) == (
        2, [], again.id, "failed", "it failed",
    )  # fmt: skip
    assert (first.last_step, first.loss, first.throughput, first.throughput_unit) == (10, 0.1, 5.0, "tokens")
    assert (first.checkpoint_step, first.checkpoint_run) == (80, good.id)
    assert (second.runs, second.active, second.outcome, second.last_step) == (1, [bad.id], "running", 50)
    assert (second.checkpoint_step, second.checkpoint_run) == (40, bad.id)
    assert (first.environment["torch"], first.environment["driver"]) == ("2.13.0", "580.95")
    assert await desk.client.releases("other") == []


async def test_a_checkpoint_that_is_gone_is_not_told_of(desk: Harness) -> None:
    good, _ = await good_and_bad(desk)
    save(good, 60)
    spoil(good, 80)
    row = (await rows(desk))[good.release]
    assert (row.checkpoint_step, row.checkpoint_run) == (60, good.id)


async def test_a_release_that_was_never_seen_to_work_tells_nothing_made_up(desk: Harness) -> None:
    run = await launched(desk, 1)
    (row,) = (await rows(desk)).values()
    assert (row.runs, row.active, row.outcome, row.last_good) == (1, [run.id], "queued", False)
    assert row.last_step is row.loss is row.throughput is row.checkpoint_step is None


async def test_the_last_good_one_is_where_a_rollback_goes(desk: Harness) -> None:
    first = await ended(desk, await launched(desk, 1), RunState.SUCCEEDED, 100)
    assert [row.id for row in (await rows(desk)).values() if row.last_good] == [first.release]
    second = await ended(desk, await launched(desk, 2), RunState.SUCCEEDED, 100)
    third = await ended(desk, await launched(desk, 3), RunState.FAILED, 100)

    async def target() -> str:
        (marked,) = [row.id for row in (await rows(desk)).values() if row.last_good]
        assert (await desk.client.rollback("lm", back(dry_run=True))).to_release == marked
        return marked

    assert await target() == second.release
    rolled = await desk.client.rollback("lm", back())
    await ended(desk, await desk.client.run(rolled.started), RunState.SUCCEEDED, 100)
    # A rollback makes a release no newer: the next one goes further back, and not forth.
    assert await target() == first.release
    # To launch it again does.
    await ended(desk, await launched(desk, 3), RunState.SUCCEEDED, 100)
    await going(desk, await launched(desk, 1), 1)
    assert await target() == third.release


# --- rollback -------------------------------------------------------------------------------------------------------


async def test_a_dry_run_tells_all_and_touches_nothing(desk: Harness) -> None:
    good, bad = await good_and_bad(desk)
    told = await desk.client.rollback("lm", back(reason="worse", dry_run=True))
    assert (told.from_release, told.to_release, told.stopped) == (bad.release, good.release, [bad.id])
    assert (told.from_step, told.from_run, told.skipped) == (80, good.id, [])
    assert told.started.startswith("lm-")
    assert await desk.client.rollbacks() == []
    assert (await desk.service.runs.find(bad.id)).stop is None
    assert [entry.action for entry in await desk.client.audit()] == ["launch", "launch"]
    with pytest.raises(Refused, match="no run"):
        await desk.client.run(told.started)


async def test_the_running_one_is_stopped_and_the_good_one_started_from_its_checkpoint(desk: Harness) -> None:
    good, bad = await good_and_bad(desk)
    request = back(reason="worse")
    done = await desk.client.rollback("lm", request)
    assert await desk.client.rollback("lm", request) == done
    assert await desk.client.rollbacks("lm") == [done]
    stopping = await desk.service.runs.find(bad.id)
    assert stopping.stop is not None
    assert (stopping.stop.purpose, stopping.stop.now) == ("stop", False)
    assert stopping.stop.reason == f"rolled back to {good.release}: worse"
    new = await desk.service.runs.find(done.started)
    run = new.run
    assert (run.release, run.state, run.after, run.rollback) == (good.release, RunState.QUEUED, [bad.id], done.id)
    assert (run.queue, run.priority, run.queued_at) == (bad.queue, "high", bad.submitted_at)
    assert (new.resume.step, new.resume.run, new.resume.run_directory) == (80, good.id, good.run_directory)
    assert (run.resume_run, done.from_step, done.from_run) == (good.id, 80, good.id)
    assert "release.json" in os.listdir(run.run_directory)
    assert desk.service.packages.has(new.package)
    (row,) = [row for row in await desk.client.checkpoints(good.id) if row.step == 80]
    assert row.in_use_by == [run.id]
    entry = (await desk.client.audit())[0]
    assert (entry.action, entry.target, entry.allowed) == ("rollback", "lm", True)
    assert entry.reason == f"from {bad.release} to {good.release}: worse"
    assert (await desk.client.moves(run.id))[0].cause == f"rolled back to {good.release} by {run.user}: worse"
    assert (await rows(desk))[good.release].active == [run.id]
    with pytest.raises(Usage, match="used for something else"):
        await desk.client.rollback("lm", request.model_copy(update={"reason": "another"}))


async def test_what_waits_is_in_the_way_too(desk: Harness) -> None:
    good = await ended(desk, await launched(desk, 1), RunState.SUCCEEDED, 100)
    waiting, running = await launched(desk, 2), await launched(desk, 3)
    await going(desk, running, 5)
    done = await desk.client.rollback("lm", back(to=good.release))
    assert done.stopped == [waiting.id, running.id]
    assert (await desk.client.run(done.started)).after == [waiting.id, running.id]
    assert (done.from_step, done.from_run) == (None, "")


async def test_one_that_somebody_stops_already_is_waited_for(desk: Harness) -> None:
    good, bad = await good_and_bad(desk)
    await desk.client.stop(bad.id, stop_request())
    done = await desk.client.rollback("lm", back(to=good.release))
    assert (done.stopped, done.from_release) == ([], bad.release)
    assert (await desk.client.run(done.started)).after == [bad.id]


async def test_a_broken_checkpoint_is_passed_over_and_said(desk: Harness) -> None:
    good, _ = await good_and_bad(desk)
    older = await ended(desk, await launched(desk, 1), RunState.FAILED, 5)
    spoil(good, 80)
    save(good, 60)
    done = await desk.client.rollback("lm", back())
    assert (done.from_step, done.from_run) == (60, good.id)
    (skipped,) = done.skipped
    assert skipped.startswith(f"{good.id}: ")
    assert "80" in skipped
    assert older.id not in skipped


async def test_with_nothing_running_the_last_one_is_what_is_replaced(desk: Harness) -> None:
    good = await ended(desk, await launched(desk, 1), RunState.SUCCEEDED, 100)
    bad = await ended(desk, await launched(desk, 2, priority="low"), RunState.FAILED, 3)
    done = await desk.client.rollback("lm", back())
    run = await desk.client.run(done.started)
    assert (done.from_release, done.to_release, done.stopped) == (bad.release, good.release, [])
    assert (run.priority, run.after, run.queued_at) == ("low", [], None)


async def test_a_release_that_runs_beside_others_goes_on_alone(desk: Harness) -> None:
    good, bad = await good_and_bad(desk)
    other = await going(desk, await launched(desk, 1), 7)
    done = await desk.client.rollback("lm", back(to=good.release))
    assert (done.stopped, done.started, done.from_step) == ([bad.id], "", None)
    assert (await desk.service.runs.find(other.id)).stop is None
    again = await desk.client.undo(done.id, out())
    assert again.undone_at is not None
    assert (await desk.service.runs.find(bad.id)).stop is not None


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("", "lm has no earlier release of which a run succeeded"),
        ("lm-r-00000000", "lm has no release lm-r-00000000"),
        ("CURRENT", "runs already, as .*, and nothing else of lm does"),
    ],
)
async def test_what_makes_no_sense_is_refused_in_words(desk: Harness, to: str, words: str) -> None:
    run = await going(desk, await launched(desk, 1), 5)
    with pytest.raises(Refused, match=words):
        await desk.client.rollback("lm", back(to=run.release if to == "CURRENT" else to))
    assert (await desk.service.runs.find(run.id)).stop is None
    (refused, _) = await desk.client.audit()
    assert (refused.action, refused.target, refused.allowed) == ("rollback", "lm", False)


async def test_a_workflow_that_never_was_is_refused(desk: Harness) -> None:
    with pytest.raises(Refused, match="no run of a workflow none was ever launched"):
        await desk.client.rollback("none", back())
    with pytest.raises(Refused, match="there is no rollback none"):
        await desk.client.undo("none", out())


async def test_nothing_is_stopped_for_what_could_never_start(desk: Harness) -> None:
    good, bad = await good_and_bad(desk)
    desk.ray.nodes = [{**desk.ray.nodes[0], "resources_total": {"CPU": 0.0}}]
    desk.service.engine._rooms = (float("-inf"), None, {})
    with pytest.raises(Refused, match=r"could never start: .*Nothing was stopped"):
        await desk.client.rollback("lm", back(to=good.release))
    assert (await desk.service.runs.find(bad.id)).stop is None


async def test_storage_that_does_not_answer_is_not_taken_for_empty(
    desk: Harness, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, bad = await good_and_bad(desk)
    over = asyncio.Event()

    async def apart(key: str, *rest: Any) -> Any:
        raise Unreachable(f"the storage under {key} does not answer")

    monkeypatch.setattr(desk.service.files, "apart", apart)
    with pytest.raises(Unreachable, match="does not answer"):
        await desk.client.rollback("lm", back(to=good.release))
    over.set()
    assert (await desk.service.runs.find(bad.id)).stop is None


async def test_code_that_is_gone_is_said(desk: Harness) -> None:
    good, _ = await good_and_bad(desk)
    for file in (desk.store / "packages").iterdir():
        file.unlink()
    with pytest.raises(Refused, match=f"the code of release {good.release} is no longer kept"):
        await desk.client.rollback("lm", back())


# --- undo -----------------------------------------------------------------------------------------------------------


async def test_one_key_back_out(desk: Harness) -> None:
    _, bad = await good_and_bad(desk)
    done = await desk.client.rollback("lm", back())
    await ended(desk, bad, RunState.STOPPED, 51, saved=50)
    started = await going(desk, await desk.client.run(done.started), 81)
    plan = await desk.client.undo(done.id, out(dry_run=True))
    assert (plan.started, plan.stopped, plan.undone_at) == (started.id, [bad.id], None)
    request = out(reason="the data was it")
    undone = await desk.client.undo(done.id, request)
    assert undone.undone_by == started.user
    assert undone.undone_at is not None
    assert await desk.client.undo(done.id, request) == undone
    assert await desk.client.rollbacks() == [undone]
    stopping = await desk.service.runs.find(started.id)
    assert stopping.stop is not None
    assert stopping.stop.purpose == "stop"
    again = await desk.client.run(bad.id)
    assert (again.state, again.after) == (RunState.QUEUED, [started.id])
    assert (again.queued_at, again.priority) == (bad.submitted_at, "high")
    assert [entry.action for entry in await desk.client.audit()][:2] == ["undo", "rollback"]
    with pytest.raises(Refused, match="was taken back already"):
        await desk.client.undo(done.id, out())


async def test_back_out_before_anything_has_ended(desk: Harness) -> None:
    _, bad = await good_and_bad(desk)
    waits = await launched(desk, 3)
    done = await desk.client.rollback("lm", back())
    assert done.stopped == [bad.id, waits.id]
    await desk.client.undo(done.id, out())
    saving = await desk.service.runs.find(bad.id)
    assert saving.stop is not None
    # It saves, and then goes on.
    assert (saving.stop.purpose, saving.run.after) == ("restart", [done.started])
    waiting = await desk.service.runs.find(waits.id)
    assert (waiting.stop, waiting.run.state, waiting.run.after) == (None, RunState.QUEUED, [done.started])
    new = await desk.service.runs.find(done.started)
    assert new.stop is not None


async def test_what_somebody_had_go_on_meanwhile_is_left_alone(desk: Harness) -> None:
    _, bad = await good_and_bad(desk)
    done = await desk.client.rollback("lm", back())
    await ended(desk, await desk.client.run(done.started), RunState.SUCCEEDED, 100)
    restarted = StopWanted(at=1.0, user="bob", purpose="restart")
    await desk.service.runs.change(bad.id, lambda record: record.model_copy(update={"stop": restarted}))
    with pytest.raises(Refused, match="left nothing that could be taken back"):
        await desk.client.undo(done.id, out())


# --- who may --------------------------------------------------------------------------------------------------------


async def test_a_submitter_rolls_back_only_what_is_theirs(desk: Harness) -> None:
    good, bad = await good_and_bad(desk)
    await desk.put(bad.id, user="alice")
    rollbacks = desk.service.rollbacks
    rollbacks._access = Access(Roles(submitters=["alice", "bob"], operators=["carol"]))
    alice, bob = Caller(1000, "alice", Role.SUBMITTER), Caller(1001, "bob", Role.SUBMITTER)
    carol = Caller(1002, "carol", Role.OPERATOR)
    for dry_run in (True, False):
        with pytest.raises(NotAllowed, match=f"bob is a submitter here and may not roll back {bad.id}"):
            await rollbacks.roll_back("lm", back(dry_run=dry_run), bob)
    done = await rollbacks.roll_back("lm", back(), alice)
    assert (await desk.client.run(done.started)).user == "alice"
    with pytest.raises(NotAllowed, match="take back rollback"):
        await rollbacks.undo(done.id, out(), bob)
    assert (await rollbacks.undo(done.id, out(), carol)).undone_by == "carol"
    assert (await desk.client.run(bad.id)).user == "alice"
    assert good.user != "alice"


async def test_two_at_once_are_one_after_the_other(desk: Harness) -> None:
    good, bad = await good_and_bad(desk)
    same = back()

    async def ask(client: ControllerClient, request: RollbackRequest) -> Rollback:
        return await client.rollback("lm", request)

    first, second = await asyncio.gather(ask(desk.client, same), ask(desk.client, same))
    assert first == second
    assert (first.stopped, len(await desk.client.rollbacks())) == ([bad.id], 1)
    with pytest.raises(Refused, match="runs already"):
        await desk.client.rollback("lm", back(to=good.release))
