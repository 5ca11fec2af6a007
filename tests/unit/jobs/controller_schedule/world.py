"""A cluster and its queue as a test moves them: runs come, wait, are let go and end; nodes come and go."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from jobs.controller.schedule.order import key, ordered, place
from jobs.controller.schedule.plan import schedule
from jobs.controller.schedule.types import Holder, Plan, Room, Situation, Waiter
from jobs.spec import Limits, Queue, Scheduler
from tests.unit.jobs.controller_schedule.oracle import impossible
from tests.unit.jobs.controller_schedule.parts import NOW, begun, let_go, room

RULES = Scheduler(
    queues=[
        Queue(name="default"),
        Queue(name="small", max_accelerators=6),
        Queue(name="urgent", max_accelerators=8, priority="high"),
    ],
    limits=Limits(max_active_runs=7, max_accelerators_per_user=12, max_active_runs_per_user=4),
    user_quotas={"cleo": 5},
    ageing=3600.0,
)


def nodes() -> dict[str, Room]:
    """Three small nodes, two large ones, and one without accelerators."""
    found = [room(f"a{number}", 4, 8, 32, labels={"pool": "a"}) for number in (1, 2, 3)]
    found += [room(f"b{number}", 8, 16, 64, labels={"pool": "b"}) for number in (1, 2)]
    return {each.name: each for each in [*found, room("c1", 0, 8, 16)]}


@dataclass
class World:
    """Everything that a situation is made from."""

    now: float = NOW
    rules: Scheduler = RULES
    nodes: dict[str, Room] = field(default_factory=nodes)
    away: dict[str, Room] = field(default_factory=dict[str, Room])
    """Nodes that died."""
    waiting: dict[str, Waiter] = field(default_factory=dict[str, Waiter])
    holding: dict[str, Holder] = field(default_factory=dict[str, Holder])
    silent: bool = False
    submitted: int = 0
    lives: int = 0
    again: dict[str, Waiter] = field(default_factory=dict[str, Waiter])
    """How each of those that hold something waited before."""

    def situation(self) -> Situation:
        return Situation(
            waiting=tuple(self.waiting.values()),
            holding=tuple(self.holding.values()),
            rooms=None if self.silent else tuple(self.nodes.values()),
            rules=self.rules,
            now=self.now,
            silent="Ray does not answer" if self.silent else "",
        )

    def submit(self, waiter: Waiter) -> None:
        self.submitted += 1
        self.waiting[waiter.run] = replace(waiter, submitted_at=self.now)
        self.now += 0.5

    def carry_out(self, plan: Plan, *, at_once: bool) -> None:
        """Those that are let go hold their nodes; those that are to leave begin to."""
        for start in plan.starts:
            waiter = self.waiting.pop(start.run)
            self.again[start.run] = waiter
            self.holding[start.run] = let_go(waiter, start.node_ids, self.now if at_once else None)
        for each in plan.preemptions:
            self.holding[each.run] = replace(self.holding[each.run], leaving=True, preemptible=False)

    def begin_all(self) -> None:
        for run, holder in self.holding.items():
            if holder.started_at is None:
                self.holding[run] = begun(holder, self.now)

    def end(self, run: str) -> None:
        """It ended, or it saved and left: then it waits again, where it waited before."""
        holder, waiter = self.holding.pop(run), self.again.pop(run)
        if holder.leaving:
            self.waiting[run] = waiter
        self.forget(run)

    def forget(self, run: str) -> None:
        """Nobody waits for its end any longer."""
        for name, waiter in self.waiting.items():
            if run in waiter.after:
                self.waiting[name] = replace(waiter, after=tuple(each for each in waiter.after if each != run))

    def move(self, run: str, where: str, other: str) -> None:
        others = [each for each in self.waiting.values() if each.run != run]
        order = [(each.run, key(each, self.rules)) for each in ordered(others, self.rules)]
        self.waiting[run] = replace(self.waiting[run], place=place(order, where, other))

    def change(self, name: str, **changes: object) -> None:
        self.nodes[name] = replace(self.nodes[name], **changes)  # type: ignore[arg-type]

    def die(self, name: str) -> None:
        self.away[name] = self.nodes.pop(name)

    def come_back(self, name: str) -> None:
        """Ray gives it another id; what ran there is gone from it."""
        self.lives += 1
        back = self.away.pop(name)
        self.nodes[name] = replace(back, node_id=f"id-{name}-{self.lives}", foreign={})

    def free(self, name: str) -> float:
        """GPUs that nobody holds on a node."""
        here = self.nodes[name]
        held = sum(each.demand.gpus for each in self.holding.values() if here.node_id in each.nodes)
        return here.total["GPU"] - here.foreign.get("GPU", 0.0) - held

    def calm(self) -> None:
        """Everything that is in the way for good is taken out of it."""
        self.silent = False
        for name in list(self.away):
            self.come_back(name)
        for name in self.nodes:
            self.change(name, cordoned="", foreign={})
        for run, waiter in self.waiting.items():
            self.waiting[run] = replace(waiter, held="", after=(), not_before=None)
        for run, holder in self.holding.items():
            self.holding[run] = replace(holder, leaving=False)

    def drain(self) -> list[str]:
        """Nobody comes any more and everything ends: those that never start all the same, but could."""
        self.calm()
        for _ in range(3 * (len(self.waiting) + len(self.holding)) + 3):
            plan = schedule(self.situation())
            preempts = self.rules.preemption and bool(plan.preemptions)
            self.carry_out(plan, at_once=True)
            if not plan.starts and not preempts:
                if not self.holding:
                    break
                self.end(next(iter(self.holding)))
            self.now += 60.0
            for run in [run for run, holder in self.holding.items() if holder.leaving]:
                self.end(run)
        situation = self.situation()
        return [waiter.run for waiter in situation.waiting if not impossible(waiter, situation)]
