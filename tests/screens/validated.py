"""The frozen cluster with three validations: one that found a GPU and a link, an older that passed, one that runs."""

from __future__ import annotations

from jobs.errors import Refused
from jobs.model import Run, RunState
from jobs.validation.plan import BY_ID
from jobs.validationview import CheckResult, Culprit, Figure, Report, StageResult, Verdict
from jobs.wire import LaunchRequest
from tests.screens.answers import WALL, FrozenClient
from tests.screens.frozen import FrozenSession, session

FOUND, PASSED, GOING = "validation-f0und1", "validation-pa55ed", "validation-go1ng2"
NODES = ["worker-1", "worker-2", "worker-3"]
BAD_LINK = Culprit(kind="link", nodes=["worker-1", "worker-3"])
_FIGURES = {"gpu.gemm": ("gemm", "TFLOP/s", 612.0), "gpu.transfers": ("h2d", "GB/s", 54.0)}


def check(name: str, node: str = "", gpu: int | None = None, verdict: Verdict = "pass", sentence: str = "",
          **more: object) -> CheckResult:  # fmt: skip
    """A check's result; its figure is that of a healthy one, a little apart for each GPU."""
    plan = BY_ID[name]
    figures: list[Figure] = []
    if name in _FIGURES:
        figure, unit, value = _FIGURES[name]
        value -= 3 * (gpu or 0)
        figures = [Figure(name=figure, unit=unit, samples=[value, value + 2, value - 1], peers=610.0)]
    told = sentence or "; ".join(f"{each.value:.3g} {each.unit}" for each in figures) or plan.passes
    return CheckResult(
        check=name, title=plan.title, stage=plan.stage, node=node, gpu=gpu, verdict=verdict, sentence=told,
        criterion=plan.passes, figures=figures, **more,  # pyright: ignore[reportArgumentType]
    )  # fmt: skip


def stages(bad: bool) -> list[StageResult]:
    """All four; ``bad``: a GPU that computes wrong, a link that is slow, a clock that is nearly off."""
    preflight = [
        check(f"preflight.{name}", node)
        for node in NODES
        for name in ("inventory", "versions", "clock", "health", "names", "ports", "mounts", "shared", "disk",
                     "limits", "foreign")
    ]  # fmt: skip
    gpu = [
        check(f"gpu.{name}", node, index)
        for node in NODES
        for index in range(4)
        for name in ("context", "gemm_exact", "gemm", "transfers")
    ]
    node = [check(f"node.{name}", each) for each in NODES for name in ("join", "collectives", "all_reduce")]
    links = [["worker-1", "worker-2", 46.1], ["worker-1", "worker-3", 45.2], ["worker-2", "worker-3", 45.8]]
    curve = {str(size): rate for size, rate in ((1 << 10, 0.4), (1 << 20, 88.0), (1 << 28, 371.0))}
    cluster = [
        check("cluster.join"), check("cluster.pairs", facts={"links": links}), check("cluster.latency"),
        check("cluster.collectives"), check("cluster.all_reduce", facts={"curve": curve}), check("cluster.train"),
    ]  # fmt: skip
    made = [
        StageResult(stage="preflight", verdict="pass", state="done", sentence="33 checks on 3 nodes", nodes=NODES,
                    checks=preflight, seconds=4.2, budget_seconds=60),
        StageResult(stage="gpu", verdict="pass", state="done", sentence="48 checks on 3 nodes", nodes=NODES,
                    checks=gpu, seconds=61.0, budget_seconds=240),
        StageResult(stage="node", verdict="pass", state="done", sentence="9 checks on 3 nodes", nodes=NODES,
                    checks=node, seconds=48.0, budget_seconds=300),
        StageResult(stage="cluster", verdict="pass", state="done", sentence="6 checks on 3 nodes", nodes=NODES,
                    checks=cluster, seconds=130.0, budget_seconds=900),
    ]  # fmt: skip
    if bad:
        wrong = "3 of 4096 rows are wrong, and none of the GPUs like it says the same"
        preflight[2] = check("preflight.clock", "worker-1", verdict="warn", sentence="0.7 s behind the head")
        made[0].verdict, made[0].sentence = "warn", "worker-1: 0.7 s behind the head"
        at = next(
            i for i, each in enumerate(gpu) if (each.node, each.gpu, each.check) == ("worker-2", 1, "gpu.gemm_exact")
        )
        gpu[at] = check(
            "gpu.gemm_exact", "worker-2", 1, "fail", wrong, again=True, evidence=["digest 41ac…, most say 9f02…"],
            culprits=[Culprit(kind="gpu", nodes=["worker-2"], gpu=1)],
        )  # fmt: skip
        out = {"worker-2": f"exact matrix product: {wrong}"}
        made[0].checks, made[1].checks = preflight, gpu
        made[1].verdict, made[1].sentence = "fail", f"worker-2/1: {wrong}"
        made[2].left_out = made[3].left_out = out
        made[2].nodes = made[3].nodes = ["worker-1", "worker-3"]
        made[2].checks = [each for each in node if each.node != "worker-2"]
        cluster[1] = check(
            "cluster.pairs", verdict="fail", sentence="the link worker-1 ↔ worker-3: unlike the other links",
            culprits=[BAD_LINK], facts={"links": [["worker-1", "worker-3", 4.4]]},
        )  # fmt: skip
        made[3].verdict, made[3].sentence = "fail", cluster[1].sentence
        made[3].checks = cluster
    return made


