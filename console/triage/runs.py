"""A run as evidence: its record, its ranks, what they wrote last, and where they stand when it does not go on."""

from __future__ import annotations

import itertools
import posixpath
import statistics
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from console.sources.session import Session
from console.triage.asked import Answer, Task
from console.triage.nodes import Machine
from console.triage.times import dated
from jobs.client import ControllerClient
from jobs.errors import RaydeckError
from jobs.looks import Look, Thread
from jobs.model import Attempt, Progress, Run, RunState
from jobs.rayapi import RayApi
from jobs.release import difference
from jobs.triage.evidence import Comparison, NodeEvidence, RankEvidence, RunEvidence

LOG_LINES = 2_000
LOG_BYTES = 512 << 10
LOGS_BYTES = 32 << 20
"""Of all logs together."""
LOGS_AT_MOST = 256
"""So many ranks' logs are read; those that failed first."""
DRIVER_LINES = 1_000
POINTS = 600
PROCESS_SECONDS = 0.25
TERMINATED = -15
STEPS_COMPARED = 20
LOOK_AFTER_SECONDS = 20.0

T = TypeVar("T")


def of_attempt(run: Run, number: int | None) -> Run:
    """The run as it was when this attempt was its newest; as it is, if none is named."""
    if number is None or run.attempt is None or run.attempt.number == number:
        return run
    kept = [attempt for attempt in run.attempts if attempt.number <= number]
    last = kept[-1] if kept else None
    if last is None or last.number != number:
        return run
    state = last.state if last.state.ended else RunState.FAILED
    return run.model_copy(
        update={"attempts": kept, "state": state, "reason": last.reason, "failure": last.failure,
                "ended_at": last.ended_at}
    )  # fmt: skip


# --- what the controller has ------------------------------------------------------------------------------------------


async def told(asking: Awaitable[T], what: str, unread: list[str]) -> T | None:
    """An answer, or None and a sentence."""
    try:
        return await asking
    except RaydeckError as error:
        unread.append(f"{what}: {error.sentence}")
        return None


async def configuration(client: ControllerClient, found: RunEvidence, unread: list[str]) -> None:
    """What the run is made of, and what changed since the last good release."""
    rows = await told(client.releases(found.run.workflow), "its releases", unread) or []
    own = next((row for row in rows if row.id == found.run.release), None)
    if own is not None:
        found.config = dict(own.config)
    good = next((row for row in rows if row.last_good), None)
    if good is None:
        return
    found.last_good_release = good.id
    if own is not None and good.id != own.id:
        found.differences = difference(good, own)
    if good.last_run != found.run.id:
        found.baseline_throughput = good.throughput


async def record(client: ControllerClient, session: Session, found: RunEvidence, unread: list[str]) -> None:
    """All else that the controller knows of the run."""
    run = found.run
    found.moves = await told(client.moves(run.id), "its course from state to state", unread) or []
    if run.state.waiting:
        found.explanation = await told(client.explain(run.id), "why it waits", unread)
    found.checkpoints = await told(client.checkpoints(run.id), "its checkpoints", unread) or []
    seconds = [row.seconds for row in found.checkpoints if row.complete and row.seconds is not None]
    if len(seconds) > 2:
        found.baseline_checkpoint_seconds = statistics.median(seconds[:-1])
    points = await told(client.series(run.id, POINTS), "its course", unread) or []
    found.course = of_this_attempt(points, run.attempt)
    found.comparison = await _comparison(client, session, run, found.course, unread)


def of_this_attempt(points: Sequence[Progress], attempt: Attempt | None) -> list[Progress]:
    """The points since the attempt began."""
    began = attempt.started_at if attempt is not None else None
    return [point for point in points if began is None or not point.wall or point.wall >= began - 5.0]


async def _comparison(
    client: ControllerClient, session: Session, run: Run, course: Sequence[Progress], unread: list[str]
) -> Comparison | None:
    """The newest other run of the same release that ended well, at the last step that both told a loss of."""
    others = [
        each
        for each in session.work.runs.values()
        if each.release == run.release and each.id != run.id and each.state is RunState.SUCCEEDED
        and each.parameters == run.parameters
    ]  # fmt: skip
    if not others:
        return None
    other = max(others, key=lambda each: each.submitted_at)
    theirs = await told(client.series(other.id, POINTS), f"the course of {other.id}", unread) or []
    here = {point.step: point.loss for point in course if point.loss is not None}
    there = {point.step: point.loss for point in theirs if point.loss is not None}
    both = sorted(here.keys() & there.keys())
    if not both:
        return Comparison(other.id)
    return Comparison(other.id, [], here[both[-1]], there[both[-1]], both[-1])


