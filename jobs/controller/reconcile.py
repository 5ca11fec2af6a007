"""Each tick: what is wanted, what Ray and the run's files say, and the next step. Everything here may be repeated.

Nothing is done in Ray that is not on the disk first, and Ray is looked at before anything is done: killed at any point
and started again, the controller goes on where it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from jobs.controller.admission import Admission
from jobs.controller.engine import Engine
from jobs.controller.files import Report, RunFiles
from jobs.controller.judge import Do, JobSeen, Seen, Step, judge
from jobs.controller.packages import Packages
from jobs.controller.record import Record, closed, moved
from jobs.controller.runs import Runs
from jobs.controller.submission import submission
from jobs.errors import RaydeckError, Refused, Unreachable
from jobs.model import WAITING, Failure, RunState
from jobs.within import within

log = logging.getLogger(__name__)

TICK_SECONDS = 1.0
BUSY_TICK_SECONDS = 0.25
"""While a run is on its way into or out of Ray."""
CALM_LOOK_SECONDS = 5.0
"""How often Ray is asked about a run whose own files say that it goes on."""
REST_SECONDS = 2.0
"""How long a run is left alone after something went wrong with it, so that nothing is asked in a frenzy."""
AT_ONCE = 8
"""Runs that are looked after at the same time: Ray's dashboard has others to serve."""
TRIES = 5
"""How often Ray may refuse a submission before the run has failed."""

PASS_SECONDS = 1.0
"""How often the queue decides while somebody waits: time limits, back-offs and other people's work move it too."""
IDLE_PASS_SECONDS = 5.0
"""And while nobody does: what is held and free is shown all the same."""

_ON_THE_WAY = frozenset({RunState.ADMITTED, RunState.SAVING, RunState.STOPPING})
_NOT_IN_RAY = WAITING | {RunState.ADMITTED}


@dataclass(slots=True)
class _Watch:
    """What was seen of a run before, by the controller's own clock (monotonic seconds)."""

    job: JobSeen | None = None
    looked_at: float = float("-inf")
    job_ended_since: float | None = None
    report: Report = field(default_factory=Report)
    report_changed_at: float = float("-inf")
    attempt: int = 0
    """Whose attempt all this was seen of."""
    step: int | None = None
    stepped_at: float | None = None
    """Since when the step is this one; None before it was seen to run."""
    outcome_since: float | None = None
    refusals: int = 0
    not_before: float = float("-inf")
    """After a refusal: when to post again."""
    rests_until: float = float("-inf")
    """After something went wrong with it: when to look after it again."""


