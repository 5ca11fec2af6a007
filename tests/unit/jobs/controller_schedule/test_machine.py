"""The queue under anything that may happen to it, in any order: what it has to keep, it keeps at each step."""

from __future__ import annotations

import contextlib
from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from jobs.controller.schedule import fits, view
from jobs.controller.schedule.plan import schedule
from jobs.controller.schedule.types import Demand, Plan, Situation
from jobs.controller.schedule.why import explain
from jobs.model import RunState
from tests.unit.jobs.controller_schedule.oracle import check, in_order
from tests.unit.jobs.controller_schedule.parts import demand, waits
from tests.unit.jobs.controller_schedule.world import RULES, World, nodes

DEMANDS = st.builds(
    demand,
    nodes=st.sampled_from([1, 1, 1, 2, 2, 3]),
    gpus=st.sampled_from([0, 1, 2, 2, 4, 4, 8]),
    cpus=st.sampled_from([1, 1, 2, 8]),
    memory_gb=st.sampled_from([0, 0, 0, 16]),
    labels=st.sampled_from([{}, {}, {"pool": "a"}, {"pool": "b"}]),
)
LIMITS = st.sampled_from([None, None, 100.0, 1000.0, 5000.0])
USERS = st.sampled_from(["ann", "bob", "cleo"])
QUEUES = st.sampled_from(["default", "default", "small", "urgent"])
PRIORITIES = st.sampled_from([0, 0, 0, -100, 100, 7])
PICK = st.integers(0, 30)
NODE = st.sampled_from(sorted(nodes()))
WHERE = st.sampled_from(["first", "last", "before", "after"])


