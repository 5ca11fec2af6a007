"""Logs as byte ranges: over SFTP, by commands, and on this machine; all three behave alike."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.sources import logs
from console.sources.logfiles import _sftp_error
from console.sources.logs import LocalLog, Log, LogChunk, NotThereYet, RemoteLog
from console.sources.ssh import Connections
from jobs.errors import RaydeckError, Refused, Unreachable

from .servers import Sshd, until

KINDS = ["sftp", "command", "local"]


@pytest.fixture(autouse=True)
def quick_polls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "POLL_SECONDS", 0.02)


@pytest.fixture(params=KINDS)
async def open_log(
    request: pytest.FixtureRequest, make_sshd: Callable[..., Sshd], connections: Connections
) -> AsyncIterator[Callable[[Path], Log]]:
    opened: list[Log] = []
    sshd = None
    if request.param != "local":
        sshd = make_sshd(*(["Subsystem sftp /bin/false"] if request.param == "command" else []))

    def make(path: Path) -> Log:
        log = LocalLog(str(path)) if sshd is None else RemoteLog(connections.add(sshd.host()), str(path))
        opened.append(log)
        return log

    yield make
    for log in opened:
        await log.close()


class Follower:
    """Follows a log in a task, and keeps what it gave."""

    def __init__(self, log: Log, offset: int = 0) -> None:
        self.chunks: list[LogChunk] = []
        self._stream = log.follow(offset)
        self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        async for chunk in self._stream:
            self.chunks.append(chunk)

    @property
    def data(self) -> bytes:
        return b"".join(chunk.data for chunk in self.chunks)

    @property
    def notes(self) -> list[str]:
        return [chunk.note for chunk in self.chunks if chunk.note]

    async def __aenter__(self) -> Follower:
        return self

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def test_ranges(open_log: Callable[[Path], Log], tmp_path: Path) -> None:
    path = tmp_path / "a log; with 'odd' name.log"
    content = os.urandom(700_000)
    path.write_bytes(content)
    log = open_log(path)
    assert await log.size() == len(content)
    assert await log.read(0, 10) == content[:10]
    assert await log.read(123_456, 400_000) == content[123_456:523_456]
    assert await log.read(len(content) - 3, 100) == content[-3:]
    assert await log.read(len(content) + 5, 100) == b""


async def test_what_is_not_there_or_not_allowed(open_log: Callable[[Path], Log], tmp_path: Path) -> None:
    log = open_log(tmp_path / "later.log")
    with pytest.raises(NotThereYet, match=r"later\.log is not there yet"):
        await log.size()
    with pytest.raises(NotThereYet):
        await log.tail(5)
    folder = open_log(tmp_path)
    with pytest.raises(Refused):
        await folder.read(0, 10)


async def test_the_last_lines(open_log: Callable[[Path], Log], tmp_path: Path) -> None:
    path = tmp_path / "long.log"
    lines = [b"line %d %s\n" % (number, b"x" * (number % 300)) for number in range(5000)]
    path.write_bytes(b"".join(lines))
    log = open_log(path)
    tail = await log.tail(1200)
    assert tail.data == b"".join(lines[-1200:])
    assert tail.offset == path.stat().st_size - len(tail.data)
    assert (await log.tail(9999)).data == b"".join(lines)


async def test_a_listing_of_rank_logs(open_log: Callable[[Path], Log], tmp_path: Path) -> None:
    for attempt in (1, 2):
        folder = tmp_path / f"attempt-{attempt}"
        folder.mkdir()
        for rank in range(2):
            (folder / f"rank-{rank}.log").write_bytes(b"x" * (attempt * 10 + rank))
    (tmp_path / "attempt-1" / "rank-9.log").mkdir()
    log = open_log(tmp_path / "attempt-1" / "rank-0.log")
    found = await log.list(f"{tmp_path}/attempt-*/rank-*.log")
    assert [(Path(file.path).relative_to(tmp_path).as_posix(), file.size_bytes) for file in found] == [
        ("attempt-1/rank-0.log", 10),
        ("attempt-1/rank-1.log", 11),
        ("attempt-2/rank-0.log", 20),
        ("attempt-2/rank-1.log", 21),
    ]
    assert abs(found[0].modified_wall - (tmp_path / "attempt-1/rank-0.log").stat().st_mtime) < 2
    assert await log.list(f"{tmp_path}/nowhere/*.log") == []


async def test_following_a_file_from_before_it_is_there(open_log: Callable[[Path], Log], tmp_path: Path) -> None:
    path = tmp_path / "new.log"
    async with Follower(open_log(path)) as follower:
        await until(lambda: follower.notes, what="not there yet")
        assert "is not there yet" in follower.notes[0]
        written = b""
        for number in range(3):
            with path.open("ab") as file:
                file.write(b"step %d\n" % number)
            written += b"step %d\n" % number
            await until(lambda expected=written: follower.data == expected, what="the new line")
        assert [note for note in follower.notes if "not there" in note] == follower.notes[:1]
        assert follower.notes[1].endswith("going on at byte 0")
        position = 0
        for chunk in follower.chunks:
            assert chunk.offset == position
            position += len(chunk.data)


async def test_following_from_an_offset(open_log: Callable[[Path], Log], tmp_path: Path) -> None:
    path = tmp_path / "run.log"
    path.write_bytes(b"old lines\nnew line\n")
    async with Follower(open_log(path), offset=10) as follower:
        await until(lambda: follower.data == b"new line\n")
        assert follower.chunks[0].offset == 10


async def test_a_truncated_file_is_noticed(open_log: Callable[[Path], Log], tmp_path: Path) -> None:
    path = tmp_path / "cut.log"
    path.write_bytes(b"first life, a long line\n")
    async with Follower(open_log(path)) as follower:
        await until(lambda: follower.data)
        path.write_bytes(b"second\n")
        await until(lambda: follower.data.endswith(b"second\n"))
        assert "truncated or replaced" in follower.notes[0]
        assert follower.chunks[-1] == LogChunk(0, b"second\n")


async def test_a_rotated_file_is_noticed(open_log: Callable[[Path], Log], tmp_path: Path) -> None:
    """Also when the new file is longer by the time that it is looked at."""
    path = tmp_path / "rotated.log"
    path.write_bytes(b"old 1\n")
    async with Follower(open_log(path)) as follower:
        await until(lambda: follower.data == b"old 1\n")
        fresh = tmp_path / "fresh.log"
        fresh.write_bytes(b"new 1 and much more than was there before\n")
        os.replace(fresh, path)
        await until(lambda: b"new 1" in follower.data)
        assert follower.data == b"old 1\nnew 1 and much more than was there before\n"
        assert "truncated or replaced" in follower.notes[0]


async def test_the_last_lines_before_a_rotation_are_read(sshd: Sshd, connections: Connections, tmp_path: Path) -> None:
    path = tmp_path / "rotated.log"
    path.write_bytes(b"one\n")
    log = RemoteLog(connections.add(sshd.host()), str(path))
    async with Follower(log) as follower:
        await until(lambda: follower.data == b"one\n")
        with path.open("ab") as old:
            fresh = tmp_path / "fresh.log"
            fresh.write_bytes(b"3\n")
            old.write(b"two\n")
            old.flush()
            os.replace(fresh, path)
        await until(lambda: follower.data.endswith(b"3\n"))
        assert follower.data == b"one\ntwo\n3\n"
    await log.close()


@pytest.mark.parametrize("extra", [[], ["Subsystem sftp /bin/false"]], ids=["sftp", "command"])
async def test_a_lost_connection_is_said_and_nothing_is_missed(
    make_sshd: Callable[..., Sshd], connections: Connections, tmp_path: Path, extra: list[str]
) -> None:
    sshd = make_sshd(*extra)
    path = tmp_path / "run.log"
    path.write_bytes(b"before\n")
    connection = connections.add(sshd.host())
    async with Follower(RemoteLog(connection, str(path))) as follower:
        await until(lambda: follower.data == b"before\n")
        sshd.stop()
        await until(lambda: any("going on at byte 7 when it is back" in note for note in follower.notes), what="said")
        with path.open("ab") as file:
            file.write(b"meanwhile\n")
        sshd.start()
        connection.retry()
        await until(lambda: follower.data == b"before\nmeanwhile\n", what="resumed")
        assert follower.notes[-1].endswith("going on at byte 7")
        assert not any("truncated" in note for note in follower.notes)


@pytest.mark.parametrize(
    ("code", "kind", "words"),
    [
        (2, NotThereYet, "/x.log is not there yet on node"),
        (10, NotThereYet, "/x.log is not there yet on node"),
        (3, Refused, "/x.log on node: permission denied"),
        (7, Unreachable, "the connection to node went away"),
        (4, Refused, "/x.log on node: some failure"),
    ],
)
def test_what_sftp_says_in_words(code: int, kind: type[RaydeckError], words: str) -> None:
    error = _sftp_error(code, "some failure", "/x.log", "node")
    assert type(error) is kind
    assert error.sentence == words


@given(st.lists(st.text("ab", max_size=6)), st.booleans(), st.integers(1, 8), st.integers(1, 5))
def test_tails_are_the_last_lines(lines: list[str], ends: bool, wanted: int, block: int) -> None:
    content = "\n".join(lines).encode() + (b"\n" if ends and lines else b"")
    patch = pytest.MonkeyPatch()
    patch.setattr(logs, "TAIL_BLOCK_BYTES", block)
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        tail = _run(_tail(file.name, wanted))
    patch.undo()
    assert tail.data == b"".join(content.splitlines(keepends=True)[-wanted:])
    assert tail.offset == len(content) - len(tail.data)


async def _tail(path: str, lines: int) -> logs.Tail:
    log = LocalLog(path)
    try:
        return await log.tail(lines)
    finally:
        await log.close()


def _run(work: Coroutine[Any, Any, logs.Tail]) -> logs.Tail:
    return asyncio.run(work)
