"""One embedded SSH host of a demo: a server in a process of its own, so that it can be stopped like a real machine's.

It listens on 127.0.0.1 only and lets in one key, made for the occasion. It ends when its standard input does.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import pty
import signal
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import asyncssh

from jobs.within import within

GRACE_SECONDS = 2.0


class _Server(asyncssh.SSHServer):
    """Forwards to sockets of this user and to this machine's loopback, like a host's sshd would."""

    def unix_connection_requested(self, dest_path: str) -> bool:
        return True

    def connection_requested(self, dest_host: str, dest_port: int, orig_host: str, orig_port: int) -> bool:
        return dest_host in ("127.0.0.1", "localhost", "::1")


class _Host:
    """Runs what a client asks for, as this user, in this node's folder and environment."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self._home = home
        self._environment = environment
        self._children: set[asyncio.subprocess.Process] = set()

    async def serve(self, process: asyncssh.SSHServerProcess[bytes]) -> None:
        """One channel: a command, or a shell."""
        argv = ["/bin/sh", "-c", process.command] if process.command else ["/bin/sh", "-i"]
        environment = {**self._environment, **process.env}
        run = self._on_terminal if process.term_type else self._on_pipes
        with contextlib.suppress(asyncssh.Error, OSError):
            process.exit(await run(process, argv, environment))

    async def _on_pipes(
        self, process: asyncssh.SSHServerProcess[bytes], argv: list[str], environment: dict[str, str]
    ) -> int:
        pipe = asyncio.subprocess.PIPE
        child = await asyncio.create_subprocess_exec(
            *argv, cwd=self._home, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True
        )
        async with self._owned(child):
            await process.redirect(stdin=child.stdin, stdout=child.stdout, stderr=child.stderr)
            waiting = asyncio.ensure_future(child.wait())
            closed = asyncio.ensure_future(process.channel.wait_closed())
            await asyncio.wait({waiting, closed}, return_when=asyncio.FIRST_COMPLETED)
            closed.cancel()
            if not waiting.done():
                waiting.cancel()
                return 1
            await process.stdout.drain()
            return waiting.result()

    async def _on_terminal(
        self, process: asyncssh.SSHServerProcess[bytes], argv: list[str], environment: dict[str, str]
    ) -> int:
        master, slave = pty.openpty()
        environment = {**environment, "TERM": process.term_type or "dumb"}
        child = await asyncio.create_subprocess_exec(
            *argv, cwd=self._home, env=environment, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
        )
        os.close(slave)
        async with self._owned(child):
            await process.redirect(stdin=os.dup(master), stdout=master)
            return await child.wait()

    @contextlib.asynccontextmanager
    async def _owned(self, child: asyncio.subprocess.Process) -> AsyncGenerator[None]:
        """However the channel ends, what it started ends too."""
        self._children.add(child)
        try:
            yield
        finally:
            self._children.discard(child)
            await _end(child)

    async def close(self) -> None:
        """End what still runs."""
        await asyncio.gather(*(_end(child) for child in list(self._children)))


async def _end(child: asyncio.subprocess.Process) -> None:
    if child.returncode is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(asyncio.TimeoutError):
            await within(child.wait(), GRACE_SECONDS)
            return


async def _end_of_input(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    loop.add_reader(sys.stdin.fileno(), lambda: stop.set() if not os.read(sys.stdin.fileno(), 4096) else None)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    await stop.wait()


async def _main(home: Path, host_key: Path, client_key: Path, simulated: Path) -> None:
    keep = ("PATH", "HOME", "LANG", "LC_ALL", "USER", "LOGNAME", "VIRTUAL_ENV", "RAYDECK_DEMO")
    environment = {name: os.environ[name] for name in keep if name in os.environ}
    host = _Host(home, {**environment, "RAYDECK_SIMULATED": str(simulated)})
    server = await asyncssh.listen(
        "127.0.0.1",
        0,
        server_factory=_Server,
        server_host_keys=[str(host_key)],
        authorized_client_keys=str(client_key),
        process_factory=host.serve,
        encoding=None,
        sftp_factory=True,
        keepalive_interval=15,
        login_timeout=20,
    )
    sys.stdout.write(json.dumps({"event": "listening", "port": server.get_port()}) + "\n")
    sys.stdout.flush()
    await _end_of_input(asyncio.Event())
    server.close()
    await host.close()


def main() -> None:
    """The host's process."""
    parser = argparse.ArgumentParser()
    for name in ("home", "host-key", "client-key", "simulated"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    options = parser.parse_args()
    asyncio.run(_main(options.home, options.host_key, options.client_key, options.simulated))


if __name__ == "__main__":
    main()
