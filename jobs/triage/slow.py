"""A run that goes on, and slowly: data, CPU, network or one rank as the cause. Pure.

The slow rank is the one that computes longest and waits least: the time inside a collective is long for all others, and
names nobody by itself.
"""

from __future__ import annotations

from dataclasses import replace

from jobs.triage.evidence import RankEvidence
from jobs.triage.findings import Confidence, Culprit, Finding, Item, Sheet, plural
from jobs.triage.look import Look, figure, median
from jobs.triage.patterns import CODE, NETWORK, RESOURCES

SLOW_SHARE = 0.85
SLOWER_COMPUTE = 1.3
LOW_CLOCK_SHARE = 0.8
DATA_SHARE = 0.2
COLLECTIVE_SHARE = 0.4
LEAST_OF_STEP = 0.1
"""What a rank takes longer than the others holds them up only if it is such a share of the whole step."""
CPU_PERCENT = 95.0
IO_PRESSURE_PERCENT = 20.0
LOW_USE_PERCENT = 50.0
SLOW = "slow"


def pace(look: Look, sheet: Sheet) -> None:
    """Whether it is slower than it was or should be, and what takes the time."""
    if not look.runs_now or look.still_seconds is not None:
        return
    loss = _loss(look)
    ratio = loss[0] if loss else None
    late = ratio is not None and ratio < SLOW_SHARE
    cause = _straggler(look, late) or _data(look, late) or _cpu(look, late) or _network(look, late) or _saving(look)
    if cause is not None:
        extra = (loss[1],) if loss is not None and late else ()
        sheet.found(_with(cause, extra))
    elif late and loss is not None:
        sheet.found(
            Finding(
                "S02", CODE, f"run is at {100 * loss[0]:.0f}% of its usual speed", "likely",
                "Not known what takes the time.",
                "Have the script report own_seconds on every rank; look at the GPUs' clocks.",
                Culprit(run=look.run.id if look.run else ""), "l", (loss[1],), weight=49, symptom=SLOW,
                touches=tuple(look.involved),
            )
        )  # fmt: skip
    elif ratio is not None:
        sheet.clear(f"it runs at {100 * ratio:.0f}% of its usual speed")


def _with(finding: Finding, extra: tuple[Item, ...]) -> Finding:
    return replace(finding, evidence=(*finding.evidence, *extra))