async def driver_log(api: RayApi, found: RunEvidence, evidence_job: Any, ahead: float, now: float) -> None:
    """The end of what the attempt's driver printed, from Ray."""
    text = await api.job_log_tail(evidence_job, DRIVER_LINES)
    found.driver_log_path = f"job-driver-{evidence_job.submission_id}.log"
    if text:
        found.driver_log = dated(text.splitlines(), None, evidence_job.ended_at, 0.0, ahead, now)


# --- its ranks --------------------------------------------------------------------------------------------------------


class Ranked:
    """The ranks of an attempt, and where each is."""

    def __init__(self, run: Run, nodes: Mapping[str, str], facts: Mapping[str, NodeEvidence]) -> None:
        """``nodes``: Ray's node id, or an address, to the name of a node."""
        self.run = run
        self.attempt = run.attempt
        self.ranks = ranks_of(run, nodes, facts)

    @property
    def folder(self) -> str:
        """The attempt's folder; empty where there is none."""
        if self.attempt is None or not self.run.run_directory:
            return ""
        return f"{self.run.run_directory}/attempt-{self.attempt.number}"

    @property
    def nodes(self) -> list[str]:
        """The nodes that it is or was on, by name."""
        names = {rank.node for rank in self.ranks if rank.node}
        if self.attempt is not None:
            names.update(self.attempt.nodes)
        return sorted(names)

    def read(self, node: str) -> list[RankEvidence]:
        """The ranks whose logs are read on a node, those that failed of their own first."""
        order = sorted(self.ranks, key=lambda rank: (_standing(rank), rank.rank))[:LOGS_AT_MOST]
        return [rank for rank in order if rank.node == node]

    def questions(self, node: str) -> list[Task]:
        """Their logs, and how their processes stand."""
        most = min(LOG_BYTES, LOGS_BYTES // max(1, len(self.ranks)))
        tasks = [
            Task("log", {"path": rank.log_path, "most_bytes": most, "most_lines": LOG_LINES})
            for rank in self.read(node)
        ]
        return [*tasks, Task("processes", {"pids": self._pids(node), "seconds": PROCESS_SECONDS})]

    def _pids(self, node: str) -> list[int]:
        return [rank.pid for rank in self.ranks if rank.node == node and rank.pid and rank.exit_code is None]

    def take(self, node: str, machine: Machine, answers: Sequence[Answer]) -> None:
        """The answers to `questions`."""
        living = self.attempt is not None and not self.run.state.ended and not self.run.state.waiting
        for rank, answer in zip(self.read(node), answers, strict=False):
            if not isinstance(answer.value, dict):
                rank.unread.append(f"its log {rank.log_path} could not be read on {node}: {answer.reason}")
                continue
            value: dict[str, Any] = answer.value
            rank.log = machine.lines(value)
            rank.log_bytes = value.get("size")
            modified = value.get("modified")
            if isinstance(modified, (int, float)):
                at = float(modified) - machine.ahead
                rank.last_output_at = rank.last_output_at or at
                if rank.exit_code and rank.exit_code != TERMINATED:
                    rank.ended_at = at
        seen: dict[str, Any] = answers[-1].value if isinstance(answers[-1].value, dict) else {}
        for rank in self.ranks:
            if rank.node == node and living and (told := seen.get(str(rank.pid))) is not None:
                rank.process_state = str(told.get("state", "")) or rank.process_state
                rank.wchan = str(told.get("wchan", "")) or rank.wchan
                rank.cpu_percent = told.get("cpu_percent", rank.cpu_percent)

    def unread(self, node: str, reason: str) -> None:
        """A node that could not be asked: its ranks' logs are not to be had."""
        for rank in self.ranks:
            if rank.node == node:
                rank.unread.append(f"its log could not be read on {node}: {reason}")


def _standing(rank: RankEvidence) -> int:
    return 0 if rank.exit_code and rank.exit_code != TERMINATED else 1 if rank.exit_code is None else 2


def ranks_of(run: Run, nodes: Mapping[str, str], facts: Mapping[str, NodeEvidence]) -> list[RankEvidence]:
    """The ranks of the newest attempt as its record has them."""
    attempt = run.attempt
    status = attempt.status if attempt is not None else None
    if attempt is None or status is None:
        return []
    codes = attempt.outcome.exit_codes if attempt.outcome is not None else {}
    found: list[RankEvidence] = []
    for rank in status.ranks:
        name = nodes.get(rank.node_id) or nodes.get(rank.node_address, "")
        gpu = int(rank.gpu) if rank.gpu.isdecimal() else None
        known = facts[name].facts if name in facts else None
        uuid = next((device.uuid for device in known.devices if device.index == gpu), None) if known else None
        found.append(
            RankEvidence(
                rank=rank.rank,
                node=name or rank.node_address,
                gpu=gpu,
                gpu_uuid=uuid or "",
                pid=rank.pid,
                exit_code=codes.get(rank.rank, rank.exit_code),
                last_step=rank.step,
                last_output_at=rank.output_at,
                log_path=f"{run.run_directory}/attempt-{attempt.number}/rank-{rank.rank}.log",
                process_state=rank.state,
                wchan=rank.wchan,
                cpu_percent=None if rank.cpu is None else 100.0 * rank.cpu,
                seconds={} if rank.own_seconds is None else {"compute": rank.own_seconds},
            )
        )
    return found


def share_out(ranks: Iterable[RankEvidence], course: Sequence[Progress]) -> None:
    """Where ranks say what a step takes them by themselves, the rest of a step is what they wait for each other."""
    latest = [point for point in course if point.wall][-STEPS_COMPARED:]
    steps = [
        (after.wall - before.wall) / (after.step - before.step)
        for before, after in itertools.pairwise(latest)
        if after.step > before.step and after.wall > before.wall
    ]
    if not steps:
        return
    step = statistics.median(steps)
    for rank in ranks:
        if "compute" in rank.seconds:
            rank.seconds["collective"] = max(0.0, step - rank.seconds["compute"])


def stands_still(run: Run, course: Sequence[Progress], now: float) -> bool:
    """Whether a run that should go on has told nothing for long: then its ranks are looked at."""
    attempt = run.attempt
    if run.state not in (RunState.RUNNING, RunState.SAVING) or attempt is None:
        return False
    walls = [point.wall for point in course if point.wall]
    if attempt.status is not None and attempt.status.progress is not None and attempt.status.progress.wall:
        walls.append(attempt.status.progress.wall)
    moved = max(walls, default=attempt.started_at or now)
    gaps = [after - before for before, after in itertools.pairwise(walls) if after > before]
    return now - moved > max(LOOK_AFTER_SECONDS, 5.0 * (statistics.median(gaps) if gaps else 0.0))


# --- a look at them ---------------------------------------------------------------------------------------------------


def take_look(ranks: Iterable[RankEvidence], look: Look) -> None:
    """What a look has brought so far, put to the ranks."""
    by_number = {rank.rank: rank for rank in ranks}
    for seen in look.ranks:
        rank = by_number.get(seen.rank)
        if rank is None:
            continue
        rank.stack = stack_text(seen.threads)
        rank.process_state = "gone" if seen.missing else seen.state or rank.process_state
        rank.wchan = seen.wchan or rank.wchan
        rank.last_step = seen.step if seen.step is not None else rank.last_step
        if seen.collectives:
            last = max(seen.collectives, key=lambda each: (each.pending, each.enqueued))
            rank.collective_seq, rank.collective = last.enqueued, last.operation.rpartition(":")[2]
        problem = f"no stack: {seen.stack_problem}"
        if seen.stack_problem and not seen.threads and problem not in rank.unread:
            rank.unread.append(problem)


def stack_text(threads: Sequence[Thread]) -> str:
    """Stacks as py-spy prints them, the main thread first."""
    out: list[str] = []
    for thread in sorted(threads, key=lambda each: not each.main):
        name = f'"{thread.name}"' if thread.name else '""'
        whose = f" of process {thread.pid}" if thread.pid is not None else ""
        out.append(f"Thread {'MainThread ' if thread.main else ''}{name}{whose}")
        out += [
            f"    {frame.function} ({frame.file or '?'}{f':{frame.line}' if frame.line else ''})"
            for frame in thread.frames
        ]
    return "\n".join(out)


# --- its paths --------------------------------------------------------------------------------------------------------


def paths_of(run: Run, config: Mapping[str, Any], dataset_path: str) -> list[tuple[str, str]]:
    """The paths that a run needs on each of its nodes, each with its purpose."""
    found: list[tuple[str, str]] = []
    storage = config.get("storage")
    named = str(storage.get("data_root") or "") if isinstance(storage, dict) else ""
    data = posixpath.normpath(posixpath.join(dataset_path, named)) if named else ""
    if data.startswith("/"):
        found.append((data, "data"))
    if run.run_directory.startswith("/"):
        begun = run.attempt is not None and run.attempt.status is not None
        root = posixpath.dirname(posixpath.dirname(run.run_directory))
        found.append((run.run_directory if begun else root, "output"))
        if begun and run.attempt is not None:
            found.append((f"{run.run_directory}/attempt-{run.attempt.number}", "log"))
    return found


def without_offset(course: Sequence[Progress], ahead: float) -> list[Progress]:
    """The course by the head's clock: rank 0's node wrote its times."""
    if not ahead:
        return list(course)
    return [point.model_copy(update={"wall": point.wall - ahead}) if point.wall else point for point in course]
