"""A recording's folder: how old minutes go, what a process that was killed leaves, a disk that refuses; and marks."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jobs.recordfiles import SEGMENT_SUFFIX
from jobs.recording import CHANGES, HEALTH, KEYFRAME, MAGIC, MARKS, RUN, VIEW, BadRecording, chunk, put_record, segments
from jobs.recording import START as HEAD
from jobs.recordwriter import MARKS_PER_SEGMENT, Writer
from probes.reading import Event, Health
from tests.unit.recorded import START, facts, parts, played, run, sample


class Disk:
    """What is written below a folder goes through it: it can be full, be slow to say so, or fail at the end."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.room = 10**12
        self.closing_fails = False
        self._folder = str(folder)
        self._write, self._close = os.write, os.close
        monkeypatch.setattr("jobs.recordfiles.os.write", self.write)
        monkeypatch.setattr("jobs.recordfiles.os.close", self.close)

    def _ours(self, descriptor: int) -> bool:
        return os.readlink(f"/proc/self/fd/{descriptor}").startswith(self._folder)

    def write(self, descriptor: int, content: Any) -> int:
        if self._ours(descriptor):
            if not self.room:
                raise OSError(errno.ENOSPC, "No space left on device")
            content = content[: self.room]
            self.room -= len(content)
        return self._write(descriptor, content)

    def close(self, descriptor: int) -> None:
        ours = self._ours(descriptor)
        self._close(descriptor)
        if ours and self.closing_fails:
            raise OSError(errno.EDQUOT, "Disk quota exceeded")


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(tmp_path, monkeypatch)


def record(writer: Writer, since: float, until: float, step: float = 1.0, names: tuple[str, ...] = ("gpu-1",)) -> None:
    at = since
    while at < until:
        for name in names:
            writer.take_sample(name, sample(round(at) % 100), at)
        writer.tick(at)
        at += step


def noisy(writer: Writer, since: float, seconds: int) -> None:
    """A second that does not compress."""
    for second in range(seconds):
        writer.take_view("nodes", {"text": os.urandom(3000).hex()}, since + second)
        writer.tick(since + second)


# --- how long, how much -----------------------------------------------------------------------------------------------


def test_minutes_older_than_what_is_kept_go(tmp_path: Path) -> None:
    writer = Writer(tmp_path, keep_seconds=600.0)
    record(writer, START, START + 1500, 5.0)
    writer.close()
    told = writer.index()
    assert told[0].until >= START + 1500 - 600 - 65
    assert told[0].since <= START + 1500 - 600, "and no more than that goes"
    assert [part.seq for part in parts(tmp_path)] == [each.seq for each in told]
    assert [each.seq for each in told] == list(range(told[0].seq, told[-1].seq + 1))


def test_the_limit_in_bytes_is_kept_and_the_newest_stay(tmp_path: Path) -> None:
    writer = Writer(tmp_path, keep_bytes=300_000, segment_seconds=10.0, flush_seconds=1.0)
    noisy(writer, START, 300)
    writer.close()
    size = sum(path.stat().st_size for path in tmp_path.iterdir())
    told = writer.index()
    assert size == sum(each.bytes for each in told)
    assert 200_000 < size <= 300_000 + max(each.bytes for each in told)
    assert told[-1].until >= START + 298


def test_a_clock_that_was_wrong_does_not_keep_minutes_for_ever(tmp_path: Path) -> None:
    writer = Writer(tmp_path, keep_seconds=600.0)
    record(writer, START + 10**6, START + 10**6 + 700, 10.0)
    record(writer, START, START + 1500, 10.0)
    writer.close()
    assert len(writer.index()) <= 600 / 60 + 4
    assert all(each.since < START + 1500 for each in writer.index())


