"""What judging the fleet's health costs: 1,000 nodes with 8 GPUs each, a sample every 5 s, all rules once a second.

Measured is all that the controller does with lines that are decoded already: taking them, looking at the figures,
comparing peers, judging the rules, grouping what fires. As a share of one core, and against the floor of comparing each
measure once. Budget: 0.2 of a core. The fleet is `HealthyFleet`, which the tests replay as well.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from typing import Any

from probes.health.engine import Engine, Firing
from probes.health.fleet import majority, peers
from probes.health.group import Group, Grouper
from probes.health.measures import NodeMeasures
from probes.health.rule import Entity, Missing, Seen
from probes.health.rules import RULES
from probes.reading import (
    DRIVER_OK,
    DeviceFacts,
    DeviceHealth,
    Driver,
    Event,
    Facts,
    Health,
    Host,
    Mount,
    Port,
    Process,
    Sample,
    Stuck,
)

NODES = 1_000
GPUS = 8
SAMPLE_SECONDS = 5
HEALTH_SECONDS = 10
STEP_SECONDS = 1
WARM_UP_SECONDS = 20
SECONDS = 20
BUDGET_SHARE = 0.2

WALL = 1_750_000_000.0
GIB = 1 << 30
TIB = 1 << 40
MEMORY = 80 * GIB


class HealthyRun:
    """One training run's course: it loads, trains, saves now and then, and ends. Seconds since the fleet began."""

    def __init__(self, name: str, nodes: range, gpus: range, begins: int, ends: int, seed: int) -> None:
        chance = random.Random(seed)
        self.name = name
        self.nodes = nodes
        self.gpus = gpus
        self.begins = begins
        self.ends = ends
        self.loads = chance.randint(20, 90)
        self.every = chance.randint(400, 700)
        self.saves = chance.randint(10, 45)
        self.one_saves = chance.random() < 0.5
        """Rank 0 alone saves, while all others spin in a barrier."""
        self.watts = chance.uniform(520, 660)
        self.step_seconds = chance.uniform(0.4, 4.0)

    def phase(self, at: int) -> str:
        """``no``, ``load``, ``train`` or ``save``."""
        if not self.begins <= at < self.ends:
            return "no"
        age = at - self.begins
        if age < self.loads:
            return "load"
        return "save" if age % self.every > self.every - self.saves else "train"

    def stuck_seconds(self, at: int) -> float:
        """Since its newest step."""
        back = 0
        while self.phase(at - back) == "save":
            back += 1
        return back + self.step_seconds

    def seen(self, at: int, chance: random.Random) -> Seen:
        """What the controller tells of it."""
        seen = Seen(Entity("run", self.name, "", self.name))
        measures = seen.measures
        measures.update(run_failed=0, run_retries_spent=0, run_not_finite=0, run_log_errors=0, run_attempt_failed=0)
        measures.update(run_waits_with_room_seconds=0.0, run_idle_seconds=0.0, run_spinning=0)
        if self.phase(at) == "load":
            unknown = Missing("error", "not enough steps yet")
            for name in ("short", "long"):
                measures["run_stuck_" + name] = unknown
            return seen
        stuck = self.stuck_seconds(at)
        measures["run_stuck_short"] = stuck / max(20.0, 6 * self.step_seconds)
        measures["run_stuck_long"] = stuck / max(300.0, 10 * self.step_seconds)
        measures["run_throughput_share"] = chance.gauss(1.0, 0.03)
        measures["run_straggler_share"] = 1.0 + abs(chance.gauss(0.0, 0.04))
        measures["run_checkpoint_late"] = chance.uniform(0.0, 1.2)
        measures["run_checkpoint_slow"] = chance.gauss(1.0, 0.08)
        return seen


