"""What a validation finds, for whoever reads it: figures, checks, stages, the report. See `jobs.validation`."""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

Verdict = Literal["pass", "warn", "fail", "skipped", "unknown"]
VERDICTS: tuple[Verdict, ...] = ("fail", "unknown", "warn", "skipped", "pass")
"""From worst to best. What was skipped is never green."""
StageName = Literal["preflight", "gpu", "node", "cluster", "drills"]
STAGES: tuple[StageName, ...] = ("preflight", "gpu", "node", "cluster", "drills")
STAGE_TITLES: dict[StageName, str] = {
    "preflight": "preflight", "gpu": "one GPU", "node": "one node", "cluster": "several nodes", "drills": "drills",
}  # fmt: skip
Profile = Literal["prolog", "quick", "standard", "full"]
Purpose = Literal["dataset", "model", "output", "log", "cache"]
PROFILES: tuple[Profile, ...] = ("prolog", "quick", "standard", "full")


FigureName = Literal[
    "disk_write", "disk_read", "context", "gemm", "gemm_fall", "memory_bandwidth", "h2d", "d2h", "train_steps", "join",
    "all_reduce", "all_reduce_latency", "jitter", "train", "link", "latency", "save", "load", "data",
]  # fmt: skip
"""What is measured; `jobs.validation.plan.FIGURES` says in what unit."""


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Of several the worst; ``unknown`` of none at all. What was skipped beside what passed does not count."""
    told = set(verdicts)
    if told == {"skipped"}:
        return "skipped"
    for each in VERDICTS:
        if each in told and each != "skipped":
            return each
    return "unknown"


class _Message(BaseModel):
    model_config = ConfigDict(extra="ignore")


class PathAsked(_Message):
    """A path that runs will use."""

    path: str
    purpose: Purpose
    shared: bool = True
    """All nodes are meant to see the same."""


class Ask(_Message):
    """What a validation is to do."""

    model_config = ConfigDict(extra="forbid")
    profile: Profile = "standard"
    nodes: list[str] = Field(default_factory=list[str], max_length=10_000)
    """By name; empty: every node that has GPUs."""
    stages: list[StageName] = Field(default_factory=list[StageName])
    """Those that are wanted; empty: all but drills. The preflight is always done first."""

    @field_validator("stages")
    @classmethod
    def _no_drills(cls, stages: list[StageName]) -> list[StageName]:
        if "drills" in stages:
            raise ValueError("drills change what runs, and are not done by a validation")
        return stages

    keep_going: bool = False
    """A node that fails a stage takes part in the next all the same."""
    wait_seconds: float = Field(default=20.0, ge=0, le=86_400)
    """How long GPUs that are in use are waited for; then their node is skipped."""
    expected_gpus: dict[str, int] = Field(default_factory=dict[str, int])
    """By node, as the cluster file says."""
    paths: list[PathAsked] = Field(default_factory=list[PathAsked])
    floors: dict[str, dict[FigureName, float]] = Field(default_factory=dict[str, dict[FigureName, float]])
    """The site's own, by a pattern for the GPU's model (see `jobs.validation.floors`)."""
    runs: list[str] | None = None
    """Those that may hold GPUs now; None: whoever says that it is a run."""
    fault: str = ""
    """Planted, to see that it is found: such as ``gemm:1`` or ``slow:1:50`` (see `jobs.validation.ranks.Group`)."""
    fault_node: str = ""
    """Where, for what is planted on one node."""


class Figure(_Message):
    """One measured quantity: its samples, and what they are judged against."""

    name: str
    """As in `jobs.validation.plan.FIGURES`, such as ``gemm``."""
    unit: str
    samples: list[float]
    higher_is_better: bool = True
    floor: float | None = None
    """What it may not be worse than, by the GPU's model or the site."""
    baseline: float | None = None
    """What it was when the baseline was saved."""
    peers: float | None = None
    """The median of the like."""

    @property
    def value(self) -> float:
        """The median of the samples."""
        return median(self.samples)

    @property
    def spread(self) -> float:
        """The largest sample less the smallest, as a share of the median; 0 for a single one."""
        return (max(self.samples) - min(self.samples)) / abs(self.value) if self.value else 0.0


