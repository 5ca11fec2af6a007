"""Owns a validation from its first check to its report: ``python -m jobs.validation.driver``, the command of its run.

The stages go up the ladder, and each is done with the nodes that came well through those before it. What the checks do
is in their own processes on the nodes; here it is only decided who takes part, and what the outcome means.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import ray

from jobs.validation import judgegpus, judgeranks
from jobs.validation.book import Book
from jobs.validation.fleet import common_versions, judge_data, judge_preflight
from jobs.validation.floors import CPU, floors_of
from jobs.validation.judgegpus import GpuRan, Reference
from jobs.validation.judgeranks import Judged, RankRan
from jobs.validation.measured import Measured
from jobs.validation.member import Ran
from jobs.validation.members import Members, Node, Work, alive
from jobs.validation.plan import BY_ID, CPU_LIMIT_SECONDS, LIMIT_SECONDS, checks_of
from jobs.validationview import STAGES, Ask, CheckResult, Culprit, PathAsked, Report, StageName, StageResult

CPU_RANKS = 2
"""Ranks of a node whose GPUs are stood in for: more of them would only share the same processors."""
PATIENCE_SECONDS, CPU_PATIENCE_SECONDS = 20.0, 10.0
"""For one collective. What does not come within it does not come."""
CHECK_SECONDS, CPU_CHECK_SECONDS = 150.0, 25.0
"""For one check of several ranks. It must be longer than it takes to find out that others do not come."""
JOIN_SECONDS = 60.0
ROUNDS_AT_MOST = 3
"""So often the ranks are started again without a node that kept them from coming through."""
DEFAULT_STAGES: tuple[StageName, ...] = ("preflight", "gpu", "node", "cluster")


class Stopped(Exception):
    """It was asked to end."""


class Ladder:
    """One validation."""

    def __init__(self, ask: Ask, members: Members, book: Book, folder: Path, say: Any) -> None:
        self._folder = folder
        """For a checkpoint: every node sees it."""
        self._ask, self._members, self._book, self._say = ask, members, book, say
        self._good: list[str] = []
        """The nodes that take part in the next stage."""
        self._cuda: dict[str, bool] = {}
        """Whether a node's torch can use its GPUs."""
        self._models: dict[str, list[str]] = {}
        """The models of its GPUs."""

    @property
    def _wanted(self) -> tuple[StageName, ...]:
        return tuple(stage for stage in STAGES if stage in (self._ask.stages or DEFAULT_STAGES))

    def climb(self, unknown: Sequence[str]) -> None:
        """All stages that are wanted. ``unknown``: nodes that were named and that Ray has not."""
        members = self._members
        self._preflight(unknown)
        if len(self._wanted) > (1 if "preflight" in self._wanted else 0) and self._good:
            with_gpus = [name for name in self._good if members.nodes[name].gpus]
            self._good = with_gpus or self._good
            self._say(f"taking the GPUs of {', '.join(self._good)}")
            busy = members.reserve(self._good, self._ask.wait_seconds)
            self._good = [name for name in self._good if name not in busy]
            for stage in self._wanted:
                if stage == "preflight":
                    continue
                found = self._book.stage(stage)
                found.left_out.update(busy)
                if not self._good:
                    self._book.skip(
                        stage, "; ".join(f"{name}: {why}" for name, why in busy.items()) or "no node is left"
                    )
                    continue
                {"gpu": self._gpu, "node": self._node, "cluster": self._cluster}[stage]()
            members.free()
        for stage in self._wanted:
            if self._book.stage(stage).state != "done":
                self._book.skip(stage, "no node came through the stages before it", "unknown")

    # --- preflight ----------------------------------------------------------------------------------------------------

    def _preflight(self, unknown: Sequence[str]) -> None:
        members, ask = self._members, self._ask
        names = list(members.nodes)
        began = time.monotonic()
        stage = self._book.begin("preflight", names, LIMIT_SECONDS["preflight"])
        self._say(f"preflight of {', '.join(names)}")
        members.greet()
        checks = [check.id for check in checks_of(ask.profile, "preflight")]
        limit = LIMIT_SECONDS["preflight"]
        ran = self._each(names, "preflight", checks, limit)
        measured = {name: list(each[0].results) for name, each in ran.items()}
        troubles = {name: _trouble(each[0]) for name, each in ran.items()}
        if "preflight.shared" in checks:
            for name, each in self._each(names, "shared", ["preflight.shared"], limit).items():
                measured.setdefault(name, []).extend(each[0].results)
            self._each(names, "clean", [], limit)
        offsets = {
            node.name: (node.ahead_seconds, node.uncertain_seconds) for node in members.nodes.values() if not node.lost
        }
        stage.checks = judge_preflight(checks, measured, offsets, troubles)
        stage.checks += [self._gone(name, node.lost) for name, node in members.nodes.items() if node.lost]
        stage.checks += [self._gone(name, "Ray has no such node, or it is dead") for name in unknown]
        for name, each in measured.items():
            self._learn(name, each)
        self._book.report.fingerprint = common_versions(measured)
        self._after(stage, names)
        self._book.end(stage, time.monotonic() - began)

    def _gone(self, name: str, why: str) -> CheckResult:
        return CheckResult(
            check="preflight.inventory", title="inventory", stage="preflight", node=name, verdict="fail", sentence=why,
            criterion="alive in Ray, and answering", culprits=[Culprit(kind="node", nodes=[name])],
        )  # fmt: skip

    def _each(self, names: Sequence[str], program: str, checks: list[str], limit: float) -> dict[str, list[Ran]]:
        """A program that needs nobody else, on every node."""
        members, ask = self._members, self._ask
        head = next((node for node in members.nodes.values() if node.labels.get("ray.io/node-type") == "head"), None)
        work: dict[str, list[Work]] = {}
        for name in names:
            node = members.nodes[name]
            others = [other for other in members.nodes.values() if other.name != name and not other.lost]
            request: dict[str, Any] = {
                "expected": {"gpus": ask.expected_gpus.get(name), "cpus": None, "memory_bytes": None, "labels": {}},
                "ray_gpus": float(node.gpus),
                "paths": [path.model_dump() for path in ask.paths],
                "token": self._book.report.id,
                "nodes": names,
                "peers": [self._peer(other, head) for other in others],
                "checks": checks,
                "deep": ask.profile == "full",
                "runs": ask.runs,
                "address": node.address,
                "run": self._book.report.id,
                "fault": ask.fault if ask.fault_node in ("", name) else "",
            }
            work[name] = [(program, request, {})]
        return members.run(work, limit, self._book.progress)

    @staticmethod
    def _peer(node: Node, head: Node | None) -> dict[str, Any]:
        # The port that was free there a moment ago: nobody listens, and the difference between "refused" and no answer
        # tells whether the way there is free.
        ports = [node.port] if node.port else []
        must: list[int] = []
        if head is not None and node.name == head.name:
            gcs = int(ray.get_runtime_context().gcs_address.rpartition(":")[2])
            must.append(gcs)
        return {"node": node.name, "address": node.address, "ports": [*must, *ports], "must": must}

    def _learn(self, name: str, measured: Sequence[Measured]) -> None:
        """What the later stages have to know of a node."""
        for each in measured:
            if each.check == "preflight.inventory":
                gpus: list[dict[str, Any]] = each.facts.get("gpus") or []
                self._models[name] = [str(gpu.get("name", "")) for gpu in gpus]
                self._cuda[name] = bool(each.facts.get("torch_gpus"))
        self._book.report.simulated = not any(self._cuda.values())

    # --- one GPU ------------------------------------------------------------------------------------------------------

    def _gpu(self) -> None:
        names, began = list(self._good), time.monotonic()
        cpu = self._stand_in(names)
        stage = self._book.begin("gpu", names, (CPU_LIMIT_SECONDS if cpu else LIMIT_SECONDS)["gpu"])
        self._say(f"every GPU of {', '.join(names)} by itself")
        checks = [check.id for check in checks_of(self._ask.profile, "gpu")]
        work = {name: self._gpu_work(name, checks, cpu) for name in names}
        ran = self._members.run(work, stage.budget_seconds, self._book.progress)
        gpus: list[GpuRan] = []
        for name in names:
            count = max(1, self._members.nodes[name].gpus)
            models = self._models.get(name, [])
            told = ran.get(name)
            for gpu in range(count):
                of = told[0 if cpu else gpu] if told is not None else Ran()
                gpus.append(
                    GpuRan(
                        node=name, gpu=gpu, model=models[gpu] if gpu < len(models) else "",
                        results=of.results, unfinished=_unfinished(of, gpu), exit_code=of.exit_code, tail=of.tail,
                        reference=self._reference([name], cpu, gpu),
                        lost="" if told is not None else self._members.nodes[name].lost,
                    )
                )  # fmt: skip
        stage.checks = judgegpus.judge(checks, gpus, cpu)
        self._after(stage, names)
        self._book.end(stage, time.monotonic() - began)

    def _gpu_work(self, name: str, checks: list[str], cpu: bool) -> list[Work]:
        count = max(1, self._members.nodes[name].gpus)
        ask = self._ask
        request: dict[str, Any] = {
            "device": "cpu" if cpu else "cuda", "gpus": list(range(count)), "checks": checks, "seed": 7,
            "seconds": 0.5 if cpu else 30.0 if ask.profile in ("standard", "full") else 5.0,
            "deep": ask.profile == "full", "fault": ask.fault if ask.fault_node in ("", name) else "",
        }  # fmt: skip
        if cpu:  # one process stands in for all of them: several would only fight for the processors
            return [("gpu", request, {"CUDA_VISIBLE_DEVICES": ""})]
        return [("gpu", {**request, "gpus": [gpu]}, {"CUDA_VISIBLE_DEVICES": str(gpu)}) for gpu in range(count)]

    # --- ranks together -----------------------------------------------------------------------------------------------

    def _node(self) -> None:
        names, began = list(self._good), time.monotonic()
        able = [name for name in names if self._members.nodes[name].gpus != 1]
        cpu = self._stand_in(able)
        stage = self._book.begin("node", able, (CPU_LIMIT_SECONDS if cpu else LIMIT_SECONDS)["node"])
        stage.left_out |= {name: "it has one GPU" for name in names if name not in able}
        if not able:
            self._book.skip("node", "no node has several GPUs")
            return
        self._say(f"all GPUs of each of {', '.join(able)} together")
        checks = [check.id for check in checks_of(self._ask.profile, "node")]
        groups = {name: [(name, local) for local in range(self._ranks(name, cpu))] for name in able}
        judged = self._judged("node", groups, checks, cpu, stage.budget_seconds)
        again = {name: each.measure_again for name, each in judged.items() if each.measure_again}
        if again:
            self._say(f"measured once more: {', '.join(again)}")
            wanted = sorted({check for each in again.values() for check in each}, key=checks.index)
            second = self._judged("node", {name: groups[name] for name in again}, wanted, cpu, stage.budget_seconds)
            for name, each in second.items():
                judged[name] = judgeranks.better(judged[name], each)
        for name in able:
            stage.checks += judged[name].checks
        self._after(stage, able)
        self._book.end(stage, time.monotonic() - began)

    def _cluster(self) -> None:
        names, began = list(self._good), time.monotonic()
        cpu = self._stand_in(names)
        stage = self._book.begin("cluster", names, (CPU_LIMIT_SECONDS if cpu else LIMIT_SECONDS)["cluster"])
        if len(names) < 2:
            self._book.skip("cluster", f"only {names[0]} is left, and two are needed")
            return
        checks = [check.id for check in checks_of(self._ask.profile, "cluster")]
        if "cluster.data" in checks:
            stage.checks += self._data(names)
        wanted = [check for check in checks if check not in ("cluster.data", "cluster.resume")]
        saving = {"folder": str(self._folder), "crash": "cluster.save" in checks}
        savers: list[str] = []
        for round_ in range(ROUNDS_AT_MOST):
            if "cluster.save" in wanted:
                savers = list(names)
            self._say(f"{', '.join(names)} together" + (", once more without the culprit" if round_ else ""))
            group = [(name, local) for name in names for local in range(1 if cpu else self._ranks(name, cpu))]
            judged = self._judged("cluster", {"all": group}, wanted, cpu, stage.budget_seconds, saving)["all"]
            if judged.measure_again:
                self._say(f"measured once more: {', '.join(judged.measure_again)}")
                more = self._judged("cluster", {"all": group}, judged.measure_again, cpu, stage.budget_seconds)["all"]
                judged = judgeranks.better(judged, more)
            stage.checks += judged.checks
            wanted = judged.unreached
            for node in judged.to_blame:
                if node in names:
                    names.remove(node)
                    stage.left_out[node] = "it kept the others from coming through"
            if not wanted or not judged.to_blame or len(names) < 2:
                break
            self._book.write()
        if "cluster.resume" in checks:
            stage.checks += self._resume(savers, stage, cpu)
        stage.checks += [self._untold(check, "it was not come to: an earlier check was cut short") for check in wanted]
        self._after(stage, names)
        self._book.end(stage, time.monotonic() - began)

    def _data(self, names: Sequence[str]) -> list[CheckResult]:
        """The dataset, read on every node."""
        ran = self._each(names, "data", ["cluster.data"], LIMIT_SECONDS["cluster"])
        return judge_data({name: list(each[0].results) for name, each in ran.items()})

    def _resume(self, names: Sequence[str], stage: StageResult, cpu: bool) -> list[CheckResult]:
        """New processes go on from the checkpoint that was saved, if one was, by ``names``.

        All of them take part again, whatever else is said of them: fewer ranks are another training, by right.
        """
        saved = next((check for check in stage.checks if check.check == "cluster.save"), None)
        if saved is None or saved.verdict not in ("pass", "warn"):
            return []
        expected = saved.facts.pop("losses")
        if gone := [name for name in names if self._lost(name)]:
            return [self._untold("cluster.resume", f"{', '.join(gone)}, which saved a part of it, is lost")]
        group = [(name, local) for name in names for local in range(1 if cpu else self._ranks(name, cpu))]
        more = {"folder": str(self._folder), "expected": expected}
        self._say("a rank was killed; new ones go on from the checkpoint")
        return self._judged("cluster", {"all": group}, ["cluster.resume"], cpu, stage.budget_seconds, more)[
            "all"
        ].checks

    @staticmethod
    def _untold(check: str, why: str) -> CheckResult:
        plan = BY_ID[check]
        return CheckResult(
            check=check, title=plan.title, stage=plan.stage, verdict="unknown", sentence=why, criterion=plan.passes
        )

    def _ranks(self, name: str, cpu: bool) -> int:
        return min(CPU_RANKS, max(2, self._members.nodes[name].gpus)) if cpu else self._members.nodes[name].gpus

    def _judged(
        self,
        stage: StageName,
        groups: dict[str, list[tuple[str, int]]],
        checks: list[str],
        cpu: bool,
        limit: float,
        more: dict[str, Any] | None = None,
    ) -> dict[str, Judged]:
        """Groups of ranks, each a node and its number there, checked at the same time; each group's judgement."""
        members, ask = self._members, self._ask
        work: dict[str, list[Work]] = {}
        places: dict[tuple[str, int], tuple[str, int]] = {}
        for group, ranks in groups.items():
            first = members.nodes[ranks[0][0]]
            port = members.port(first.name)
            request: dict[str, Any] = {
                "stage": stage, "checks": checks, "run": f"{self._book.report.id}-{stage}-{group}-{port}",
                "names": [name for name, _ in ranks], "locals": [local for _, local in ranks],
                "host": first.address, "port": port, "device": "cpu" if cpu else "cuda",
                "backend": "gloo" if cpu else "nccl", "patience": CPU_PATIENCE_SECONDS if cpu else PATIENCE_SECONDS,
                "check_seconds": CPU_CHECK_SECONDS if cpu else CHECK_SECONDS,
                "join_seconds": JOIN_SECONDS + len(ranks) / 16, "quick": ask.profile in ("prolog", "quick"),
                "deep": ask.profile == "full", "fault": ask.fault if ask.fault_node in ("", group) else "",
                **(more or {}),
            }  # fmt: skip
            for rank, (name, local) in enumerate(ranks):
                environment = {"CUDA_VISIBLE_DEVICES": "" if cpu else str(local)}
                of_node = work.setdefault(name, [])
                places[group, rank] = (name, len(of_node))
                of_node.append(("ranks", {**request, "rank": rank}, environment))
        ran = members.run(work, limit, self._book.progress)
        found: dict[str, Judged] = {}
        for group, ranks in groups.items():
            told: list[RankRan] = []
            for rank, (name, local) in enumerate(ranks):
                of = ran[name][places[group, rank][1]] if name in ran else None
                lost = "" if of is not None else members.nodes[name].lost
                told.append(
                    RankRan(
                        node=name, local=local, results=of.results if of else [],
                        unfinished=of.unfinished[0] if of and of.unfinished else "",
                        exit_code=of.exit_code if of else 0, tail=of.tail if of else "", lost=lost,
                    )
                )  # fmt: skip
            reference = self._reference([name for name, _ in ranks], cpu)
            found[group] = judgeranks.judge(stage, checks, told, cpu, reference)
        return found

    def _reference(self, names: Sequence[str], cpu: bool, gpu: int = 0) -> Reference:
        """What figures of these nodes may not be worse than; nothing where their GPUs are of several models."""
        models = {CPU if cpu else dict(enumerate(self._models.get(name, []))).get(gpu, "") for name in names}
        floors = floors_of(models.pop(), self._ask.floors) if len(models) == 1 else {}
        return {figure: (floor, None) for figure, floor in floors.items()}

    def _stand_in(self, names: Sequence[str]) -> bool:
        """Whether the CPU has to stand in: one node without CUDA is enough."""
        return not all(self._cuda.get(name) for name in names)

    def _after(self, stage: StageResult, names: Sequence[str]) -> None:
        """Who goes on: those that did not fail, and are still there."""
        failed: dict[str, str] = {}
        for check in stage.checks:
            if check.verdict != "fail":
                continue
            for node in [node for each in check.culprits if each.kind in ("node", "gpu") for node in each.nodes]:
                failed.setdefault(node, f"{check.title}: {check.sentence}")
        for name in names:
            if self._members.nodes[name].lost:
                failed[name] = self._members.nodes[name].lost
        self._good = [name for name in names if name not in failed or (self._ask.keep_going and not self._lost(name))]
        following = self._wanted[self._wanted.index(stage.stage) + 1 :] if stage.stage in self._wanted else self._wanted
        for later in following:
            self._book.stage(later).left_out |= {node: why for node, why in failed.items() if node not in self._good}

    def _lost(self, name: str) -> bool:
        return bool(self._members.nodes[name].lost)


