"""Storage: file systems that are full, hang or cannot be written; paths that are not there or may not be used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from jobs.triage.evidence import FileEvidence, NodeEvidence
from jobs.triage.findings import Culprit, Finding, Item, Sheet, listed, plural
from jobs.triage.look import Look
from jobs.triage.patterns import BY_ID, NETWORK
from jobs.triage.scan import shown
from probes.reading import Mount

FULL_SHARE = 0.02
LOW_SHARE = 0.05
FULL_BYTES = 64 << 20
SHM = "/dev/shm"  # noqa: S108 - looked at, never written to; it has its own rule
STUCK_SECONDS = 10.0
HANG = frozenset({"data", "silent", "peer", "hang", "slow"})
DATA = frozenset({"data", "silent", "hang"})


def mounts(look: Look, sheet: Sheet) -> None:
    """File systems that hang, are full, or became read-only; one that many nodes have trouble with is one finding."""
    looked = 0
    before = len(sheet.findings)
    hanging: dict[str, list[tuple[NodeEvidence, Mount]]] = defaultdict(list)
    for node in look.scope:
        for mount in node.health.mounts if node.health else []:
            looked += 1
            if mount.hangs_seconds > 0:
                hanging[mount.path].append((node, mount))
            elif mount.read_only and mount.path != "/" and _written_to(look, mount.path):
                row = BY_ID["K24"]
                sheet.found(
                    Finding(
                        "K24", NETWORK, f"{mount.path} is read-only", "certain",
                        "It was mounted so, or the kernel made it so after an error of the disk.",
                        "Look at the kernel's log for disk errors, then remount it.",
                        Culprit(node=node.name, path=mount.path), "s",
                        (Item(f"{node.name}:{mount.path}", None, f"read-only ({mount.kind})"),), weight=row.weight,
                        hardware=True, explains=DATA,
                    )
                )  # fmt: skip
            elif mount.path != SHM:
                _space(node, mount, sheet)
    for path, at in hanging.items():
        sheet.found(_hangs(path, at))
    if looked and len(sheet.findings) == before:
        sheet.clear(f"file systems: {looked} of {looked} answer and have room")
    elif not looked and look.scope:
        sheet.blind("file systems were not looked at; a probe with --health would tell")


def _hangs(path: str, at: list[tuple[NodeEvidence, Mount]]) -> Finding:
    names = [node.name for node, _ in at]
    longest = max(mount.hangs_seconds for _, mount in at)
    kind = at[0][1].kind
    walls = [
        node.health.wall - (node.clock_offset_seconds or 0.0) - mount.hangs_seconds
        for node, mount in at
        if node.health and node.health.wall
    ]
    several = len(names) > 1
    return Finding(
        "K24", NETWORK, f"{path} has not answered for {longest:.0f} s" + (f" on {listed(names, 4)}" * several),
        "certain", "The file server or the way to it." if several or kind.startswith("nfs") else BY_ID["K24"].cause,
        BY_ID["K24"].action,
        Culprit(node="" if several else names[0], path=path, nodes=tuple(names) if several else ()), "s",
        tuple(Item(f"{node.name}:{path}", None,
        f"hangs for {mount.hangs_seconds:.0f} s ({mount.kind or 'kind unknown'})")
              for node, mount in at[:5]),
        at=min(walls, default=None), weight=15, hardware=True, explains=HANG,
    )  # fmt: skip


def _space(node: NodeEvidence, mount: Mount, sheet: Sheet) -> None:
    row = BY_ID["K23"]
    free, total = mount.free_bytes, mount.total_bytes
    inodes, all_inodes = mount.inodes_free, mount.inodes_total
    what, full, share = "", False, 0.0
    if free is not None and total and (free < FULL_SHARE * total or free < FULL_BYTES < total):
        what, full, share = "is full", True, free / total
    elif inodes is not None and all_inodes and inodes < FULL_SHARE * all_inodes:
        what, full, share = "has no inodes left", True, inodes / all_inodes
    elif free is not None and total and free < LOW_SHARE * total:
        what, full, share = f"is nearly full ({100 * free / total:.1f}% left)", False, free / total
    if not what:
        return
    sheet.found(
        Finding(
            "K23", NETWORK, f"{mount.path} {what}", "certain" if full else "possible",
            row.cause if "inode" not in what else "Very many small files.", row.action,
            Culprit(node=node.name, path=mount.path), "R",
            (Item(f"{node.name}:{mount.path}", None, f"{100 * share:.1f}% left"),), weight=row.weight,
            hardware=full, explains=DATA if full else frozenset(),
        )
    )  # fmt: skip


def _written_to(look: Look, path: str) -> bool:
    run = look.run
    used = [each.path for each in look.evidence.files if each.purpose in ("output", "log", "checkpoint")]
    used += [run.run_directory] if run else []
    return any(each == path or each.startswith(path.rstrip("/") + "/") for each in used)


def stuck(look: Look, sheet: Sheet) -> None:
    """Processes that wait inside the kernel, and what the kernel says of storage."""
    for node in look.scope:
        waiting = [each for each in node.health.stuck if each.seconds >= STUCK_SECONDS] if node.health else []
        told = [event for event in node.events if event.kind in ("hung_task", "storage")]
        lines = [hit.item for hit in look.kernel_hits if hit.node == node.name and hit.pattern.id == "K24"]
        items = [
            Item(f"{node.name}, process {each.pid}", None,
                 f"{shown(each.command)[:60]} in state D for {each.seconds:.0f} s"
                 + (f" in {shown(each.where)}" if each.where else ""))
            for each in waiting
        ]  # fmt: skip
        items += [Item(f"{node.name}, kernel", event.wall or None, shown(event.text)) for event in told] + lines
        hangs = [f for f in sheet.findings if f.id == "K24" and node.name in (f.culprit.node, *f.culprit.nodes)]
        if not items or hangs:
            continue
        row = BY_ID["K24"]
        gpu = [each for each in waiting if "nv" in each.where.lower() or each.command.startswith("nvidia")]
        sheet.found(
            Finding(
                "K24" if not gpu else "driver_blocked", NETWORK,
                f"{plural(len(waiting), 'process')} inside the kernel for long" if waiting
                else "the kernel reports trouble with storage",
                "likely", row.cause if not gpu else "The GPU driver has not come back to them.",
                row.action if not gpu else "Drain the node, then reboot it.", Culprit(node=node.name),
                "s" if not gpu else "D", tuple(items[:5]), at=next((each.wall for each in items if each.wall), None),
                weight=row.weight, hardware=True, explains=HANG, moment=not waiting and bool(items[0].wall),
            )
        )  # fmt: skip


def files(look: Look, sheet: Sheet) -> None:
    """Paths that the run needs: there, readable, writable, with room."""
    seen: dict[str, list[FileEvidence]] = defaultdict(list)
    for each in look.evidence.files:
        seen[each.path].append(each)
    bad = 0
    for path, at in seen.items():
        for finding in _of_path(path, at):
            bad += 1
            sheet.found(finding)
    if seen and not bad:
        sheet.clear(f"paths that runs use: {len(seen)} of {len(seen)} there and usable")
    for each in look.evidence.files:
        if each.reason and each.exists is None:
            sheet.blind(f"{each.node}:{each.path} could not be looked at: {each.reason}")


def _of_path(path: str, at: list[FileEvidence]) -> Iterator[Finding]:
    gone = [each for each in at if each.exists is False]
    there = [each for each in at if each.exists]
    if gone:
        row = BY_ID["K35"]
        some = f"; on {listed([each.node for each in there], 3)} it is" if there else ""
        yield Finding(
            row.id, NETWORK, f"{path} is not there{some}", "certain", row.cause, row.action, _who(path, gone), row.key,
            tuple(Item(f"{each.node}:{path}", None, "not there") for each in gone[:5]), weight=row.weight,
            hardware=True,
            explains=frozenset({"data"}),
        )  # fmt: skip
    for need, word in (("readable", "read"), ("writable", "written")):
        refused = [each for each in there if getattr(each, need) is False and _needs(each, need)]
        if refused:
            row = BY_ID["K25"]
            one = refused[0]
            whose = f"it is {one.owner}'s, {one.mode}" if one.owner or one.mode else "its mode is not known"
            yield Finding(
                row.id, NETWORK, f"{path} may not be {word} by {one.user or 'the run'}", "certain", row.cause,
                row.action,
                _who(path, refused), row.key,
                tuple(Item(f"{each.node}:{path}", None,
                f"owner {each.owner}, mode {each.mode}") for each in refused[:5])
                or (Item(path, None, whose),),
                weight=row.weight, hardware=True, explains=frozenset({"data"}),
            )  # fmt: skip
    full = [
        each for each in there
        if each.free_bytes is not None and each.total_bytes and each.free_bytes < FULL_SHARE * each.total_bytes
        and each.purpose != "data"
    ] + [each for each in there if each.inodes_free == 0 and each.purpose != "data"]  # fmt: skip
    if full:
        row = BY_ID["K23"]
        one = full[0]
        left = "no inodes left" if one.inodes_free == 0 else f"{(one.free_bytes or 0) / (1 << 20):.0f} MiB left"
        yield Finding(
            row.id, NETWORK, f"the {one.purpose or 'output'} folder {path} is full", "certain", row.cause, row.action,
            _who(path, full), row.key, (Item(f"{one.node}:{path}", None, left),), weight=row.weight, hardware=True,
            explains=DATA,
        )  # fmt: skip


def _needs(each: FileEvidence, need: str) -> bool:
    return need == "readable" or each.purpose in ("output", "log", "checkpoint", "cache")


def _who(path: str, at: list[FileEvidence]) -> Culprit:
    names = tuple(sorted({each.node for each in at if each.node}))
    return Culprit(node=names[0] if len(names) == 1 else "", path=path, nodes=names if len(names) > 1 else ())
