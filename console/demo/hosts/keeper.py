"""The keeper of a demo on several hosts: the same demo, with machines that are as real as namespaces make them."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from console.demo import processes
from console.demo.hosts.bed import Bed
from console.demo.keeper import Keeper, say, step
from console.settings import Context

WORKERS = 3


class HostsKeeper(Keeper):
    """One demo on a head and three workers."""

    workers = WORKERS

    def __init__(self, demo: str, folder: Path) -> None:
        super().__init__(demo, folder)
        self.bed = Bed(folder, self.nodes, marks={processes.MARK: demo})

    def claim(self) -> dict[str, Any]:
        """Beside what every demo says of itself, by what its devices are found if it is killed."""
        return {**super().claim(), "hosts": self.bed.network.stamp}

    async def machines(self) -> Context:
        """Hosts, then Ray on each."""
        bed = self.bed
        with step(f"{len(self.nodes)} hosts") as tell:
            await asyncio.to_thread(bed.up)
            tell(f"in {bed.network.network}.0/24, each with its own sshd")
        began = time.monotonic()
        for name in self.nodes:
            say("step", name=f"ray {name}", state="start", seconds=0.0, detail="")

        def started(name: str) -> None:
            say("step", name=f"ray {name}", state="done", seconds=time.monotonic() - began, detail="")

        await asyncio.to_thread(bed.start_ray, started)
        return bed.context(self.name)

    async def end(self) -> None:
        """The hosts first: with them goes all that runs there."""
        await asyncio.to_thread(self.bed.down)
        await super().end()