def _loss(look: Look) -> tuple[float, Item] | None:
    """Its speed against what is usual, and how that is known."""
    run = look.evidence.run
    course = [point for point in run.course if point.throughput is not None] if run else []
    now = median(point.throughput for point in course[-5:])
    if run is None or now is None:
        return None
    usual = run.baseline_throughput
    if usual is None and len(course) >= 15:
        usual = median(point.throughput for point in course[: len(course) // 2])
    if not usual or usual <= 0:
        return None
    unit = course[-1].throughput_unit or "units"
    return now / usual, Item("its course", course[-1].wall or None, f"{now:g} {unit}/s; usual {usual:g}")


def _straggler(look: Look, late: bool) -> Finding | None:
    timed = [rank for rank in look.evidence.ranks if "compute" in rank.seconds]
    one: RankEvidence | None = None
    items: list[Item] = []
    if len(timed) > 1:
        one = max(timed, key=lambda rank: rank.seconds["compute"])
        usual = median(rank.seconds["compute"] for rank in timed if rank is not one)
        waits = [rank.seconds.get("collective") for rank in timed]
        least = None not in waits and one.seconds.get("collective") == min(each for each in waits if each is not None)
        longer = one.seconds["compute"] - (usual or 0.0)
        matters = longer >= LEAST_OF_STEP * (one.seconds["compute"] + one.seconds.get("collective", 0.0))
        slower = usual is not None and one.seconds["compute"] >= SLOWER_COMPUTE * usual and matters
        if not slower or not (least or None in waits):
            one = None
        else:
            items.append(
                Item(f"rank {one.rank} on {one.node}", None,
                     f"computes {one.seconds['compute']:.3g} s a step, the others {usual:.3g} s"
                     + (f"; waits {one.seconds['collective']:.3g} s" if "collective" in one.seconds else ""))
            )  # fmt: skip
    pairs = look.gpus_of_run()
    clocks = {(node.name, gpu): figure(node, gpu, "sm_clock_mhz") for node, gpu in pairs}
    usual_clock = median(clocks.values())
    low = [where for where, clock in clocks.items()
           if clock is not None and usual_clock and clock < LOW_CLOCK_SHARE * usual_clock]  # fmt: skip
    if one is None and len(low) == 1 and len(clocks) > 2 and late:
        ranks = look.ranks_on(*low[0])
        one = ranks[0] if ranks else None
    if one is None:
        return None
    if one.gpu is not None and (one.node, one.gpu) in low:
        items.append(
            Item(f"{one.node}/{one.gpu}", None, f"{clocks[one.node, one.gpu]:g} MHz, the others {usual_clock:g} MHz")
        )
    return Finding(
        "S02", CODE, "is behind in every step: the others wait for it", "certain" if len(items) > 1 else "likely",
        "Its GPU or host is slower than the others': clocks, heat, PCIe, another process, or more data.",
        "Look at its GPU's clocks and throttle reasons and at its host; drain the node if it stays so.",
        look.rank_culprit(one), "D", tuple(items), weight=40, symptom=SLOW, touches=(one.node,),
    )  # fmt: skip


def _share(rank: RankEvidence, name: str) -> float | None:
    total = sum(rank.seconds.values())
    return rank.seconds[name] / total if name in rank.seconds and total > 0 else None


def _data(look: Look, late: bool) -> Finding | None:
    shares = {rank.rank: share for rank in look.evidence.ranks if (share := _share(rank, "data")) is not None}
    used = median(figure(node, gpu, "utilization_percent") for node, gpu in look.gpus_of_run())
    waiting = [
        (node, node.health.io_pressure_percent) for node in look.scope
        if node.health and (node.health.io_pressure_percent or 0.0) > IO_PRESSURE_PERCENT
    ]  # fmt: skip
    heavy = [number for number, share in shares.items() if share > DATA_SHARE]
    starving = used is not None and used < LOW_USE_PERCENT and bool(waiting)
    if not heavy and not (late and starving):
        return None
    nodes = sorted({look.ranks[number].node for number in heavy} or {node.name for node, _ in waiting})
    alone = len(nodes) == 1 and len(look.involved) > 1
    config = look.evidence.run.config.get("storage") if look.evidence.run else None
    root = str(config.get("data_root") or "") if isinstance(config, dict) else ""
    items = [
        Item(f"rank {number}", None, f"{100 * shares[number]:.0f}% of a step goes into data") for number in heavy[:3]
    ]
    items += [
        Item(f"{node.name}, PSI", None, f"waits for disks {pressure:g}% of the time") for node, pressure in waiting[:3]
    ]
    if used is not None:
        items.append(Item("its GPUs", None, f"utilisation {used:g}%"))
    busy = [node.name for node in look.scope if _cpu_of(node.name, look) is not None and node.name in nodes]
    if busy and not waiting:
        return None
    return Finding(
        "S07", NETWORK, "reading data takes the time" + (f", on {nodes[0]} alone" if alone else ""),
        _sure(late, bool(heavy)), "Slow storage, very many small files, a cold cache, or too few data workers.",
        "Shard and prefetch the data, cache it near the nodes, or take more data workers.",
        Culprit(node=nodes[0] if alone else "", run=look.run.id if look.run else "", path=root), "s", tuple(items),
        weight=41, symptom=SLOW, touches=tuple(nodes) or tuple(look.involved),
    )  # fmt: skip


def _sure(late: bool, measured: bool) -> Confidence:
    return "likely" if late and measured else "likely" if late else "possible"


def _cpu_of(name: str, look: Look) -> float | None:
    node = look.evidence.nodes.get(name)
    used = node.sample.host.cpu_percent if node and node.sample else None
    return used if used is not None and used >= CPU_PERCENT else None


def _cpu(look: Look, late: bool) -> Finding | None:
    full = [name for name in look.involved if _cpu_of(name, look) is not None]
    used = median(
        figure(node, gpu, "utilization_percent") for node, gpu in look.gpus_of_run() if node.name in full
    )  # fmt: skip
    heavy = any((_share(rank, "data") or 0.0) > DATA_SHARE for rank in look.evidence.ranks)
    if not full or not (late or heavy) or (used is not None and used >= 80.0):
        return None
    items = [Item(f"{name}, /proc/stat", None, f"CPU at {_cpu_of(name, look):g}%") for name in full[:4]]
    if used is not None:
        items.append(Item("the GPUs there", None, f"utilisation {used:g}%"))
    return Finding(
        "S02", RESOURCES, "the CPUs are the bottleneck", _sure(late, True),
        "Loading and preparing data takes all CPUs, or something else runs there.",
        "Ask for more cpu_cores_per_node, prepare data beforehand, or end what else runs there.",
        Culprit(node=full[0] if len(full) == 1 else "", nodes=tuple(full) if len(full) > 1 else (),
                run=look.run.id if look.run else ""), "s", tuple(items), weight=42, symptom=SLOW, touches=tuple(full),
    )  # fmt: skip


def _network(look: Look, late: bool) -> Finding | None:
    fell_back = [hit for hit in look.rank_hits if hit.pattern.id == "K14"]
    shares = [share for rank in look.evidence.ranks if (share := _share(rank, "collective")) is not None]
    heavy = [share for share in shares if share > COLLECTIVE_SHARE]
    if fell_back and (late or heavy):
        nodes = sorted({hit.node for hit in fell_back if hit.node})
        one = fell_back[0]
        return Finding(
            "K14", NETWORK, one.pattern.title, "likely", one.pattern.cause, one.pattern.action,
            Culprit(node=nodes[0] if len(nodes) == 1 else "", nodes=tuple(nodes) if len(nodes) > 1 else (),
                    run=look.run.id if look.run else ""), one.pattern.key, tuple(hit.item for hit in fell_back[:3]),
            weight=38,
        )  # fmt: skip
    if not shares or len(heavy) < len(shares) or not late:
        return None
    return Finding(
        "S02", NETWORK, "collectives take the time, on all ranks alike", "likely",
        "The network between its nodes is slow or shared, or the run is spread too thin.",
        "Look at links and port counters of its nodes; test the way between them.",
        Culprit(run=look.run.id if look.run else ""), "s",
        (Item(plural(len(shares), "rank"), None, f"{100 * min(shares):.0f}% or more of a step goes into collectives"),),
        weight=43, symptom=SLOW, touches=tuple(look.involved),
    )  # fmt: skip


def _saving(look: Look) -> Finding | None:
    run = look.evidence.run
    rows = [row for row in run.checkpoints if row.complete and row.seconds is not None] if run else []
    usual = run.baseline_checkpoint_seconds if run else None
    if usual is None and len(rows) >= 4:
        usual = median(row.seconds for row in rows[:-1])
    newest = rows[-1] if rows else None
    if newest is None or newest.seconds is None or not usual or newest.seconds < 1.5 * usual or newest.seconds < 5.0:
        return None
    return Finding(
        "slow_checkpoint", NETWORK, f"its newest checkpoint took {newest.seconds:.0f} s, usual are {usual:.0f} s",
        "possible", "The storage is slow or shared.", "Look at the storage that it writes to; save less often.",
        Culprit(run=look.run.id if look.run else "", path=newest.path), "s",
        (Item(newest.path, newest.written_at, f"{newest.seconds:.1f} s"),), weight=56, symptom=SLOW,
        touches=tuple(look.involved),
    )  # fmt: skip