def _trouble(ran: Ran) -> str:
    """How a program ended that did not come to its end."""
    if ran.hung:
        return f"it hung at {ran.unfinished[0]}" if ran.unfinished else "it hung"
    last = ran.tail.strip().splitlines()[-1:] or [""]
    return f"its checks ended with exit code {ran.exit_code}: {last[0][:200]}" if ran.exit_code else ""


def _unfinished(ran: Ran, gpu: int) -> str:
    return ran.unfinished[0] if ran.unfinished is not None and ran.unfinished[1] == gpu else ""


def main() -> int:
    """Exit code 0 for a validation that came to its end, whatever it found; 1 for one that could not."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise Stopped

    signal.signal(signal.SIGTERM, stop)
    ask = Ask.model_validate(json.loads(os.environ["RAYDECK_CONFIG"])["parameters"])
    run_directory = Path(os.environ["RAYDECK_RUN_DIR"])
    known = {path.path for path in ask.paths}
    if str(run_directory.parent.parent) not in known:
        # Every run writes below the folder that this one has been given a place in.
        ask.paths.append(PathAsked(path=str(run_directory), purpose="output"))
    if (data := os.environ.get("RAYDECK_DATA_ROOT", "")) and data not in known:
        ask.paths.append(PathAsked(path=data, purpose="dataset"))
    stages = [StageResult(stage=stage) for stage in STAGES if stage in ("preflight", *(ask.stages or DEFAULT_STAGES))]
    report = Report(
        id=os.environ.get("RAYDECK_RUN", run_directory.name), profile=ask.profile, started_at=time.time(), stages=stages
    )
    book = Book(run_directory / "report", report)
    members: Members | None = None
    try:
        ray.init(log_to_driver=False, configure_logging=False)
        signal.signal(signal.SIGTERM, stop)  # Ray puts its own handler in our place
        there = alive()
        chosen = [node for node in there if not ask.nodes or node.name in ask.nodes]
        unknown = sorted(set(ask.nodes) - {node.name for node in there})
        report.nodes = [node.name for node in chosen]
        members = Members(chosen)
        Ladder(ask, members, book, run_directory / "report" / "checkpoint", _say).climb(unknown)
        book.close()
    except Stopped:
        book.close("it was stopped before its end")
        return 1
    except Exception as error:
        # Whoever reads the report is told, and whoever reads the log sees where.
        book.close(f"it broke: {type(error).__name__}: {error}"[:300])
        raise
    finally:
        if members is not None:
            members.close()
    _say(f"{report.verdict}: {report.sentence}")
    return 0


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())
