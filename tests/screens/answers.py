"""A controller that says the same thing every time: the answers of a frozen cluster, and what was asked for."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.model import Move, Progress, Run, RunState
from jobs.queueview import Ahead, Blocker, Explanation, NodeNote, QueueUse, QueueView, UserUse, Waiting
from jobs.transport import Response, StreamedResponse
from jobs.wire import (
    ArrangeRequest,
    AuditEntry,
    CheckpointRow,
    ReleaseRow,
    Restarted,
    RestartRequest,
    Rollback,
    RollbackRequest,
    StopRequest,
    UndoRequest,
)

WALL = 1_780_000_000.0
GB = 1024**3
CONFIG: dict[str, Any] = {
    "name": "lm",
    "resources": {"nodes": 2, "accelerators_per_node": 2},
    "training": {"batch_size": 64, "learning_rate": 0.001, "max_retry": 3},
    "checkpoints": {"keep_last": 3, "keep_every": None},
}
ENVIRONMENT = {"python": "3.11.7", "torch": "2.13.0", "cuda": "12.8", "nccl": "2.28.3", "driver": "570.86"}


def waiting(count: int = 4) -> list[Waiting]:
    """Those that wait, in order; the last one is held."""
    told = [
        ("resources", "needs 2 nodes with 4 free GPUs each: 1 has them, worker-2 has 2 free", 0),
        ("queue_quota", "queue training holds 8 of its 8 GPUs; this run needs 4 more", 1),
        ("cordon", "worker-2 is cordoned by bob (bad NVLink), and pool a100 has no other free node", 2),
    ]
    rows: list[Waiting] = []
    for number in range(count):
        kind, sentence, _ = told[number % 3]
        held = number == count - 1
        rows.append(
            Waiting(
                run=f"lm-{number:06d}" if count > 9 else f"lm-w{number}q{7 - number}x2",
                position=None if held else number + 1,
                queue=("training", "training", "inference")[number % 3],
                priority=("high", "normal", "low")[number % 3],
                user=("alice", "bob", "carol")[number % 3],
                nodes=2 - number % 2,
                gpus=8 - 4 * (number % 2),
                since=WALL - 7200 + number * 600 % 7000,
                sentence="held by bob since 20m: wait for the new data set" if held else sentence,
                kind="hold" if held else kind,
                moved=number == 1,
                estimated_start=None if held or number == 2 else WALL + 720 * (number + 1),
            )
        )
    return rows


def queue_view(rows: list[Waiting] | None = None, total: int | None = None) -> QueueView:
    """Two queues with a quota, one without; 16 GPUs, 12 of them held."""
    rows = waiting() if rows is None else rows
    return QueueView(
        at=WALL,
        queues=[
            QueueUse(name="training", priority="normal", max_accelerators=8, used_accelerators=8, running=2, waiting=2,
                     waiting_accelerators=12, default=True),
            QueueUse(name="inference", priority="high", max_accelerators=8, used_accelerators=2, running=1, waiting=1,
                     waiting_accelerators=4),
            QueueUse(name="scratch", priority="low", used_accelerators=1, running=1),
        ],
        users=[
            UserUse(user="alice", used_accelerators=8, max_accelerators=8, running=2, waiting=1),
            UserUse(user="bob", used_accelerators=3, max_accelerators=12, running=2, waiting=2),
        ],
        waiting=rows,
        waiting_total=len(rows) if total is None else total,
        held_total=1,
        active_runs=4,
        max_active_runs=100,
        accelerators=16,
        free_accelerators=4,
        foreign_accelerators=1,
        pass_seconds=0.012,
    )  # fmt: skip


def explanation(run: str) -> Explanation:
    """Everything that can be in a run's way, at once."""
    return Explanation(
        run=run,
        state=RunState.QUEUED,
        sentence="It waits for 8 GPUs on 2 nodes of pool a100: queue training has used up its quota, and worker-2 is "
        "cordoned",
        position=2,
        ahead=[
            Ahead(run="lm-w0q7x2", user="alice", queue="training", priority="high", gpus=8,
                  sentence="higher priority; it waits for 2 nodes with 4 free GPUs each"),
        ],
        ahead_total=1,
        blocked_by=[
            Blocker(kind="queue_quota", sentence="queue training holds 8 of its 8 GPUs; this run needs 8",
                    would_start_if="lm-k3f9qz (4 GPUs) and failing-a2b3c4 (4 GPUs) end", names=["training"]),
            Blocker(kind="cordon", sentence="worker-2 is cordoned by bob 3h ago: bad NVLink on GPU 1",
                    would_start_if="worker-2 is uncordoned", names=["worker-2"]),
            Blocker(kind="order", sentence="lm-w0q7x2 goes first, and would be delayed by it", names=["lm-w0q7x2"]),
        ],
        would_start_if=["lm-k3f9qz (4 GPUs) and failing-a2b3c4 (4 GPUs) end", "worker-2 is uncordoned"],
        nodes=[
            NodeNote(node="worker-1", usable=True, sentence="4 of 4 GPUs free, 60 CPUs free"),
            NodeNote(node="worker-2", usable=False, sentence="cordoned by bob: bad NVLink on GPU 1"),
            NodeNote(node="head", usable=False, sentence="has no GPU"),
        ],
        estimated_start=WALL + 1440,
        estimated_from="the time limit of lm-k3f9qz (1h), and the median of the last 20 runs of failing (12m)",
    )  # fmt: skip


