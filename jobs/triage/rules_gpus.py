"""Infrastructure, second half: the GPUs themselves, and what the kernel and the driver told of them."""

from __future__ import annotations

from collections import defaultdict

from jobs.triage.evidence import NodeEvidence
from jobs.triage.findings import Culprit, Finding, Item, Sheet, listed, plural
from jobs.triage.look import BUSY_PERCENT, Look, figure, health_figure
from jobs.triage.patterns import BY_ID, INFRASTRUCTURE
from jobs.triage.scan import shown
from probes.health import xids
from probes.reading import DeviceHealth, Event

HOT_CELSIUS = 90.0
MARGIN_CELSIUS = 2.0
LOAD_PERCENT = 20.0
HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x8, 0x20, 0x40, 0x80
_THROTTLES = (
    (POWER_BRAKE, "power brake", "The power supply asks the GPU to slow down."),
    (HW_THERMAL, "too hot (hardware)", "Cooling: a fan, the air flow, the neighbours."),
    (SW_THERMAL, "too hot (driver)", "Cooling: a fan, the air flow, the neighbours."),
    (HW_SLOWDOWN, "hardware slowdown", "Heat or power, as the hardware sees it."),
)
DEVICE = frozenset({"device", "silent", "peer", "hang"})
SAME_INCIDENT_SECONDS = 60.0


def events(look: Look, sheet: Sheet) -> None:
    """XIDs, lost GPUs, fabric, machine checks: what the kernel and the driver told."""
    heard = blind = 0
    for node in look.scope:
        if node.health is not None and "xid" in node.health.blind:
            blind += 1
            sheet.blind(f"{node.name}: XIDs cannot be seen there: {node.health.blind['xid'].reason}")
        elif node.health is not None or node.events or node.kernel:
            heard += 1
        incidents: dict[int | None, list[Event]] = defaultdict(list)
        for event in _all_events(look, node):
            if event.kind in ("xid", "gpu_lost"):
                incidents[event.device].append(event)
            elif event.kind in ("sxid", "machine_check"):
                sheet.found(_other(node, event))
        for device, told in incidents.items():
            _incident(look, node, device, told, sheet)
    if heard and not any(finding.id in ("K21", "K20") for finding in sheet.findings):
        sheet.clear(f"no XID on {plural(heard, 'node')}")


def _all_events(look: Look, node: NodeEvidence) -> list[Event]:
    found = [*node.events]
    known = {(event.code, event.text) for event in found}
    for hit in look.kernel_hits:
        if hit.node != node.name or hit.pattern.id not in ("K21", "K20", "K22"):
            continue
        kind = {"K21": "xid", "K20": "gpu_lost", "K22": "sxid"}[hit.pattern.id]
        code = int(hit.groups["xid"]) if "xid" in hit.groups else None
        if (code, hit.item.text) in known or (kind == "gpu_lost" and "Xid" in hit.item.text):
            continue
        device = _by_address(node, hit.groups.get("pci", ""))
        found.append(Event(kind, hit.item.text, hit.wall or 0.0, "kernel", device, code))
    return sorted(found, key=lambda event: event.wall)


def _by_address(node: NodeEvidence, pci: str) -> int | None:
    bare = _bare(pci)
    if node.health is not None and bare:
        for device in node.health.devices:
            if device.pci and _bare(device.pci) == bare:
                return device.index
    return None


def _bare(pci: str) -> str:
    """``0000:1b:00`` however long the domain is written, and with or without the function."""
    parts = pci.lower().partition(".")[0].split(":")
    return ":".join(parts[-2:]) if len(parts) >= 2 else ""


