"""The log of a run: every rank's file, read over SSH from the node that it lies on, as lines with their rank.

Where a node cannot be read over SSH, the job's own log, which Ray keeps on the head, stands in and says so.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from console.sources.logs import LogChunk, NotThereYet, RemoteLog
from console.sources.session import Session
from jobs.errors import RaydeckError
from jobs.model import Run

TAIL_LINES = 5_000
"""How much of the past is read when a log is opened."""
WAIT_SECONDS = 1.0
OPEN_LIMIT_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class RankFile:
    """Where one rank's log lies."""

    rank: int
    node: str
    """The node's name in the context; empty if none of them is it."""
    path: str


Take = Callable[[Sequence[str], int | None], None]
"""Lines without their newlines, and the rank that wrote them; no rank: said by raydeck about the log."""


def rank_files(session: Session, run: Run, attempt: int | None = None) -> list[RankFile]:
    """Where the ranks' logs of an attempt (the newest, unless one is named) lie."""
    chosen = next((a for a in run.attempts if a.number == attempt), run.attempt)
    if chosen is None or chosen.status is None:
        return []
    names = {node.ray_node_id: node.name for node in session.fleet.nodes.values() if node.ray_node_id}
    folder = f"{run.run_directory}/attempt-{chosen.number}"
    return [
        RankFile(rank.rank, names.get(rank.node_id, ""), f"{folder}/rank-{rank.rank}.log")
        for rank in chosen.status.ranks
    ]


def _lines(rest: bytes, data: bytes) -> tuple[list[str], bytes]:
    *lines, rest = (rest + data).split(b"\n")
    return [line.decode("utf-8", "replace") for line in lines], rest


class RunLog:
    """Follows every rank of a run, or one, into ``take``. `run` until cancelled, or to the end if not ``follow``."""

    def __init__(
        self, session: Session, run: str, take: Take, *, rank: int | None = None, attempt: int | None = None,
        tail: int = TAIL_LINES, follow: bool = True,
    ) -> None:  # fmt: skip
        self._session, self._run, self._take = session, run, take
        self._rank, self._attempt, self._tail, self._follow = rank, attempt, tail, follow

    @property
    def _known(self) -> Run | None:
        return self._session.work.runs.get(self._run)

    async def run(self) -> None:
        """Read. The end of a file is not the end of the run: files are followed until this is cancelled."""
        files = await self._files()
        if files:
            await asyncio.gather(*(self._one(file) for file in files))
        else:
            await self._job_log("no rank has started")

    async def _files(self) -> list[RankFile]:
        """The ranks' files; a run that has not been placed yet is waited for."""
        told = False
        while True:
            run = self._known
            if run is None:
                raise NotThereYet(f"there is no run {self._run}")
            files = [f for f in rank_files(self._session, run, self._attempt) if self._rank in (None, f.rank)]
            if files or run.state.ended or not self._follow:
                return files
            if not told:
                told = True
                self._take([f"-- {run.id} is {run.state.value}: no rank has started yet --"], None)
            await asyncio.sleep(WAIT_SECONDS)

    async def _one(self, file: RankFile) -> None:
        if not file.node:
            self._take([f"-- rank {file.rank}: its node is not in this context, so its file cannot be read --"], None)
            return
        log = RemoteLog(self._session.connection(file.node), file.path)
        try:
            offset, rest = await self._past(log, file)
            while self._follow:
                async for chunk in log.follow(offset):
                    rest = self._chunk(file, chunk, rest)
        except RaydeckError as error:
            self._take([f"-- rank {file.rank} on {file.node}: {error} --"], None)
        finally:
            await log.close()

    async def _past(self, log: RemoteLog, file: RankFile) -> tuple[int, bytes]:
        deadline = asyncio.get_running_loop().time() + OPEN_LIMIT_SECONDS
        while True:
            try:
                tail = await log.tail(self._tail)
            except NotThereYet:
                run = self._known
                late = asyncio.get_running_loop().time() > deadline
                if not self._follow or late or run is None or run.state.ended:
                    raise
                await asyncio.sleep(WAIT_SECONDS / 2)
                continue
            if tail.offset:
                self._take([f"-- rank {file.rank}: the first {tail.offset} bytes are not shown --"], None)
            lines, rest = _lines(b"", tail.data)
            if rest and not self._follow:
                lines, rest = [*lines, rest.decode("utf-8", "replace")], b""
            self._take(lines, file.rank)
            return tail.offset + len(tail.data), rest

    def _chunk(self, file: RankFile, chunk: LogChunk, rest: bytes) -> bytes:
        if chunk.note:
            self._take([f"-- rank {file.rank}: {chunk.note} --"], None)
            return b""
        lines, rest = _lines(rest, chunk.data)
        if lines:
            self._take(lines, file.rank)
        return rest

    async def _job_log(self, why: str) -> None:
        """What the job's driver printed: the only log of a run that never came to have ranks."""
        run = self._known
        if run is None or run.attempt is None:
            return
        api = await self._session.ray_api()
        job = await api.job(run.attempt.job_id)
        text = await api.job_log_tail(job, 1_000) if job is not None else None
        self._take([f"-- {why}; this is the log of the Ray job {run.attempt.job_id} --"], None)
        self._take((text or "(empty)").splitlines(), None)
