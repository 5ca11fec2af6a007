"""Lets waiting runs go: gathers what the queue decides from, has it decide, and carries that out, one run at a time.

Nothing is decided here: `jobs.controller.schedule` does, from values. This knows where those come from.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from jobs.controller.aftermath import excluded
from jobs.controller.begin import admitted, begin, withdrawn
from jobs.controller.engine import Engine
from jobs.controller.files import RunFiles
from jobs.controller.journal import Journal, JournalThread
from jobs.controller.nodes.holds import OPEN, Kept
from jobs.controller.record import Record, StopWanted, moved
from jobs.controller.runs import Runs
from jobs.controller.schedule import estimate, view, why
from jobs.controller.schedule.types import Demand, Holder, Room, Situation, Start, Waiter
from jobs.controller.wishes import stop
from jobs.errors import Refused, Unreachable
from jobs.model import RunState
from jobs.queueview import Explanation, QueueView
from jobs.raymodel import Usage
from jobs.spec import Scheduler
from jobs.values import priority_value

log = logging.getLogger(__name__)

DURATIONS_SECONDS = 60.0
"""How often the past is asked how long runs take."""
LINGER_SECONDS = 8.0
"""Ray tells late that something was given back: so long what a run of ours held is not taken for somebody else's."""
FORESEE_SECONDS = 10.0
"""How often it is worked out when the first of those that wait are likely to start."""
STORAGE_SECONDS = 10.0
"""How long a run is left alone whose checkpoints could not be looked at."""
FIRST_PAGE = 200


@dataclass(frozen=True, slots=True)
class _Left:
    """What a run of ours held until a moment ago."""

    holder: Holder
    until: float


