"""The files of a recording in one folder: one that is written, those before it, and when the oldest go."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from jobs.recording import MAGIC, START, BadRecording, chunk, segments
from jobs.recordview import Mark, SegmentInfo

SEGMENT_SUFFIX = ".rdseg"


class SegmentFiles:
    """Segments on a disk. Raises `OSError`. After one, `give_up`: what stands behind a torn chunk cannot be read."""

    def __init__(self, folder: Path, *, keep_seconds: float, keep_bytes: int, most: float) -> None:
        """Goes on with what stands in the folder, a torn end included. It makes the folder, for this user alone.

        ``most``: no more segments than this, whatever their times say: a clock may have been wrong.
        """
        self._folder = folder
        self._keep_seconds, self._keep_bytes, self._most = keep_seconds, keep_bytes, most
        self._descriptor: int | None = None
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._closed = _left_behind(folder)
        self.open: SegmentInfo | None = None
        """The one that is written."""
        self._seq = max((each.seq for each in self._closed), default=0)

    def index(self) -> list[SegmentInfo]:
        """All segments, oldest first; the last one may still be written."""
        return [*self._closed, self.open.model_copy()] if self.open is not None else list(self._closed)

    def path(self, seq: int) -> Path:
        """The file of a segment."""
        return self._folder / f"{seq:010d}{SEGMENT_SUFFIX}"

    def begin(self, at: float) -> None:
        """End the segment that is written, and begin another."""
        self.end()
        self._seq += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC
        self._descriptor = os.open(self.path(self._seq), flags, 0o600)
        self.open = SegmentInfo(seq=self._seq, since=at, until=at, bytes=0, complete=False)
        self.write(MAGIC + chunk(START, json.dumps({"seq": self._seq}).encode(), at, at), at)
        self.let_go(at)

    def write(self, content: bytes, until: float) -> None:
        """Append whole chunks, the newest record of which is of this time."""
        assert self._descriptor is not None
        assert self.open is not None
        view = memoryview(content)
        while view:
            view = view[os.write(self._descriptor, view) :]
        self.open.bytes += len(content)
        self.open.until = max(self.open.until, until)

    def tell(self, marks: Sequence[Mark]) -> None:
        """Marks of the segment that is written."""
        if self.open is not None:
            self.open.marks = [*self.open.marks, *marks]

    def end(self) -> SegmentInfo | None:
        """End the segment that is written, on the disk itself."""
        descriptor, self._descriptor = self._descriptor, None
        done, self.open = self.open, None
        if done is not None:
            self._closed.append(done.model_copy(update={"complete": True}))
        if descriptor is not None:
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        return done

    def give_up(self, begun: bool) -> None:
        """Leave the segment as it is, without another look at the disk.

        ``begun``: does what is true at its start stand in it? One without is written over by the next: a disk that is
        full for long would else drive out, try by try, the minutes that tell of how it became full.
        """
        descriptor, self._descriptor = self._descriptor, None
        done, self.open = self.open, None
        if done is not None and begun:
            self._closed.append(done.model_copy(update={"complete": True}))
        elif done is not None:
            self._seq -= 1
        if descriptor is not None:
            with contextlib.suppress(OSError):  # a file of the network says once more, when it is closed, what is known
                os.close(descriptor)

    def let_go(self, at: float) -> None:
        """Delete what is too old or too much."""
        size = sum(each.bytes for each in self.index())
        while self._closed and (
            self._closed[0].until < at - self._keep_seconds or size > self._keep_bytes or len(self._closed) > self._most
        ):
            gone = self._closed.pop(0)
            size -= gone.bytes
            self.path(gone.seq).unlink(missing_ok=True)


def _left_behind(folder: Path) -> list[SegmentInfo]:
    """What an earlier process wrote. A file in which nothing is whole is deleted."""
    found: list[SegmentInfo] = []
    for path in sorted(folder.glob(f"*{SEGMENT_SUFFIX}")):
        try:
            found.append(segments(path.read_bytes())[0].info())
        except BadRecording:
            path.unlink(missing_ok=True)
    return found