class HealthyFleet:
    """Nodes as they are while nothing is wrong, with all the noise that there is then. The same for the same seed."""

    def __init__(self, nodes: int, runs: list[HealthyRun], seed: int = 1) -> None:
        self.names = [f"gpu-{number}" for number in range(nodes)]
        self.runs = runs
        self._chance = random.Random(seed)
        self._busy: dict[tuple[int, int], HealthyRun] = {}
        self._celsius: dict[tuple[int, int], float] = {}
        self._counts: dict[tuple[int, int], list[int]] = {}
        self._free = [int(40 * TIB * 0.4)] * nodes
        self._temporary = [int(800 * GIB * 0.5)] * nodes

    def placed(self, node: int, at: int) -> dict[int, str]:
        """GPU index to run, on one node."""
        return {gpu: run.name for run in self.runs if node in run.nodes and run.phase(at) != "no" for gpu in run.gpus}

    def facts(self, node: int) -> Facts:
        """What one node is."""
        devices = [
            DeviceFacts(index, f"GPU-{node}-{index}", "NVIDIA H100 80GB HBM3", MEMORY, 700.0, 0, 0, 5, 16, "off")
            for index in range(GPUS)
        ]
        return Facts(self.names[node], kernel="6.8.0", source="nvml", driver_version="550.54.15", devices=devices)

    def sample(self, node: int, at: int) -> Sample:
        """The figures of one node at one second."""
        chance = self._chance
        columns: dict[str, list[int | float | None]] = {
            name: []
            for name in (
                "utilization_percent",
                "memory_used_bytes",
                "power_watts",
                "temperature_celsius",
                "throttle_reasons",
            )
        }
        processes: list[Process] = []
        runs = {gpu: run for run in self.runs if node in run.nodes for gpu in run.gpus if run.phase(at) != "no"}
        for gpu in range(GPUS):
            run = runs.get(gpu)
            used, power, memory = self._work(run, node, gpu, at)
            place = (node, gpu)
            rest = 34.0 + 40.0 * (power - 70) / 630
            self._celsius[place] = celsius = 0.7 * self._celsius.get(place, rest) + 0.3 * rest
            columns["utilization_percent"].append(used)
            columns["memory_used_bytes"].append(memory)
            columns["power_watts"].append(round(power, 1))
            columns["temperature_celsius"].append(round(celsius + chance.uniform(-1.5, 1.5)))
            # The power cap is usual under load; a single second of hardware slowdown happens.
            reasons = 0x1 if used < 5 else 0x4 if chance.random() < 0.6 else 0
            columns["throttle_reasons"].append(0x8 | 0x40 if used > 90 and chance.random() < 0.002 else reasons)
            if run is not None and run.phase(at) != "load":
                processes.append(Process(gpu, 1000 + gpu, "ann", "python", memory, run.name))
        sample = Sample(at, WALL + at, 1.0, Driver(DRIVER_OK), 0.0, list(range(GPUS)), dict(columns), {}, processes)
        if chance.random() < 0.01:
            sample.devices_age_seconds = chance.uniform(0.5, 3.0)
        total = 2 * TIB
        memory_used = int(total * (0.35 + 0.2 * (len(runs) / GPUS) + chance.uniform(0, 0.05)))
        sample.host = Host(30.0, 20.0, memory_used, total)
        return sample

    def health(self, node: int, at: int) -> Health:
        """The line of health of one node."""
        chance = self._chance
        devices = [self._device(node, gpu, at) for gpu in range(GPUS)]
        if any(node in run.nodes and run.phase(at) == "save" for run in self.runs):
            self._free[node] -= 30 * GIB
        elif self._free[node] < 14 * TIB:
            self._free[node] = int(40 * TIB * 0.4)  # old checkpoints are deleted by their policy
        self._temporary[node] -= chance.randint(0, 4 << 20)
        events = [
            # A run that somebody stopped leaves this behind on each of its GPUs.
            Event("xid", f"NVRM: Xid (PCI:0000:1b:00): 45, pid={at}", WALL + at, device=gpu, code=45, run=run.name)
            for run in self.runs
            if node in run.nodes and 0 <= at - run.ends < HEALTH_SECONDS
            for gpu in run.gpus
        ]
        return Health(
            wall=WALL + at,
            devices=devices,
            mounts=[
                Mount("/", "ext4", 800 * GIB, self._temporary[node], 10**7, 8 * 10**6),
                Mount("/out", "nfs4", 40 * TIB, self._free[node], 0, 0, hangs_seconds=chance.choice((0, 0, 0, 3.0))),
                Mount("/data", "nfs4", 400 * TIB, 20 * TIB, 10**9, 10**8 * 3, read_only=True),
                Mount("/dev/shm", "tmpfs", TIB, int(TIB * chance.uniform(0.5, 0.95)), 10**8, 10**8 - 400),
            ],
            stuck=[Stuck(77, "python", "ann", "nfs_wait", chance.uniform(1, 20))] if chance.random() < 0.05 else [],
            ports=[Port("mlx5_0/1", True, 2, 10, 400.0), Port("mlx5_1/1", False, 0, 0), Port("eth0", True)],
            events=events,
            memory_pressure_percent=40.0 if chance.random() < 0.01 else chance.uniform(0, 4),
            io_pressure_percent=chance.uniform(0, 30),
            memory_available_bytes=TIB,
            clock_synchronised=chance.random() > 0.02,
            oom_kills=3,
        )

    def clock_offset_seconds(self) -> float:
        """Measured badly now and then, by a slow round trip."""
        return self._chance.uniform(0.0, 0.03) if self._chance.random() > 0.01 else 0.7

    def _work(self, run: HealthyRun | None, node: int, gpu: int, at: int) -> tuple[int, float, int]:
        """Utilisation, power, and memory in use."""
        chance = self._chance
        left = any(node in each.nodes and gpu in each.gpus and 0 <= at - each.ends < 8 for each in self.runs)
        if run is None:
            # The memory of a run that has just ended goes a little later than its process.
            return (1 if chance.random() < 0.05 else 0), chance.uniform(68, 80), 40 * GIB if left else 480 << 20
        phase = run.phase(at)
        first = gpu == run.gpus[0] and node == run.nodes[0]
        if phase == "load":
            return chance.choice((0, 0, 3, 20)), chance.uniform(75, 140), 2 * GIB
        if phase == "save":
            if run.one_saves and not first:
                return 100, chance.uniform(240, 290), 61 * GIB
            return chance.choice((0, 2)), chance.uniform(110, 130), 61 * GIB
        if chance.random() < 0.03:
            return chance.randint(0, 60), run.watts * chance.uniform(0.4, 0.8), 61 * GIB  # it waits for data
        return chance.randint(92, 100), min(699.0, run.watts * chance.gauss(1.0, 0.06)), 61 * GIB

    def _device(self, node: int, gpu: int, at: int) -> DeviceHealth:
        chance = self._chance
        busy = any(node in run.nodes and gpu in run.gpus and run.phase(at) != "no" for run in self.runs)
        counts = self._counts.setdefault((node, gpu), [0, 0, 0])
        for place, likely in enumerate((0.01, 0.02, 0.005)):
            counts[place] += chance.random() < likely
        return DeviceHealth(
            gpu,
            f"GPU-{node}-{gpu}",
            f"0000:{16 + gpu:02x}:00",
            {
                "ecc_volatile_corrected_count": counts[0],
                "ecc_volatile_uncorrected_count": 0,
                "remapped_corrected_count": 0,
                "remapped_uncorrected_count": 0,
                "remap_pending": 0,
                "remap_failed": 0,
                "recovery_action": 0,
                "slowdown_celsius": 87,
                "memory_temperature_celsius": 60 + 25 * busy + chance.randint(-3, 3),
                "memory_slowdown_celsius": 105,
                "pcie_generation": 5 if busy else 1,
                "pcie_generation_max": 5,
                "pcie_width": 16,
                "pcie_width_max": 16,
                "pcie_replay_count": counts[2],
                "nvlinks_active": 18,
                "nvlinks_total": 18,
                "nvlink_error_count": counts[1],
                "fabric_healthy": 1,
                "persistence": 1,
            },
        )


