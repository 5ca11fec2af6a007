"""What the rules are told of runs, queues and nodes beside the nodes' own figures; and what keeps that going."""

from __future__ import annotations

import pytest

from jobs.controller.health import service, situation
from jobs.model import Attempt, GangStatus, Rank, Run, RunState
from jobs.queueview import QueueUse, QueueView, Waiting
from probes.reading import Missing


def waiting(run: str, gpus: int, kind: str = "resources", position: int | None = 1, since: float = 0.0) -> Waiting:
    return Waiting(
        run=run, position=position, queue="training", priority="normal", user="ann", nodes=1, gpus=gpus, since=since,
        sentence="it waits", kind=kind,
    )  # fmt: skip


def queue(*rows: Waiting, free: int | None = 4) -> QueueView:
    return QueueView(
        at=0.0, queues=[QueueUse(name="training", waiting=len(rows))], waiting=list(rows), free_accelerators=free
    )


def run(state: RunState, *ranks: Rank) -> Run:
    status = GangStatus(phase="running", ranks=list(ranks))
    attempts = [Attempt(number=1, job_id="j", state=state, status=status)]
    return Run(id="lm-1", workflow="lm", release="r", state=state, nodes=1, gpus=2, submitted_at=0.0, attempts=attempts)


def test_only_who_waits_for_room_that_is_there_waits_in_vain() -> None:
    told = queue(
        waiting("fits", 4),
        waiting("too-big", 8),
        waiting("quota", 2, kind="queue_quota"),
        waiting("held", 1, position=None),
    )  # fmt: skip
    assert situation.wait_with_room(told) == ["fits"]
    assert situation.wait_with_room(queue(waiting("fits", 4), free=None)) == []
    assert situation.wait_with_room(None) == []


def test_gpus_belong_to_the_run_that_holds_them_now() -> None:
    ranks = [Rank(rank=0, node_id="a", gpu="2"), Rank(rank=1, node_id="b", gpu="0,1"), Rank(rank=2, node_id="gone")]
    names = {"a": "gpu-1", "b": "gpu-2"}
    assert situation.placed([run(RunState.RUNNING, *ranks)], names) == {
        "gpu-1": {2: "lm-1"},
        "gpu-2": {0: "lm-1", 1: "lm-1"},
    }
    assert situation.placed([run(RunState.FAILED, *ranks)], names) == {}
    assert situation.placed([run(RunState.FAILED, *ranks)], names, over=True)["gpu-1"] == {2: "lm-1"}


def test_a_queue_is_compared_with_what_is_usual_there() -> None:
    told = queue(waiting("one", 1, since=0.0))
    (unknown,) = situation.queues(told, {"training": [100.0]}, now=600.0)
    assert isinstance(unknown.measures["queue_wait_share"], Missing)
    (known,) = situation.queues(told, {"training": [100.0] * 6}, now=600.0)
    assert known.measures["queue_wait_share"] == pytest.approx(6.0)


async def test_a_part_that_fails_is_begun_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "AGAIN_SECONDS", 0.0)
    tries: list[int] = []

    async def work() -> None:
        tries.append(1)
        if len(tries) < 3:
            raise PermissionError("rank-0.log")

    await service._kept_up("look at logs", work)
    assert len(tries) == 3
