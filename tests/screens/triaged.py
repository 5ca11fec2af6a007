"""A run that failed on the frozen cluster, and what its nodes say over SSH when a triage asks them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from console.triage.asked import Answer, Answers, Nodes, Task
from jobs.errors import Unreachable
from jobs.model import RunState
from tests.screens.answers import WALL
from tests.screens.frozen import NOW, Frozen, FrozenSession, _run

FAILED = "failing-a2b3c4"
REASON = "rank 1 on worker-1 (10.0.0.2) exited 1: ValueError: loss is not a number"
STARTED = "2026-05-28 20:22:00,000 INFO rank {rank} begins"
FIRST = [
    "step 1249 loss 1.6302",
    "token=hf_abcdefghijklmnopqrstuvwxyz012345",
    "Traceback (most recent call last):",
    '  File "lm.py", line 191, in train',
    "    loss.backward()",
    "ValueError: loss is not a number at step 1250",
]
LATER = [
    "step 1249 loss 1.6302",
    "Traceback (most recent call last):",
    '  File "lm.py", line 192, in train',
    "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.0.0.2]:2793",
]


def failed(made: Frozen) -> Frozen:
    """The cluster with a run of which rank 1 failed first, and the others because of that."""
    run = _run(FAILED, RunState.FAILED, reason=REASON, ago=900, exit_code=1)
    attempt = run.attempts[0]
    assert attempt.outcome is not None
    outcome = attempt.outcome.model_copy(update={"exit_codes": {0: 1, 1: 1, 2: 1, 3: -15}})
    run = run.model_copy(update={"attempts": [attempt.model_copy(update={"outcome": outcome})]})
    made.client.known[run.id] = run
    made.work.run_changed(run, NOW)
    return made


class Said:
    """What the nodes say; `gone` cannot be asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, list[str]]] = []
        self.gone: set[str] = set()

    async def ask(self, _nodes: Nodes, name: str, tasks: Sequence[Task], seconds: float) -> Answers:
        """In place of `Nodes.ask`."""
        self.asked.append((name, [task.name for task in tasks]))
        if name in self.gone:
            raise Unreachable(f"no SSH connection to {name}: nothing is heard")
        return Answers(WALL, 0.0, "ray", [Answer(self._answer(task)) for task in tasks])

    def _answer(self, task: Task) -> Any:
        if task.name == "machine":
            return {"raylet": {"pid": 9, "uid": 1000, "user": "ray", "gcs_address": "10.0.0.1:6379",
                               "node_ip_address": "10.0.0.2", "node_manager_port": "8076"},
                    "versions": {"torch": "2.13.0"}, "log": [], "log_path": ""}  # fmt: skip
        if task.name == "kernel":
            return [[WALL - 4000, "eth0: link becomes ready"]]
        if task.name == "path":
            return {"exists": True, "owner": "ray", "mode": "drwxr-xr-x", "user": "ray", "readable": True,
                    "writable": True, "free": 10**12, "total": 10**13, "inodes_free": 10**9}  # fmt: skip
        if task.name == "connect":
            return {"result": "open", "milliseconds": 1.5}
        if task.name == "processes":
            return {}
        rank = int(task.arguments["path"].rpartition("rank-")[2].removesuffix(".log"))
        lines = [STARTED.format(rank=rank), *(FIRST if rank == 1 else LATER)]
        return {"size": 4096, "modified": WALL - 300 + (0.0 if rank == 1 else 0.4), "first": 17, "lines": lines}


def answering(patched: Any) -> Said:
    """Has every question to a node answered so. ``patched`` is pytest's monkeypatch."""
    said = Said()

    async def ask(nodes: Nodes, name: str, tasks: Sequence[Task], seconds: float) -> Answers:
        return await said.ask(nodes, name, tasks, seconds)

    patched.setattr(Nodes, "ask", ask)
    return said


__all__ = ["FAILED", "FrozenSession", "Said", "answering", "failed"]
