"""A node that stops answering is silent within 3 s and lost within 6 s, and comes back by itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time

import pytest

from console.sources.ssh import Connections, State, Status
from jobs.errors import Unreachable

from .servers import Sshd, commands, until


def freeze(sshd: Sshd, number: signal.Signals) -> None:
    for pid in sshd.sessions():
        # sshd's helper for the login may be on its way out.
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)


@pytest.mark.slow
async def test_silent_then_lost_then_back(sshd: Sshd, connections: Connections) -> None:
    connection = connections.add(sshd.host())
    await connection.ready()
    times: dict[State, float] = {}

    def note(status: Status) -> None:
        times.setdefault(status.state, time.monotonic())

    connection.listen(note)
    await connection.run_command(["true"])
    running = asyncio.create_task(connection.run_command(["sleep", "9"], timeout=20))
    await until(lambda: any(b"sleep" in command for command in commands(sshd.sessions()).values()))
    times.clear()
    frozen = time.monotonic()
    freeze(sshd, signal.SIGSTOP)
    await until(lambda: connection.status.state is State.SILENT, what="silent")
    assert times[State.SILENT] - frozen <= 3.0
    assert "nothing heard" in connection.status.reason
    assert connection.is_up
    await until(lambda: connection.status.state is State.LOST, what="lost")
    assert times[State.LOST] - frozen <= 6.0
    assert connection.status.reason == "no answer for 6 s"
    assert not connection.is_up
    with pytest.raises(Unreachable, match="was cut off"):
        await running
    since = connection.status.since
    freeze(sshd, signal.SIGCONT)
    await until(lambda: connection.status.state is State.UP, what="up again")
    assert connection.status.since > since


@pytest.mark.slow
async def test_a_short_silence_is_forgiven(sshd: Sshd, connections: Connections) -> None:
    connection = connections.add(sshd.host())
    await connection.ready()
    seen: list[State] = []
    connection.listen(lambda status: seen.append(status.state))
    freeze(sshd, signal.SIGSTOP)
    await until(lambda: connection.status.state is State.SILENT, what="silent")
    freeze(sshd, signal.SIGCONT)
    await until(lambda: connection.status.state is State.UP, what="up again")
    assert seen == [State.UP, State.SILENT, State.UP]
    assert (await connection.run_command(["echo", "same connection"])).exit_status == 0


async def test_a_restart_is_noticed_at_once(sshd: Sshd, connections: Connections) -> None:
    connection = connections.add(sshd.host())
    await connection.ready()
    sshd.stop()
    took = await until(lambda: connection.status.state is State.LOST)
    assert took < 1.0
    lost = connection.status.since
    await until(lambda: "connection refused" in connection.status.reason, what="the newest reason")
    assert connection.status.state is State.LOST
    assert connection.status.since == lost
    sshd.start()
    connection.retry()
    await until(lambda: connection.status.state is State.UP)


async def test_a_process_that_slept_blames_no_node(sshd: Sshd, connections: Connections) -> None:
    connection = connections.add(sshd.host())
    await connection.ready()
    seen: list[State] = []
    connection.listen(lambda status: seen.append(status.state))
    time.sleep(2.9)  # noqa: ASYNC251  the event loop itself is held up
    await connection.run_command(["true"])
    assert seen == [State.UP]
