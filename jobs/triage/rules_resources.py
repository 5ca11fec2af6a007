"""Resources: GPU memory, host memory, shared memory, files and threads, and whether there is room at all."""

from __future__ import annotations

import re

from jobs.triage.evidence import NodeEvidence
from jobs.triage.findings import Culprit, Finding, Item, Sheet, plural
from jobs.triage.look import Look, figure
from jobs.triage.patterns import BY_ID, RESOURCES
from jobs.triage.scan import as_sentence, shown

HELD_BYTES = 600 << 20
"""A GPU that nobody uses holds less than this itself."""
HOST_FULL_SHARE = 0.95
SHM_FULL_SHARE = 0.02
_KILLED = re.compile(r"Killed process (\d+)")
OF_ROOM = ("resources", "never", "cordon", "suspected", "ray")


def gpu_memory(look: Look, sheet: Sheet) -> None:
    """GPU memory that is full, or held by nobody or by somebody else."""
    looked = 0
    before = len(sheet.findings)
    for node in look.scope:
        if node.sample is None or node.facts is None:
            continue
        for device in node.facts.devices:
            used, total = figure(node, device.index, "memory_used_bytes"), device.memory_total_bytes
            if used is None or not total or (look.target.kind == "gpu" and look.target.gpu != device.index):
                continue
            looked += 1
            _held(look, node, device.index, used, total, sheet)
    if looked and len(sheet.findings) == before:
        sheet.clear(f"{plural(looked, 'GPU')}: all memory in use has a known holder")


def _held(look: Look, node: NodeEvidence, gpu: int, used: float, total: int, sheet: Sheet) -> None:
    sample = node.sample
    if sample is None:
        return
    holders = [process for process in sample.processes if process.device == gpu]
    told = Item(f"{node.name}/{gpu}, NVML", sample.wall or None, f"{_gib(used)} of {_gib(total)} used")
    culprit = Culprit(node=node.name, gpu=gpu)
    readable = "processes" not in sample.missing.get(gpu, {})
    if used > HELD_BYTES and not holders and readable:
        sheet.found(
            Finding(
                "S04", RESOURCES, f"{_gib(used)} of GPU memory are held, and no process is to be seen", "likely",
                "A process that hangs in its end, one in another container, or a driver that has not let go.",
                "Look with fuser -v /dev/nvidia*; end the left-over, or reset the GPU when the node is empty.",
                culprit, "T", (told,), weight=38, explains=frozenset({"memory"}),
            )
        )  # fmt: skip
    run = look.run.id if look.run else ""
    mine = {rank.pid for rank in look.ranks_on(node.name) if rank.pid is not None}
    foreign = [each for each in holders if run and each.run != run and each.pid not in mine]
    if foreign and look.ranks_on(node.name, gpu):
        first = max(foreign, key=lambda each: each.memory_used_bytes or 0)
        held = first.memory_used_bytes
        sheet.found(
            Finding(
                "foreign", RESOURCES,
                f"process {first.pid} ({shown(first.command)[:60] or 'name not known'}) of"
                f" {shown(first.user)[:40] or 'somebody'} is on the run's GPU",
                "likely", "It was left over, or somebody works past the queue.",
                "End it (T on the node), or have its owner move.",
                Culprit(node=node.name, gpu=gpu, person=shown(first.user)[:40]), "T",
                (told, Item(f"{node.name}/{gpu}, process {first.pid}", None, _gib(held) if held else "size not known")),
                weight=36, explains=frozenset({"memory", "slow"}),
            )
        )  # fmt: skip


def host_memory(look: Look, sheet: Sheet) -> None:
    """Processes that the kernel ended for want of memory; memory that is nearly used up."""
    killed = False
    for node in look.scope:
        events = [event for event in node.events if event.kind == "oom"]
        lines = [hit for hit in look.kernel_hits if hit.node == node.name and hit.pattern.id == "K04"]
        told = [(event.wall or None, event.text, event.pid) for event in events]
        told += [(hit.wall, hit.item.text, None) for hit in lines]
        if told:
            killed = True
            sheet.found(_killed(look, node, told))
        _nearly_full(node, sheet)
    known = [node for node in look.scope if node.health is not None or node.events or node.kernel]
    if known and not killed:
        sheet.clear(f"the kernel ended nothing for want of memory on {plural(len(known), 'node')}")


