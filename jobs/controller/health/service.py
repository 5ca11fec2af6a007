"""The fleet's health on the head: what the nodes tell is judged each second, and whoever has to know is told.

It goes on with no console open. What fires, what people said to it, and what was told already, survive a restart.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from jobs.alertview import Alert, AlertsView
from jobs.controller.access import Access
from jobs.controller.engine import Engine as Ray
from jobs.controller.events import Hub
from jobs.controller.files import RunFiles
from jobs.controller.health import situation
from jobs.controller.health.book import Book
from jobs.controller.health.courses import Courses
from jobs.controller.health.fleet import NodeFacts, WatchedFleet
from jobs.controller.health.hangs import Hangs
from jobs.controller.health.logs import RunLogs
from jobs.controller.health.rows import AlertRows
from jobs.controller.health.said import Said
from jobs.controller.health.tape import Tape
from jobs.controller.health.watchers import Watchers
from jobs.controller.journal import Journal, JournalThread
from jobs.controller.nodes.identity import Known
from jobs.controller.nodes.state import Nodes
from jobs.controller.notify.notifier import Notifier
from jobs.controller.recorder import Recorder
from jobs.controller.runs import Runs
from jobs.errors import RaydeckError
from jobs.model import Run, RunState
from jobs.queueview import QueueView
from jobs.spec import Cluster
from jobs.within import within
from probes.health.engine import Engine
from probes.health.fleet import majority, peers
from probes.health.group import Grouper
from probes.health.rule import Entity, Seen
from probes.health.rules import RULES, VERSION
from probes.reading import Missing

log = logging.getLogger(__name__)

STEP_SECONDS = 1.0
MIN_PAUSE_SECONDS = 0.05
NODES_SECONDS = 3.0
FIRST_NODES_SECONDS = 0.3
"""While Ray does not tell; whether it answers at all is asked elsewhere."""
REMEMBER_SECONDS = 60.0
"""What the rules remember is written at least so often, while it changes."""
SETTLE_SECONDS = 90.0
"""So long after a start the rules are given to find again what fired before it."""
FAILED_SHOWN_SECONDS = 3600.0
"""A run that failed is an alert for so long, unless it is restarted."""
LONGEST_INTERVAL = 15.0
JUST_FAILED_SECONDS = 300.0
STANDS_SHARE = 0.7
"""A run is looked at a little before it is called hanging, so that the alert has the name in it."""
WAITS_KEPT = 50
AGAIN_SECONDS = 5.0


class Health:
    """All of it. `recover` once, then `run`."""

    def __init__(
        self,
        cluster: Cluster,
        journal: JournalThread,
        runs: Runs,
        files: RunFiles,
        nodes: Nodes,
        ray: Ray,
        hub: Hub,
        access: Access,
        page: Callable[[], QueueView | None],
        learn: Callable[[], None],
        recorder: Recorder,
        wall: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster = cluster
        self._journal = journal
        self._runs = runs
        self._nodes = nodes
        self._ray = ray
        self._hub = hub
        self._page = page
        self._learn = learn
        self._wall = wall
        self._clock = clock
        self._began = clock()
        self._first_wall = wall()
        self.interval = min(cluster.observability.health_check_interval_seconds, LONGEST_INTERVAL)
        self.fleet = WatchedFleet(self.interval, clock)
        self._watchers = Watchers(ray.gcs, self._wanted, self.fleet, self.interval)
        self._rules = Engine(RULES, cluster.alerting.thresholds())
        self._grouper = Grouper()
        self._book = Book()
        self._tape = Tape(recorder, hub, ray, nodes, self.fleet)
        self._courses = Courses()
        self.hangs = Hangs(files)
        self._logs = RunLogs(files, clock)
        self.notifier = Notifier(cluster, wall, self._keep)
        self.said = Said(
            self._book,
            journal,
            runs,
            access,
            view=self.view,
            clear=self._clear,
            test=self.notifier.test,
            longest_silence=cluster.alerting.silences_longest,
            wall=wall,
        )
        paths = (cluster.storage.output_path, cluster.storage.log_path, cluster.storage.cache_path)
        self._writable = tuple(path for path in paths if path)
        self._failed: dict[str, Run] = {}
        self._waits: dict[str, deque[float]] = {}
        self._roomy: dict[str, float] = {}
        """Runs that wait though there is room, and since when there has been."""
        self._remembered = ""
        self._remember_at = clock() + REMEMBER_SECONDS
        self._settled = False
        self._told: AlertsView | None = None
        hub.taps.append(self._take_run)

    async def recover(self) -> None:
        """Take up what fired when the last controller ended."""
        remembered = await self._journal(Journal.remembered)
        firing = await self._journal(Journal.alerts, 10_000, firing=True)
        self._book.begin(firing, await self._journal(Journal.silences))
        ways = (("engine", self._rules.load), ("groups", self._grouper.load), ("notifier", self.notifier.load))
        for name, take in ways:
            if name not in remembered:
                continue
            try:
                take(json.loads(remembered[name]))
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                # Another version wrote it: the rules find again what holds.
                log.warning("what the %s remembered cannot be used: %s", name, error)
        for record in await self._journal(Journal.ended, 200):
            self._take_ended(record.run)

    async def run(self) -> None:
        """Until cancelled. A step that goes wrong is logged, and the next one tries again."""
        workers = {
            "watch the nodes": self._watchers.run,
            "ask Ray for its nodes": self._ask_nodes,
            "record": self._tape.run,
            "look at logs": self._look_at_logs,
        }
        beside = [asyncio.create_task(_kept_up(name, work), name=name) for name, work in workers.items()]
        try:
            while True:
                began = self._clock()
                self.said.changed.clear()
                try:
                    await self._step()
                except RaydeckError as error:
                    log.warning("health could not be judged: %s", error)
                except Exception:
                    # The boundary of a worker: alerts must not end for good.
                    log.exception("a step over the fleet's health went wrong")
                left = STEP_SECONDS - (self._clock() - began)
                try:
                    await within(self.said.changed.wait(), max(MIN_PAUSE_SECONDS, left))
                except asyncio.TimeoutError:
                    continue
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)

    def view(self) -> AlertsView:
        """What is told to those who listen, as it is now."""
        now = self._wall()
        shown = [
            each.model_copy(
                update={
                    "deliveries": self.notifier.deliveries(each.id),
                    "escalated": self.notifier.escalated(each.id),
                }
            )
            for each in self._book.shown(now)
        ]
        unwatched = self.fleet.unwatched() if self._cluster.observability.metrics_enabled else {}
        return AlertsView(
            alerts=shown,
            silences=sorted(self._book.silences.values(), key=lambda each: each.until),
            watched_nodes=len(self.fleet.nodes) - len(unwatched),
            unwatched=unwatched,
            blind=self.fleet.blind_spots(),
            rules_version=VERSION,
            sinks=self.notifier.sinks,
        )

    async def close(self) -> None:
        """Write down what is remembered, and let go of connections."""
        await self.hangs.close()
        # What goes out while it closes must be remembered too, or it is told twice.
        await self.notifier.close()
        await self._remember(force=True)

    def _active(self) -> list[Run]:
        return [record.run for record in self._runs.active()]

    async def _look_at_logs(self) -> None:
        await self._logs.run(self._active)

    async def _ask_nodes(self) -> None:
        """Beside the steps: Ray may take its time."""
        while True:
            rooms, _ = await self._ray.rooms()
            self._learn()
            await asyncio.sleep(NODES_SECONDS if rooms is not None else FIRST_NODES_SECONDS)

    # --- a step -------------------------------------------------------------------------------------------------------

    async def _step(self) -> None:
        now, wall = self._clock(), self._wall()
        self.fleet.know(self._names())
        active = self._active()
        for run in active:
            self._failed.pop(run.id, None)
        self._rules.step(self._steady(now), self._situation(active, now, wall))
        taken = self._book.take(self._grouper.groups(self._rules.firing()), wall)
        rows = list(taken.lasting)
        if not self._settled and now - self._began > SETTLE_SECONDS:
            self._settled = True
            rows += self._book.settle(wall)
        over = self._book.over(wall)
        if rows or over:
            await self._journal(Journal.put_alerts, AlertRows(alerts=tuple(rows), over=tuple(over)))
        await self._remember()
        view = self.view()
        self.notifier.take(view)
        if view != self._told:
            self._told = view
            self._hub.publish_alerts(view)

    def _steady(self, now: float) -> float:
        """The head's wall clock, but without its jumps."""
        return self._first_wall + (now - self._began)

    def _situation(self, active: Sequence[Run], now: float, wall: float) -> list[Seen]:
        names = {known.node_id: name for name, known in self._nodes.known.items() if known.node_id}
        ended = self._ended_lately(wall)
        on = situation.placed(active, names)
        just = [run for run in ended if wall - (run.ended_at or 0.0) < JUST_FAILED_SECONDS]
        failed = situation.placed(just, names, over=True)
        expected = situation.expected_gpus(self._cluster, self._nodes.known)
        facts: dict[str, NodeFacts] = {}
        for name, known in self._nodes.known.items():
            each = facts[name] = NodeFacts(expected.get(name), on.get(name, {}), failed.get(name, {}))
            each.writable = self._writable
            self._tell(each, name, known)
        seen = self.fleet.seen(now, facts)
        peers(seen)
        majority(seen)
        gpus = situation.gpus_now(self.fleet, on)
        roomy = situation.wait_with_room(self._page())
        self._roomy = {run: self._roomy.get(run, now) for run in roomy}
        waits = {run: now - since for run, since in self._roomy.items()}
        of_runs = self._courses.seen([*active, *ended], gpus, waits, now, wall)
        self._look_closer(active, of_runs, names, now)
        return [*seen, *of_runs, *situation.queues(self._page(), self._waits, wall), self._whole()]

    def _look_closer(self, active: Sequence[Run], seen: Sequence[Seen], names: Mapping[str, str], now: float) -> None:
        """What the runs' logs say, and of those that do not go on: who is behind."""
        by_run = {each.entity.name: each for each in seen}
        for run in active:
            each = by_run[run.id]
            errors = self._logs.recent(run.id)
            each.measures["run_log_errors"] = len(errors)
            if errors:
                each.details["run_log_errors"] = f"{errors[-1].title}; {errors[-1].place}: {errors[-1].text}"
            stuck = each.measures.get("run_stuck_short", 0)
            if isinstance(stuck, Missing) or stuck < STANDS_SHARE:
                self.hangs.goes_on(run.id)
                continue
            self.hangs.stands(run, now)
            behind = self.hangs.behind(run, names)
            if behind is not None:
                for measure in ("run_stuck_short", "run_stuck_long", "run_spinning"):
                    each.details[measure] = "; ".join(
                        part for part in (behind.sentence, each.details.get(measure)) if part
                    )

    def _tell(self, facts: NodeFacts, name: str, known: Known) -> None:
        """What is known of a node beside its own figures."""
        watched = self.fleet.nodes.get(name)
        told, words = facts.told, facts.words
        told["node_ray_dead"] = int(self._nodes.answers and not known.alive and not self._retired(known))
        told["node_is_head"] = int(known.node is not None and known.node.is_head)
        if known.node is not None and known.node.state_message:
            words["node_ray_dead"] = known.node.state_message
        if watched is not None:
            offset, age = watched.clock_offset_seconds, self.fleet.silent_seconds(watched)
            if offset is not None:
                told["node_clock_offset_seconds"] = abs(offset)
                where = "ahead of" if offset > 0 else "behind"
                words["node_clock_offset_seconds"] = f"{abs(offset):.2f} s {where} the head's clock"
            if age is not None:
                told["node_figures_age_seconds"] = age
                words["node_figures_age_seconds"] = watched.gone
        facts.cordoned = bool(self._nodes.holds(known))
        slipped = [other for other in self._nodes.others.get(known.node_id, ()) if other.slipped]
        if slipped:
            told["node_foreign_on_cordoned"] = len(slipped)
            words["node_foreign_on_cordoned"] = "; ".join(other.sentence for other in slipped)

    def _whole(self) -> Seen:
        seen = Seen(Entity("cluster", "cluster"))
        seen.measures["cluster_ray_unreachable_seconds"] = self._ray.silent_seconds
        seen.details["cluster_ray_unreachable_seconds"] = self._ray.words()
        trouble = self._journal.trouble
        seen.measures["cluster_controller_trouble"] = int(bool(trouble))
        seen.details["cluster_controller_trouble"] = trouble
        return seen

    def _names(self) -> Mapping[str, str]:
        """Ray's living nodes, except those that are on their way out: a watcher would keep them."""
        if not self._nodes.answers:
            return {each.node_id: each.name for each in self.fleet.nodes.values()}
        return {known.node_id: name for name, known in self._nodes.known.items() if known.alive and self._stays(known)}

    def _stays(self, known: Known) -> bool:
        return not self._retired(known) and known.node_id not in self._nodes.leaving

    def _retired(self, known: Known) -> bool:
        return any(record.hold.kind == "retire" for record in self._nodes.holds(known))

    def _wanted(self) -> Mapping[str, Sequence[str]]:
        if not self._cluster.observability.metrics_enabled:
            return {}
        storage = self._cluster.storage
        paths = [storage.dataset_path, storage.model_path, storage.output_path, storage.log_path, storage.cache_path]
        named = [path for path in dict.fromkeys(paths) if path]
        return {each.node_id: named for each in self.fleet.nodes.values()}

    def _take_run(self, run: Run) -> None:
        """Each change of a run: what it waited, and how it ended."""
        if run.state is RunState.ADMITTED and len(run.attempts) == 1 and not run.attempts[0].status:
            since = run.queued_at if run.queued_at is not None else run.submitted_at
            self._waits.setdefault(run.queue, deque(maxlen=WAITS_KEPT)).append(max(0.0, self._wall() - since))
        if run.state.ended:
            self._take_ended(run)

    def _take_ended(self, run: Run) -> None:
        """One that failed is judged for a while; it is no more among those that are active."""
        self._failed.pop(run.id, None)
        if run.state is RunState.FAILED:
            self._failed[run.id] = run

    def _ended_lately(self, wall: float) -> list[Run]:
        for run in [run for run in self._failed.values() if wall - (run.ended_at or wall) > FAILED_SHOWN_SECONDS]:
            del self._failed[run.id]
        return list(self._failed.values())

    def _clear(self, alert: Alert) -> None:
        """Somebody mended it: the rules forget that it was so."""
        members = self._book.members(alert)
        self._rules.clear(alert.rule, members)
        self._grouper.forget(alert.rule, members)

    def _keep(self) -> None:
        """The ways out have something to remember: what was told must not be told again."""
        self._remember_at = min(self._remember_at, self._clock())

    async def _remember(self, force: bool = False) -> None:
        now = self._clock()
        if not force and now < self._remember_at:
            return
        self._remember_at = now + REMEMBER_SECONDS
        kept: dict[str, Any] = {
            "engine": self._rules.dump(),
            "groups": self._grouper.dump(),
            "notifier": self.notifier.dump(),
        }
        text = json.dumps(kept, sort_keys=True)
        if text != self._remembered:
            self._remembered = text
            rows = AlertRows(remembered={name: json.dumps(body) for name, body in kept.items()})
            await self._journal(Journal.put_alerts, rows)


async def _kept_up(name: str, work: Callable[[], Awaitable[None]]) -> None:
    """Begin it again when it goes wrong: one part that fails must not take the others, or the controller, with it."""
    while True:
        try:
            await work()
        except Exception:
            # The boundary of a worker.
            log.exception("to %s went wrong; it is begun again in %.0f s", name, AGAIN_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS)
        else:
            return
