"""The controller's side of `jobs.rayside`: started when it is needed, killed when it hangs, started again after Ray.

Each call has a limit. A process that has had nothing to do for a while is ended: it is a Ray driver of 80 MB.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jobs
from jobs.errors import Refused, Unreachable
from jobs.within import within

log = logging.getLogger(__name__)

START_SECONDS = 45.0
CALL_SECONDS = 15.0
MACHINE_SECONDS = 20.0
IDLE_SECONDS = 60.0
END_SECONDS = 3.0
LINE_BYTES = 4 * 2**20
PAUSES = (0.0, 2.0, 5.0, 15.0, 30.0)
"""How long to wait before it is started again, after so many failures in a row."""

Address = Callable[[], Awaitable[str]]
"""Where the GCS is, ``host:port``, and of which head; asked before each start. Raises `Unreachable` or `Refused`."""


@dataclass(frozen=True, slots=True)
class HoldSeen:
    """How many of a node's GPUs are wanted, and how many are held."""

    wanted: int
    held: int


@dataclass(frozen=True, slots=True)
class DrainSeen:
    """What became of Ray's own drain."""

    draining: bool
    dead: bool
    """It has left already."""

    @property
    def sentence(self) -> str:
        """In words."""
        if self.dead:
            return "it was idle and has left Ray"
        if self.draining:
            return "Ray drains it: it takes nothing new, and leaves Ray when what is on it has gone"
        return "Ray accepted the drain, and does not show it"


class RaySide:
    """One child, or none."""

    def __init__(self, address: Address, clock: Callable[[], float] = time.monotonic) -> None:
        self._address = address
        self._clock = clock
        self._child: asyncio.subprocess.Process | None = None
        self._connected_to = ""
        self._number = 0
        self._failures = 0
        self._failed_at = float("-inf")
        self._why = ""
        self._one = asyncio.Lock()
        self._idle: asyncio.TimerHandle | None = None

    async def hold(self, node_id: str, gpus: int) -> HoldSeen:
        """Take the node's idle GPUs, up to so many; what is busy is taken when it gets free and nobody waits for it."""
        told = await self._ask("hold", node_id=node_id, gpus=gpus)
        return HoldSeen(gpus, int(told["held"]))

    async def holds(self) -> dict[str, int]:
        """How many GPUs are held on each node."""
        told = await self._ask("holds")
        return {node: int(each["held"]) for node, each in told.items()}

    async def let_go_all_but(self, node_ids: Sequence[str]) -> int:
        """Give back what is held on all other nodes; how many groups that were."""
        return int(await self._ask("let_go_all_but", node_ids=list(node_ids)))

    async def drain(self, node_id: str, reason: str, seconds: float) -> DrainSeen:
        """Ray's own drain of a living node. Only starting Ray there again takes it back."""
        told = await self._ask("drain", node_id=node_id, reason=reason, seconds=seconds)
        return DrainSeen(bool(told["draining"]), bool(told["dead"]))

    async def draining(self) -> dict[str, float]:
        """Nodes that Ray itself drains, and by when, in seconds since 1970; 0 for no end."""
        return {node: float(until) for node, until in (await self._ask("draining")).items()}

    async def machine_ids(self, node_ids: Sequence[str]) -> dict[str, str]:
        """What these nodes' ``/etc/machine-id`` say; those that do not answer are left out."""
        told = await self._ask("machine_ids", node_ids=list(node_ids), seconds=MACHINE_SECONDS)
        return {node: str(machine) for node, machine in told.items()}

    async def kill_actor(self, actor_id: str) -> None:
        """End an actor for good."""
        await self._ask("kill_actor", actor_id=actor_id)

    async def remove_group(self, group_id: str) -> None:
        """Remove a placement group."""
        await self._ask("remove_group", group_id=group_id)

    async def close(self) -> None:
        """End the child, whatever it does."""
        if self._idle is not None:
            self._idle.cancel()
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            await within(child.wait(), END_SECONDS)
        except asyncio.TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _ask(self, do: str, **what: Any) -> Any:
        async with self._one:
            if self._child is not None and self._child.returncode is not None:
                await self.close()  # it ended in between, with Ray or for want of work
            child = await self._ready()
            self._number += 1
            limit = CALL_SECONDS + float(what.get("seconds", 0.0) if do == "machine_ids" else 0.0)
            line = json.dumps({"id": self._number, "do": do, **what}) + "\n"
            try:
                told = await within(self._exchange(child, line), limit)
            except asyncio.TimeoutError:
                raise await self._lost(f"Ray did not {do.replace('_', ' ')} within {limit:.0f} s") from None
            except (ConnectionError, ValueError) as error:
                raise await self._lost(f"the process that speaks with Ray died: {error or 'no answer'}") from error
            self._failures = 0
            self._rest()
            if "error" in told:
                raise Refused(str(told["error"]))
            return told["ok"]

    async def _exchange(self, child: asyncio.subprocess.Process, line: str) -> Any:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(line.encode())
        await child.stdin.drain()
        answer = await child.stdout.readline()
        if not answer:
            raise ConnectionError(f"exit code {await child.wait()}")
        told = json.loads(answer)
        if told["id"] != self._number:
            raise ValueError("an answer to another request")
        return told

    async def _ready(self) -> asyncio.subprocess.Process:
        """The child, connected to the head that is there now."""
        address = await self._address()
        if self._child is not None and (self._child.returncode is not None or address != self._connected_to):
            await self.close()
        if self._child is not None:
            return self._child
        pause = PAUSES[min(self._failures, len(PAUSES) - 1)]
        if self._clock() - self._failed_at < pause:
            raise Unreachable(f"{self._why}; it is tried again soon")
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "jobs.rayside",
            address,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env=_environment(address),
            limit=LINE_BYTES,
        )
        self._child, self._connected_to = child, address
        assert child.stdout is not None
        try:
            line = await within(child.stdout.readline(), START_SECONDS)
        except asyncio.TimeoutError:
            raise await self._lost(f"no connection to Ray at {address} within {START_SECONDS:.0f} s") from None
        if not line:
            code = await child.wait()
            raise await self._lost(f"no connection to Ray at {address}: what speaks with it ended with code {code}")
        return child

    async def _lost(self, why: str) -> Unreachable:
        """The child is of no more use: kill it, and wait a while before the next one."""
        self._failures += 1
        self._failed_at, self._why = self._clock(), why
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()
        log.warning("%s", why)
        return Unreachable(why)

    def _rest(self) -> None:
        """End it when nobody has asked for a while."""
        if self._idle is not None:
            self._idle.cancel()
        child = self._child
        if child is not None and child.stdin is not None:
            # The end of its input is the end of it; the next request finds it gone and starts another.
            self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, child.stdin.close)


def _environment(address: str) -> dict[str, str]:
    code = str(Path(jobs.__file__).parents[1])
    path = os.pathsep.join(part for part in (code, os.environ.get("PYTHONPATH", "")) if part)
    environment = {**os.environ, "PYTHONPATH": path, "RAY_USAGE_STATS_ENABLED": "0"}
    environment.pop("RAY_ADDRESS", None)
    if address.startswith("127."):
        # Ray takes the loopback address for a mistake, and another one in its place.
        environment["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    return environment
