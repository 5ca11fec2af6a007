"""A triage by hand: evidence with secrets in every corner, and a session that has it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from console.settings import Context, NodeEntry
from console.triage.judge import Judged
from jobs.alertview import Alert
from jobs.model import Attempt, GangStatus, Move, Rank, RunState
from jobs.triage.evidence import Evidence, LogLine, NodeEvidence, RankEvidence, RunEvidence, Target, Truth
from jobs.triage.report import triage
from jobs.wire import AuditEntry, ReleaseRow
from probes.reading import Event
from tests.unit.console.desk import WALL, a_run

SECRETS = (
    "hf_abcdefghijklmnopqrstuvwxyz012345",
    "s3cr3t-pass-word",
    "AKIAIOSFODNN7EXAMPLE",
    "MIIEvQIBADANBgkqhkiG9w0BAQEFAASCBKcwggSjAgEAAoIBAQ",
    "wandb-0123456789abcdef",
    "glpat-abcdefghij0123456789",
)
HF, PASSWORD, AWS, PEM, WANDB, GITLAB = SECRETS


def a_failed_run() -> RunEvidence:
    """A run of which rank 1 failed."""
    ranks = [Rank(rank=at, node_id=f"0{at + 1}aabbccdd", gpu="0", pid=4000 + at, exit_code=1) for at in range(2)]
    attempt = Attempt(number=1, job_id="raydeck-lm-a1-a1", state=RunState.FAILED, started_at=WALL - 500,
                      ended_at=WALL - 100, status=GangStatus(ranks=ranks), nodes=["gpu-1", "gpu-2"])  # fmt: skip
    run = a_run(state=RunState.FAILED, attempts=[attempt], run_directory="/out/lm/lm-a1", started_at=WALL - 500,
                ended_at=WALL - 100)  # fmt: skip
    config = {"env": {"WANDB_API_KEY": WANDB, "MODE": "fast", "TOKEN": "${env:HF_TOKEN}"}, "seed": 7}
    moves = [
        Move(at=WALL - 600, after=RunState.QUEUED, cause="launched", actor="alice"),
        Move(at=WALL - 100, attempt=1, before=RunState.RUNNING, after=RunState.FAILED, cause=f"password={PASSWORD}"),
    ]
    return RunEvidence(run, moves=moves, config=config)


def evidence() -> Evidence:
    """That run, its two nodes, their logs."""
    lines = [f"export HF_TOKEN={HF}", f"postgres://ray:{PASSWORD}@db/x", "-----BEGIN PRIVATE KEY-----", PEM, "AQAB",
             "-----END PRIVATE KEY-----", "ValueError: the loss is off", f"aws {AWS}"]  # fmt: skip
    log = [LogLine(text, WALL - 101, 40 + at) for at, text in enumerate(lines)]
    other = [LogLine("RuntimeError: Connection reset by peer", WALL - 99, 7)]
    nodes = {
        "gpu-1": NodeEvidence("gpu-1", ssh=Truth("up", "", WALL - 5), ray=Truth("alive", "", WALL - 5),
                              kernel=[LogLine("usb 1-1: new device", WALL - 200)]),
        "gpu-2": NodeEvidence("gpu-2", ssh=Truth("lost", f"token: {GITLAB}", WALL - 50), ray=Truth("alive"),
                              events=[Event("oom", "Out of memory: Killed process 12", WALL - 102)]),
    }  # fmt: skip
    ranks = [
        RankEvidence(0, "gpu-1", 0, exit_code=1, ended_at=WALL - 99, log=other, log_path="/out/a/rank-0.log"),
        RankEvidence(1, "gpu-2", 0, exit_code=1, ended_at=WALL - 101, log=log, log_path="/out/a/rank-1.log",
                     stack="Thread MainThread\n    train (lm.py:3)"),
    ]  # fmt: skip
    alert = Alert(
        id="a1", rule="run.failed", level="warning", title="lm-a1 failed", entities=["lm-a1"], since=WALL - 98
    )
    return Evidence(WALL, Target("run", "lm-a1"), nodes, a_failed_run(), ranks, alerts=[alert])


def judged() -> Judged:
    """The same, judged."""
    found = evidence()
    return Judged(found, triage(found), 1.5)


def audit() -> list[AuditEntry]:
    """A request with a secret in its reason."""
    return [AuditEntry(seq=1, at=WALL - 600, user="alice", action="launch", target="lm-a1", allowed=True,
                       reason=f"--api-key {WANDB}", hash="00")]  # fmt: skip


def release(identity: str, rate: float = 1.0, **more: Any) -> ReleaseRow:
    """A release of lm."""
    config = {"training": {"rate": rate}}
    return ReleaseRow(id=identity, workflow="lm", created_at=0.0, user="alice", config=config, code_digest="c", **more)


def context(folder: Path) -> Context:
    """Two nodes, and a cluster file with a password."""
    file = folder / "cluster.yaml"
    file.write_text(f"cluster:\n  name: lab\n  password: {PASSWORD}\n")
    nodes = [NodeEntry(name="gpu-1", address="10.0.1.1"), NodeEntry(name="gpu-2", address="10.0.1.2")]
    return Context(name="lab", nodes=nodes, cluster_file=file)