class Queue(RuleBasedStateMachine):
    """One cluster and its queue."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.turn = 0

    def waiter(self, pick: int) -> str:
        runs = sorted(self.world.waiting)
        return runs[pick % len(runs)]

    def holder(self, pick: int) -> str:
        runs = sorted(self.world.holding)
        return runs[pick % len(runs)]

    def waits_any(self) -> bool:
        return bool(self.world.waiting)

    def holds_any(self) -> bool:
        return bool(self.world.holding)

    # --- runs ---------------------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.world.waiting) < 8)
    @rule(
        asked=DEMANDS,
        user=USERS,
        queue=QUEUES,
        priority=PRIORITIES,
        limit=LIMITS,
        backs_off=st.sampled_from([0, 0, 300]),
    )
    def submit(self, asked: Demand, user: str, queue: str, priority: int, limit: float | None, backs_off: int) -> None:
        if fits.never(asked, RULES, queue, user, list(nodes().values())):
            return
        world = self.world
        until = world.now + backs_off if backs_off else None
        name = f"r{world.submitted}"
        world.submit(
            waits(name, asked, user=user, queue=queue, priority=priority, limit_seconds=limit, not_before=until)
        )

    @precondition(lambda self: len(self.world.waiting) < 6)
    @rule(gpus=st.sampled_from([1, 2]), size=st.integers(2, 3), parallel=st.sampled_from([None, 1, 2]))
    def submit_sweep(self, gpus: int, size: int, parallel: int | None) -> None:
        world, at = self.world, self.world.now
        name = f"s{world.submitted}"
        for number in range(size):
            world.submit(waits(f"{name}-{number}", demand(gpus=gpus), user="bob", sweep=name, sweep_parallel=parallel))
            world.waiting[f"{name}-{number}"] = replace(world.waiting[f"{name}-{number}"], submitted_at=at)

    @precondition(waits_any)
    @rule(pick=PICK)
    def hold(self, pick: int) -> None:
        run = self.waiter(pick)
        self.world.waiting[run] = replace(self.world.waiting[run], held="ann: wait")

    @precondition(lambda self: any(each.held for each in self.world.waiting.values()))
    @rule()
    def release(self) -> None:
        run = next(run for run, each in self.world.waiting.items() if each.held)
        self.world.waiting[run] = replace(self.world.waiting[run], held="")

    @precondition(lambda self: bool(self.world.waiting) and bool(self.world.holding))
    @rule(pick=PICK, other=PICK)
    def wait_for(self, pick: int, other: int) -> None:
        run = self.waiter(pick)
        self.world.waiting[run] = replace(self.world.waiting[run], after=(self.holder(other),))

    @precondition(waits_any)
    @rule(pick=PICK, priority=PRIORITIES)
    def change_priority(self, pick: int, priority: int) -> None:
        run = self.waiter(pick)
        self.world.waiting[run] = replace(self.world.waiting[run], priority=priority, place=None)

    @precondition(lambda self: len(self.world.waiting) > 1)
    @rule(pick=PICK, where=WHERE, other=PICK)
    def move(self, pick: int, where: str, other: int) -> None:
        run, beside = self.waiter(pick), self.waiter(other)
        if run == beside:
            return
        # Two of a sweep stand at the same moment: there is nothing between them.
        with contextlib.suppress(ValueError):
            self.world.move(run, where, beside)

    @precondition(waits_any)
    @rule(pick=PICK, node=NODE)
    def suspect(self, pick: int, node: str) -> None:
        run = self.waiter(pick)
        self.world.waiting[run] = replace(self.world.waiting[run], excluded=(node,))

    @precondition(waits_any)
    @rule(pick=PICK)
    def withdraw(self, pick: int) -> None:
        del self.world.waiting[self.waiter(pick)]

    @rule(at_once=st.booleans())
    def carry_out(self, at_once: bool) -> None:
        self.world.carry_out(schedule(self.world.situation()), at_once=at_once)

    @precondition(lambda self: any(each.started_at is None for each in self.world.holding.values()))
    @rule()
    def begin(self) -> None:
        self.world.begin_all()

    @precondition(holds_any)
    @rule(pick=PICK)
    def end(self, pick: int) -> None:
        self.world.end(self.holder(pick))

    @precondition(holds_any)
    @rule(pick=PICK)
    def stop(self, pick: int) -> None:
        run = self.holder(pick)
        self.world.holding[run] = replace(self.world.holding[run], leaving=True, preemptible=False)

    @rule(seconds=st.sampled_from([1.0, 150.0, 900.0, 4000.0]))
    def time_passes(self, seconds: float) -> None:
        self.world.now += seconds

    # --- nodes and rules ----------------------------------------------------------------------------------------------

    @rule(node=NODE)
    def cordon(self, node: str) -> None:
        if node in self.world.nodes:
            self.world.change(node, cordoned="ann: a fan")

    @rule(node=NODE)
    def uncordon(self, node: str) -> None:
        if node in self.world.nodes:
            self.world.change(node, cordoned="")

    @rule(node=NODE)
    def dies(self, node: str) -> None:
        if node in self.world.nodes:
            self.world.die(node)

    @precondition(lambda self: bool(self.world.away))
    @rule(pick=PICK)
    def comes_back(self, pick: int) -> None:
        self.world.come_back(sorted(self.world.away)[pick % len(self.world.away)])

    @rule(node=NODE, gpus=st.sampled_from([0.0, 1.0, 4.0]))
    def foreign_work(self, node: str, gpus: float) -> None:
        if node not in self.world.nodes:
            return
        self.world.change(node, foreign={})
        if gpus and self.world.free(node) >= gpus:
            self.world.change(node, foreign={"GPU": gpus})

    @rule(backfill=st.booleans(), preemption=st.booleans())
    def rules_change(self, backfill: bool, preemption: bool) -> None:
        self.world.rules = RULES.model_copy(update={"backfill": backfill, "preemption": preemption})

    @rule(small=st.sampled_from([6, 6, 2]))
    def quota_changes(self, small: int) -> None:
        """Somebody edits the cluster file while runs wait that fitted the old quota."""
        queues = [
            each.model_copy(update={"max_accelerators": small}) if each.name == "small" else each
            for each in self.world.rules.queues
        ]
        self.world.rules = self.world.rules.model_copy(update={"queues": queues})

    @rule(silent=st.sampled_from([False, False, True]))
    def ray_answers(self, silent: bool) -> None:
        self.world.silent = silent

    # --- what is kept -------------------------------------------------------------------------------------------------

    @invariant()
    def keeps_its_rules(self) -> None:
        situation = self.world.situation()
        plan = schedule(situation)
        check(situation, plan)
        assert schedule(situation) == plan, "the same situation, and another plan"
        self.says_the_same(situation, plan)

    def says_the_same(self, situation: Situation, plan: Plan) -> None:
        order = in_order(situation)
        free = [waiter.run for waiter in order if not waiter.held]
        begun = {start.run for start in plan.starts}
        page = view.view(situation, 0, 100)
        assert [row.run for row in page.waiting] == [*free, *(waiter.run for waiter in order if waiter.held)]
        for row in page.waiting:
            assert (row.kind == "") == (row.run in begun), f"{row.run}: {row.sentence}"
            assert row.position == (free.index(row.run) + 1 if row.run in free else None)
        assert view.view(situation, 1, 2).waiting == page.waiting[1:3]
        if not order:
            return
        self.turn += 1
        waiter = order[self.turn % len(order)]
        told = explain(waiter.run, RunState.QUEUED, situation)
        row = next(row for row in page.waiting if row.run == waiter.run)
        assert (not told.blocked_by) == (waiter.run in begun), f"{waiter.run}: {told.sentence}"
        assert told.position == row.position
        assert told.ahead_total == (len(free) if waiter.held else free.index(waiter.run)) or waiter.held
        if told.blocked_by:
            assert told.sentence == told.blocked_by[0].sentence == row.sentence
            assert told.blocked_by[0].kind == row.kind
        for sentence in [told.sentence, *(each.sentence for each in (*told.blocked_by, *told.nodes, *told.ahead))]:
            assert sentence, told
            assert not sentence.endswith("."), sentence
        assert told.estimated_from
        assert told.estimated_start is None or told.estimated_start >= situation.now
        assert waiter.run not in begun or told.estimated_start == situation.now

    def teardown(self) -> None:
        assert not self.world.drain(), "some that could start never do"


Queue.TestCase.settings = settings(
    max_examples=120, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestQueue = Queue.TestCase