class Admission:
    """The queue of one cluster."""

    def __init__(
        self,
        rules: Scheduler,
        runs: Runs,
        engine: Engine,
        files: RunFiles,
        journal: JournalThread,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
        kept: Callable[[Room], Kept] = lambda room: OPEN,
    ) -> None:
        """``kept`` says how a node is to be treated: whether somebody keeps work off it."""
        self._kept = kept
        self._rules = rules
        self._runs = runs
        self._engine = engine
        self._files = files
        self._journal = journal
        self._wall = wall
        self._clock = clock
        self._waiters: dict[str, tuple[Record, Waiter]] = {}
        self._durations: tuple[float, dict[str, float]] = (float("-inf"), {})
        self._held: dict[str, Holder] = {}
        self._left: dict[str, _Left] = {}
        self._starts: tuple[float, dict[str, float]] = (float("-inf"), {})
        self._rests: dict[str, float] = {}
        self._situation: Situation | None = None
        self._page: QueueView | None = None
        self.pass_seconds: float | None = None
        """How long the last pass took, to decide and to say why."""

    # --- what is known ------------------------------------------------------------------------------------------------

    async def situation(self) -> Situation:
        """What the queue decides from, as it is at this moment."""
        await self._learn()
        records = self._runs.active()
        ended = {after for record in records for after in record.run.after} - {record.id for record in records}
        rooms, usage = await self._engine.rooms()
        waiting = tuple(self._waiter(record, ended) for record in records if record.run.state.waiting)
        self._waiters = {waiter.run: self._waiters[waiter.run] for waiter in waiting}
        holding = tuple(self._holder(record) for record in records if not record.run.state.waiting)
        if rooms is not None:
            rooms = self._with_foreign(rooms, usage, holding)
            rooms = tuple(map(self._as_kept, rooms))
        silent = "" if rooms is not None else self._engine.words()
        self._situation = Situation(waiting, holding, rooms, self._rules, self._wall(), silent)
        return self._situation

    def _as_kept(self, room: Room) -> Room:
        kept = self._kept(room)
        return room if kept is OPEN else replace(room, cordoned=kept.cordoned, avoid=kept.avoid)

    async def _learn(self) -> None:
        at, _ = self._durations
        if self._clock() - at > DURATIONS_SECONDS:
            self._durations = (self._clock(), await self._journal(Journal.durations))

    def _waiter(self, record: Record, ended: set[str]) -> Waiter:
        """Kept as long as the record is the same one: ten thousand of them are not made anew each second."""
        run = record.run
        known = self._waiters.get(run.id)
        after = tuple(name for name in run.after if name not in ended)
        if known is not None and known[0] is record and known[1].after == after:
            return known[1]
        waiter = self.waiter(record, after)
        self._waiters[run.id] = (record, waiter)
        return waiter

    def waiter(self, record: Record, after: tuple[str, ...] = ()) -> Waiter:
        """A run as it waits, or would wait if it were back in the queue."""
        run, held = record.run, record.run.held
        return Waiter(
            run=run.id,
            user=run.user,
            queue=run.queue,
            priority=priority_value(run.priority),
            submitted_at=run.queued_at or run.submitted_at,
            demand=demand(record),
            place=record.place,
            held=f"{held.user}: {held.reason}" if held and held.reason else (held.user if held else ""),
            after=after,
            not_before=run.not_before,
            excluded=tuple(excluded(record)),
            limit_seconds=_limit(record),
            expected_seconds=self._durations[1].get(run.workflow),
            sweep=run.sweep,
            sweep_parallel=record.sweep_parallel,
        )

    def _holder(self, record: Record) -> Holder:
        run, attempt = record.run, record.run.attempt
        status = attempt.status if attempt is not None else None
        checkpoint_at = None
        if attempt is not None and status is not None and status.checkpoint_step is not None:
            checkpoint_at = status.wall or None
        return Holder(
            run=run.id,
            user=run.user,
            queue=run.queue,
            priority=priority_value(run.priority),
            demand=demand(record),
            nodes=tuple(record.launch.node_ids),
            started_at=attempt.started_at if attempt is not None else None,
            limit_seconds=_limit(record),
            expected_seconds=self._durations[1].get(run.workflow),
            preemptible=run.state is RunState.RUNNING and record.stop is None and run.kind == "train",
            leaving=record.stop is not None,
            sweep=run.sweep,
            submitted_at=run.queued_at or run.submitted_at,
            place=record.place,
            saved_at=checkpoint_at,
        )

    def _with_foreign(self, rooms: tuple[Room, ...], usage: Usage, holding: tuple[Holder, ...]) -> tuple[Room, ...]:
        """The nodes with what work holds there that is not ours: what Ray says is held, less what we gave out."""
        now = self._clock()
        present = {holder.run: holder for holder in holding}
        for run, holder in self._held.items():
            if run not in present or present[run].nodes != holder.nodes:
                self._left[run] = _Left(holder, now + LINGER_SECONDS)
        self._held = present
        self._left = {run: left for run, left in self._left.items() if left.until > now}
        ours: dict[str, tuple[float, float]] = {}
        for holder in (*holding, *(left.holder for left in self._left.values())):
            for node in holder.nodes:
                gpus, cpus = ours.get(node, (0.0, 0.0))
                ours[node] = (gpus + holder.demand.gpus, cpus + holder.demand.cpus)
        told: list[Room] = []
        for room in rooms:
            used, (gpus, cpus) = usage.get(room.node_id, {}), ours.get(room.node_id, (0.0, 0.0))
            foreign = {
                "GPU": max(0.0, used.get("GPU", (0.0, 0.0))[0] - gpus),
                "CPU": max(0.0, used.get("CPU", (0.0, 0.0))[0] - cpus),
            }
            told.append(replace(room, foreign=foreign))
        return tuple(told)

    # --- a pass -------------------------------------------------------------------------------------------------------

    async def run_pass(self) -> None:
        """Decide once, and carry it out."""
        situation = await self.situation()
        begun = time.perf_counter()
        decided, page = view.passed(situation, 0, FIRST_PAGE)
        self.pass_seconds = time.perf_counter() - begun
        self._page = await self._foreseen(situation, page)
        if situation.rooms is None:
            return
        await self._withdraw(situation.rooms)
        for start in decided.starts:
            await self._start(start, situation.rooms)
        for preemption in decided.preemptions:
            await self._preempt(preemption.run, preemption.for_run)

    async def _foreseen(self, situation: Situation, page: QueueView) -> QueueView:
        """The page with when each of the first is likely to start; worked out apart: it plays the queue forward."""
        at, starts = self._starts
        if page.waiting and self._clock() - at > FORESEE_SECONDS:
            starts = await asyncio.to_thread(estimate.foresee, situation)
            self._starts = (self._clock(), starts)
        waiting = [
            each.model_copy(update={"estimated_start": starts[each.run]}) if each.run in starts else each
            for each in page.waiting
        ]
        return page.model_copy(update={"waiting": waiting, "pass_seconds": self.pass_seconds})

    async def _withdraw(self, rooms: Iterable[Room]) -> None:
        """An admitted run whose node went, or was cordoned, before Ray was given its job, is not pinned to it."""
        there = {room.node_id: room for room in rooms}
        for record in self._runs.active():
            if record.run.state is not RunState.ADMITTED or record.posted_at is not None:
                continue
            why = self._lost(record, there)
            if not why:
                continue

            def back(current: Record, why: str = why) -> Record:
                if current.run.state is not RunState.ADMITTED or current.posted_at is not None:
                    return current
                return withdrawn(current, why, self._wall())

            await self._runs.change(record.id, back)

    def _lost(self, record: Record, there: Mapping[str, Room]) -> str:
        """Why an admitted run cannot go where it was to go; empty if it can."""
        for node in record.launch.node_ids:
            if node not in there:
                return "a node that was chosen for it has left Ray"
            kept = self._kept(there[node])
            if kept.cordoned:
                return f"{there[node].name}, which was chosen for it, was cordoned by {kept.cordoned}"
        return ""

    def off(self, record: Record) -> bool:
        """Whether a node that was chosen for it is kept free of work by now."""
        rooms = self._situation.rooms if self._situation is not None else None
        there = {room.node_id: room for room in rooms or ()}
        return any(node in there and self._kept(there[node]).cordoned for node in record.launch.node_ids)

    async def _start(self, start: Start, rooms: tuple[Room, ...]) -> None:
        if self._rests.get(start.run, 0.0) > self._clock():
            return
        record = await self._runs.find(start.run)
        there = {room.node_id: room for room in rooms}
        before = {node: self._kept(there[node]) for node in record.launch.previous_nodes if node in there}
        silent = [there[node].name for node, kept in before.items() if kept.silent]
        if silent:
            # It would fail for not being able to look there; Ray finds out within a minute or so.
            sentence = (
                f"nothing answers on {', '.join(silent)}, where it ran before and may still write: it starts when Ray "
                f"has given that up, or somebody says that it is off (raydeck drain {silent[0]} --off)"
            )
            await self._runs.change(start.run, lambda now: _told(now, sentence, self._wall()))
            return
        off = {node for node, kept in before.items() if kept.off}
        try:
            found = await self._files.apart(f"{record.run.run_directory}#begin", lambda: begin(record))
        except Unreachable as error:
            self._rests[start.run] = self._clock() + STORAGE_SECONDS
            sentence = f"its checkpoints cannot be looked at: {error.sentence}"
            await self._runs.change(start.run, lambda now: _told(now, sentence, self._wall()))
            return
        except Refused as error:
            sentence = f"it cannot begin: {error}"
            await self._runs.change(start.run, lambda now: _refused(now, sentence, self._wall()))
            return

        def let_go(current: Record) -> Record:
            run = current.run
            if not run.state.waiting or run.held is not None or current.resume != record.resume:
                return current  # it was arranged otherwise meanwhile: the next pass sees it
            if current.stop is not None or any(self._kept(there[node]).cordoned for node in start.node_ids):
                return current
            return admitted(_without(current, off), start.node_ids, rooms, found, self._wall())

        await self._runs.change(start.run, let_go)
        self._rests.pop(start.run, None)

    async def _preempt(self, run: str, for_run: str) -> None:
        def leave(current: Record) -> Record:
            if current.run.state is not RunState.RUNNING or current.stop is not None:
                return current
            reason = f"{for_run} has a higher priority"
            return stop(current, StopWanted(at=self._wall(), user="raydeck", reason=reason, purpose="preempt"))

        log.info("run %s leaves for %s", run, for_run)
        await self._runs.change(run, leave)

    # --- why ----------------------------------------------------------------------------------------------------------

    @property
    def page(self) -> QueueView | None:
        """The first page, as the last pass saw it; None before the first one."""
        return self._page

    async def view(self, offset: int = 0, limit: int = FIRST_PAGE) -> QueueView:
        """A page of those that wait, as it is now."""
        situation = await self.situation()
        return await self._foreseen(situation, view.view(situation, offset, limit))

    async def explain(self, run: str) -> Explanation:
        """Why it waits. Raises `NoSuch`."""
        record = await self._runs.find(run)
        situation = await self.situation()
        # It plays the queue forward, which may take a moment with many runs; nobody else has to wait for that.
        told = await asyncio.to_thread(why.explain, record.run.id, record.run.state, situation)
        if record.run.state.waiting or not record.run.reason:
            return told
        return told.model_copy(update={"sentence": f"{told.sentence}: {record.run.reason}"})


