"""The probe's stream: lines to the sink, and each end of it as a sentence; then started again."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.sources import probes
from console.sources.probes import LineSplitter, NodeWatcher, Program, _Stream, explain
from console.sources.ssh import CommandEnd, Connections, State
from probes.reading import Facts, Fault, Health, Sample, encode

from .servers import Sshd, commands, until

STAND_IN = """
import json, os, select, sys, time
def say(kind, **body):
    print(json.dumps(dict(body, v=1, kind=kind)), flush=True)
def waits(seconds):
    if select.select([0], [], [], seconds)[0]:
        line = sys.stdin.readline()
        if not line:
            sys.exit(0)
        say("pong", id=line.split()[1], wall=time.time() + 100)
say("facts", hostname="stand-in")
for number in range(10000):
    say("sample", seq=number, wall=time.time())
    waits(0.05)
"""


def program(script: str = STAND_IN, *before: str) -> Program:
    return Program((*before, "python3", "-I", "-S", "-u", "-c", script), b"")


class Notebook:
    """A sink that writes everything down."""

    def __init__(self) -> None:
        self.states: list[tuple[str, str]] = []
        self.facts_seen: list[Facts] = []
        self.samples: list[tuple[float, Sample]] = []
        self.clocks: list[tuple[float, float]] = []
        self.healths: list[Health] = []

    def ssh_state(self, name: str, state: str, reason: str, since: float) -> None:
        assert name == "node"
        assert since <= time.monotonic()
        self.states.append((state, reason))

    def facts(self, name: str, facts: Facts) -> None:
        self.facts_seen.append(facts)

    def sample(self, name: str, sample: Sample, received: float) -> None:
        self.samples.append((received, sample))

    def health(self, name: str, health: Health, received: float) -> None:
        assert name == "node"
        assert received <= time.monotonic()
        self.healths.append(health)

    def clock(self, name: str, offset_seconds: float, round_trip_ms: float) -> None:
        self.clocks.append((offset_seconds, round_trip_ms))

    @property
    def reason(self) -> str:
        return self.states[-1][1] if self.states else ""


@asynccontextmanager
async def watching(
    sshd: Sshd, connections: Connections, what: Program | None, **options: object
) -> AsyncGenerator[tuple[NodeWatcher, Notebook]]:
    notebook = Notebook()
    watcher = NodeWatcher(connections.add(sshd.host()), notebook, program=what, **options)  # type: ignore[arg-type]
    watcher.start()
    try:
        yield watcher, notebook
    finally:
        await watcher.close()


async def test_lines_reach_the_sink(sshd: Sshd, connections: Connections) -> None:
    async with watching(sshd, connections, program()) as (watcher, notebook):
        await until(lambda: len(notebook.samples) >= 5 and notebook.clocks, what="samples and a pong")
        assert notebook.facts_seen[0].hostname == "stand-in"
        numbers = [sample.seq for _, sample in notebook.samples]
        assert numbers == list(range(len(numbers)))
        assert notebook.states[-1] == ("up", "")
        offset, round_trip = notebook.clocks[-1]
        assert offset == pytest.approx(100, abs=0.5)
        assert 0 < round_trip < 1000
        assert watcher.clock_offset_seconds == offset
    await until(lambda: not running(sshd, b"stand-in"), what="the probe goes with its channel")
    assert watcher.connection.is_up


def running(sshd: Sshd, mark: bytes) -> list[int]:
    found = commands(sshd.sessions())
    return [pid for pid, command in found.items() if mark in command and command.startswith(b"python3")]


async def test_the_real_probe(sshd: Sshd, connections: Connections) -> None:
    async with watching(sshd, connections, None, disks=["/"]) as (watcher, notebook):
        await until(lambda: len(notebook.samples) >= 2 and notebook.clocks, limit=15, what="two samples")
        await until(lambda: notebook.healths, limit=15, what="a line of health")
        assert [mount.path for mount in notebook.healths[0].mounts] == ["/", "/tmp", "/dev/shm"]
        assert notebook.facts_seen[0].kernel == os.uname().release
        assert [disk.path for disk in notebook.samples[-1][1].host.disks] == ["/"]
        assert watcher.clock_offset_seconds == pytest.approx(0, abs=0.25)
        assert notebook.states[-1] == ("up", "")


async def test_a_killed_probe_is_said_and_started_again(sshd: Sshd, connections: Connections) -> None:
    async with watching(sshd, connections, program()) as (_, notebook):
        await until(lambda: notebook.samples)
        (pid,) = running(sshd, b"stand-in")
        os.kill(pid, signal.SIGKILL)
        await until(lambda: notebook.reason == "probe was ended by SIGKILL (out of memory?)", what="its end in words")
        assert notebook.states[-1][0] == "up"
        seen = len(notebook.samples)
        await until(lambda: len(notebook.samples) > seen, what="samples again")
        assert notebook.states[-1] == ("up", "")


async def test_no_python(make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    sshd = make_sshd('ForceCommand env PATH=/nonexistent /bin/sh -c "$SSH_ORIGINAL_COMMAND"')
    async with watching(sshd, connections, None) as (watcher, notebook):
        await until(lambda: notebook.reason, limit=15)
        assert notebook.states[-1][0] == "up"
        assert notebook.reason.startswith("probe exited 127: python3 not found on the node (")
        assert watcher.connection.status.state is State.UP


async def test_a_login_script_that_prints(make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    sshd = make_sshd("ForceCommand echo; echo 'Welcome to node!'; exec /bin/sh -c \"$SSH_ORIGINAL_COMMAND\"")
    async with watching(sshd, connections, program()) as (_, notebook):
        await until(lambda: len(notebook.samples) > 2 and notebook.reason)
        assert notebook.reason == (
            "a login script prints to standard output ('Welcome to node!'), which is passed over"
        )
        assert notebook.states[-1][0] == "up"
        assert len([state for state in notebook.states if state == ("up", notebook.reason)]) == 1


async def test_a_login_script_that_never_stops_printing(
    make_sshd: Callable[..., Sshd], connections: Connections
) -> None:
    async with watching(make_sshd("ForceCommand yes hello"), connections, program()) as (_, notebook):
        await until(lambda: notebook.reason)
        assert notebook.reason == "login scripts print without end to standard output, such as 'hello'"


async def test_a_shell_that_lets_nobody_in(make_sshd: Callable[..., Sshd], connections: Connections) -> None:
    sshd = make_sshd("ForceCommand echo This account is currently not available.; exit 1")
    async with watching(sshd, connections, program()) as (_, notebook):
        await until(lambda: notebook.reason)
        assert notebook.reason == "probe exited 1: This account is currently not available."


async def test_a_fault_is_told_in_its_own_words(sshd: Sshd, connections: Connections) -> None:
    line = encode(Fault("python3 is 3.6.8, the probe needs 3.8"))
    script = f"import sys; print({line!r}); sys.exit(3)"
    async with watching(sshd, connections, program(script)) as (_, notebook):
        await until(lambda: notebook.reason)
        assert notebook.reason == "python3 is 3.6.8, the probe needs 3.8"


async def test_a_line_without_end_is_refused(
    sshd: Sshd, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = "import sys\nwhile True: sys.stdout.write('x' * 65536)"
    monkeypatch.setattr(LineSplitter.__init__, "__defaults__", (1_000_000,))
    async with watching(sshd, connections, program(script)) as (watcher, notebook):
        await until(lambda: notebook.reason)
        assert notebook.reason == "the probe prints a line of more than 1000000 bytes"
        assert watcher.connection.is_up


@pytest.mark.slow
async def test_a_probe_that_hangs_is_silence_though_sshd_answers(
    sshd: Sshd, connections: Connections, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "HUNG_SECONDS", 4.0)
    async with watching(sshd, connections, program()) as (watcher, notebook):
        await until(lambda: notebook.samples)
        (pid,) = running(sshd, b"stand-in")
        began = time.monotonic()
        os.kill(pid, signal.SIGSTOP)
        await until(lambda: notebook.states[-1][0] == "silent", what="silent")
        assert time.monotonic() - began <= 3.0
        assert notebook.reason == "the probe says nothing, though sshd answers"
        assert (await watcher.connection.run_command(["echo", "yes"])).stdout == b"yes\n"
        await until(lambda: "hung" in notebook.reason, what="given up")
        seen = len(notebook.samples)
        await until(lambda: len(notebook.samples) > seen, what="samples from a new one")
        os.kill(pid, signal.SIGCONT)
        assert notebook.states[-1] == ("up", "")


async def test_samples_go_on_after_a_reconnect(sshd: Sshd, connections: Connections) -> None:
    async with watching(sshd, connections, program()) as (_, notebook):
        await until(lambda: notebook.samples)
        sshd.stop()
        await until(lambda: notebook.states[-1][0] == "lost")
        sshd.start()
        seen = len(notebook.samples)
        await until(lambda: len(notebook.samples) > seen + 2)
        assert {reason for state, reason in notebook.states if state == "up"} == {""}
        assert notebook.states[-1] == ("up", "")
        assert [state for state, _ in notebook.states if state not in ("connecting", "up", "lost")] == []


async def test_ours_too_old_or_new_lines_are_said(sshd: Sshd, connections: Connections) -> None:
    script = STAND_IN.replace("v=1, ", "v=1 if kind == 'facts' else 2, ")
    async with watching(sshd, connections, program(script)) as (_, notebook):
        await until(lambda: notebook.reason)
        assert notebook.reason == "a line of the probe cannot be read: wire version 2, this side speaks 1"


@given(st.lists(st.binary(max_size=40).map(lambda line: line.replace(b"\n", b""))), st.data())
def test_lines_come_whole_however_they_are_cut(lines: list[bytes], data: st.DataObject) -> None:
    text = b"".join(line + b"\n" for line in lines) + b"half"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    splitter = LineSplitter()
    found: list[bytes] = []
    for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True):
        found += splitter.feed(text[begin:end])
    assert found == lines
    assert splitter.feed(b"\n") == [b"half"]


@given(st.lists(st.binary(min_size=1, max_size=30), min_size=1), st.integers(1, 60))
def test_a_long_line_is_refused_as_soon_as_it_is_too_long(pieces: list[bytes], limit: int) -> None:
    splitter = LineSplitter(limit)
    text = b""
    for piece in pieces:
        text += piece
        longest = max(len(line) for line in text.split(b"\n"))
        if longest > limit:
            with pytest.raises(ValueError, match=f"more than {limit} bytes"):
                splitter.feed(piece)
            return
        splitter.feed(piece)


@pytest.mark.parametrize(
    ("end", "sentence"),
    [
        (CommandEnd(None, None, "", "the connection was closed"), "sshd closed the probe's session"),
        (CommandEnd(127, None, "bash: python3: command not found\n", ""),
         "probe exited 127: python3 not found on the node (bash: python3: command not found)"),
        (CommandEnd(126, None, "sh: python3: Permission denied", ""),
         "probe exited 126: python3 on the node cannot be run: sh: python3: Permission denied"),
        (CommandEnd(None, "KILL", "", ""), "probe was ended by SIGKILL (out of memory?)"),
        (CommandEnd(143, None, "", ""), "probe was ended by SIGTERM"),
        (CommandEnd(None, "FUNNY", "", ""), "sshd closed the probe's session"),
        (CommandEnd(1, None, "  File x\nSyntaxError: invalid syntax\n", ""),
         "probe exited 1: python3 on the node is too old, 3.8 or later is needed"),
        (CommandEnd(1, None, "Traceback\nOSError: [Errno 28] No space left on device\n", ""),
         "probe exited 1: OSError: [Errno 28] No space left on device"),
        (CommandEnd(0, None, "", ""), "probe exited 0"),
    ],
)  # fmt: skip
async def test_ends_in_words(end: CommandEnd, sentence: str) -> None:
    assert explain(end, _Stream(lambda *_: None, lambda _: None)) == sentence
