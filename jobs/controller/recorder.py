"""The flight recorder on the head: takes what is told without making anyone wait, and writes it in a thread of its own.

What cannot be written is lost, counted and said (`trouble`); the controller goes on all the same.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jobs.recordview import RecordingIndex, SegmentInfo
from jobs.recordwriter import What, Writer
from probes.reading import Facts, Health, Sample

log = logging.getLogger(__name__)

QUEUE_ENTRIES = 20_000
"""Beyond it entries are dropped: some ten seconds of a thousand nodes."""
TICK_SECONDS = 1.0
PAUSE_SECONDS = 10.0
"""After a disk refused: so long nothing is tried."""
CLOSE_SECONDS = 5.0
FRESH_SECONDS = 2.0

_Entry = Callable[[Writer, float], object]
"""What is done with the writer, and when it was told."""


class Recorder:
    """One recording, kept small by itself. Every ``take…`` returns at once; what it is given must not change after."""

    def __init__(self, folder: Path, wall: Callable[[], float] = time.time, **writer: Any) -> None:
        """``wall``: this machine's clock, seconds since 1970; ``writer``: as `jobs.recordwriter.Writer` takes them."""
        self.dropped = 0
        self.trouble = ""
        """Why nothing is recorded at the moment, a sentence; empty while it is."""
        self._folder = folder
        self._wall = wall
        self._options = writer
        self._queue: queue.Queue[tuple[_Entry | None, float]] = queue.Queue(QUEUE_ENTRIES)
        self._thread = threading.Thread(target=self._run, name="recorder", daemon=True)
        self._writer: Writer | None = None
        self._index: list[SegmentInfo] = []
        self._tried_at = -PAUSE_SECONDS
        self._ticked_at = -TICK_SECONDS
        self._left_out = ""

    def start(self) -> None:
        """Begin to write. What was recorded before stays, as far as it is not too old."""
        self._thread.start()

    async def close(self) -> None:
        """Write what was taken, within 5 s; then let go."""
        if self._thread.is_alive():
            await asyncio.to_thread(self._end)

    def _end(self) -> None:
        deadline = time.monotonic() + CLOSE_SECONDS
        try:
            self._queue.put((None, self._wall()), timeout=CLOSE_SECONDS)
        except queue.Full:
            self.trouble = "the disk did not keep up, and the end of the recording is lost"
        self._thread.join(max(0.0, deadline - time.monotonic()))

    # --- what is told -------------------------------------------------------------------------------------------------

    def take_sample(self, node: str, sample: Sample) -> None:
        """One second of a node."""
        self._put(lambda writer, at: writer.take_sample(node, sample, at))

    def take_facts(self, node: str, facts: Facts) -> None:
        """What seldom changes of a node."""
        self._put(lambda writer, at: writer.take_facts(node, facts, at))

    def take_health(self, node: str, health: Health) -> None:
        """What health rules see of a node."""
        self._put(lambda writer, at: writer.take_health(node, health, at))

    def take_state(self, node: str, what: What, state: str, reason: str = "", since: float | None = None) -> None:
        """One of a node's three truths: ``ssh``, ``ray`` or ``driver``. The same again costs next to nothing."""
        self._put(lambda writer, at: writer.take_state(node, what, state, reason, at, since))

    def take_view(self, kind: str, body: Any) -> None:
        """``runs`` (a list of those that changed), ``queue``, ``nodes``, ``alerts``, ``status``, ``cluster``, ``jobs``.

        Each as JSON has it. ``cluster``: ``{"ray": "ok" or why not, "nodes": [{"name", "address", "role", "node_id",
        "gpus_total", "gpus_used", "cpus_total", "cpus_used"}, …]}``; ``jobs``: Ray's own jobs as `RayJob` has them.
        """
        self._put(lambda writer, at: writer.take_view(kind, body, at))

    def _put(self, entry: _Entry) -> None:
        try:
            self._queue.put_nowait((entry, self._wall()))
        except queue.Full:
            self.dropped += 1

    # --- what is asked ------------------------------------------------------------------------------------------------

    async def fresh(self) -> None:
        """Have all that was taken so far in the files; gives up waiting for it after 2 s, and at once in `trouble`."""
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def flush(writer: Writer, at: float) -> None:
            writer.flush()
            self._index = writer.index()
            loop.call_soon_threadsafe(done.set)

        if self.trouble or not self._thread.is_alive():
            return
        self._put(flush)
        waiting = asyncio.ensure_future(done.wait())
        _, late = await asyncio.wait({waiting}, timeout=FRESH_SECONDS)
        for each in late:
            each.cancel()

    def index(self) -> RecordingIndex:
        """What is recorded, oldest first."""
        return RecordingIndex(
            segments=list(self._index), now=self._wall(), trouble=self.trouble, dropped=self.dropped
        )  # fmt: skip

    def files(self, since: float, until: float) -> list[Path]:
        """The files of the segments that have something of this span."""
        writer = self._writer
        if writer is None:
            return []
        return [writer.path(each.seq) for each in self._index if each.since <= until and each.until >= since]

    # --- in the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except Exception:
            # The boundary of the thread: a recording that cannot go on must not be taken for one that does.
            log.exception("the recorder stopped")
            self.trouble = "the recorder made a mistake and stopped; controller.log says which"

    def _step(self) -> bool:
        """The next entry, or a second's tick; False at the end."""
        try:
            entry, at = self._queue.get(timeout=TICK_SECONDS)
        except queue.Empty:
            entry, at = _tick_only, self._wall()
        if self.trouble and time.monotonic() - self._tried_at < PAUSE_SECONDS:
            self.dropped += entry is not None and entry is not _tick_only
            return entry is not None
        try:
            if self._writer is None:
                self._tried_at = time.monotonic()
                self._writer = Writer(self._folder, **self._options)
            if entry is None:
                self._writer.close()
            else:
                self._enter(entry, self._writer, at)
            if time.monotonic() - self._ticked_at >= TICK_SECONDS:
                self._ticked_at = time.monotonic()
                self._writer.tick(at)  # not the time that it is now: more may wait that was told before
                self._index = self._writer.index()
            if self._writer.writing:
                self.trouble = ""
        except OSError as error:
            self._tried_at = time.monotonic()
            self.trouble = f"nothing is recorded: {self._folder}: {error.strerror or error}"
            log.warning("%s", self.trouble)
            if self._writer is not None:
                self._writer.give_up()
        return entry is not None

    def _enter(self, entry: _Entry, writer: Writer, at: float) -> None:
        try:
            entry(writer, at)
        except (ValueError, OverflowError) as error:
            # What one node made up costs nobody else the recording.
            self.dropped += 1
            if str(error) != self._left_out:
                self._left_out = str(error)
                log.warning("an entry of the recording is left out: %s", error)


def _tick_only(writer: Writer, at: float) -> None:
    """Nothing was told for a second."""
