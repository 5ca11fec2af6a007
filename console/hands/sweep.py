"""Processes that hold a node's GPUs: which there are, which are left over, and ending the ones that are meant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, ConfigDict

from console.hands import node
from console.hands.permits import permitted
from console.hands.runs import attempts_that_live, living_attempt
from console.preview import Preview
from console.render.cells import age, bytes_text
from console.render.prose import listed, some
from console.settings import NodeEntry
from console.sources.session import Session
from console.state.fleet import Node
from console.upkeep import refs
from jobs.client import ControllerClient
from jobs.errors import Refused, Usage
from jobs.model import Run

GRACE_SECONDS = 5.0
"""Between SIGTERM and what follows."""
END_SECONDS = 30.0
AT_MOST = 500
SHOWN = 20

Result = Literal["ended", "killed", "gone", "another", "still there", "not permitted", "spared"]
"""``gone``: it had ended before; ``another``: what has its pid is not the process that was meant; ``spared``: it
belongs to a run that lives, or of which nothing is known."""


@dataclass(frozen=True, slots=True)
class GpuProcess:
    """A process that holds memory on GPUs of a node."""

    pid: int
    started: int
    """In clock ticks since the machine's start; with the pid it names the process for good. 0: the node does not show
    the process (it lives in a container), and it cannot be ended from here."""
    user: str
    command: str
    age_seconds: float | None
    gpus: tuple[int, ...]
    memory_used_bytes: int | None
    """On all of them; None where one does not tell."""
    run: str = ""
    attempt: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """What came of one process."""

    pid: int
    result: Result
    detail: str = ""

    @property
    def well(self) -> bool:
        """It is not there any more."""
        return self.result in ("ended", "killed", "gone")

    @property
    def sentence(self) -> str:
        """What came of it, in words."""
        words = {
            "ended": "ended",
            "killed": "killed",
            "gone": "had ended already",
            "another": "is another process by now, and was left alone",
            "still there": "is still there",
            "not permitted": "may not be ended by you",
            "spared": "was left alone",
        }[self.result]
        return f"process {self.pid} {words}{f': {self.detail}' if self.detail else ''}"


class _Ended(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)
    ended: list[tuple[int, Result, str]]


def held_by(there: Node) -> list[GpuProcess]:
    """The processes that hold GPUs of a node, by its newest sample; each once, however many GPUs it holds. Pure."""
    found: dict[int, GpuProcess] = {}
    for each in there.sample.processes if there.sample is not None else ():
        before = found.get(each.pid)
        memory = each.memory_used_bytes
        if before is not None:
            whole = before.memory_used_bytes
            memory = None if whole is None or memory is None else whole + memory
        gpus = (*before.gpus, each.device) if before is not None else (each.device,)
        found[each.pid] = GpuProcess(
            each.pid, each.started, each.user, each.command, each.age_seconds, gpus, memory, each.run, each.attempt
        )
    return sorted(found.values(), key=lambda process: (process.gpus, process.pid))


def lives(process: GpuProcess, runs: Mapping[str, Run]) -> bool | None:
    """Whether it belongs to a run that lives; None where its run is not among ``runs``, so that nobody knows. Pure."""
    if not process.run:
        return False
    run = runs.get(process.run)
    return None if run is None else living_attempt(run) == process.attempt != 0


def left_over(processes: Sequence[GpuProcess], runs: Mapping[str, Run]) -> list[GpuProcess]:
    """Those of no run, or of one that is known to be over: what a sweep is for. Pure."""
    return [process for process in processes if lives(process, runs) is False]


def preview(
    entry: NodeEntry, processes: Sequence[GpuProcess], runs: Mapping[str, Run], *, kill: bool = False
) -> Preview:
    """What ending these processes does. Pure."""
    follows = f"what is still there after {GRACE_SECONDS:.0f} s is killed" if kill else "none is killed"
    lines = [f"Each gets SIGTERM, if it still is the one that is meant; {follows}."]
    lines += [sentence_of(process, runs) for process in processes[:SHOWN]]
    if len(processes) > SHOWN:
        lines.append(f"And {len(processes) - SHOWN} more.")
    living = [process for process in processes if lives(process, runs) is not False]
    warnings = (
        (f"{some(len(living), 'process', 'processes')} of runs that live, or that nobody knows",) if living else ()
    )
    what = f"process {processes[0].pid}" if len(processes) == 1 else some(len(processes), "process", "processes")
    ask: Literal["y", "count"] = "y" if len(processes) == 1 else "count"
    expected = "y" if len(processes) == 1 else str(len(processes))
    return Preview(f"End {what} on {entry.name}", tuple(lines), ask, expected, True, warnings)


def sentence_of(process: GpuProcess, runs: Mapping[str, Run]) -> str:
    """Which process it is, in words."""
    old = "" if process.age_seconds is None else f", {age(process.age_seconds)} old"
    holds = "memory" if process.memory_used_bytes is None else bytes_text(process.memory_used_bytes)
    gpus = listed([str(index) for index in process.gpus], 8)
    return f"{process.pid} ({process.user}: {process.command}){old}, {holds} on GPU {gpus}: {belongs(process, runs)}"


def belongs(process: GpuProcess, runs: Mapping[str, Run]) -> str:
    """To which run it belongs, and whether that lives."""
    living = lives(process, runs)
    if not process.run:
        return "of no run"
    if living is None:
        return f"of {process.run}, of which nothing is known"
    return f"of {process.run}, which lives" if living else f"left over of {process.run}"


async def end(
    session: Session,
    client: ControllerClient,
    entry: NodeEntry,
    processes: Sequence[GpuProcess],
    reason: str,
    *,
    kill: bool = False,
    even_living: bool = False,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Ended]:
    """End processes on a node, if they still are the ones that are meant: pid, start time, user and command are looked
    at there, and then they are signalled, in one go.

    Args:
        session: The ways in.
        client: The controller, which has to allow it.
        entry: The node.
        processes: As `held_by` gave them.
        reason: For the audit.
        kill: End at once what has not ended 5 s after SIGTERM.
        even_living: Also what belongs to a run that lives, or of which nothing is known.
        tell: Told what went wrong beside it.

    Returns:
        What came of each, in their order.

    Raises:
        Refused: Where the controller says no: nothing is done then.
        Unreachable: Where the node or the controller does not answer.
    """
    if not processes:
        raise Usage("no process is chosen")
    if len(processes) > AT_MOST:
        raise Usage(f"{len(processes)} processes are too many at once; {AT_MOST} is the most")
    hidden = [Ended(each.pid, "not permitted", "the node does not show it: it lives in a container")
              for each in processes if not each.started]  # fmt: skip
    meant = [each for each in processes if each.started]
    if not meant:
        return hidden
    connection = session.connection(entry.name)
    await connection.ready()
    living = {name: living_attempt(run) for name, run in session.work.runs.items()}
    living |= await attempts_that_live(client, {each.run for each in meant if each.run})
    ref = refs([entry.name], session.fleet)[0]
    said = ", ".join(f"{each.pid} ({each.user}: {each.command[:60]})" for each in meant)
    detail = f"SIGTERM{', then SIGKILL,' if kill else ''} to {said}"
    async with permitted(client, ref, "end processes", detail, reason, tell) as outcome:
        answer = await node.ask(
            connection, _Ended, "end", END_SECONDS,
            processes=[
                {"pid": each.pid, "started": each.started, "user": each.user, "command": each.command}
                for each in meant
            ],
            runs=living, even_living=even_living, kill=kill, grace_seconds=GRACE_SECONDS,
        )  # fmt: skip
        by_pid = {pid: Ended(pid, result, detail) for pid, result, detail in answer.ended}
        missing = [each.pid for each in meant if each.pid not in by_pid]
        if missing:
            raise Refused(f"{entry.name} says nothing of {listed([str(pid) for pid in missing])}; look again")
        told = [by_pid[each.pid] for each in meant]
        outcome.words = "; ".join(each.sentence for each in told)
        outcome.ok = all(each.well for each in told)
    return [*told, *hidden]