def test_what_became_too_old_goes_also_while_nothing_is_told(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    record(writer, START, START + 5)
    writer.close()
    again = Writer(tmp_path)
    again.tick(START + 60)
    assert len(again.index()) == 1
    again.tick(START + 3700)
    assert again.index() == []
    assert list(tmp_path.iterdir()) == []


def test_the_folder_and_its_files_are_for_this_user_alone(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "a" / "recorder")
    record(writer, START, START + 2)
    writer.close()
    (file,) = (tmp_path / "a" / "recorder").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700


def test_a_process_that_is_killed_loses_what_was_not_flushed_and_no_more(tmp_path: Path) -> None:
    writer = Writer(tmp_path, flush_seconds=5.0)
    record(writer, START, START + 33)
    (part,) = parts(tmp_path)
    assert START + 27 <= part.until <= START + 33
    assert played(part).nodes["gpu-1"].sampled_at == pytest.approx(part.until, abs=0.01)


# --- what an earlier process left -------------------------------------------------------------------------------------


@pytest.mark.parametrize("cut", [0, 5, 40, 200, -1, -30])
def test_a_writer_goes_on_in_the_folder_of_another_one(tmp_path: Path, cut: int) -> None:
    writer = Writer(tmp_path)
    record(writer, START, START + 100)
    writer.close()
    last = max(tmp_path.iterdir())
    last.write_bytes(last.read_bytes()[: cut or None] if cut else b"")
    (tmp_path / f"9999999999{SEGMENT_SUFFIX}").write_bytes(b"no recording")
    again = Writer(tmp_path)
    left = again.index()
    assert [each.seq for each in left] == [1, 2][: 1 if cut in (0, 5, 40, 200) else 2]
    record(again, START + 110, START + 120)
    again.close()
    found = parts(tmp_path)
    assert [part.info() for part in found] == [
        each.model_copy(update={"until": part.until}) for each, part in zip(again.index(), found, strict=True)
    ]
    assert played(found[0], START + 30.006).nodes["gpu-1"].sampled_at == pytest.approx(START + 30)
    assert played(found[-1]).nodes["gpu-1"].sampled_at == pytest.approx(START + 119)
    assert len(list(tmp_path.iterdir())) == len(found), "a file in which nothing is whole is gone"


# --- a disk that refuses ----------------------------------------------------------------------------------------------


def test_after_a_full_disk_the_recording_goes_on_with_all_that_is_true(tmp_path: Path, disk: Disk) -> None:
    writer = Writer(tmp_path, flush_seconds=1.0)
    writer.take_facts("gpu-2", facts("gpu-2"), START)
    record(writer, START, START + 10)
    disk.room = 7
    with pytest.raises(OSError, match="No space"):
        record(writer, START + 10, START + 20)
    writer.give_up()
    assert not writer.writing
    disk.room = 10**9
    record(writer, START + 30, START + 40)
    writer.close()
    found = parts(tmp_path)
    assert [part.torn for part in found] == [True, False]
    assert played(found[0]).nodes["gpu-1"].sampled_at == pytest.approx(START + 9, abs=1.1)
    assert played(found[1]).nodes["gpu-2"].facts() == facts("gpu-2"), "also what was told before"
    assert played(found[1]).nodes["gpu-1"].sampled_at == pytest.approx(START + 39)
    assert writer.index()[0].bytes == found[0].end - found[0].start, "of the torn one what can be read counts"


def test_a_disk_that_stays_full_does_not_drive_out_what_led_to_it(tmp_path: Path, disk: Disk) -> None:
    writer = Writer(tmp_path, keep_seconds=600.0)
    record(writer, START, START + 300, 5.0)
    before = [each.seq for each in writer.index()]
    for attempt in range(40):
        disk.room = (0, 3, 90)[attempt % 3]
        with pytest.raises(OSError, match="No space"):
            record(writer, START + 300 + attempt, START + 400, 1.0)
        writer.give_up()
    disk.room = 10**9
    record(writer, START + 350, START + 360)
    writer.close()
    assert [each.seq for each in writer.index()] == [*before, before[-1] + 1]
    assert [part.seq for part in parts(tmp_path)] == [*before, before[-1] + 1]
    assert played(parts(tmp_path)[-1]).nodes["gpu-1"].sampled_at == pytest.approx(START + 359)


def test_a_disk_that_refuses_also_the_closing_is_given_up_quietly(tmp_path: Path, disk: Disk) -> None:
    writer = Writer(tmp_path)
    record(writer, START, START + 3)
    disk.closing_fails = True
    writer.give_up()
    disk.closing_fails = False
    record(writer, START + 5, START + 8)
    writer.close()
    assert len(parts(tmp_path)) == 1, "nothing had been flushed of the first"


@pytest.mark.parametrize("room", range(0, 1200, 37))
def test_wherever_the_disk_refuses_what_comes_after_is_whole(
    tmp_path: Path, disk: Disk, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("jobs.recordwriter.CHUNK_BYTES", 20)  # each entry is written by itself
    writer = Writer(tmp_path)
    disk.room = room
    tellings: list[Callable[[float], object]] = [
        lambda at: writer.take_sample("gpu-1", sample(3), at),
        lambda at: writer.take_sample("gpu-2", sample(3, gpus=1), at),
        lambda at: writer.take_sample("gpu-1", sample(4, gpus=3), at),
        lambda at: writer.take_facts("gpu-1", facts("gpu-1", 3), at),
        lambda at: writer.take_health("gpu-1", Health(oom_kills=1), at),
        lambda at: writer.take_state("gpu-1", "ray", "dead", "why", at),
        lambda at: writer.take_view("queue", {"at": 1}, at),
        lambda at: writer.take_view("runs", [run()], at),
    ]
    for second, tell in enumerate(tellings):
        try:
            tell(START + second)
        except OSError:
            writer.give_up()
            disk.room = 10**9
            tell(START + second)
    writer.close()
    player = played(parts(tmp_path)[-1])
    back = player.nodes["gpu-1"].sample()
    assert back is not None
    assert back.columns["utilization_percent"] == [4, 4, 4]
    other = player.nodes["gpu-2"].sample()
    assert other is not None
    assert other.columns["utilization_percent"] == [3]
    told = player.nodes["gpu-1"].health()
    assert told is not None
    assert told.oom_kills == 1
    assert player.nodes["gpu-1"].states["ray"][:2] == ("dead", "why")
    assert player.views["queue"] == {"at": 1}
    assert player.runs.keys() == {"lm-k3f9qz"}


# --- marks ------------------------------------------------------------------------------------------------------------


def marks(writer: Writer) -> list[tuple[float, str, str, str, str]]:
    """Those in the index, which are also those in the files."""
    writer.close()
    told = [mark for each in writer.index() for mark in each.marks]
    written = [mark for path in sorted(writer.path(1).parent.iterdir()) for part in segments(path.read_bytes())
               for mark in part.marks]  # fmt: skip
    assert told == written
    return [(round(mark.at - START, 1), mark.kind, mark.level, mark.target, mark.text) for mark in told]


def test_what_happens_to_nodes_is_marked_once_each(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for second, state in enumerate(["ok", "ok", "blocked", "blocked", "ok"]):
        line = sample(driver=state)
        writer.take_sample("gpu-1", line, START + second)
        writer.take_state("gpu-1", "driver", state, line.driver.reason, START + second)
    writer.take_state("gpu-1", "ray", "alive", "", START + 5)
    writer.take_state("gpu-1", "ray", "dead", "missed heartbeats", START + 6)
    writer.take_state("gpu-1", "ray", "dead", "another reason", START + 7)
    writer.take_state("gpu-1", "ssh", "up", "", START + 8)
    writer.take_state("gpu-1", "ssh", "waiting", "", START + 9)
    assert marks(writer) == [
        (2, "node", "critical", "gpu-1", "gpu-1: driver blocked: nvmlDeviceGetMemoryInfo has not come back"),
        (4, "node", "info", "gpu-1", "gpu-1: driver ok"),
        (6, "node", "critical", "gpu-1", "gpu-1: Ray dead: missed heartbeats"),
    ]


def test_what_happens_to_runs_is_marked_but_not_what_they_pass_through(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    course = ["queued", "admitted", "starting", "running", "saving", "running", "failed"]
    for second, state in enumerate(course):
        writer.take_view("runs", [run(state, reason="NCCL timeout" if state == "failed" else "x")], START + second)
    writer.take_view("runs", [run("running", name="found-running")], START + 10)
    assert [(at, level, text) for at, _, level, _, text in marks(writer)] == [
        (0, "info", "lm-k3f9qz queued: x"),
        (3, "info", "lm-k3f9qz running"),
        (5, "info", "lm-k3f9qz running"),
        (6, "warning", "lm-k3f9qz failed: NCCL timeout"),
    ]


def test_alerts_are_marked_when_they_begin_and_when_they_are_over(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    lost = {"id": "a1", "state": "firing", "level": "critical", "title": "gpu-1/3 is lost"}
    full = {"id": "a2", "state": "firing", "level": "odd", "title": "/data is full"}
    for second, told in enumerate([[], [lost], [lost, full], [{**lost, "state": "ended"}, full], []]):
        writer.take_view("alerts", {"alerts": told}, START + second)
    assert marks(writer) == [
        (1, "alert", "critical", "a1", "gpu-1/3 is lost"),
        (2, "alert", "warning", "a2", "/data is full"),
        (3, "cleared", "info", "a1", "over: gpu-1/3 is lost"),
        (4, "cleared", "info", "a2", "over: /data is full"),
    ]


def test_what_the_kernel_tells_is_marked_whatever_is_in_it(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    odd = Event("xid", "NVRM: \ud800" + "x" * 900, START)
    writer.take_health("gpu\udcff1", Health(events=[odd]), START)
    (mark,) = marks(writer)
    assert mark[:4] == (0, "event", "warning", "gpu?1")
    assert len(mark[4]) == 400


def test_a_storm_does_not_make_a_minute_of_marks(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    for number in range(MARKS_PER_SEGMENT + 50):
        writer.take_health("gpu-1", Health(events=[Event("xid", f"line {number}", START)]), START + number / 100)
    writer.take_health("gpu-1", Health(events=[Event("xid", "next minute", START)]), START + 61)
    told = marks(writer)
    assert len(told) == MARKS_PER_SEGMENT + 1
    assert told[-1][4] == "gpu-1: next minute"


# --- files of another version, and hostile ones -----------------------------------------------------------------------


def made(*chunks: tuple[int, bytes], seq: Any = 1) -> bytes:
    """A segment of these chunks."""
    head = chunk(HEAD, json.dumps({"seq": seq, "by": "a newer one"}).encode(), START, START)
    return MAGIC + head + b"".join(chunk(kind, body, START, START + 5) for kind, body in chunks)


def entries(*records: tuple[int, int, bytes]) -> bytes:
    """A chunk's body: kind, node, body of each, a second apart."""
    out = bytearray()
    for kind, node, body in records:
        put_record(out, kind, 100, node, body)
    return bytes(out)


def test_what_a_newer_version_tells_besides_is_passed_over() -> None:
    body = entries(
        (0, 1, b"gpu-1"), (12, 1, b"\xff not json"), (77, 9, b""),
        (VIEW, 0, b'["queue", [0, {"at": 1, "of_a_newer_one": 2}]]'),
        (HEALTH, 1, b'[0, {"kind": "health", "v": 1, "new": 1}]'), (RUN, 0, b'["lm", [0, {"id": "lm"}]]'),
    )  # fmt: skip
    marked = [{"at": 1.0, "kind": "of_a_newer_one", "text": "?"}, {"at": 2.0, "kind": "note", "text": "this", "new": 1}]
    data = made((KEYFRAME, b""), (9, b"what?"), (MARKS, json.dumps(marked).encode()), (CHANGES, body))
    (part,) = segments(data)
    assert not part.torn
    assert [mark.text for mark in part.marks] == ["this"]
    player = played(part)
    assert player.nodes.keys() == {"gpu-1"}
    assert player.nodes["gpu-1"].health() is not None
    assert player.runs == {"lm": {"id": "lm"}}
    assert player.views["queue"]["at"] == 1


@pytest.mark.parametrize("seq", [float("inf"), None, [], -4, "x", {"a": 1}])
def test_a_segment_with_no_number_is_none(seq: Any) -> None:
    with pytest.raises(BadRecording):
        segments(made((CHANGES, entries((VIEW, 0, b'["queue", [0, 1]]'))), seq=seq))


@pytest.mark.parametrize(
    "body",
    [
        entries((0, 1, b"n"), (1, 1, json.dumps({"index": [0] * 50_000, "columns": ["c"] * 50_000}).encode())),
        entries((0, 1, b"n"), (1, 1, b'{"index": "abc", "columns": []}')),
        entries((0, 1, b"n"), (2, 1, b"\x00" * 40)),
        entries((0, 1, b"n"), (3, 1, b"[2, 3]")),
        entries((0, 1, b"n"), (5, 1, b"[1, {}, 3]")),
        entries((0, 1, b"n"), (6, 1, b'["ray"]')),
        entries((2, 8, b"of a node without a name")),
        entries((VIEW, 0, b"7")),
        entries((RUN, 0, b"[" * 100_000)),
        entries((0, 1, b"\xff\xfe")),
        b"\x07\x00\x00\x7fshort",
        b"\x07" + b"\xff" * 30,
    ],
    ids=range(12),
)
def test_nonsense_in_a_whole_chunk_is_a_bad_recording(body: bytes) -> None:
    (part,) = segments(made((CHANGES, body)))
    with pytest.raises(BadRecording, match=r"cannot be read"):
        played(part)