class Reconciler:
    """Carries every run that has not ended towards what is wanted of it."""

    def __init__(
        self,
        runs: Runs,
        engine: Engine,
        files: RunFiles,
        packages: Packages,
        admission: Admission,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._engine = engine
        self._files = files
        self._packages = packages
        self._admission = admission
        self._passed_at = float("-inf")
        self._arranged = True
        """Something was asked for, or has ended: the queue need not wait for its time."""
        self._wall = wall
        self._clock = clock
        self._watches: dict[str, _Watch] = {}
        self._tending: dict[str, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(AT_ONCE)

    async def run(self) -> None:
        """Tick until cancelled. A tick that goes wrong is logged, and the next one tries again."""
        try:
            while True:
                self._arranged = self._arranged or self._runs.changed.is_set()
                self._runs.changed.clear()
                try:
                    await self.tick()
                except Exception:
                    # The boundary of a worker: without its ticks the controller would be a liar.
                    log.exception("a tick went wrong")
                busy = any(record.run.state in _ON_THE_WAY or record.stop for record in self._runs.active())
                with contextlib.suppress(asyncio.TimeoutError):
                    wait = BUSY_TICK_SECONDS if busy and self._engine.answers else TICK_SECONDS
                    await within(self._runs.changed.wait(), wait)
        finally:
            for task in self._tending.values():
                task.cancel()
            await asyncio.gather(*self._tending.values(), return_exceptions=True)

    async def tick(self) -> None:
        """Let go what may go, then look after every run that holds something, or has to be told that it may not wait.

        One that takes long (a slow upload) goes on by itself.
        """
        await self._engine.look()
        await self._pass()
        records = [record for record in self._runs.active() if not record.run.state.waiting or record.stop is not None]
        self._watches = {record.id: self._watch(record) for record in records}
        self._tending = {run: task for run, task in self._tending.items() if not task.done()}
        for record in records:
            if record.id not in self._tending and self._clock() >= self._watches[record.id].rests_until:
                task = asyncio.create_task(
                    self._tend_safely(record, self._watches[record.id]), name=f"tend {record.id}"
                )
                self._tending[record.id] = task
        if self._tending:
            await asyncio.wait(self._tending.values(), timeout=TICK_SECONDS)

    def _watch(self, record: Record) -> _Watch:
        """What was seen of the run's newest attempt; of a new one nothing was seen yet."""
        number = len(record.run.attempts)
        known = self._watches.get(record.id)
        return known if known is not None and known.attempt == number else _Watch(attempt=number)

    async def _pass(self) -> None:
        # One that was admitted and not posted yet may have to be taken back.
        waits = any(record.run.state in _NOT_IN_RAY and record.posted_at is None for record in self._runs.active())
        pause = PASS_SECONDS if waits else IDLE_PASS_SECONDS
        if self._clock() - self._passed_at < pause and not self._arranged:
            return
        self._arranged = False
        self._passed_at = self._clock()
        try:
            await self._admission.run_pass()
        except RaydeckError as error:
            log.warning("the queue could not be gone through: %s", error)

    async def _tend_safely(self, record: Record, watch: _Watch) -> None:
        async with self._slots:
            try:
                await self._tend(record, watch)
            except RaydeckError as error:
                watch.rests_until = self._clock() + REST_SECONDS
                log.warning("run %s: %s", record.id, error)
            except Exception:
                watch.rests_until = self._clock() + REST_SECONDS
                # The boundary of a worker: one run that goes wrong must not take the others along.
                log.exception("run %s could not be looked after", record.id)

    async def _tend(self, record: Record, watch: _Watch) -> None:
        if not record.run.state.waiting:
            await self._look(record, watch)
        steps: list[Step] = []

        def step(current: Record) -> Record:
            steps.append(judge(current, self._seen(watch), self._wall()))
            return steps[0].record

        after = await self._runs.change(record.id, step)
        if after is None:
            return
        do = steps[0].do
        if after.run.state is not record.run.state:
            log.info("run %s: %s → %s %s", record.id, record.run.state.value, after.run.state.value, after.run.reason)
            self._runs.changed.set()
        if do is Do.SUBMIT and self._clock() >= watch.not_before:
            await self._submit(after, watch)
        elif do is Do.STOP:
            await self._stop(after, watch)
        elif do is Do.LEAVE:
            await self._files.ask_to_leave(after.launch.attempt_directory)
            await self._sent(after)

    def _seen(self, watch: _Watch) -> Seen:
        now = self._clock()
        return Seen(
            job=watch.job,
            job_ended_seconds=0.0 if watch.job_ended_since is None else now - watch.job_ended_since,
            session=self._engine.session,
            ray_silent_seconds=self._engine.silent_seconds,
            status=watch.report.status,
            status_age_seconds=now - watch.report_changed_at if watch.report.status is not None else 0.0,
            progress_age_seconds=None if watch.stepped_at is None else now - watch.stepped_at,
            outcome=watch.report.outcome,
            outcome_age_seconds=0.0 if watch.outcome_since is None else now - watch.outcome_since,
            unreadable=watch.report.unreadable,
        )

    async def _look(self, record: Record, watch: _Watch) -> None:
        """Read the attempt's files, and ask Ray when that is due."""
        attempt = record.run.attempt
        if attempt is None:
            return
        if record.run.state is not RunState.ADMITTED:
            report = await self._files.report(record.launch.attempt_directory)
            if report.status != watch.report.status or watch.report_changed_at == float("-inf"):
                watch.report_changed_at = self._clock()
            if report.outcome is not None and watch.outcome_since is None:
                watch.outcome_since = self._clock()
            watch.report = report
            self._count_steps(record, watch)
        calm = record.run.state is RunState.RUNNING and record.stop is None and watch.report.outcome is None
        if calm and watch.job is not None and self._clock() - watch.looked_at < CALM_LOOK_SECONDS:
            return
        missed = watch.job.looks_missed if watch.job is not None else 0
        watch.job = await self._engine.job(record.id, attempt.number, missed)
        watch.looked_at = self._clock()
        if watch.job is not None and watch.job.ended and watch.job_ended_since is None:
            watch.job_ended_since = watch.looked_at

    def _count_steps(self, record: Record, watch: _Watch) -> None:
        status = watch.report.status
        if record.run.state is not RunState.RUNNING or status is None:
            return
        step = status.progress.step if status.progress is not None else None
        if watch.stepped_at is None or step != watch.step:
            watch.step, watch.stepped_at = step, self._clock()

    async def _left_by_the_one_before(self, record: Record) -> str:
        """What of the attempt before is still there, for Ray; empty if nothing. Two must never live at once."""
        attempt = record.run.attempt
        assert attempt is not None
        if attempt.number == 1:
            return ""
        before = record.run.attempts[-2]
        job = await self._engine.job(record.id, before.number, 0)
        if job is None:
            return "Ray does not say whether the attempt before has ended"
        if not job.found or job.ended or not job.ours:
            return ""
        await self._engine.stop(before.job_id)
        return f"attempt {before.number} still lives in Ray, and is being stopped"

    async def _submit(self, record: Record, watch: _Watch) -> None:
        """Bring the code to Ray, and the job. Written down before: from then on Ray may have it."""
        try:
            if record.posted_at is not None or not self._engine.session:
                await self._engine.look(at_once=True)
            if record.posted_at is not None and self._engine.session != record.posted_session:
                return  # only to the very head that was asked then may it be posted again: what it is now, is judged
            left = await self._left_by_the_one_before(record)
            if left:
                watch.not_before = self._clock() + REST_SECONDS
                await self._runs.change(record.id, lambda now: _waits_for(now, left, self._wall()))
                return
            await self._engine.bring(record.package, self._packages.path(record.package))
            posting = {"posted_at": self._wall(), "posted_session": self._engine.session}

            def post(now: Record) -> Record:
                # A cordon that came since it was let go: the next pass takes it back.
                return now if now.stop or self._admission.off(now) else now.model_copy(update=posting)

            marked = await self._runs.change(record.id, post)
            if marked is None or marked.stop is not None or marked.posted_at != posting["posted_at"]:
                return
            await self._engine.submit(submission(marked))
        except (Refused, Unreachable) as error:
            await self._not_taken(record, watch, error)
            return
        watch.looked_at = float("-inf")
        self._runs.changed.set()

    async def _not_taken(self, record: Record, watch: _Watch, error: Refused | Unreachable) -> None:
        watch.refusals += 1
        watch.not_before = self._clock() + min(60.0, 2.0**watch.refusals)
        sentence = f"Ray did not take its job: {error.sentence}"
        log.warning("run %s: %s (try %d)", record.id, sentence, watch.refusals)
        # A job that may have arrived all the same is no failed one: there the tries go on.
        refused = isinstance(error, Refused)
        state = RunState.FAILED if refused and watch.refusals >= TRIES else RunState.ADMITTED

        def note(now: Record) -> Record:
            if now.run.state is not RunState.ADMITTED:
                return now
            # A clear refusal leaves no doubt: Ray does not have it.
            posted_at = None if refused else now.posted_at
            now = now.model_copy(update={"posted_at": posted_at})
            if state is RunState.FAILED:
                now = closed(now, state, sentence, Failure.UNKNOWN, self._wall())
            return moved(now, state, sentence, self._wall())

        await self._runs.change(record.id, note)

    async def _stop(self, record: Record, watch: _Watch) -> None:
        attempt, stop = record.run.attempt, record.stop
        assert attempt is not None
        assert stop is not None
        if stop.now:
            try:
                await self._files.ask_to_stop_now(record.launch.attempt_directory)
            except Unreachable as error:
                log.warning("run %s: its driver does not learn that it must stop at once: %s", record.id, error)
        await self._engine.stop(attempt.job_id)
        await self._sent(record)
        watch.looked_at = float("-inf")

    async def _sent(self, record: Record) -> None:
        """Note that the stop that the record names was passed on."""
        stop, sent_at = record.stop, self._wall()
        assert stop is not None

        def sent(now: Record) -> Record:
            # A stop that became more urgent meanwhile has to be sent again.
            if now.stop is None or (now.stop.now, now.stop.purpose) != (stop.now, stop.purpose):
                return now
            return now.model_copy(update={"stop": now.stop.model_copy(update={"sent_at": sent_at})})

        await self._runs.change(record.id, sent)


def _waits_for(record: Record, why: str, now: float) -> Record:
    if record.run.state is not RunState.ADMITTED or record.run.reason == why:
        return record
    return moved(record, RunState.ADMITTED, why, now)