def releases() -> list[ReleaseRow]:
    """Three releases of one workflow: good, good, and the newest, which is worse."""

    def made(identity: str, age: float, rate: float, code: str, **more: Any) -> ReleaseRow:
        config = {**CONFIG, "training": {**CONFIG["training"], "learning_rate": rate}}
        return ReleaseRow(
            id=identity, workflow="lm", created_at=WALL - age, user="alice", config=config, code_digest=code * 8,
            environment={**ENVIRONMENT, "torch": more.pop("torch", "2.13.0")}, data_version="v3", seed=7,
            throughput_unit="tokens", **more,
        )  # fmt: skip

    return [
        made("lm-r-4f9c2a", 700, 0.1, "e4c1a9f2", torch="2.14.0", runs=1, active=["lm-k3f9qz"], last_run="lm-k3f9qz",
             outcome="running", last_step=1250, loss=4.9112, throughput=18_250.0, checkpoint_step=1200,
             checkpoint_run="lm-k3f9qz"),
        made("lm-r-91b3d0", 90_000, 0.001, "77ab03cd", runs=2, last_run="lm-p0o9i8", outcome="succeeded",
             last_good=True, last_step=5000, loss=1.2044, throughput=18_010.0, checkpoint_step=5000,
             checkpoint_run="lm-p0o9i8"),
        made("lm-r-02de71", 900_000, 0.003, "77ab03cd", runs=3, last_run="lm-a1b2c3", outcome="failed",
             reason="out of memory on rank 3", last_step=310, loss=3.0, checkpoint_step=300,
             checkpoint_run="lm-a1b2c3"),
    ]  # fmt: skip


def checkpoints() -> list[CheckpointRow]:
    """Five, in the order of their steps: the newest is broken, one is set aside."""

    def saved(step: int, **more: Any) -> CheckpointRow:
        told: dict[str, Any] = {
            "complete": True, "written_at": WALL - (1300 - step), "size_bytes": int(6.2 * GB), "seconds": 4.2,
            "loss": 4.2 / (1 + step / 200), "world_size": 4, "attempt": 1, **more,
        }  # fmt: skip
        return CheckpointRow(step=step, path=f"/mnt/output/lm/lm-k3f9qz/checkpoints/step-{step:08d}", **told)

    return [
        saved(600, reason="set aside by attempt 2, which began from step 500"),
        saved(1000, in_use_by=["lm-w0q7x2"]),
        saved(1100),
        saved(1200),
        saved(1250, complete=False, reason="rank-3.pt is 12 bytes short of its manifest", loss=None, seconds=None),
    ]


def moves() -> list[Move]:
    """The course of a run with one retry."""
    states: list[tuple[float, int, RunState, str, str]] = [
        (620, 0, RunState.QUEUED, "launched", "alice"),
        (616, 1, RunState.ADMITTED, "2 nodes with 2 free GPUs each: worker-1, worker-2", "raydeck"),
        (612, 1, RunState.STARTING, "Ray took the job", "raydeck"),
        (606, 1, RunState.RUNNING, "all 4 ranks have started", "raydeck"),
        (300, 1, RunState.QUEUED, "attempt 1 failed: node lost (worker-2); retry 1 of 3 in 10s", "raydeck"),
        (288, 2, RunState.ADMITTED, "2 nodes with 2 free GPUs each: worker-1, worker-3", "raydeck"),
        (285, 2, RunState.STARTING, "Ray took the job", "raydeck"),
        (279, 2, RunState.RUNNING, "all 4 ranks have started", "raydeck"),
    ]
    before: RunState | None = None
    out: list[Move] = []
    for ago, attempt, state, cause, actor in states:
        out.append(Move(at=WALL - ago, attempt=attempt, before=before, after=state, cause=cause, actor=actor))
        before = state
    return out


def audit() -> list[AuditEntry]:
    """Five requests, one of them refused."""
    told = [
        ("alice", "launch", "lm-k3f9qz", True, ""),
        ("bob", "arrange", "lm-w3q4x2", True, "wait for the new data set"),
        ("carol", "stop", "lm-k3f9qz", False, "carol is a submitter and may only stop runs of carol; this is alice's"),
        ("alice", "rollback", "lm", True, "the loss is worse"),
        ("alice", "undo", "rb-7d2f", True, "it was the data"),
    ]
    return [
        AuditEntry(seq=number + 1, at=WALL - 4000 + number * 900, user=user, action=action, target=target,
                   allowed=allowed, reason=reason, hash=f"{number + 10:02x}" * 32)
        for number, (user, action, target, allowed, reason) in enumerate(told)
    ][::-1]  # fmt: skip


