"""Where recordings come from: the head's, minute by minute, or a file; and the session that stands in for a cluster."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from console.settings import Context, NodeEntry
from console.sources.replay import (
    NOT_HERE,
    HeadRecording,
    RecordedClient,
    ReplaySession,
    read_recording,
    recorded_context,
)
from console.state.replay import Timeline
from jobs.errors import Refused, Unreachable
from jobs.model import RunState
from jobs.recordcalls import RecordCalls
from jobs.recording import BadRecording
from jobs.recordview import RecordingIndex, SegmentInfo
from jobs.recordwriter import Writer
from jobs.wire import StopRequest
from tests.unit.recorded import START, facts, run, sample

# --- on the head ------------------------------------------------------------------------------------------------------


class Head(RecordCalls):
    """The recording of a writer, told as the controller tells it."""

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.sent: list[list[int]] = []
        """The minutes that each question was answered with."""
        self.trouble = ""
        self.damage: Callable[[bytes], bytes] = bytes

    async def recording_index(self) -> RecordingIndex:
        self.writer.flush()
        return RecordingIndex(segments=self.writer.index(), now=START, trouble=self.trouble)

    async def recording(self, since: float, until: float) -> AsyncIterator[bytes]:
        self.writer.flush()
        found = [each for each in self.writer.index() if each.since <= until and each.until >= since]
        self.sent.append([each.seq for each in found])
        for each in found:
            content = self.damage(self.writer.path(each.seq).read_bytes())
            for at in range(0, len(content), 1000):
                yield content[at : at + 1000]


def tell(writer: Writer, since: int, until: int) -> None:
    for second in range(since, until):
        writer.take_sample("gpu-1", sample(second % 100), START + second)


@pytest.fixture
def head(tmp_path: Path) -> Head:
    writer = Writer(tmp_path)
    tell(writer, 0, 290)
    return Head(writer)


async def test_only_what_is_missing_of_a_span_is_asked_for(head: Head) -> None:
    source = HeadRecording(head)
    await source.refresh()
    assert source.span == (START, START + 289)
    assert source.lacks(START + 70, START + 130)
    assert [part.seq for part in await source.fetch(START + 70, START + 130)] == [2, 3]
    assert not source.lacks(START + 70, START + 130)
    assert await source.fetch(START + 61, START + 179) == []
    assert [part.seq for part in await source.fetch(START + 10, START + 200)] == [1, 2, 3, 4]
    await source.fetch(START + 130, START + 290)
    assert head.sent == [[2, 3], [1, 2, 3, 4], [5]]
    assert not source.lacks(0, 1e12)


async def test_of_the_minute_that_is_written_what_grew_is_asked_for(head: Head) -> None:
    source, timeline = HeadRecording(head), Timeline()
    await source.refresh()
    timeline.take(await source.fetch(START + 280, START + 289))
    assert not source.lacks(START + 280, START + 299)
    tell(head.writer, 290, 310)
    assert not source.lacks(START + 280, START + 289), "what is there is not known before somebody asks"
    await source.refresh()
    timeline.take(await source.fetch(START + 280, START + 289))
    timeline.take(await source.fetch(START + 280, START + 309))
    assert head.sent == [[5], [5], [6]]
    timeline.seek(START + 309)
    assert timeline.fleet.nodes["gpu-1"].reading(0, "utilization_percent") == 9
    assert timeline.sequence == {5, 6}


async def test_what_the_timeline_let_go_of_is_asked_for_again(head: Head) -> None:
    source, timeline = HeadRecording(head), Timeline()
    await source.refresh()
    timeline.take(await source.fetch(0, 1e12))
    timeline.seek(START + 280)
    timeline.let_go(60.0)
    source.forget(timeline)
    assert not source.lacks(START + 241, START + 289)
    timeline.take(await source.fetch(START + 70, START + 80))
    assert head.sent == [[1, 2, 3, 4, 5], [2]]
    timeline.seek(START + 75)
    assert timeline.fleet.nodes["gpu-1"].reading(0, "utilization_percent") == 75


async def test_what_is_gone_or_damaged_is_not_asked_for_again_and_again(head: Head) -> None:
    source = HeadRecording(head)
    await source.refresh()
    head.damage = lambda content: content[:-1]
    await source.fetch(START + 70, START + 80)
    head.damage = lambda content: b"nothing of a recording"
    assert await source.fetch(START + 130, START + 140) == []
    for at in (70, 130):
        assert not source.lacks(START + at, START + at + 10)
        assert await source.fetch(START + at, START + at + 10) == []
    assert head.sent == [[2], [3]]


async def test_a_minute_of_one_moment_is_fetched_too(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.take_sample("gpu-1", sample(7), START + 0.1234567)
    head = Head(writer)
    source, timeline = HeadRecording(head), Timeline()
    await source.refresh()
    timeline.take(await source.fetch(START - 100, START + 100))
    timeline.seek(START + 1)
    assert timeline.fleet.nodes["gpu-1"].reading(0, "utilization_percent") == 7


async def test_where_the_clock_went_back_both_courses_are_found(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    tell(writer, 1000, 1100)
    tell(writer, 0, 100)
    head = Head(writer)
    source = HeadRecording(head)
    await source.refresh()
    assert source.span == (START, START + 1099)
    assert 2 in [part.seq for part in await source.fetch(START + 1070, START + 1080)]
    assert 4 in [part.seq for part in await source.fetch(START + 70, START + 80)]


async def test_a_head_without_a_recording_says_so(tmp_path: Path) -> None:
    head = Head(Writer(tmp_path))
    with pytest.raises(Refused, match=r"^nothing is recorded on the head yet$"):
        await HeadRecording(head).refresh()
    head.trouble = "nothing is recorded: /x: No space left on device"
    with pytest.raises(Refused, match="yet: nothing is recorded: /x: No space"):
        await HeadRecording(head).refresh()


async def test_what_happened_is_told_with_the_index(head: Head) -> None:
    for second, state in ((291, "alive"), (292, "dead"), (295, "alive")):
        head.writer.take_state("gpu-1", "ray", state, "", START + second)
    source = HeadRecording(head)
    await source.refresh()
    assert [mark.text for mark in source.marks] == ["gpu-1: Ray dead", "gpu-1: Ray alive"]


# --- in a file --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("recording")
    writer = Writer(folder)
    for second in range(70):
        writer.take_facts("gpu-1", facts("gpu-1"), START + second)
        writer.take_sample("gpu-1", sample(second), START + second)
    writer.close()
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def zipped(files: dict[str, bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as bundle:
        for name, body in files.items():
            bundle.writestr(name, body)
    return out.getvalue()


def tarred(files: dict[str, bytes], mode: str = "w:gz") -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode=mode) as bundle:  # pyright: ignore[reportCallIssue, reportArgumentType]
        folder = tarfile.TarInfo("bundle.rdrec")
        folder.type = tarfile.DIRTYPE
        bundle.addfile(folder)
        for name, body in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(body)
            bundle.addfile(member, io.BytesIO(body))
    return out.getvalue()


@pytest.mark.parametrize("name", ["a.rdrec", "a.zip", "a-lzma.zip", "a.tar.gz", "a.tar", "whatever"])
def test_a_recording_is_read_whatever_it_is_wrapped_in(tmp_path: Path, content: bytes, name: str) -> None:
    files = {"bundle/notes.txt": b"PK" * 99, "bundle/recording.rdrec": content}
    wrapped = {
        "a.zip": lambda: zipped(files), "a-lzma.zip": lambda: zipped(files, zipfile.ZIP_LZMA),
        "a.tar.gz": lambda: tarred(files), "a.tar": lambda: tarred(files, "w:"),
    }.get(name, lambda: content)()  # fmt: skip
    path = tmp_path / name
    path.write_bytes(wrapped)
    assert [part.seq for part in read_recording(path)] == [1, 2]
    context = recorded_context(path)
    assert (context.name, context.simulated, len(context.parts)) == (name, True, 2)
    assert context.nodes == []


def test_what_is_no_recording_is_said_with_the_file(tmp_path: Path, content: bytes) -> None:
    bad: dict[str, tuple[bytes, str]] = {
        "empty.rdrec": (b"", "no minute of a recording"),
        "text.rdrec": (b"hello\n" * 100, "no minute of a recording"),
        "head.rdrec": (content[:40], "no minute of a recording"),
        "empty.zip": (zipped({}), "has no .rdrec file in it"),
        "other.zip": (zipped({"notes.txt": b"x"}), "has no .rdrec file in it"),
        "cut.zip": (zipped({"a.rdrec": content})[:-60], "is a bundle that cannot be read"),
        "stored.zip": (zipped({"a.rdrec": b"hello"}), "no minute of a recording"),
        "other.tar.gz": (tarred({"notes.txt": b"x"}), "has no .rdrec file in it"),
        "cut.tar.gz": (tarred({"a.rdrec": content})[:-500], "cannot be read"),
        "no.gz": (b"\x1f\x8b" + b"nonsense" * 20, "cannot be read"),
    }
    for name, (body, said) in bad.items():
        path = tmp_path / name
        path.write_bytes(body)
        with pytest.raises(Refused, match=said) as refused:
            read_recording(path)
        assert refused.value.sentence.startswith(f"{path}"), name
    with pytest.raises(BadRecording) as hinted:
        read_recording(tmp_path / "text.rdrec")
    assert "raydeck replay --save" in hinted.value.hint


def test_a_file_that_is_not_there_or_too_large_is_said_with_its_name(
    tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(Refused, match=r"gone\.rdrec cannot be read: No such file"):
        read_recording(tmp_path / "gone.rdrec")
    with pytest.raises(Refused, match="cannot be read: Is a directory"):
        read_recording(tmp_path)
    monkeypatch.setattr("console.sources.replay.FILE_LIMIT_BYTES", 2 * 1024 * 1024)
    large = tmp_path / "large.rdrec"
    large.write_bytes(content)
    os.truncate(large, 3 * 1024 * 1024)
    with pytest.raises(Refused, match=r"large\.rdrec is larger than 2 MiB"):
        read_recording(large)
    swells = tmp_path / "swells.zip"
    swells.write_bytes(zipped({"a.rdrec": b"\0" * (3 * 1024 * 1024), "b.rdrec": content}))
    assert len(read_recording(swells)) == 2, "what would be too large inside is passed over"


@given(st.data())
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_bundle_is_refused_or_read(tmp_path: Path, content: bytes, data: st.DataObject) -> None:
    files = {"a.rdrec": content[:3000], "b.rdrec": content}
    body = bytearray(data.draw(st.sampled_from([zipped, tarred]))(files))
    for _ in range(data.draw(st.integers(1, 6))):
        body[data.draw(st.integers(2, len(body) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged"
    path.write_bytes(body)
    said = ""
    try:
        assert read_recording(path)
    except Refused as refused:
        said = refused.sentence
    assert not said or str(path) in said


def test_a_file_of_which_a_minute_cannot_be_read_is_said_with_its_name(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "folder")
    writer.take_view("queue", {"no": "queue"}, START)
    writer.close()
    path = tmp_path / "odd.rdrec"
    path.write_bytes(writer.path(1).read_bytes())
    with pytest.raises(Refused, match=r"odd\.rdrec: what is recorded cannot be read: QueueView"):
        recorded_context(path)


# --- as a cluster -----------------------------------------------------------------------------------------------------


@pytest.fixture
def session(tmp_path: Path) -> ReplaySession:
    writer = Writer(tmp_path)
    one = {"queue": "q", "priority": "normal", "user": "bob", "nodes": 1, "gpus": 8, "since": START, "sentence": "",
           "kind": "resources"}  # fmt: skip
    waiting = [{"run": f"w-{number}", "position": number, **one} for number in range(5)]
    for second in range(30):
        writer.take_view("runs", [run("failed" if second == 20 else "running", second)], START + second)
    writer.take_view("runs", [run("failed", name="older", submitted_at=START - 900, sweep="s")], START + 30)
    writer.take_view("queue", {"at": START + 30, "waiting": waiting, "waiting_total": 5}, START + 30)
    writer.close()
    timeline = Timeline()
    timeline.take(read_recording(writer.path(1)))
    timeline.seek(START + 30)
    return ReplaySession(Context(name="c", nodes=[NodeEntry("n", "10.0.0.1")]), timeline)


async def test_the_client_answers_what_was_known_then(session: ReplaySession) -> None:
    client = await session.controller()
    assert isinstance(client, RecordedClient)
    assert [each.id for each in await client.runs()] == ["lm-k3f9qz", "older"], "the newest first"
    assert [each.id for each in await client.runs(1)] == ["lm-k3f9qz"]
    assert [each.id for each in await client.runs(sweep="s")] == ["older"]
    assert (await client.run("older")).state is RunState.FAILED
    with pytest.raises(Refused, match="nobody is not in the recording at this moment"):
        await client.run("nobody")
    assert [point.step for point in await client.series("lm-k3f9qz", 3)] == [27, 28, 29]
    moves = await client.moves("lm-k3f9qz")
    assert [move.after for move in moves] == [RunState.FAILED, RunState.RUNNING]
    view = await client.queue(1, 2)
    assert [each.run for each in view.waiting] == ["w-1", "w-2"]
    assert view.waiting_total == 5
    session.timeline.seek(START + 1)
    session.show(session.timeline)
    with pytest.raises(Refused, match="no queue at this moment"):
        await client.queue()


async def test_whatever_is_not_recorded_or_would_change_something_is_refused(session: ReplaySession) -> None:
    client = await session.controller()
    ways: list[Callable[[], Any]] = [
        client.status,
        client.releases,
        lambda: client.explain("older"),
        lambda: client.stop("older", StopRequest(request_id="12345678", reason="")),
        lambda: client.put_package("00", b""),
        lambda: RecordCalls.beside(client).recording_index(),
        lambda: anext(RecordCalls.beside(client).recording(0, 1)),
        lambda: anext(client.events()),
        session.ray_api,
        session.store_path,
    ]
    for way in ways:
        with pytest.raises(Refused) as refused:
            await way()
        assert (refused.value.sentence, refused.value.hint) == (NOT_HERE, "esc goes back to now")
    with pytest.raises(Refused, match=NOT_HERE):
        session.connection("n")


async def test_a_session_of_a_recording_counts_from_the_moment_that_is_looked_at(session: ReplaySession) -> None:
    assert session.now() == session.head_wall() == START + 30
    assert session.context.name == "c"
    assert session.fleet is session.timeline.fleet
    assert "n" not in session.fleet.nodes, "its nodes are those of the recording"
    moved = session.timeline.moved(START + 12)
    session.show(moved)
    assert session.now() == START + 12
    assert session.work.runs["lm-k3f9qz"].state is RunState.RUNNING
    assert session.work is moved.work


async def test_an_index_with_more_than_is_known_here_is_read() -> None:
    told = RecordingIndex.model_validate(
        {"segments": [{"seq": 1, "since": 1, "until": 2, "bytes": 3, "new": 1}], "x": 2}
    )
    assert told.segments == [SegmentInfo(seq=1, since=1, until=2, bytes=3)]


async def test_a_head_that_cannot_be_reached_is_passed_on(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    async def gone(since: float, until: float) -> AsyncIterator[bytes]:
        yield b"half"
        raise Unreachable("the recording stopped coming for 6 s")

    source = HeadRecording(head)
    await source.refresh()
    monkeypatch.setattr(head, "recording", gone)
    with pytest.raises(Unreachable):
        await source.fetch(START, START + 10)
    assert source.lacks(START, START + 10), "it is asked for again"
