"""Where a recording comes from (the head, minute by minute, or a file), and a session that shows it like a cluster.

A session of a recording reads nothing and reaches nothing: what would is refused with a sentence.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from console.settings import Context
from console.sources.session import Session
from console.sources.ssh import Connection
from console.state.replay import Timeline
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.model import Move, Progress, Run
from jobs.queueview import QueueView
from jobs.rayapi import RayApi
from jobs.recordcalls import RecordCalls
from jobs.recording import SUFFIX, BadRecording, Segment, segments
from jobs.recordview import Mark, RecordingIndex, SegmentInfo
from jobs.transport import MAX_ANSWER_BYTES, Response, StreamedResponse

FILE_LIMIT_BYTES = 512 * 1024 * 1024
HISTORY_SECONDS = 600.0
NOT_HERE = "that is not in the recording"


# --- where it comes from ----------------------------------------------------------------------------------------------


class HeadRecording:
    """The recording on the head: its index, and of its minutes what is asked for."""

    def __init__(self, calls: RecordCalls) -> None:
        self.index = RecordingIndex()
        self.marks: list[Mark] = []
        """What happened, in the order of time."""
        self._calls = calls
        self._have: dict[int, int] = {}

    async def refresh(self) -> None:
        """Ask which minutes there are. Raises as every call to the controller, and `Refused` where there are none."""
        self.index = await self._calls.recording_index()
        self.marks = self.index.marks
        if not self.index.segments:
            why = f": {self.index.trouble}" if self.index.trouble else ""
            raise Refused(f"nothing is recorded on the head yet{why}")

    @property
    def span(self) -> tuple[float, float]:
        """From when to when it goes."""
        told = self.index.segments
        return min(each.since for each in told), max(each.until for each in told)

    def lacks(self, since: float, until: float) -> bool:
        """Is there something of this span that is not here?"""
        return bool(self._wanted(since, until))

    async def fetch(self, since: float, until: float) -> list[Segment]:
        """What is not here yet of a span, and what has grown. Raises as every call to the controller."""
        wanted = self._wanted(since, until)
        if not wanted:
            return []
        # Not the minute before, which may end where the first one begins.
        first = min(min(each.since + 0.001, each.until) for each in wanted)
        pieces: list[bytes] = []
        last = max(first, *(each.since for each in wanted))
        async for piece in self._calls.recording(first, last):
            pieces.append(piece)
        try:
            found = segments(b"".join(pieces))
        except BadRecording:
            found: list[Segment] = []  # it became too old on the way
        for part in found:
            self._have[part.seq] = part.end - part.start
        for each in wanted:  # one that is gone, or damaged, is not asked for again
            self._have[each.seq] = max(each.bytes, self._have.get(each.seq, 0))
        return found

    def forget(self, kept: Timeline) -> None:
        """Of what the timeline has let go of, it may be asked again."""
        here = kept.sequence
        self._have = {seq: size for seq, size in self._have.items() if seq in here}

    def _wanted(self, since: float, until: float) -> list[SegmentInfo]:
        told = self.index.segments
        before = max(
            (each for each in told if each.since <= since), key=lambda each: (each.since, each.seq), default=None
        )
        near = [each for each in told if each is before or (each.since <= until and each.until > since)]
        return [each for each in near if self._have.get(each.seq, -1) < each.bytes]


@dataclass
class RecordedContext(Context):
    """A recording in place of a cluster: no node of it can be reached."""

    parts: list[Segment] = field(default_factory=list[Segment])


def read_recording(path: Path) -> list[Segment]:
    """What stands in a ``.rdrec`` file, or in the one inside a bundle (zip or tar). Raises `Refused` with the file."""
    try:
        if path.stat().st_size > FILE_LIMIT_BYTES:
            raise Refused(f"{path} is larger than {FILE_LIMIT_BYTES // 2**20} MiB")
        return segments(_unbundled(path.read_bytes(), path))
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror or error}") from error
    except BadRecording as error:
        raise BadRecording(f"{path}: {error.sentence}", "A recording is made by: raydeck replay --save FILE") from error


def _unbundled(content: bytes, path: Path) -> bytes:
    import tarfile
    import zipfile
    import zlib

    broken = (zipfile.BadZipFile, tarfile.TarError, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)
    try:
        if content[:2] == b"PK":
            with zipfile.ZipFile(io.BytesIO(content)) as bundle:
                for member in bundle.infolist():
                    if member.filename.endswith(SUFFIX) and member.file_size <= FILE_LIMIT_BYTES:
                        return bundle.read(member)
                raise Refused(f"{path} has no {SUFFIX} file in it")
        if content[:2] == b"\x1f\x8b" or content[257:262] == b"ustar":
            with tarfile.open(fileobj=io.BytesIO(content)) as bundle:
                for member in bundle:
                    if member.isfile() and member.name.endswith(SUFFIX) and member.size <= FILE_LIMIT_BYTES:
                        opened = bundle.extractfile(member)
                        return opened.read() if opened is not None else b""
                raise Refused(f"{path} has no {SUFFIX} file in it")
    except broken as error:
        raise Refused(f"{path} is a bundle that cannot be read: {error}") from error
    return content


def recorded_context(path: Path) -> RecordedContext:
    """A recording file as what a console opens. Raises `Refused`."""
    parts = read_recording(path)
    timeline = Timeline()
    timeline.take(parts)
    try:
        timeline.seek(timeline.span[1])
    except BadRecording as error:
        raise BadRecording(f"{path}: {error.sentence}") from error
    simulated = any(node.simulated for node in timeline.fleet.nodes.values())
    return RecordedContext(name=path.name, parts=parts, simulated=simulated)


# --- what screens see -------------------------------------------------------------------------------------------------


class ReplaySession(Session):
    """A session whose stores are those of a recording, and whose clocks stand at the moment that is looked at."""

    def __init__(self, context: Context, timeline: Timeline) -> None:
        # The nodes of the recording may be others than those of the context: it is asked for what it has.
        super().__init__(Context(name=context.name, simulated=context.simulated))
        self.context = context
        self.show(timeline)

    def show(self, timeline: Timeline) -> None:
        """Show another moment."""
        self.timeline = timeline
        self.fleet, self.work = timeline.fleet, timeline.work

    def now(self) -> float:
        """The moment that is looked at: ages are counted from it."""
        return self.timeline.at

    def head_wall(self) -> float:
        """The same: all times of a recording are by the head's clock."""
        return self.timeline.at

    def connection(self, name: str) -> Connection:
        """No node can be reached from a recording."""
        _refuse()

    async def ray_api(self) -> RayApi:
        """Nor can Ray."""
        _refuse()

    async def store_path(self) -> str:
        """Nor the controller's folder."""
        _refuse()

    async def controller(self) -> ControllerClient:
        """What the recording can answer in the controller's place."""
        return RecordedClient(self)


