"""What one pass of the queue costs: decide, and say why the first 200 wait; against sorting the same list once.

10,000 runs wait on 1,000 nodes with 8 GPUs each, and 2,000 hold something. Budget: 50 ms where nothing can start.
"""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jobs.controller.schedule.plan import schedule
from jobs.controller.schedule.types import Demand, Holder, Room, Situation, Waiter
from jobs.controller.schedule.view import passed
from jobs.controller.schedule.why import explain
from jobs.model import RunState
from jobs.spec import Limits, Queue, Scheduler

NOW = 1_700_000_000.0
WAITING = 10_000
NODES = 1_000
GPUS = 8
HOLDERS = 2_000
PAGE = 200
ROUNDS = 5
BUDGET_MS = 50.0
GB = 10**9


def _rooms(size: int) -> tuple[Room, ...]:
    total = {"GPU": float(GPUS), "CPU": 128.0, "memory": 2_000.0 * GB}
    return tuple(
        Room(f"{n:056x}", f"node-{n:04d}", total, {}, {"pool": "train" if n % 4 else "infer", "rack": f"r{n // 32}"})
        for n in range(size)
    )


def _rules() -> Scheduler:
    return Scheduler(
        queues=[
            Queue(name="train", max_accelerators=6_000),
            Queue(name="eval", max_accelerators=4_000),
            Queue(name="urgent", priority="high"),
        ],
        limits=Limits(max_active_runs=5_000, max_accelerators_per_user=3_000),
    )


def _holders(rooms: tuple[Room, ...]) -> tuple[Holder, ...]:
    """Two on each node: nothing is left free."""
    each = Demand(1, GPUS / 2, 32.0)
    return tuple(
        Holder(
            run=f"h{n}",
            user=f"user{n % 40}",
            queue="train" if n % 3 else "eval",
            priority=0,
            demand=each,
            nodes=(rooms[n % len(rooms)].node_id,),
            started_at=NOW - n,
            limit_seconds=86_400.0 if n % 2 else None,
            expected_seconds=40_000.0,
            submitted_at=NOW - n - 600,
            preemptible=True,
        )
        for n in range(HOLDERS)
    )


def _demands(random_: random.Random, different: int) -> list[Demand]:
    found: list[Demand] = []
    for _ in range(different):
        pool = random_.choice((None, None, "train", "infer"))
        found.append(
            Demand(
                nodes=random_.choice((1, 1, 1, 2, 4, 8, 32)),
                gpus=float(random_.choice((1, 2, 4, 8, 8))),
                cpus=float(random_.randint(1, 64)),
                memory_bytes=random_.choice((0, 0, 200)) * GB,
                labels=(("pool", pool),) if pool else (),
            )
        )
    return found


def _waiters(random_: random.Random, different: int) -> tuple[Waiter, ...]:
    """So many different demands, and all queues, users and limits; some of them held or kept off a node."""
    demands = _demands(random_, different)
    return tuple(
        Waiter(
            run=f"w{n}",
            user=f"user{random_.randrange(40)}",
            queue=random_.choice(("train", "train", "eval", "urgent", "default")),
            priority=random_.choice((0, 0, 0, -100, 100, 50)),
            submitted_at=NOW - random_.random() * 200_000,
            demand=replace(random_.choice(demands)),
            held="ann: later" if n % 50 == 0 else "",
            limit_seconds=random_.choice((None, 3_600.0, 7_200.0, 86_400.0)),
            expected_seconds=random_.choice((None, 5_000.0)),
            excluded=("node-0007",) if n % 200 == 0 else (),
        )
        for n in range(WAITING)
    )


def cases() -> dict[str, Situation]:
    """What is measured, by name."""
    rooms, rules, random_ = _rooms(NODES), _rules(), random.Random(7)
    full = Situation(_waiters(random_, 24), _holders(rooms), rooms, rules, NOW)
    alike = tuple(replace(each, demand=Demand(2, 8.0, 16.0), excluded=(), limit_seconds=None) for each in full.waiting)
    return {
        "nothing can start": full,
        "one GPU is free": replace(
            full, holding=(replace(full.holding[0], demand=Demand(1, 3.0, 1.0)), *full.holding[1:])
        ),
        "one sweep of all": replace(full, waiting=alike),
        "400 different demands": replace(full, waiting=_waiters(random_, 400)),
        "64 start": replace(full, holding=full.holding[::2]),
        "backfill off": replace(full, rules=rules.model_copy(update={"backfill": False})),
        "preemption on": replace(full, rules=rules.model_copy(update={"preemption": True})),
    }


def _median_ms(call: Callable[[], object]) -> float:
    took: list[float] = []
    for _ in range(ROUNDS):
        begun = time.perf_counter()
        call()
        took.append(time.perf_counter() - begun)
    return round(statistics.median(took) * 1000, 1)


def run() -> dict[str, Any]:
    """Medians in milliseconds, and the ratio to sorting the list of those that wait by time and name."""
    figures: dict[str, Any] = {"waiting": WAITING, "nodes": NODES, "holders": HOLDERS, "page": PAGE, "cases": {}}
    measured = cases()
    for name, situation in measured.items():
        waiting = situation.waiting
        plan = schedule(situation)
        sort_ms = _median_ms(lambda waiting=waiting: sorted(waiting, key=lambda each: (each.submitted_at, each.run)))
        pass_ms = _median_ms(lambda situation=situation: passed(situation, 0, PAGE))
        figures["cases"][name] = {
            "pass_ms": pass_ms,
            "sort_ms": sort_ms,
            "ratio_to_sort": round(pass_ms / max(sort_ms, 0.1), 1),
            "starts": len(plan.starts),
            "preemptions": len(plan.preemptions),
        }
    full = measured["nothing can start"]
    figures["explain_ms"] = _median_ms(lambda: explain("w5001", RunState.QUEUED, full))
    figures["budget_ms"] = BUDGET_MS
    figures["kept"] = figures["cases"]["nothing can start"]["pass_ms"] <= BUDGET_MS
    return figures


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=2))