class Culprit(_Message):
    """Who is to blame."""

    kind: Literal["node", "gpu", "link", "uplink", "file", "cluster"]
    nodes: list[str] = Field(default_factory=list[str])
    """One; of a link its two ends; of an uplink all nodes behind it."""
    gpu: int | None = None
    detail: str = ""
    """What of it: a port, a path, a setting."""

    @property
    def words(self) -> str:
        """As a person says it."""
        where = f"{self.nodes[0]}/{self.gpu}" if self.kind == "gpu" and self.nodes else " ↔ ".join(self.nodes)
        name = {"link": f"the link {where}", "uplink": f"the uplink of {', '.join(self.nodes)}"}.get(self.kind, where)
        return f"{name} ({self.detail})" if self.detail and name else name or self.detail


class CheckResult(_Message):
    """One check's verdict, on a node, a GPU, a link, or all of them together."""

    check: str
    """Its id, such as ``gpu.gemm``."""
    title: str
    stage: StageName
    node: str = ""
    """Empty for what is said of all together."""
    gpu: int | None = None
    peer: str = ""
    """The other end, of what is said of a link."""
    verdict: Verdict
    sentence: str
    """What was found, with its figure."""
    criterion: str = ""
    """What it was judged by."""
    figures: list[Figure] = Field(default_factory=list[Figure])
    evidence: list[str] = Field(default_factory=list[str])
    culprits: list[Culprit] = Field(default_factory=list[Culprit])
    stand_in: bool = False
    """It ran on the CPU, in place of a GPU."""
    again: bool = False
    """It was measured a second time before it counted."""
    seconds: float = 0.0
    facts: dict[str, Any] = Field(default_factory=dict[str, Any])


class StageResult(_Message):
    """One stage of the ladder."""

    stage: StageName
    verdict: Verdict = "unknown"
    state: Literal["waiting", "running", "done"] = "waiting"
    sentence: str = ""
    nodes: list[str] = Field(default_factory=list[str])
    """Those that took part."""
    left_out: dict[str, str] = Field(default_factory=dict[str, str])
    """Nodes that did not, and why."""
    checks: list[CheckResult] = Field(default_factory=list[CheckResult])
    seconds: float = 0.0
    budget_seconds: float = 0.0
    """How long it may take."""
    began_at: float | None = None
    """Seconds since 1970, by the head's clock."""
    doing: dict[str, str] = Field(default_factory=dict[str, str])
    """While it runs: what each node is at."""


class Report(_Message):
    """A validation: what was asked for, each stage, and who is to blame. Also while it runs."""

    id: str
    """Of its run."""
    profile: Profile
    verdict: Verdict = "unknown"
    done: bool = False
    sentence: str = ""
    started_at: float
    """Seconds since 1970, by the head's clock."""
    seconds: float = 0.0
    user: str = ""
    nodes: list[str] = Field(default_factory=list[str])
    simulated: bool = False
    """Its GPUs are simulated, or its checks ran on the CPU in their place."""
    stages: list[StageResult] = Field(default_factory=list[StageResult])
    culprits: list[Culprit] = Field(default_factory=list[Culprit])
    fingerprint: dict[str, str] = Field(default_factory=dict[str, str])
    """What most nodes run on: driver, CUDA, NCCL, torch, Python, Ray, the GPUs' model."""

    def end(self, sentence: str = "") -> None:
        """It is over, whatever it has come to; the verdict is the worst of its stages."""
        for stage in self.stages:
            if stage.state != "done":
                stage.state, stage.doing, stage.sentence = "done", {}, stage.sentence or "it did not come to its end"
        self.done, self.sentence = True, sentence
        self.verdict = worst(stage.verdict for stage in self.stages if stage.verdict != "skipped")
        if not any(stage.verdict not in ("skipped", "unknown") for stage in self.stages):
            self.verdict = "unknown"

    def checks(self) -> list[CheckResult]:
        """Those of all stages, in order."""
        return [check for stage in self.stages for check in stage.checks]