def report(run: str) -> Report:
    """What this validation found."""
    if run == PASSED:
        return Report(id=run, profile="standard", verdict="pass", done=True, sentence="3 nodes can be trusted",
                      started_at=WALL - 86_000, seconds=243, nodes=NODES, stages=stages(False))  # fmt: skip
    if run == FOUND:
        return Report(
            id=run, profile="standard", verdict="fail", done=True, user="alice", seconds=243, nodes=NODES,
            sentence="worker-2/1, the link worker-1 ↔ worker-3: not to be trusted", started_at=WALL - 3_400,
            stages=stages(True), culprits=[Culprit(kind="gpu", nodes=["worker-2"], gpu=1), BAD_LINK],
            fingerprint={"driver": "580.65.06", "torch": "2.13.0"},
        )  # fmt: skip
    made = stages(False)
    doing = {"worker-1": "all_reduce", "worker-2": "all_reduce", "worker-3": "training, DDP"}
    made[2] = StageResult(
        stage="node", state="running", nodes=NODES, budget_seconds=300, began_at=WALL - 40, doing=doing
    )
    made[3] = StageResult(stage="cluster")
    return Report(id=run, profile="standard", started_at=WALL - 110, nodes=NODES, stages=made)


class ValidatedClient(FrozenClient):
    """Has validations, and launches one more when asked."""

    def __init__(self, known: dict[str, Run]) -> None:
        super().__init__(known)
        self.reports = {run: report(run) for run in (FOUND, PASSED, GOING)}
        running, ended = RunState.RUNNING, RunState.SUCCEEDED
        for run, ago, state in ((GOING, 110, running), (FOUND, 3_400, ended), (PASSED, 86_000, ended)):
            self.known[run] = Run(
                id=run, workflow="validation", release="validation-r-1", state=state, user="alice", nodes=1, gpus=0,
                submitted_at=WALL - ago,
            )  # fmt: skip

    async def runs(self, limit: int = 200, sweep: str = "") -> list[Run]:
        found = await super().runs(limit, sweep)
        return sorted(found, key=lambda run: -run.submitted_at)

    async def validation(self, run: str) -> Report:
        self._answer_or_refuse()
        if run not in self.reports:
            raise Refused(f"{run} has no report yet")
        return self.reports[run]

    async def launch(self, request: LaunchRequest) -> list[Run]:
        self._answer_or_refuse()
        self.asked.append(("launch", "validation", request))
        return [self.known[GOING]]


def validated() -> FrozenSession:
    """A session whose controller has these."""
    made = session()
    made.client = ValidatedClient(made.client.known)
    return made
