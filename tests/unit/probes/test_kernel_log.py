"""`probes.kernel_log`: a file, a FIFO, the machine's own log, and ``journalctl`` in their place."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from probes.kernel_log import LOOK_BACK_SECONDS, PAUSE_SECONDS, RECORDS_AT_ONCE, KernelLog, Record
from probes.reading import ERROR, UNSUPPORTED, Missing
from tests.unit.probes.live import gone, until

Follow = Callable[..., KernelLog]


def record(text: str, ago: float = 0.0) -> bytes:
    """As ``/dev/kmsg`` gives it."""
    at = int((time.clock_gettime(time.CLOCK_MONOTONIC) - ago) * 1e6)
    return f"3,12,{at},-;{text}\n".encode()


@pytest.fixture
def follow() -> Generator[Follow]:
    opened: list[KernelLog] = []

    def start(path: Path | str, **environ: str) -> KernelLog:
        log = KernelLog({"RAYDECK_KMSG": str(path), **environ} if path else environ)
        opened.append(log)
        log.open(time.monotonic())
        return log

    yield start
    for log in opened:
        log.close()


def read(log: KernelLog) -> list[Record]:
    return log.read(time.monotonic())


def test_a_file_is_followed_and_its_last_minutes_are_told_with_their_time(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(record("long ago", ago=LOOK_BACK_SECONDS + 60) + record("a while ago", ago=120.0))
    log = follow(path)
    assert log.beats
    assert log.fileno() == -1
    (found,) = read(log)
    assert found.text == "a while ago"
    assert found.wall == pytest.approx(time.time() - 120, abs=2)
    assert read(log) == []
    with path.open("ab") as file:
        file.write(record("now") + b" SUBSYSTEM=pci\n DEVICE=+pci:0000:1b:00.0\n" + record("and\ttabs\x1b[1m")[:20])
    assert [entry.text for entry in read(log)] == ["now"]
    with path.open("ab") as file:
        file.write(b"rest of the line\n")
    (late,) = read(log)
    assert late.text.endswith("rest of the line")


def test_a_fifo_wakes_its_reader_and_outlives_its_writers(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = follow(path)
    assert not log.beats
    assert log.fileno() >= 0
    assert read(log) == []
    for number in range(3):
        path.write_bytes(record(f"line {number}"))
        assert [entry.text for entry in read(log)] == [f"line {number}"]
    assert log.blind is None


def test_a_flood_is_taken_in_pieces(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "kmsg"
    os.mkfifo(path)
    log = follow(path)
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    try:
        os.write(writer, b"".join(record(f"line {number}") for number in range(1500)))
    finally:
        os.close(writer)
    now = time.monotonic()
    first = log.read(now)
    assert RECORDS_AT_ONCE <= len(first) < 1000
    assert log.read_at == now + PAUSE_SECONDS
    more = len(first)
    while some := read(log):
        more += len(some)
    assert more == 1500


def test_nonsense_is_passed_over(tmp_path: Path, follow: Follow) -> None:
    path = tmp_path / "kmsg"
    path.write_bytes(b"\xff\xfe\n;;;\n3,1,x,-;no time\n3,1,99999999999999999999,-;far\n" + record("good"))
    assert [entry.text for entry in read(follow(path))] == ["good"]


def test_the_machines_own_log(follow: Follow) -> None:
    try:
        os.close(os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK))
    except OSError as error:
        pytest.skip(f"not ours to read: {error}")
    log = follow("")
    assert log.blind is None
    mark = f"raydeck-test {os.getpid()} of the kernel's log"
    found: list[Record] = []
    try:
        Path("/dev/kmsg").write_text(f"<6>{mark}\n")
    except OSError as error:
        pytest.skip(f"not ours to write: {error}")
    until(lambda: found.extend(read(log)) or any(mark in entry.text for entry in found))
    (mine,) = [entry for entry in found if mark in entry.text]
    assert mine.wall == pytest.approx(time.time(), abs=2)


def journal(folder: Path, script: str) -> str:
    folder.mkdir()
    path = folder / "journalctl"
    path.write_text("#!/bin/sh\n" + script)
    path.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def test_journalctl_stands_in(tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "echo '-- Boot --'; echo \"1700000000.25 node1 kernel: NVRM: said ($*)\"; exec sleep 60"
    monkeypatch.setenv("PATH", journal(tmp_path / "bin", script))
    log = follow(tmp_path / "nowhere")
    assert log.blind == Missing(UNSUPPORTED, f"{tmp_path}/nowhere: no such file or directory")
    found: list[Record] = []
    until(lambda: found.extend(read(log)) or found)
    assert found[0].wall == 1700000000.25
    assert found[0].text == "NVRM: said (-kf -o short-unix --no-tail --no-pager --since=-600s)"
    assert log.blind is None
    assert log.beats
    log.close()
    assert log.worker is None


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("echo 'Hint: You are currently not seeing messages from others.' >&2; exec sleep 60", "not seeing messages"),
        ("echo 'No journal files were opened: insufficient permissions.' >&2; exit 1", "insufficient permissions"),
        ("exit 0", "it ended at once"),
    ],
)
def test_a_journal_that_shows_nothing_is_no_way(
    tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch, script: str, reason: str
) -> None:
    monkeypatch.setenv("PATH", journal(tmp_path / "bin", script))
    log = follow(tmp_path / "nowhere")
    until(lambda: read(log) or (log.blind is not None and "journalctl: " in log.blind.reason))
    assert log.blind is not None
    assert reason in log.blind.reason
    assert log.worker is None
    assert read(log) == []


def test_no_journalctl_at_all(tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    log = follow(tmp_path)  # a folder: cannot be read either
    assert log.blind is not None
    assert log.blind.kind == ERROR
    until(lambda: read(log) or (log.blind is not None and "journalctl: " in log.blind.reason))
    assert "FileNotFoundError" in log.blind.reason or "failed" in log.blind.reason


def test_a_simulated_node_has_no_kernel_but_one_that_it_is_given(tmp_path: Path, follow: Follow) -> None:
    log = follow("", RAYDECK_SIMULATED="script.json")
    assert log.blind == Missing(UNSUPPORTED, "a simulated node has no kernel of its own")
    assert log.fileno() == -1
    assert read(log) == []
    path = tmp_path / "kmsg"
    path.write_bytes(record("its own"))
    given = follow(path, RAYDECK_SIMULATED="script.json")
    assert given.blind is None
    assert [entry.text for entry in read(given)] == ["its own"]


def test_its_child_does_not_outlive_it(tmp_path: Path, follow: Follow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", journal(tmp_path / "bin", "echo $$ > " + str(tmp_path / "pid") + "; exec sleep 60"))
    log = follow(tmp_path / "nowhere")
    until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    pid = int((tmp_path / "pid").read_text())
    assert not gone(pid)
    log.close()
    until(lambda: gone(pid))
