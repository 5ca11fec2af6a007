"""The controller's side of `jobs.rayside`: started when it is needed, killed when it hangs, started again after Ray.

Each call has a limit, and may be repeated. A child that has had nothing to do for a while is ended: it is a Ray driver
of 85 MB.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from jobs.controller.raychild import Gone, RayChild, start
from jobs.errors import Refused, Unreachable
from jobs.rayside.values import DrainSeen, HoldSeen

log = logging.getLogger(__name__)

START_SECONDS = 45.0
CALL_SECONDS = 15.0
MACHINE_SECONDS = 20.0
IDLE_SECONDS = 60.0
PAUSES = (0.0, 2.0, 5.0, 15.0, 30.0)
"""How long to wait before it is started again, after so many failures in a row."""

Address = Callable[[], Awaitable[str]]
"""Where the head's GCS is, ``host:port``; asked before each call. Raises `Unreachable` or `Refused`."""


class RaySide:
    """One child, or none. All calls raise `Unreachable`, or `Refused` for what makes no sense in this Ray."""

    def __init__(
        self,
        address: Address,
        clock: Callable[[], float] = time.monotonic,
        *,
        command: Sequence[str] = (sys.executable, "-m", "jobs.rayside"),
        start_seconds: float = START_SECONDS,
        call_seconds: float = CALL_SECONDS,
        idle_seconds: float = IDLE_SECONDS,
    ) -> None:
        self._address = address
        self._clock = clock
        self._command = tuple(command)
        self._start_seconds = start_seconds
        self._call_seconds = call_seconds
        self._idle_seconds = idle_seconds
        self._child: RayChild | None = None
        self._starting = asyncio.Lock()
        self._failures = 0
        self._failed_at = float("-inf")
        self._why = ""
        self._idle: asyncio.TimerHandle | None = None
        self._ends: set[asyncio.Task[None]] = set()
        self._closed = False

    # --- what can be done ---------------------------------------------------------------------------------------------

    async def hold(self, node_id: str, gpus: int) -> HoldSeen:
        """Take the node's idle GPUs, up to so many; what is busy is taken when it gets free and nobody waits for it.

        None while Ray itself drains the node, since they would keep it from leaving.
        """
        told = await self._ask("hold", node_id=node_id, gpus=gpus)
        return HoldSeen(gpus, int(told["held"]), int(told["pending"]))

    async def holds(self) -> dict[str, HoldSeen]:
        """What is held on each node, whoever asked for it and when."""
        told = await self._ask("holds")
        return {
            node: HoldSeen(int(each["held"]) + int(each["pending"]), int(each["held"]), int(each["pending"]))
            for node, each in told.items()
        }

    async def let_go(self, node_ids: Sequence[str]) -> int:
        """Give back what is held on these nodes; how many groups that were."""
        return int(await self._ask("let_go", node_ids=list(node_ids)))

    async def let_go_all_but(self, node_ids: Sequence[str]) -> int:
        """Give back what is held on all other nodes, also on dead ones; how many groups that were."""
        return int(await self._ask("let_go_all_but", node_ids=list(node_ids)))

    async def drain(self, node_id: str, reason: str, seconds: float) -> DrainSeen:
        """Ray's own drain of a living node. Only starting Ray there again takes it back; held GPUs are let go."""
        told = await self._ask("drain", node_id=node_id, reason=reason, seconds=seconds)
        return DrainSeen(bool(told["draining"]), bool(told["dead"]))

    async def draining(self) -> dict[str, float]:
        """Nodes that Ray itself drains, and by when, in seconds since 1970; 0 for no end."""
        return {node: float(until) for node, until in (await self._ask("draining")).items()}

    async def machine_ids(self, node_ids: Sequence[str], seconds: float = MACHINE_SECONDS) -> dict[str, str]:
        """What these nodes' ``/etc/machine-id`` say; those that do not answer in time, or have none, are left out.

        Nothing else waits for this.
        """
        told = await self._ask("machine_ids", seconds, node_ids=list(node_ids), seconds=seconds)
        return {node: str(machine) for node, machine in told.items()}

    async def kill_actor(self, actor_id: str) -> None:
        """End an actor for good, whose ever it is."""
        await self._ask("kill_actor", actor_id=actor_id)

    async def remove_group(self, group_id: str) -> None:
        """Remove a placement group, whose ever it is; one that is gone is no mistake."""
        await self._ask("remove_group", group_id=group_id)

    async def close(self) -> None:
        """End the child, whatever it does. Nothing can be asked for after that."""
        self._closed = True
        if self._idle is not None:
            self._idle.cancel()
        if self._child is not None:
            self._let_end(self._child)
        if self._ends:
            await asyncio.gather(*self._ends)

    # --- how ----------------------------------------------------------------------------------------------------------

    async def _ask(self, do: str, more_seconds: float = 0.0, **what: Any) -> Any:
        limit = self._call_seconds + more_seconds
        told: dict[str, Any] | None = None
        again = False
        while told is None:
            child, fresh = await self._ready()
            try:
                told = await child.ask(do, what, limit)
            except asyncio.TimeoutError:
                # Others' calls end with it: it does one after the other, so they hang too.
                raise self._failed(child, f"Ray did not answer {do.replace('_', ' ')} within {limit:g} s") from None
            except Gone as gone:
                # One that was there before may have died with the head that it knew: what it was asked may be repeated.
                if fresh or again or self._closed:
                    raise self._failed(child, f"what speaks with Ray ended: {gone}") from gone
                log.info("what spoke with Ray ended: %s; another one is asked", gone)
                self._let_end(child)
                again = True
        self._failures = 0
        self._rest()
        if "error" in told:
            raise Refused(str(told["error"]))
        if "failed" in told:
            raise Unreachable(f"Ray failed: {told['failed']}")
        return told["ok"]

    async def _ready(self) -> tuple[RayChild, bool]:
        """A child that is connected to the head that is there now, and whether it is a new one."""
        address = await self._address()
        async with self._starting:
            if self._closed:
                raise Unreachable("the controller is ending")
            child = self._child
            if child is not None and (child.ended or child.address != address):
                self._let_end(child)
                child = None
            if child is not None:
                return child, False
            pause = PAUSES[min(self._failures, len(PAUSES) - 1)] - (self._clock() - self._failed_at)
            if pause > 0:
                raise Unreachable(f"{self._why}; it is tried again in {pause:.0f} s")
            command = (*self._command, "--address", address)
            child = self._child = RayChild(await start(command, address), address)
            try:
                await child.connected(self._start_seconds)
            except asyncio.TimeoutError:
                why = f"no connection to Ray at {address} within {self._start_seconds:g} s"
                raise self._failed(child, why) from None
            except Gone as gone:
                raise self._failed(child, str(gone)) from gone
            except BaseException:
                self._let_end(child, at_once=True)  # nobody waits for it any more
                raise
            return child, True

    def _failed(self, child: RayChild, why: str) -> Unreachable:
        """The child is of no more use, and the next one waits a while."""
        if child is self._child:
            self._failures += 1
            self._failed_at, self._why = self._clock(), why
            log.warning("%s", why)
        self._let_end(child, at_once=True)
        return Unreachable(why)

    def _let_end(self, child: RayChild, at_once: bool = False) -> None:
        """It ends by itself, or is killed; nobody waits for that but `close`."""
        if child is self._child:
            self._child = None
        end = asyncio.create_task(child.end(at_once), name="end of what speaks with Ray")
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)

    def _rest(self) -> None:
        """Have it ended when nobody has asked for a while."""
        if self._idle is not None:
            self._idle.cancel()
        self._idle = asyncio.get_running_loop().call_later(self._idle_seconds, self._idled)

    def _idled(self) -> None:
        if self._child is None:
            return
        if self._child.busy:
            self._rest()
        else:
            self._let_end(self._child)
