"""What goes into the flight recorder: each line of the probes, and all that a console that listens would be told."""

from __future__ import annotations

import asyncio
import logging

from jobs.controller.engine import Engine
from jobs.controller.events import Changes, Hub
from jobs.controller.health.fleet import WatchedFleet
from jobs.controller.nodes.state import Nodes
from jobs.controller.recorder import Recorder
from probes.reading import Facts, Health, Line, Sample

log = logging.getLogger(__name__)

CLUSTER_SECONDS = 5.0


class Tape:
    """Feeds one recorder, until cancelled."""

    def __init__(self, recorder: Recorder, hub: Hub, ray: Engine, nodes: Nodes, fleet: WatchedFleet) -> None:
        self._recorder = recorder
        self._hub = hub
        self._ray = ray
        self._nodes = nodes
        fleet.taps.append(self._take_line)

    async def run(self) -> None:
        """Until cancelled."""
        cluster = asyncio.create_task(self._tell_cluster(), name="record the cluster")
        listener = self._hub.join()
        if listener is None:
            raise RuntimeError("the recorder joins before anybody else can")
        try:
            async for changed in listener.changes():
                self._take(changed)
        finally:
            self._hub.leave(listener)
            cluster.cancel()
            await asyncio.gather(cluster, return_exceptions=True)

    def _take(self, changed: Changes) -> None:
        if changed.runs:
            self._recorder.take_view("runs", [run.model_dump(mode="json") for run in changed.runs])
        for kind, view in (("queue", changed.queue), ("nodes", changed.nodes), ("alerts", changed.alerts)):
            if view is not None:
                self._recorder.take_view(kind, view.model_dump(mode="json"))

    def _take_line(self, name: str, line: Line, at: float) -> None:
        if isinstance(line, Sample):
            self._recorder.take_sample(name, line)
            self._recorder.take_state(name, "driver", line.driver.state, line.driver.reason)
        elif isinstance(line, Facts):
            self._recorder.take_facts(name, line)
        elif isinstance(line, Health):
            self._recorder.take_health(name, line)

    async def _tell_cluster(self) -> None:
        while True:
            await asyncio.sleep(CLUSTER_SECONDS)
            _, usage = await self._ray.rooms()
            rows: list[dict[str, object]] = []
            for name, known in self._nodes.known.items():
                node = known.node
                if node is None:
                    continue
                self._recorder.take_state(name, "ray", "alive" if known.alive else "dead", node.state_message)
                used = usage.get(node.node_id, {})
                rows.append(
                    {
                        "name": name,
                        "address": node.node_ip,
                        "role": "head" if node.is_head else "worker",
                        "node_id": node.node_id,
                        "gpus_total": node.resources_total.get("GPU", 0.0),
                        "gpus_used": used.get("GPU", (0.0, 0.0))[0],
                        "cpus_total": node.resources_total.get("CPU", 0.0),
                        "cpus_used": used.get("CPU", (0.0, 0.0))[0],
                    }
                )
            self._recorder.take_view("cluster", {"ray": self._ray.words(), "nodes": rows})