def demand(record: Record) -> Demand:
    """What a run asks for on each of its nodes."""
    launch = record.launch
    return Demand(
        nodes=launch.nodes,
        gpus=launch.gpus_per_node,
        cpus=launch.cpus_per_node,
        memory_bytes=launch.memory_bytes_per_node,
        labels=tuple(sorted(launch.node_labels.items())),
    )


def _limit(record: Record) -> float | None:
    """What is left of its time limit when its newest attempt begins."""
    limit = record.run.max_duration_seconds
    return None if limit is None else max(0.0, limit - record.ran_seconds)


def _told(record: Record, sentence: str, now: float) -> Record:
    if not record.run.state.waiting or record.run.reason == sentence:
        return record
    return moved(record, record.run.state, sentence, now)


def _without(record: Record, off: Collection[str]) -> Record:
    """Nothing is looked for on nodes of which a person said that they are off; the fence keeps out what was wrong."""
    if not off:
        return record
    kept = {node: name for node, name in record.launch.previous_nodes.items() if node not in off}
    return record.model_copy(update={"launch": record.launch.model_copy(update={"previous_nodes": kept})})


def _refused(record: Record, sentence: str, now: float) -> Record:
    return moved(record, RunState.FAILED, sentence, now) if record.run.state.waiting else record
