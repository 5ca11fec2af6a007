"""The evidence with what every rule asks of it worked out once: who is involved, what was said, since when. Pure."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable
from functools import cached_property

from jobs.model import Attempt, Run, RunState
from jobs.triage import first, scan
from jobs.triage.evidence import Evidence, NodeEvidence, RankEvidence
from jobs.triage.findings import Culprit, Item
from jobs.triage.scan import Hit
from probes.reading import DeviceHealth, Missing

NEAR_SECONDS = 60.0
"""A fault of a machine this close to a failure is its reason."""
STALLED_AT_LEAST_SECONDS = 30.0
STALLED_STEPS = 10.0
"""A run that has reported nothing for so many of its usual steps stands still."""
BUSY_PERCENT = 90.0
IDLE_PERCENT = 10.0


class Look:
    """One look at the evidence. Rules only read it."""

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.now = evidence.now
        self.target = evidence.target
        self.ranks = {rank.rank: rank for rank in evidence.ranks}

    @property
    def run(self) -> Run | None:
        """The run that is asked about."""
        return self.evidence.run.run if self.evidence.run else None

    @property
    def attempt(self) -> Attempt | None:
        """Its newest attempt."""
        return self.run.attempt if self.run else None

    @cached_property
    def failed(self) -> bool:
        """Its newest attempt failed, whether or not another one follows."""
        attempt, run = self.attempt, self.run
        if run is None:
            return any(rank.exit_code for rank in self.evidence.ranks)
        if run.state is RunState.FAILED:
            return True
        if attempt is None:
            return False
        if attempt.outcome is not None:
            return attempt.outcome.verdict == "failed"
        return attempt.state is RunState.FAILED or any(
            rank.exit_code and rank.exit_code > 0 for rank in self.evidence.ranks
        )

    @property
    def waits(self) -> bool:
        """It has no place yet."""
        return self.run is not None and self.run.state.waiting

    @property
    def starts(self) -> bool:
        """It has a place, and its ranks do not run yet."""
        return self.run is not None and self.run.state in (RunState.ADMITTED, RunState.STARTING)

    @property
    def runs_now(self) -> bool:
        """Its ranks run, as far as the record says."""
        return self.run is not None and self.run.state in (RunState.RUNNING, RunState.SAVING) and not self.failed

    @cached_property
    def involved(self) -> list[str]:
        """The nodes of its newest attempt, by name."""
        names = {rank.node for rank in self.evidence.ranks if rank.node}
        if self.attempt is not None and (not self.waits or self.failed):
            names.update(self.attempt.nodes)
        return sorted(names)

    @cached_property
    def scope(self) -> list[NodeEvidence]:
        """The nodes to judge: those of the run, the one that is asked about, or all."""
        nodes = self.evidence.nodes
        if self.target.kind == "run" and self.involved:
            return [nodes[name] for name in self.involved if name in nodes]
        if self.target.node:
            return [nodes[self.target.node]] if self.target.node in nodes else []
        return [nodes[name] for name in sorted(nodes)]

    @cached_property
    def first(self) -> first.First | None:
        """The rank that failed first."""
        outcome = self.attempt.outcome if self.attempt else None
        return first.find(self.evidence.ranks, outcome, self.failed)

    @cached_property
    def failed_at(self) -> float | None:
        """When the attempt broke."""
        if not self.failed:
            return None
        if self.first is not None and self.first.ended.at is not None:
            return self.first.ended.at
        attempt = self.attempt
        if attempt is not None:
            return attempt.ended_at or (attempt.outcome.wall if attempt.outcome else None) or None
        return None

    @cached_property
    def progressed_at(self) -> float | None:
        """When it last reported a step."""
        course = self.evidence.run.course if self.evidence.run else []
        walls = [point.wall for point in course if point.wall]
        attempt = self.attempt
        if attempt is not None and attempt.status is not None and attempt.status.progress is not None:
            walls += [attempt.status.progress.wall] if attempt.status.progress.wall else []
        return max(walls, default=None)

    @cached_property
    def step_seconds(self) -> float | None:
        """Its usual seconds a step, from its course."""
        course = self.evidence.run.course if self.evidence.run else []
        paces = [
            (after.wall - before.wall) / (after.step - before.step)
            for before, after in itertools.pairwise(course)
            if after.step > before.step and after.wall > before.wall
        ]
        return statistics.median(paces) if paces else None

    @cached_property
    def report_seconds(self) -> float | None:
        """Its usual seconds between two reports; a script may report every hundredth step only."""
        course = self.evidence.run.course if self.evidence.run else []
        gaps = [after.wall - before.wall for before, after in itertools.pairwise(course) if after.wall > before.wall]
        return statistics.median(gaps) if gaps else None

    @cached_property
    def still_seconds(self) -> float | None:
        """For how long nothing moved in a run that should run; None while it moves, or where nobody can tell."""
        if not self.runs_now:
            return None
        moved = self.progressed_at
        if moved is None:
            attempt = self.attempt
            moved = max((rank.last_output_at for rank in self.evidence.ranks if rank.last_output_at), default=None)
            moved = moved or (attempt.started_at if attempt else None)
        if moved is None:
            return None
        usual = max(STALLED_AT_LEAST_SECONDS, STALLED_STEPS * (self.report_seconds or 0.0))
        still = self.now - moved
        return still if still > usual else None

    @cached_property
    def trouble(self) -> tuple[float, float] | None:
        """From when to when the reason of what happened to the run has to lie; None where nobody knows."""
        end = self.failed_at
        if end is None and self.still_seconds is not None:
            end = self.now
        if end is None:
            return None
        # A rank that is late is noticed at the end of the time-out: what stopped it lies at the last step.
        waited = self.first is None or self.first.only_followed
        start = self.progressed_at if waited and self.progressed_at is not None else end
        return min(start, end) - NEAR_SECONDS, end + NEAR_SECONDS

    @cached_property
    def kernel_hits(self) -> list[Hit]:
        """Known lines of the kernel logs of the nodes in question."""
        return [hit for node in self.scope for hit in scan.of_kernel(node)]

    @cached_property
    def raylet_hits(self) -> list[Hit]:
        """Known lines of the raylets' logs."""
        return [hit for node in self.scope for hit in scan.hits(node.raylet, "raylet log", node.name)]

    @cached_property
    def rank_hits(self) -> list[Hit]:
        """Known lines of the ranks' logs, up to the first end of one."""
        end = first.first_end(self.evidence.ranks)
        until = None if end is None else end + first.AFTER_SECONDS
        return [hit for rank in self.evidence.ranks for hit in scan.of_rank(rank, until)]

    @cached_property
    def job_hits(self) -> list[Hit]:
        """Known lines of the attempt's driver, and of what Ray says of the job."""
        run = self.evidence.run
        found: list[Hit] = []
        if run is not None:
            file = run.driver_log_path.rpartition("/")[2] or "driver log"
            found += scan.hits(run.driver_log, file)
        job = self.evidence.job
        if job is not None:
            for line in job.message.splitlines()[-scan.MAX_LINES :]:
                found += [
                    Hit(pattern, Item("Ray's word on the job", job.ended_at, scan.shown(line)))
                    for pattern in scan.known(line)
                ]
        return found

    def rank_culprit(self, rank: RankEvidence) -> Culprit:
        """A rank as somebody to name."""
        return Culprit(node=rank.node, gpu=rank.gpu, rank=rank.rank, run=self.run.id if self.run else "")

    def ranks_on(self, node: str, gpu: int | None = None) -> list[RankEvidence]:
        """The ranks on a node, or on one of its GPUs."""
        return [rank for rank in self.evidence.ranks if rank.node == node and gpu in (None, rank.gpu)]

    def gpus_of_run(self) -> list[tuple[NodeEvidence, int]]:
        """The GPUs that the run's ranks use, as far as that is known."""
        pairs = {(rank.node, rank.gpu) for rank in self.evidence.ranks if rank.gpu is not None}
        nodes = self.evidence.nodes
        return [(nodes[name], gpu) for name, gpu in sorted(pairs) if name in nodes]


def figure(node: NodeEvidence, gpu: int, column: str) -> float | None:
    """One figure of a GPU's newest sample; None where there is none."""
    if node.sample is None:
        return None
    reading = node.sample.reading(gpu, column)
    return None if isinstance(reading, (Missing, str)) else float(reading)


def health_figure(device: DeviceHealth, name: str) -> float | None:
    """One figure of a GPU's health; None where there is none."""
    value = device.figures.get(name)
    return None if value is None else float(value)


def median(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None