class Watch:
    """All that the controller does with a fleet's lines, in one place."""

    def __init__(self, names: list[str]) -> None:
        self.nodes = {name: NodeMeasures() for name in names}
        self.engine = Engine(RULES)
        self.grouper = Grouper()

    def judge(
        self, now: float, placed: dict[str, dict[int, str]], offset: float, others: list[Seen]
    ) -> tuple[list[Firing], list[Group]]:
        """One step. ``others``: what is judged besides the nodes."""
        seen: list[Seen] = []
        told = {"node_ray_dead": 0, "node_ssh_lost": 0, "node_clock_offset_seconds": offset}
        for name, node in self.nodes.items():
            seen += node.seen(
                now, node=name, expected_gpus=GPUS, runs=placed.get(name, {}), writable=("/out",), told=told
            )
        peers(seen)
        majority(seen)
        self.engine.step(WALL + now, [*seen, *others])
        firing = self.engine.firing()
        return firing, self.grouper.groups(firing)


def busy_fleet(nodes: int) -> HealthyFleet:
    """Seven of eight nodes are in runs of 8 nodes each."""
    runs = [
        HealthyRun(f"run-{first}", range(first, min(first + 8, nodes)), range(GPUS), -300, 10**6, first)
        for first in range(0, nodes * 7 // 8, 8)
    ]
    return HealthyFleet(nodes, runs)


def _lines(fleet: HealthyFleet, at: int) -> Iterator[tuple[str, Sample | Health]]:
    for node, name in enumerate(fleet.names):
        if (at + node) % SAMPLE_SECONDS == 0:
            yield name, fleet.sample(node, at)
        if (at + node) % HEALTH_SECONDS == 0:
            yield name, fleet.health(node, at)


def run() -> dict[str, Any]:
    """Shares of one core, and how many times the floor that is."""
    fleet = busy_fleet(NODES)
    watch = Watch(fleet.names)
    chance = random.Random(3)
    for node, name in enumerate(fleet.names):
        watch.nodes[name].take_facts(fleet.facts(node), 0.0)
    placed = {name: fleet.placed(node, 0) for node, name in enumerate(fleet.names)}
    spent, steps, fired, measures = {"take": 0.0, "judge": 0.0}, 0, 0, 0
    worst = 0.0
    for at in range(0, WARM_UP_SECONDS + SECONDS, STEP_SECONDS):
        lines = list(_lines(fleet, at))
        others = [each.seen(at, chance) for each in fleet.runs]
        begun = time.process_time()
        for name, line in lines:
            if isinstance(line, Sample):
                watch.nodes[name].take_sample(line, float(at))
            else:
                watch.nodes[name].take_health(line, float(at))
        taken = time.process_time()
        _, groups = watch.judge(float(at), placed, 0.01, others)
        judged = time.process_time()
        fired += len(groups)
        if at >= WARM_UP_SECONDS:
            steps += 1
            spent["take"] += taken - begun
            spent["judge"] += judged - taken
            worst = max(worst, judged - begun)
    seen = [each for name, node in watch.nodes.items() for each in node.seen(float(SECONDS), node=name)]
    begun = time.process_time()
    for each in seen:
        for value in each.measures.values():
            measures += not isinstance(value, Missing)
    floor = time.process_time() - begun
    share = sum(spent.values()) / SECONDS
    return {
        "nodes": NODES,
        "gpus": NODES * GPUS,
        "things": len(seen),
        "measures": measures,
        "step_seconds": STEP_SECONDS,
        "share_of_a_core": round(share, 3),
        "share_taking_lines": round(spent["take"] / SECONDS, 3),
        "share_judging": round(spent["judge"] / SECONDS, 3),
        "longest_step_ms": round(worst * 1000, 1),
        "ratio_to_floor": round(sum(spent.values()) / steps / floor, 1),
        "alerts": fired,
        "budget_share": BUDGET_SHARE,
        "kept": share < BUDGET_SHARE and not fired,
    }


if __name__ == "__main__":
    import json

    print(json.dumps(run(), indent=2))