def _incident(look: Look, node: NodeEvidence, device: int | None, told: list[Event], sheet: Sheet) -> None:
    """All XIDs of one GPU together: the worst of them is what happened, then the earliest."""
    rows = [
        (event, xids.meaning(event.code, event.text) if event.code is not None else xids.XIDS[79])
        for event in told
    ]  # fmt: skip
    order = {"critical": 0, "warning": 1, "info": 2}
    event, row = min(rows, key=lambda each: (order[each[1].level], each[0].code in xids.OF_PROGRAM, each[0].wall))
    # What the first one at that level began: the others within a minute belong to it.
    code = event.code
    own = code in xids.OF_PROGRAM
    at = event.wall or None
    lost = event.kind == "gpu_lost" or code == 79
    ecc = code in (48, 64, 94, 95, 140, 171, 172)
    action = row.action
    recommended = _recommended(node, device)
    if recommended:
        action = f"The driver itself says: {recommended}. {action}"
    items = tuple(
        Item(f"{node.name}, {each.source}", each.wall or None, shown(each.text))
        for each in sorted(told, key=lambda each: (each is not event, each.wall))[:6]
    )
    name = "" if device is None else f"GPU {device}: "
    title = f"XID {code}: {row.words}" if code is not None else "the GPU is lost"
    culprit = Culprit(node=node.name, gpu=device)
    if own:
        owners = [rank for rank in look.ranks_on(node.name) if event.pid is not None and rank.pid == event.pid]
        owners = owners or (look.ranks_on(node.name, device) if device is not None else [])
        if len(owners) == 1:
            culprit = look.rank_culprit(owners[0])
        elif event.run:
            culprit = Culprit(node=node.name, gpu=device, run=event.run)
    hard = row.level == "critical" or (ecc and row.level == "warning")
    sheet.found(
        Finding(
            "K20" if lost else "K19" if ecc else "K21", INFRASTRUCTURE, title,
            "certain" if hard else "possible" if own or row.level == "info" else "likely",
            ("As a rule the program's own doing, not the GPU's." if own else BY_ID["K20"].cause if lost
             else f"{name}{row.words}."),
            action, culprit, "l" if own else "D" if row.level == "critical" else "C", items, at=at,
            weight=5 if lost else 8 if ecc else 9 if hard else 60, hardware=hard,
            secondary=own, moment=at is not None,
            explains=DEVICE if hard else frozenset({"device"}) if not own else frozenset(),
        )
    )  # fmt: skip


def _recommended(node: NodeEvidence, device: int | None) -> str:
    for each in node.health.devices if node.health else []:
        if each.index == device:
            number = health_figure(each, "recovery_action")
            return xids.recovery_words(int(number)) if number else ""
    return ""


def _other(node: NodeEvidence, event: Event) -> Finding:
    if event.kind == "machine_check":
        return Finding(
            "machine_check", INFRASTRUCTURE, "the machine reported a hardware fault (MCE)", "certain",
            "CPU, memory or bus of the host.", "Drain the node and look at its event log (BMC).",
            Culprit(node=node.name), "D", (Item(f"{node.name}, kernel", event.wall or None, shown(event.text)),),
            at=event.wall or None, weight=9, hardware=True, explains=DEVICE, moment=bool(event.wall),
        )  # fmt: skip
    row = BY_ID["K22"]
    fatal = "non-fatal" not in event.text.lower() and "nonfatal" not in event.text.lower()
    return Finding(
        "K22", INFRASTRUCTURE, "the GPU fabric (NVSwitch) reported an error", "certain" if fatal else "possible",
        row.cause, row.action, Culprit(node=node.name, gpu=event.device), "D",
        (Item(f"{node.name}, kernel", event.wall or None, shown(event.text)),), at=event.wall or None,
        weight=row.weight, hardware=fatal, explains=DEVICE, moment=bool(event.wall),
    )  # fmt: skip


def devices(look: Look, sheet: Sheet) -> None:
    """Memory errors, remapping, links, PCIe, heat: how each GPU stands now."""
    looked = 0
    before = len(sheet.findings)
    for node in look.scope:
        if node.health is None:
            continue
        for device in node.health.devices:
            if look.target.kind == "gpu" and look.target.gpu != device.index:
                continue
            looked += 1
            _memory(node, device, sheet)
            _links(node, device, sheet)
            _heat(node, device, sheet)
    for node in look.scope:
        _throttle(node, sheet)
    if looked and len(sheet.findings) == before:
        sheet.clear(f"memory, links, PCIe and temperature of {plural(looked, 'GPU')} are as they should be")
    elif not looked and look.scope and any(node.expected_gpus or node.ray_gpus_total for node in look.scope):
        blind = [node.name for node in look.scope if node.health is None]
        sheet.blind(f"{listed(blind, 4)}: ECC, links and temperatures were not read; a probe with --health would tell")