def _refuse() -> NoReturn:
    raise Refused(NOT_HERE, "esc goes back to now")


class _Nowhere:
    """A transport that leads nowhere."""

    where = "a recording"

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float,
        limit: int = MAX_ANSWER_BYTES,
    ) -> Response:
        """Refused."""
        _refuse()

    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float,
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """Refused."""
        _refuse()


class RecordedClient(ControllerClient):
    """Answers from the recording what it can, and refuses the rest: nothing that changes anything goes through it."""

    def __init__(self, session: ReplaySession) -> None:
        super().__init__(_Nowhere())
        self._session = session

    async def runs(self, limit: int = 200, sweep: str = "") -> list[Run]:
        """Those that were known then."""
        found = [run for run in self._session.work.runs.values() if sweep in ("", run.sweep)]
        return sorted(found, key=lambda run: -run.submitted_at)[:limit]

    async def run(self, run: str) -> Run:
        """As it was then."""
        found = self._session.work.runs.get(run)
        if found is None:
            raise Refused(f"{run} is not in the recording at this moment")
        return found

    async def series(self, run: str, points: int = 600) -> list[Progress]:
        """What it reported in the ten minutes before."""
        return self._session.timeline.course(run)[0][-points:]

    async def moves(self, run: str) -> list[Move]:
        """What became of it in the ten minutes before."""
        return self._session.timeline.course(run)[1]

    async def queue(self, offset: int = 0, limit: int = 200) -> QueueView:
        """The queues as they were; of those that wait the first are recorded."""
        view = self._session.work.queue
        if view is None:
            raise Refused("the recording has no queue at this moment")
        return view.model_copy(update={"waiting": view.waiting[offset : offset + limit]})
