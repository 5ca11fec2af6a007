"""Owns the report of a validation on disk: the whole of it after every step, so that it can be followed and survives.

``<run>/report/report.json`` is put in place in one go each time; ``report.md`` and ``report.html``
are written at the end.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path

from jobs.validation.plan import BY_ID
from jobs.validationpage import page
from jobs.validationreport import markdown
from jobs.validationview import STAGE_TITLES, Culprit, Report, StageName, StageResult, Verdict, worst


class Book:
    """One validation's report as it grows."""

    def __init__(self, folder: Path, report: Report) -> None:
        self.report = report
        self._folder = folder
        self._began = time.monotonic()
        folder.mkdir(parents=True, exist_ok=True)

    def stage(self, name: StageName) -> StageResult:
        """A stage of the report."""
        return next(each for each in self.report.stages if each.stage == name)

    def begin(self, name: StageName, nodes: list[str], budget_seconds: float) -> StageResult:
        """A stage begins, with these nodes."""
        stage = self.stage(name)
        stage.state, stage.nodes, stage.budget_seconds = "running", list(nodes), budget_seconds
        stage.began_at = time.time()
        self.write()
        return stage

    def progress(self, so_far: Mapping[str, tuple[str, int | None]]) -> None:
        """How far each node is in the stage that goes on: the check it is at, and its GPU."""
        for stage in self.report.stages:
            if stage.state == "running":
                doing = {node: _doing(check, gpu) for node, (check, gpu) in so_far.items()}
                if doing != stage.doing:
                    stage.doing = doing
                    self.write()

    def end(self, stage: StageResult, seconds: float) -> None:
        """A stage has its verdict: the worst of its checks."""
        stage.state, stage.seconds, stage.doing = "done", seconds, {}
        if stage.checks:
            stage.verdict = worst(check.verdict for check in stage.checks)
            bad = [check for check in stage.checks if check.verdict == stage.verdict]
            where = bad[0].node + (f"/{bad[0].gpu}" if bad[0].gpu is not None else "")
            first = f"{where}: {bad[0].sentence}" if where else bad[0].sentence
            more = f" (and {len(bad) - 1} more)" if len(bad) > 1 else ""
            passed = f"{len(stage.checks)} checks on {len(stage.nodes)} node{'' if len(stage.nodes) == 1 else 's'}"
            stage.sentence = passed if stage.verdict == "pass" else f"{first}{more}"
        self.report.culprits = _culprits(self.report)
        self.write()

    def skip(self, name: StageName, reason: str, verdict: Verdict = "skipped") -> None:
        """A stage that is not done, and why."""
        stage = self.stage(name)
        stage.state, stage.verdict, stage.sentence, stage.doing = "done", verdict, reason, {}
        self.write()

    def close(self, sentence: str = "") -> None:
        """The validation is over."""
        report = self.report
        report.end()
        report.sentence = sentence or _sentence(report)
        self.write()
        _put(self._folder / "report.md", markdown(report))
        _put(self._folder / "report.html", page(report))

    def write(self) -> None:
        """As it stands now."""
        self.report.seconds = time.monotonic() - self._began
        _put(self._folder / "report.json", self.report.model_dump_json(indent=1))


def _doing(check: str, gpu: int | None) -> str:
    title = BY_ID[check].title if check in BY_ID else check
    return f"{title}, GPU {gpu}" if gpu is not None else title


def _put(file: Path, text: str) -> None:
    partial = file.with_name(f"{file.name}.{os.getpid()}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(file)


def _culprits(report: Report) -> list[Culprit]:
    """Who is to blame, each once; of a GPU and its node the GPU."""
    found: list[Culprit] = []
    for check in report.checks():
        if check.verdict == "fail":
            found += [each for each in check.culprits if each.nodes or each.detail]
    unique = {(each.kind, tuple(each.nodes), each.gpu): each for each in reversed(found)}
    known = list(reversed(unique.values()))
    of_gpus = {each.nodes[0] for each in known if each.kind == "gpu"}
    return [each for each in known if not (each.kind == "node" and each.nodes[0] in of_gpus)]


def _sentence(report: Report) -> str:
    passed = [STAGE_TITLES[each.stage] for each in report.stages if each.verdict in ("pass", "warn")]
    nodes = f"{len(report.nodes)} node{'' if len(report.nodes) == 1 else 's'}"
    if report.verdict in ("pass", "warn"):
        but = " (with warnings)" if report.verdict == "warn" else ""
        return f"{nodes} can be trusted{but}: {', '.join(passed)}"
    if report.culprits:
        return f"{', '.join(each.words for each in report.culprits)}: not to be trusted"
    failed = [STAGE_TITLES[each.stage] for each in report.stages if each.verdict == report.verdict]
    verb = "failed" if report.verdict == "fail" else "could not be judged"
    return f"{', '.join(failed) or 'nothing'} {verb}"