def _memory(node: NodeEvidence, device: DeviceHealth, sheet: Sheet) -> None:
    culprit = Culprit(node=node.name, gpu=device.index)
    place = f"{node.name}/{device.index}, NVML"
    failed, pending = health_figure(device, "remap_failed"), health_figure(device, "remap_pending")
    errors = health_figure(device, "ecc_volatile_uncorrected_count")
    action = health_figure(device, "recovery_action")
    row = BY_ID["K19"]
    if failed:
        sheet.found(
            Finding(
                "K19", INFRASTRUCTURE, "a faulty row of GPU memory could not be replaced", "certain", row.cause,
                "Drain the node and send the GPU in.", culprit, "D", (Item(place, None, "row remap failed"),),
                weight=8, hardware=True, explains=DEVICE,
            )
        )  # fmt: skip
    elif errors:
        sheet.found(
            Finding(
                "K19", INFRASTRUCTURE, f"{plural(int(errors), 'uncorrectable memory error')} since the driver loaded",
                "certain", row.cause, row.action, culprit, "D",
                (Item(place, None, f"volatile uncorrectable ECC errors: {int(errors)}"),),
                weight=8, hardware=True, explains=DEVICE,
            )
        )  # fmt: skip
    elif pending or health_figure(device, "retired_pages_pending"):
        sheet.found(
            Finding(
                "K19", INFRASTRUCTURE, "faulty GPU memory waits for a reset to be replaced", "likely",
                "A memory error was found before.", "Cordon the node; reset the GPU when it is empty.", culprit, "C",
                (Item(place, None, "row remap or page retirement pending"),), weight=42,
            )
        )  # fmt: skip
    if action and not any(finding.culprit == culprit for finding in sheet.findings):
        what = xids.recovery_words(int(action))
        sheet.found(
            Finding(
                "recovery", INFRASTRUCTURE, f"the driver recommends: {what}", "certain",
                "The driver found a fault that only this mends.", xids.recovery_advice(int(action)), culprit, "D",
                (Item(place, None, f"recovery action {int(action)}"),), weight=10, hardware=True, explains=DEVICE,
            )
        )  # fmt: skip


def _links(node: NodeEvidence, device: DeviceHealth, sheet: Sheet) -> None:
    culprit = Culprit(node=node.name, gpu=device.index)
    place = f"{node.name}/{device.index}, NVML"
    active, total = health_figure(device, "nvlinks_active"), health_figure(device, "nvlinks_total")
    if active is not None and total and active < total:
        sheet.found(
            Finding(
                "nvlink", INFRASTRUCTURE, f"{int(total - active)} of {int(total)} NVLinks are down", "certain",
                "A link, its bridge, or the GPU at the other end.",
                "Drain the node, reset the GPU; reseat if it stays.",
                culprit, "D", (Item(place, None, f"NVLinks active {int(active)} of {int(total)}"),), weight=10,
                hardware=True, explains=DEVICE | {"slow"},
            )
        )  # fmt: skip
    if health_figure(device, "fabric_healthy") == 0:
        row = BY_ID["K22"]
        sheet.found(
            Finding(
                "K22", INFRASTRUCTURE, row.title, "certain", row.cause, row.action, culprit, "D",
                (Item(place, None, "fabric not healthy"),), weight=row.weight, hardware=True, explains=DEVICE,
            )
        )  # fmt: skip
    busy = (figure(node, device.index, "utilization_percent") or 0.0) > LOAD_PERCENT
    for name, unit in (("pcie_width", "lanes"), ("pcie_generation", "generation")):
        now, most = health_figure(device, name), health_figure(device, f"{name}_max")
        if busy and now is not None and most and now < most:
            sheet.found(
                Finding(
                    "S06", INFRASTRUCTURE, f"PCIe runs at {int(now)} of {int(most)} ({unit}) under load", "likely",
                    "The riser, the slot, or a setting of the BIOS.", "Drain the node and reseat the card.", culprit,
                    "D",
                    (Item(place, None, f"{name} {int(now)} of {int(most)}"),), weight=36, explains=frozenset({"slow"}),
                )
            )  # fmt: skip