def _killed(look: Look, node: NodeEvidence, told: list[tuple[float | None, str, int | None]]) -> Finding:
    row = BY_ID["K04"]
    by_pid = {rank.pid: rank for rank in look.ranks_on(node.name) if rank.pid is not None}
    owner, at = None, told[0][0]
    for wall, text, pid in told:
        found = _KILLED.search(text)
        pid = pid if pid is not None else int(found[1]) if found and len(found[1]) < 10 else None
        if pid in by_pid:
            owner, at = by_pid[pid], wall
            break
    if owner is None:
        # The line may name a pid of another namespace: the rank that was killed there then is meant.
        silent = [rank for rank in look.ranks_on(node.name) if rank.exit_code in (-9, 137)]
        owner = silent[0] if len(silent) == 1 else None
    return Finding(
        "K04", RESOURCES, f"{row.title} on {node.name}", "certain", row.cause, row.action,
        look.rank_culprit(owner) if owner else Culprit(node=node.name), row.key,
        tuple(Item(f"{node.name}, kernel", wall, shown(text)) for wall, text, _ in told[:4]), at=at, weight=row.weight,
        hardware=True, explains=frozenset({"memory", "silent", "peer"}), moment=at is not None,
    )  # fmt: skip


def _nearly_full(node: NodeEvidence, sheet: Sheet) -> None:
    host = node.sample.host if node.sample else None
    used, total = (host.memory_used_bytes, host.memory_total_bytes) if host else (None, None)
    available = node.health.memory_available_bytes if node.health else None
    if available is not None and total:
        used = total - available
    if used is None or not total or used < HOST_FULL_SHARE * total:
        return
    row = BY_ID["K04"]
    pressure = node.health.memory_pressure_percent if node.health else None
    sheet.found(
        Finding(
            "K04", RESOURCES, f"the host's memory is nearly used up: {_gib(used)} of {_gib(total)}", "likely",
            "Too many workers, a leak, or caches that are not given back; the kernel is about to end something.",
            row.action, Culprit(node=node.name), "R",
            (Item(f"{node.name}, /proc/meminfo", None, f"{_gib(used)} of {_gib(total)}"),
             *((Item(f"{node.name}, PSI", None, f"memory pressure {pressure:g}%"),) if pressure else ())),
            weight=39, explains=frozenset({"memory", "slow"}),
        )
    )  # fmt: skip


def shared_memory(look: Look, sheet: Sheet) -> None:
    """Shared memory that is full."""
    for node in look.scope:
        for mount in node.health.mounts if node.health else []:
            if mount.path != "/dev/shm" or not mount.total_bytes or mount.free_bytes is None:  # noqa: S108
                continue
            if mount.free_bytes > SHM_FULL_SHARE * mount.total_bytes:
                continue
            row = BY_ID["K05"]
            bus = [rank for rank in look.ranks_on(node.name) if rank.exit_code in (-7, 135)]
            sheet.found(
                Finding(
                    "K05", RESOURCES, f"{row.title} on {node.name}", "certain" if bus else "likely", row.cause,
                    row.action,
                    look.rank_culprit(bus[0]) if bus else Culprit(node=node.name, path=mount.path), row.key,
                    (Item(f"{node.name}:{mount.path}", None,
                          f"{_gib(mount.free_bytes)} free of {_gib(mount.total_bytes)}"),),
                    weight=row.weight, hardware=True, explains=frozenset({"memory", "silent"}),
                )
            )  # fmt: skip


def room(look: Look, sheet: Sheet) -> None:
    """Whether what it asks for is there at all."""
    run = look.evidence.run
    explanation = run.explanation if run else None
    if look.run is None or explanation is None or not (look.waits or look.starts):
        return
    for at, blocker in enumerate(explanation.blocked_by):
        if blocker.kind not in OF_ROOM:
            continue
        usable = [note for note in explanation.nodes if note.usable]
        notes = [Item(note.node, None, note.sentence) for note in explanation.nodes if not note.usable][:5]
        node = blocker.names[0] if blocker.kind in ("cordon", "suspected") and len(blocker.names) == 1 else ""
        never = blocker.kind == "never"
        sheet.found(
            Finding(
                "K28", RESOURCES, blocker.sentence or "there is no room for it", "certain",
                "No node of the cluster can ever take it." if never else BY_ID["K28"].title.capitalize() + ".",
                as_sentence(blocker.would_start_if and f"It starts if {blocker.would_start_if}")
                or "Wait, ask for less, or give it a higher priority.",
                Culprit(node=node, run=look.run.id), "U" if blocker.kind == "cordon" else "P",
                (Item("the controller's explanation", look.now, explanation.sentence), *notes), weight=20 + at,
                explains=frozenset({"wait"}),
            )
        )  # fmt: skip
        sheet.checked(f"{plural(len(usable), 'node')} could take their part of it now")


def _gib(size: float) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
