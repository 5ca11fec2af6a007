"""A run that stands still: which rank is behind, and what it is at. Pure.

In a hang all ranks but one spin in a collective and look busy. The one that is missing is found by what differs: a
process that is stopped, ended or inside the kernel; a lower number of its newest collective; a lower step; another
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from jobs.triage import stacks
from jobs.triage.evidence import RankEvidence
from jobs.triage.findings import Confidence, Culprit, Finding, Item, Sheet, StepName, listed, plural
from jobs.triage.look import BUSY_PERCENT, IDLE_PERCENT, Look, figure, median
from jobs.triage.patterns import CODE, NETWORK, RESOURCES
from jobs.triage.rules_nodes import GONE
from jobs.triage.scan import shown

LOW_POWER_SHARE = 0.5
HANG = "hang"


@dataclass(frozen=True, slots=True)
class Behind:
    """The ranks that the others wait for."""

    ranks: list[RankEvidence]
    kind: str
    """``stopped``, ``ended``, ``lost``, ``kernel``, ``collective``, ``step`` or ``stack``: what tells it."""
    why: list[str] = field(default_factory=list[str])
    items: list[Item] = field(default_factory=list[Item])
    confidence: Confidence = "likely"


def behind(look: Look) -> Behind | None:
    """Who is missing; None where nothing tells it."""
    ranks = look.evidence.ranks
    if len(ranks) < 2:
        return None
    for kind, sign in _SIGNS:
        odd = sign(look, ranks)
        if odd and len(odd) <= len(ranks) / 2:
            return _told(look, kind, odd, ranks)
    return None


def _stopped(_: Look, ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    return [rank for rank in ranks if rank.process_state[:1] in ("T", "t")]


def _ended(look: Look, ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    if look.failed:
        return [rank for rank in ranks if rank.exit_code == 0]
    return [rank for rank in ranks if rank.exit_code is not None or rank.process_state in ("Z", "X", "gone")]


def _lost(look: Look, ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    nodes = look.evidence.nodes
    lost = {name for name, node in nodes.items() if node.ssh.state in GONE[:2] or node.ray.state in ("dead", "absent")}
    return [rank for rank in ranks if rank.node in lost]


def _in_kernel(_: Look, ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    return [rank for rank in ranks if rank.process_state[:1] == "D"]


def _lower(value: Callable[[RankEvidence], int | None]) -> Callable[[Look, Sequence[RankEvidence]], list[RankEvidence]]:
    def sign(_: Look, ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
        known = [(found, rank) for rank in ranks if (found := value(rank)) is not None]
        if len(known) < 2:
            return []
        most = max(found for found, _ in known)
        low = [(found, rank) for found, rank in known if found < most]
        least = min((found for found, _ in low), default=most)
        return [rank for found, rank in low if found == least]

    return sign


def _odd_stack(_: Look, ranks: Sequence[RankEvidence]) -> list[RankEvidence]:
    by_number = {rank.rank: rank for rank in ranks}
    found = stacks.groups({rank.rank: rank.stack for rank in ranks if rank.stack})
    if len(found) < 2:
        return []
    at = {number: stacks.doing(by_number[number].stack) for _, numbers in found for number in numbers}
    waiting = [number for number, kind in at.items() if kind == "collective"]
    if 2 * len(waiting) >= len(at) and (others := [number for number in at if number not in waiting]):
        return [by_number[number] for number in others]
    return [by_number[number] for _, numbers in found[1:] for number in numbers]


_SIGNS: tuple[tuple[str, Callable[[Look, Sequence[RankEvidence]], list[RankEvidence]]], ...] = (
    ("stopped", _stopped),
    ("ended", _ended),
    ("lost", _lost),
    ("kernel", _in_kernel),
    ("collective", _lower(lambda rank: rank.collective_seq)),
    ("step", _lower(lambda rank: rank.last_step)),
    ("stack", _odd_stack),
)


def _told(look: Look, kind: str, odd: list[RankEvidence], ranks: Sequence[RankEvidence]) -> Behind:
    numbers = {rank.rank for rank in odd}
    one = odd[0]
    rest = [rank for rank in ranks if rank.rank not in numbers]
    why: list[str] = []
    items: list[Item] = []
    signs = 0

    def say(text: str, item: str) -> None:
        why.append(text)
        items.append(Item(f"rank {one.rank} on {one.node}", None, item))

    others = [rank.last_step for rank in rest if rank.last_step is not None]
    if one.last_step is not None and others and one.last_step < max(others):
        signs += 1
        say(f"last step {one.last_step}, the others {max(others)}", f"last step {one.last_step}; others {max(others)}")
    seqs = [rank.collective_seq for rank in rest if rank.collective_seq is not None]
    if one.collective_seq is not None and seqs and one.collective_seq < max(seqs):
        signs += 1
        name = next((f" ({rank.collective})" for rank in rest if rank.collective), "")
        say(
            f"collective {one.collective_seq}, the others {max(seqs)}{name}",
            f"flight recorder: collective {one.collective_seq}; others {max(seqs)}{name}",
        )
    state = one.process_state[:1]
    if kind == "stopped":
        say(f"its process is stopped (state {one.process_state})", f"process {one.pid}: state {one.process_state}")
    elif kind == "ended":
        how = f"has ended with exit code {one.exit_code}" if one.exit_code is not None else "is gone"
        say(f"its process {how}", f"process {one.pid} {how}")
    elif kind == "lost":
        say("its node is lost", f"{one.node} does not answer")
    elif state == "D":
        where = f" in {shown(one.wchan)}" if one.wchan else ""
        say(f"its process waits inside the kernel (state D{where})", f"process {one.pid}: state D{where}")
    kinds = {stacks.doing(rank.stack) for rank in rest if rank.stack} - {""}
    at, top = stacks.doing(one.stack), stacks.top(one.stack)
    if top and (at not in kinds or top not in {stacks.top(rank.stack) for rank in rest}):
        signs += 1
        say(f"it is {_AT.get(at, 'at')} {shown(top)}", f"stack: {shown(top)}")
        items += [Item(f"rank {rank.rank} on {rank.node}", None, f"stack: {shown(stacks.top(rank.stack))}")
                  for rank in rest if rank.stack][:2]  # fmt: skip
    sure = kind in ("stopped", "ended", "lost") or signs > 1 or (state == "D" and signs > 0)
    return Behind(odd, kind, why, items, "certain" if sure else "likely")


_AT = {"data": "loading data in", "saving": "saving in", "collective": "in the collective", "other": "at"}


def standing_still(look: Look, sheet: Sheet) -> None:
    """A run that should run, and reports nothing."""
    still = look.still_seconds
    if still is None:
        if look.runs_now and look.progressed_at is not None:
            sheet.clear(f"it goes on: its last step came {max(0.0, look.now - look.progressed_at):.0f} s ago")
        return
    found = behind(look)
    spin = _spinning(look)
    if found is not None:
        sheet.found(_of_behind(look, found, still, spin))
        return
    sheet.found(_of_all(look, still, spin))


def _of_behind(look: Look, found: Behind, still: float, spin: Item | None) -> Finding:
    one = found.ranks[0]
    several = len(found.ranks) > 1
    nodes = sorted({rank.node for rank in found.ranks if rank.node})
    if not several:
        culprit = look.rank_culprit(one)
    elif len(nodes) == 1:
        culprit = Culprit(node=nodes[0], run=look.run.id if look.run else "")
    else:
        culprit = Culprit(nodes=tuple(nodes), run=look.run.id if look.run else "")
    who = f"ranks {listed([str(rank.rank) for rank in found.ranks])} are behind" if several else "is behind"
    at = stacks.doing(one.stack)
    step, cause, action, key = _WHAT.get(found.kind, _WHAT["step"])
    if found.kind not in ("stopped", "ended", "lost", "kernel") and at in ("data", "saving"):
        step, cause, action, key = _WHAT[at]
    waiting = [rank for rank in look.evidence.ranks if rank not in found.ranks]
    return Finding(
        "S01", step, f"{who}: {'; '.join(found.why) or 'its stack differs'}", found.confidence, cause, action, culprit,
        key, (*found.items, *((spin,) if spin else ()), _quiet(look, still)),
        (Item(f"{plural(len(waiting), 'rank')}", None, "wait for it in a collective"),) if waiting else (),
        at=look.progressed_at, weight=40, symptom="" if found.kind in ("stopped", "ended") else HANG,
        touches=tuple(nodes),
    )  # fmt: skip


_WHAT: dict[str, tuple[StepName, str, str, str]] = {
    "stopped": (
        CODE, "Somebody or something stopped its process (SIGSTOP, a debugger, a full terminal).",
        "Continue it (kill -CONT) on its node, or restart the run.", "s",
    ),
    "ended": (
        CODE, "It left the script while the others go on: another number of batches, or an early return.",
        "Look at the end of its log; mend the script so that all ranks leave together; then restart.", "l",
    ),
    "lost": (NETWORK, "Its node is gone.", "Look at the node; drain it, and the run starts anew elsewhere.", "D"),
    "kernel": (
        NETWORK, "It waits for storage or a driver inside the kernel, and cannot be ended.",
        "Look at the mount behind it; remount, or drain and reboot the node.", "s",
    ),
    "data": (NETWORK, "It waits for data that the others have got.", "Look at its storage and its data workers.", "s"),
    "saving": (NETWORK, "It still writes its checkpoint.", "Look at the storage that it writes to.", "s"),
    "step": (
        CODE, "It did not come to the collective that the others wait in.",
        "Look at its stack and its log; restart the run, without its node if it comes again.", "l",
    ),
}  # fmt: skip


def _of_all(look: Look, still: float, spin: Item | None) -> Finding:
    """Nobody is behind: then what all do tells, or it is not known."""
    run = look.run.id if look.run else ""
    ranks = look.evidence.ranks
    at = [kind for kind in (stacks.doing(rank.stack) for rank in ranks) if kind]
    seqs = {rank.collective_seq for rank in ranks if rank.collective_seq is not None}
    states = [rank.process_state[:1] for rank in ranks if rank.process_state]
    common = max(set(at), key=at.count) if at else ""
    quiet = (_quiet(look, still), *((spin,) if spin else ()))
    nodes = tuple(look.involved)
    every = 2 * at.count(common) > len(at) if at else False
    if states and all(state == "D" for state in states):
        return Finding(
            "S01", NETWORK, "all ranks wait inside the kernel", "likely", "The storage that they share hangs.",
            "Look at the mounts of its nodes, then at the file server.", Culprit(run=run), "s",
            (Item("all ranks", None, f"state D in {shown(ranks[0].wchan) or 'a function not known'}"), *quiet),
            at=look.progressed_at, weight=41, symptom=HANG, touches=nodes,
        )  # fmt: skip
    if every and common in ("data", "saving"):
        data = _root(look, "data_root") if common == "data" else _root(look, "output_root")
        what = "load data" if common == "data" else "save a checkpoint"
        return Finding(
            "S07" if common == "data" else "S01", NETWORK, f"all ranks {what}", "likely",
            "Slow storage, very many small files, or too few data workers." if common == "data" else "Slow storage.",
            "Look at the storage behind it; prefetch or cache near the nodes." if common == "data"
            else "Look at the storage behind it.", Culprit(run=run, path=data), "s",
            (Item("stacks", None, f"{at.count(common)} of {len(at)}: {shown(stacks.top(ranks[0].stack))}"), *quiet),
            at=look.progressed_at, weight=42, symptom=HANG, touches=nodes,
        )  # fmt: skip
    used = median(figure(node, gpu, "utilization_percent") for node, gpu in look.gpus_of_run())
    cpu = median(rank.cpu_percent for rank in ranks)
    if used is not None and used < IDLE_PERCENT and cpu is not None and cpu >= BUSY_PERCENT:
        return Finding(
            "S01", RESOURCES, "all ranks compute on their CPUs while the GPUs wait", "likely",
            "Preparing data, compiling, or a loop without an end.", "Look at their stacks.", Culprit(run=run), "l",
            (Item("GPUs", None, f"utilisation {used:g}%"), Item("CPUs", None, f"{cpu:g}% a rank"), *quiet),
            at=look.progressed_at, weight=43, symptom=HANG, touches=nodes,
        )  # fmt: skip
    same = len(seqs) == 1 and len(ranks) > 1 and all(rank.collective_seq is not None for rank in ranks)
    if same:
        return Finding(
            "S01", NETWORK, f"all ranks are in collective {seqs.pop()} and it does not end", "likely",
            "Nobody is missing: the network between them does not carry it.",
            "Look at links and ports of its nodes; test the way between them.", Culprit(run=run), "s", quiet,
            at=look.progressed_at, weight=44, symptom=HANG, touches=nodes,
        )  # fmt: skip
    sure: Confidence = "likely" if spin else "possible"
    return Finding(
        "S01", CODE, f"has not reported a step for {still:.0f} s" + (", its GPUs spin" if spin else ""), sure,
        "One rank is missing in a collective; which one is not known." if spin
        else "Not known.", "Look at the stacks of all ranks (py-spy), their steps and flight recorders.",
        Culprit(run=run), "l", quiet, at=look.progressed_at, weight=45, symptom=HANG, touches=nodes,
    )  # fmt: skip


def _root(look: Look, name: str) -> str:
    section = look.evidence.run.config.get("storage") if look.evidence.run else None
    value = section.get(name) if isinstance(section, dict) else None
    return value if isinstance(value, str) else ""


def _quiet(look: Look, still: float) -> Item:
    return Item("its course", look.progressed_at, f"no new step for {still:.0f} s")


def _spinning(look: Look) -> Item | None:
    """All GPUs at full use and far below their power: that is waiting in a collective, not work."""
    pairs = look.gpus_of_run()
    used = [figure(node, gpu, "utilization_percent") for node, gpu in pairs]
    shares = [_power_share(look, node.name, gpu) for node, gpu in pairs]
    known = [share for share in shares if share is not None]
    busy = [value for value in used if value is not None and value >= BUSY_PERCENT]
    if not known or len(busy) < max(1, len(pairs) - 1) or max(known) >= LOW_POWER_SHARE:
        return None
    return Item("its GPUs", None, f"{len(busy)} of {len(pairs)} at full use, at {100 * max(known):.0f}% of their power")


def _power_share(look: Look, name: str, gpu: int) -> float | None:
    node = look.evidence.nodes[name]
    now = figure(node, gpu, "power_watts")
    limits = [device.power_limit_watts for device in node.facts.devices if device.index == gpu] if node.facts else []
    return now / limits[0] if now is not None and limits and limits[0] else None