def _heat(node: NodeEvidence, device: DeviceHealth, sheet: Sheet) -> None:
    now = figure(node, device.index, "temperature_celsius")
    limit = health_figure(device, "slowdown_celsius") or HOT_CELSIUS + MARGIN_CELSIUS
    memory, memory_limit = (
        health_figure(device, "memory_temperature_celsius"), health_figure(device, "memory_slowdown_celsius")
    )  # fmt: skip
    for what, value, most in (("GPU", now, limit), ("GPU memory", memory, memory_limit)):
        if value is not None and most is not None and value >= most - MARGIN_CELSIUS:
            sheet.found(
                Finding(
                    "hot", INFRASTRUCTURE, f"the {what} is at {value:g} °C, its limit is {most:g} °C", "certain",
                    "Cooling: a fan, the air flow, the neighbours.", "Look at the cooling; drain it if it stays so.",
                    Culprit(node=node.name, gpu=device.index), "D",
                    (Item(f"{node.name}/{device.index}, NVML", None, f"{value:g} °C of {most:g} °C"),), weight=37,
                    explains=frozenset({"slow"}),
                )
            )  # fmt: skip


def _throttle(node: NodeEvidence, sheet: Sheet) -> None:
    if node.sample is None:
        return
    for index in node.sample.index:
        mask = int(figure(node, index, "throttle_reasons") or 0)
        busy = (figure(node, index, "utilization_percent") or 0.0) >= LOAD_PERCENT
        named = [(word, cause) for bit, word, cause in _THROTTLES if mask & bit]
        if not named or not busy:
            continue
        clock = figure(node, index, "sm_clock_mhz")
        heat = figure(node, index, "temperature_celsius")
        told = f"throttle reasons {mask:#x}" + (f", {clock:g} MHz" if clock is not None else "")
        sheet.found(
            Finding(
                "S05", INFRASTRUCTURE, f"the GPU is slowed down: {named[0][0]}", "certain", named[0][1],
                "Look at cooling and power; drain the node if it stays so.", Culprit(node=node.name, gpu=index), "D",
                (Item(f"{node.name}/{index}, NVML", node.sample.wall or None,
                      told + (f", {heat:g} °C" if heat is not None else "")),),
                weight=35, explains=frozenset({"slow"}),
            )
        )  # fmt: skip


def unlike_peers(look: Look, sheet: Sheet) -> None:
    """One GPU of a run that works far less than the others while the run goes on."""
    pairs = look.gpus_of_run()
    used = {pair[0].name + f"/{pair[1]}": figure(*pair, "utilization_percent") for pair in pairs}
    known = {name: value for name, value in used.items() if value is not None}
    if len(known) < 3:
        return
    busy = [name for name, value in known.items() if value >= 80.0]
    low = [name for name, value in known.items() if value < 0.7 * BUSY_PERCENT]
    if len(low) != 1 or len(busy) < len(known) - 1:
        if not low:
            sheet.clear(f"the run's {plural(len(known), 'GPU')} work alike")
        return
    node, _, gpu = low[0].rpartition("/")
    ranks = look.ranks_on(node, int(gpu))
    sheet.found(
        Finding(
            "S03", INFRASTRUCTURE, f"its GPU works at {known[low[0]]:g}%, the others at over 80%", "possible",
            "It waits for something of its own (data, CPU), no rank uses it, or two ranks share another one.",
            "Look at its rank's stack and at which GPU each rank has.",
            look.rank_culprit(ranks[0]) if ranks else Culprit(node=node, gpu=int(gpu)), "l",
            (Item(low[0], None, f"utilisation {known[low[0]]:g}%"),), weight=53, explains=frozenset({"slow"}),
        )
    )  # fmt: skip
