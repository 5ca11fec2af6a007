"""Infrastructure, first half: are the machines there, do Ray and the driver answer, do versions and clocks agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from jobs.triage.evidence import NodeEvidence, Truth
from jobs.triage.findings import Culprit, Finding, Item, Sheet, listed, plural
from jobs.triage.look import Look
from jobs.triage.patterns import BY_ID, INFRASTRUCTURE
from jobs.triage.scan import as_sentence
from probes.reading import DRIVER_BLOCKED, DRIVER_ERROR, DRIVER_NONE, DRIVER_OK

SAME_MOMENT_SECONDS = 60.0
SWITCH_NODES = 3
"""So many nodes that go within a minute have one reason."""
FLAPS = 3
CLOCK_SUSPECT_SECONDS = 0.5
CLOCK_BAD_SECONDS = 2.0
GONE = ("lost", "silent", "waiting", "refused")
ALL = frozenset({"device", "silent", "memory", "data", "peer", "hang", "slow"})


def reachable(look: Look, sheet: Sheet) -> None:
    """Node lost for SSH, for Ray, for both; several at once; coming and going."""
    gone: list[tuple[NodeEvidence, Finding]] = []
    asked = [node for node in look.scope if node.ssh.state != "unknown" or node.ray.state != "unknown"]
    for node in asked:
        finding = _lost(node)
        if finding is not None:
            gone.append((node, finding))
    for finding in _together(gone):
        sheet.found(finding)
    if asked and not gone:
        sheet.clear(f"nodes: {len(asked)} of {len(look.scope)} answer over SSH and are alive in Ray")
    elif gone:
        sheet.checked(f"nodes: {len(asked) - len(gone)} of {len(asked)} answer over SSH and are alive in Ray")
    for node in look.scope:
        if node.ssh.state == "unknown" and node.ray.state == "unknown":
            sheet.blind(f"{node.name}: neither SSH nor Ray was asked whether it is there")
        if node.times_lost is not None and node.times_lost >= FLAPS:
            sheet.found(
                Finding(
                    "S13", INFRASTRUCTURE, f"it went away and came back {node.times_lost} times within an hour",
                    "likely", "Its network port, a starved CPU or memory that runs out.",
                    "Drain it, and let it take work again only after a test.", Culprit(node=node.name), "D",
                    (_truth(node, "Ray", node.ray), _truth(node, "SSH", node.ssh)), weight=17, hardware=True,
                    explains=ALL,
                )
            )  # fmt: skip


def _lost(node: NodeEvidence) -> Finding | None:
    ssh, ray = node.ssh, node.ray
    ray_gone = ray.state in ("dead", "absent")
    if ssh.state not in GONE and not ray_gone:
        return None
    evidence = (_truth(node, "SSH", ssh), _truth(node, "Ray", ray))
    since = min((truth.since for truth in (ssh, ray) if truth.since is not None), default=None)
    culprit = Culprit(node=node.name)
    row = BY_ID["K26"]
    if ssh.state == "refused":
        return Finding(
            "ssh_refused", INFRASTRUCTURE, f"SSH is refused: {ssh.reason or 'no reason given'}", "certain",
            "The key, the account or the host key is not accepted; the machine itself answers."
            + (" Ray has lost it as well." if ray_gone else ""),
            "Compare the host key with what is expected, then the account's key.", culprit, "",
            evidence, at=since, weight=25, hardware=ray_gone, explains=ALL if ray_gone else frozenset(),
        )  # fmt: skip
    if ssh.state in GONE and ray_gone:
        return Finding(
            "K26", INFRASTRUCTURE, "the node is lost, for SSH and for Ray", "certain",
            "The machine is off or hangs, or its network is cut.",
            "Look at its console or power; runs start anew from their checkpoints elsewhere.", culprit, "D",
            evidence, at=since, weight=2, hardware=True, explains=ALL,
        )  # fmt: skip
    if ssh.state in ("lost", "silent"):
        waits = " Ray has not noticed yet (it takes about a minute)." if ray.state == "alive" else ""
        return Finding(
            "K26", INFRASTRUCTURE, "the node does not answer over SSH", "likely",
            f"Its network is cut, or the machine hangs.{waits}",
            "Look at its console and its link; drain it if it does not come back.", culprit, "D",
            evidence, at=since, weight=3, hardware=True, explains=ALL,
        )  # fmt: skip
    if ssh.state == "waiting" and not ray_gone:
        return Finding(
            "ssh_unreachable", INFRASTRUCTURE, "SSH does not reach the node", "possible",
            "A wrong address, a firewall, or no sshd; Ray may well be all right.",
            "Try ssh by hand from here.", culprit, "s", evidence, at=since, weight=55,
        )  # fmt: skip
    word = "is not in Ray" if ray.state == "absent" else "is dead in Ray"
    return Finding(
        "K26", INFRASTRUCTURE, f"the node {word}, although SSH reaches it", "certain",
        as_sentence(ray.reason) or row.cause, "Look at its raylet's log, then have it rejoin (J).", culprit, "J",
        evidence, at=since, weight=4, hardware=True, explains=ALL,
    )  # fmt: skip


def _together(gone: list[tuple[NodeEvidence, Finding]]) -> Iterator[Finding]:
    """Nodes that went at one moment are one finding: what they share broke."""
    network = [(node, finding) for node, finding in gone if finding.id == "K26" and node.ssh.state in GONE]
    dated = sorted(
        (finding.at, node.name, finding) for node, finding in network if finding.at is not None
    )  # fmt: skip
    while dated:
        start = dated[0][0]
        near = [each for each in dated if each[0] - start <= SAME_MOMENT_SECONDS]
        if len(near) < SWITCH_NODES:
            dated = dated[1:]
            continue
        names = tuple(sorted(name for _, name, _ in near))
        yield Finding(
            "K26", INFRASTRUCTURE, f"{len(names)} nodes were lost within a minute", "likely",
            "What they share: a switch, a rack's power, a route.", "Look at the switch or the power that they share.",
            Culprit(nodes=names), "D", tuple(item for each in near for item in each[2].evidence[:1]), at=start,
            weight=1, hardware=True, explains=ALL,
        )  # fmt: skip
        gone = [each for each in gone if each[0].name not in names]
        dated = [each for each in dated if each[1] not in names]
    for _, finding in gone:
        yield finding


def drivers(look: Look, sheet: Sheet) -> None:
    """Driver not answering, not there; fewer GPUs than the inventory says, than the probe sees, than Ray has."""
    answers = 0
    for node in look.scope:
        state = node.driver.state
        if state == "unknown" and node.sample is not None:
            state = node.sample.driver.state
        reason = node.driver.reason or (node.sample.driver.reason if node.sample else "")
        culprit = Culprit(node=node.name)
        evidence = (Item(f"{node.name}, driver", node.driver.since, f"{state}: {reason}" if reason else state),)
        wants = bool(node.expected_gpus or node.ray_gpus_total)
        if state == DRIVER_BLOCKED:
            sheet.found(
                Finding(
                    "driver_blocked", INFRASTRUCTURE, "the GPU driver does not answer", "certain",
                    "A GPU or its driver hangs; a call into it has not come back.",
                    "Drain the node, then reboot it.", culprit, "D", evidence, at=node.driver.since, weight=6,
                    hardware=True, explains=frozenset({"device", "silent", "peer", "hang"}),
                )
            )  # fmt: skip
        elif state == DRIVER_ERROR and "mismatch" in reason.lower():
            row = BY_ID["K02"]
            sheet.found(
                Finding(
                    "K02", INFRASTRUCTURE, row.title, "certain", row.cause, row.action, culprit, row.key, evidence,
                    at=node.driver.since, weight=row.weight, hardware=True, explains=frozenset({"device"}),
                )
            )  # fmt: skip
        elif state in (DRIVER_ERROR, DRIVER_NONE) and wants:
            row = BY_ID["K01"]
            sheet.found(
                Finding(
                    "K01", INFRASTRUCTURE, "no GPU is visible", "certain", row.cause, row.action, culprit, "s",
                    evidence,
                    at=node.driver.since, weight=row.weight, hardware=True, explains=frozenset({"device", "silent"}),
                )
            )  # fmt: skip
        elif state == DRIVER_OK:
            answers += 1
            _counts(node, sheet)
        elif wants:
            sheet.blind(f"{node.name}: it is not known whether its GPU driver answers; a probe over SSH would tell")
    if answers:
        sheet.checked(f"the GPU driver answers on {answers} of {plural(len(look.scope), 'node')}")
        if answers == len(look.scope):
            sheet.ruled_out.append(f"the GPU driver answers on {plural(answers, 'node')}")


def _counts(node: NodeEvidence, sheet: Sheet) -> None:
    row = BY_ID["K01"]
    seen = None if node.facts is None else len(node.facts.devices)
    lost = [device.index for device in node.facts.devices if "*" in device.missing] if node.facts else []
    if node.sample is not None:
        lost = sorted({*lost, *(index for index, reasons in node.sample.missing.items() if "*" in reasons)})
    for index in lost:
        reasons = node.sample.missing.get(index, {}) if node.sample else {}
        why = reasons["*"].reason if "*" in reasons else "its facts cannot be read"
        if node.driver.state == DRIVER_BLOCKED:
            continue
        finding = BY_ID["K20"]
        sheet.found(
            Finding(
                "K20", INFRASTRUCTURE, finding.title, "certain", finding.cause, finding.action,
                Culprit(node=node.name, gpu=index), "D", (Item(f"{node.name}/{index}, NVML", None, why),),
                weight=finding.weight, hardware=True, explains=frozenset({"device", "silent", "peer", "hang"}),
            )
        )  # fmt: skip
    want = node.expected_gpus
    if want is not None and seen is not None and seen < want:
        missing = sorted(set(range(want)) - {device.index for device in node.facts.devices}) if node.facts else []
        gpu = missing[0] if len(missing) == 1 else None
        sheet.found(
            Finding(
                "K01", INFRASTRUCTURE, f"the driver shows {plural(seen, 'GPU')} of {want}", "certain",
                "A GPU fell off the bus, is not mapped into the container, or was taken out.",
                "Drain the node and look at the kernel's log for an XID 79 and at lspci; then reboot it.",
                Culprit(node=node.name, gpu=gpu), "D",
                (Item(f"{node.name}, NVML against the cluster file", None, f"{seen} of {want}"),),
                weight=6, hardware=True, explains=frozenset({"device", "silent", "peer", "hang"}),
            )
        )  # fmt: skip
    total = node.ray_gpus_total
    if total is not None and seen is not None and total != seen and node.ray.state == "alive":
        sheet.found(
            Finding(
                "K01", INFRASTRUCTURE, f"Ray has {plural(int(total), 'GPU')} of it, the driver shows {seen}", "likely",
                "Ray was started in a container or with a CUDA_VISIBLE_DEVICES that hides some."
                if total < seen
                else "Ray counted them when it started; a GPU went away since, or --num-gpus says too many.",
                "Restart Ray there so that it counts anew (E, then J).", Culprit(node=node.name), "E",
                (Item(f"{node.name}, Ray against NVML", None, f"{int(total)} against {seen}"),), weight=row.weight + 1,
                hardware=total > seen, explains=frozenset({"device"}) if total > seen else frozenset(),
            )
        )  # fmt: skip


def versions(look: Look, sheet: Sheet) -> None:
    """What nodes run on, and the one that differs from the others."""
    nodes = list(look.evidence.nodes.values())
    named = {node.name for node in look.scope}
    differing = False
    for name, hard in _FIELDS.items():
        values = {node.name: value for node in nodes if (value := _version(node, name))}
        counts = Counter(values.values()).most_common()
        if len(counts) < 2:
            continue
        usual, often = counts[0]
        # Two nodes with two versions: neither is the usual one, and both are told.
        split = often == counts[1][1]
        odd = sorted(node for node, value in values.items() if split or value != usual)
        if not named.intersection(odd):
            continue
        differing = True
        told = ", ".join(f"{node}: {values[node]}" for node in odd[:6])
        row = BY_ID["K02"]
        one = Culprit(node=odd[0]) if len(odd) == 1 else Culprit(nodes=tuple(odd))
        sheet.found(
            Finding(
                "K02", INFRASTRUCTURE,
                f"{name} differs: {told}" + ("" if split else f"; {plural(often, 'other')} have {usual}"),
                "likely" if hard else "possible", row.cause, row.action, one, "C",
                tuple(Item(node, None, f"{name} {values[node]}") for node in odd[:6])
                + (() if split else (Item("the others", None, f"{name} {usual}"),)),
                weight=row.weight if hard else 52, hardware=hard,
                explains=frozenset({"device"}) if hard else frozenset(),
            )
        )  # fmt: skip
    if not differing and sum(node.facts is not None for node in nodes) > 1:
        sheet.clear("all nodes run on the same driver and library versions")


_FIELDS = {
    "driver": True, "cuda": True, "nccl": True, "torch": True, "ray": True, "python": True, "image": True,
    "kernel": False,
}  # fmt: skip


def _version(node: NodeEvidence, name: str) -> str:
    facts = node.facts
    from_facts: Mapping[str, str] = (
        {"driver": facts.driver_version, "cuda": facts.cuda_version, "kernel": facts.kernel} if facts else {}
    )
    return node.versions.get(name) or from_facts.get(name, "")


def clocks(look: Look, sheet: Sheet) -> None:
    """A clock that is off: certificates, tokens and the order of log lines suffer."""
    known = [node for node in look.scope if node.clock_offset_seconds is not None]
    off = [node for node in known if abs(node.clock_offset_seconds or 0.0) >= CLOCK_SUSPECT_SECONDS]
    for node in off:
        offset = node.clock_offset_seconds or 0.0
        bad = abs(offset) >= CLOCK_BAD_SECONDS
        free = node.health is not None and node.health.clock_synchronised is False
        sheet.found(
            Finding(
                "clock", INFRASTRUCTURE, f"its clock is {abs(offset):.3g} s {'ahead' if offset > 0 else 'behind'}",
                "certain" if bad else "possible",
                "Nothing keeps its clock (NTP)." if free else "Its clock was not set, or drifts.",
                "Start chronyd or systemd-timesyncd there, and look that it holds.", Culprit(node=node.name), "s",
                (Item(f"{node.name}, round trip", None, f"offset {offset:+.3f} s against the head"),), weight=23,
                explains=frozenset({"certificate"}),
            )
        )  # fmt: skip
    if known and not off:
        sheet.clear(f"the clocks of {plural(len(known), 'node')} agree to within {CLOCK_SUSPECT_SECONDS} s")


def joining(look: Look, sheet: Sheet) -> None:
    """Why a node does not join: what its raylet says."""
    said: set[tuple[str, str]] = set()
    for hit in look.raylet_hits:
        pattern = hit.pattern
        if pattern.id not in ("K11", "K26", "K30", "K31", "K25", "K10", "K23") or (hit.node, pattern.id) in said:
            continue
        node = look.evidence.nodes[hit.node]
        outside = node.ray.state in ("dead", "absent")
        if pattern.id == "K26" and not outside:
            continue
        said.add((hit.node, pattern.id))
        offset = node.clock_offset_seconds or 0.0
        skewed = pattern.id == "K30" and abs(offset) >= CLOCK_BAD_SECONDS
        sheet.found(
            Finding(
                "clock" if skewed else pattern.id, INFRASTRUCTURE,
                f"it cannot join: {'its clock is off, so ' if skewed else ''}{pattern.title}",
                "certain" if outside and not pattern.secondary else "likely" if outside else "possible", pattern.cause,
                "Set its clock (NTP), then have it rejoin (J)." if skewed else f"{pattern.action} Then have it rejoin.",
                Culprit(node=hit.node), "s",
                (hit.item, *((Item(hit.node, None, f"clock offset {offset:+.3f} s"),) if skewed else ())),
                at=hit.wall, weight=1 if outside else pattern.weight, hardware=outside,
                explains=frozenset({"lost"}) if outside else frozenset(),
            )
        )  # fmt: skip


def holds(look: Look, sheet: Sheet) -> None:
    """Nodes that somebody keeps free: no fault, and often the reason why something waits."""
    held = [node for node in look.scope if node.holds]
    if held:
        sheet.checked("held by somebody: " + listed([f"{node.name} ({node.holds[0].sentence})" for node in held], 4))


def _truth(node: NodeEvidence, of: str, truth: Truth) -> Item:
    return Item(f"{node.name}, {of}", truth.since, truth.state + (f": {truth.reason}" if truth.reason else ""))