class Nobody:
    """What is asked for beyond the answers of `FrozenClient` is not answered."""

    where = "a frozen controller"

    async def request(self, method: str, path: str, **more: Any) -> Response:
        raise ConnectionError(f"{method} {path} is not answered here")

    def stream(self, method: str, path: str, **more: Any) -> AbstractAsyncContextManager[StreamedResponse]:
        raise ConnectionError(f"{method} {path} is not answered here")


class FrozenClient(ControllerClient):
    """Answers as above; keeps what it was asked to change in `asked`, and a rollback in `done`."""

    def __init__(self, known: dict[str, Run]) -> None:
        super().__init__(Nobody())
        self.known = known
        self.asked: list[tuple[str, str, Any]] = []
        self.done: list[Rollback] = []
        self.refuses: str = ""
        """A sentence: then nothing is answered but this."""
        self.line = waiting()

    def _answer_or_refuse(self) -> None:
        if self.refuses:
            raise Refused(self.refuses)

    async def series(self, run: str, points: int = 600) -> list[Progress]:
        self._answer_or_refuse()
        return [
            Progress(step=at * 10, loss=4.2 / (1 + at / 20), throughput=18_000 + at * 2, throughput_unit="tokens")
            for at in range(125)
        ]

    async def run(self, run: str) -> Run:
        self._answer_or_refuse()
        if run in self.known:
            return self.known[run]
        told = next((one for one in self.line if one.run == run), None)
        if told is None:
            raise Refused(f"there is no run {run!r}")
        return Run(
            id=run, workflow="lm", release="lm-r-4f9c2a", state=RunState.QUEUED, queue=told.queue, nodes=told.nodes,
            priority=told.priority, user=told.user, gpus=told.gpus, submitted_at=told.since,
        )  # fmt: skip

    async def runs(self, limit: int = 200, sweep: str = "") -> list[Run]:
        self._answer_or_refuse()
        return [run for run in self.known.values() if run.sweep == sweep]

    async def queue(self, offset: int = 0, limit: int = 200) -> QueueView:
        self._answer_or_refuse()
        return queue_view(self.line[offset : offset + limit], len(self.line))

    async def explain(self, run: str) -> Explanation:
        self._answer_or_refuse()
        return explanation(run)

    async def moves(self, run: str) -> list[Move]:
        self._answer_or_refuse()
        return moves()

    async def checkpoints(self, run: str) -> list[CheckpointRow]:
        self._answer_or_refuse()
        return checkpoints()

    async def releases(self, workflow: str = "") -> list[ReleaseRow]:
        self._answer_or_refuse()
        return releases()

    async def rollbacks(self, workflow: str = "") -> list[Rollback]:
        self._answer_or_refuse()
        return list(self.done)

    async def audit(self, limit: int = 200) -> list[AuditEntry]:
        self._answer_or_refuse()
        return audit()

    async def audit_broken(self) -> str:
        self._answer_or_refuse()
        return ""

    async def stop(self, run: str, request: StopRequest) -> Run:
        self._answer_or_refuse()
        self.asked.append(("stop", run, request))
        return self.known[run].model_copy(update={"state": RunState.STOPPING})

    async def arrange(self, run: str, request: ArrangeRequest) -> Run:
        self._answer_or_refuse()
        self.asked.append(("arrange", run, request))
        return await self.run(run)

    async def restart(self, run: str, request: RestartRequest) -> Restarted:
        self._answer_or_refuse()
        usable = [row for row in checkpoints() if row.complete and not row.reason]
        step = usable[-1].step if request.from_step is None else request.from_step
        if not request.dry_run:
            self.asked.append(("restart", run, request))
        return Restarted(
            run=self.known[run],
            from_step=step or None,
            skipped=["step 1250: rank-3.pt is 12 bytes short of its manifest"] if request.from_step is None else [],
            set_aside=[row.step for row in usable if row.step > step],
            warnings=["4 ranks saved it and 4 will load it"] if step == 1000 else [],
        )

    async def rollback(self, workflow: str, request: RollbackRequest) -> Rollback:
        self._answer_or_refuse()
        told = {row.id: row for row in releases()}
        to = request.to or "lm-r-91b3d0"
        done = Rollback(
            id="rb-7d2f", workflow=workflow, at=WALL, user="alice", reason=request.reason, from_release="lm-r-4f9c2a",
            to_release=to, stopped=["lm-k3f9qz"], started="lm-new4u5",
            from_step=told[to].checkpoint_step, from_run=told[to].checkpoint_run,
        )  # fmt: skip
        if not request.dry_run:
            self.asked.append(("rollback", workflow, request))
            self.done = [done]
            old = self.known["lm-k3f9qz"]
            self.known["lm-new4u5"] = old.model_copy(
                update={"id": "lm-new4u5", "release": to, "state": RunState.QUEUED, "attempts": [], "rollback": done.id,
                        "after": ["lm-k3f9qz"], "started_at": None}
            )  # fmt: skip
        return done

    async def undo(self, rollback_id: str, request: UndoRequest) -> Rollback:
        self._answer_or_refuse()
        done = self.done[0]
        if not request.dry_run:
            self.asked.append(("undo", rollback_id, request))
            done = done.model_copy(update={"undone_at": WALL, "undone_by": "alice"})
            self.done = [done]
        return done
