"""Network: links and ports of the nodes, the way between them, and the way to a service."""

from __future__ import annotations

from collections import defaultdict

from jobs.triage.evidence import PortEvidence
from jobs.triage.findings import Confidence, Culprit, Finding, Item, Sheet, listed, plural
from jobs.triage.look import Look
from jobs.triage.patterns import BY_ID, NETWORK
from jobs.triage.scan import as_sentence, shown

PEER = frozenset({"peer", "hang", "slow"})
_WHAT_TO_DO = {
    "refused": ("Nothing listens there.", "Start the service, or look whether it listens on another address."),
    "no answer": ("A firewall swallows it, or the machine is off.", "Open the port between the nodes."),
    "no route": ("No route leads there.", "Look at routes and subnets of the two nodes."),
    "no such name": ("The name does not resolve there.", "Mend the hosts file or DNS of that node."),
}
SLOW_SHARE = 0.75


def links(look: Look, sheet: Sheet) -> None:
    """Ports of a node that are down, in error, or slower than those of the others."""
    looked = 0
    before = len(sheet.findings)
    rates: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for node in look.evidence.nodes.values():
        for port in node.health.ports if node.health else []:
            if port.rate_gigabits:
                rates[port.name].append((port.rate_gigabits, node.name))
    for node in look.scope:
        row = BY_ID["K15"]
        for port in node.health.ports if node.health else []:
            looked += 1
            culprit = Culprit(node=node.name, path=port.name)
            if not port.up:
                sheet.found(
                    Finding(
                        "K15", NETWORK, f"its port {port.name} is down", "certain", row.cause, row.action, culprit, "D",
                        (Item(f"{node.name}, {port.name}", node.health.wall if node.health else None, "down"),),
                        weight=row.weight, hardware=True, explains=PEER,
                    )
                )  # fmt: skip
                continue
            usual = max((rate for rate, _ in rates[port.name]), default=0.0)
            if port.rate_gigabits and len(rates[port.name]) > 1 and port.rate_gigabits < SLOW_SHARE * usual:
                sheet.found(
                    Finding(
                        "link_slow", NETWORK,
                        f"its port {port.name} runs at {port.rate_gigabits:g} Gb/s, the others' at {usual:g}",
                        "certain",
                        "The cable or the other end agreed on less.", "Reseat or change the cable; look at the switch.",
                        culprit, "D",
                        (Item(f"{node.name}, {port.name}", None, f"{port.rate_gigabits:g} of {usual:g} Gb/s"),),
                        weight=30, explains=frozenset({"slow", "peer"}),
                    )
                )  # fmt: skip
        told = [event for event in node.events if event.kind == "link"]
        lines = [hit for hit in look.kernel_hits if hit.node == node.name and hit.pattern.id == "K15"]
        items = [Item(f"{node.name}, kernel", event.wall or None, shown(event.text)) for event in told]
        items += [hit.item for hit in lines]
        if items and not any(f.culprit.node == node.name and f.id == "K15" for f in sheet.findings):
            sheet.found(
                Finding(
                    "K15", NETWORK, f"a network link went down ({plural(len(items), 'time')} lately)", "likely",
                    row.cause, row.action, Culprit(node=node.name), "D", tuple(items[:4]), at=items[0].wall,
                    weight=row.weight, hardware=True, explains=PEER, moment=items[0].wall is not None,
                )
            )  # fmt: skip
    if looked and len(sheet.findings) == before:
        sheet.clear(f"network ports: {looked} of {looked} up and at their rate")


def ports(look: Look, sheet: Sheet) -> None:
    """Ports that were tried from other nodes."""
    tries = look.evidence.ports
    if look.target.node:
        tries = [each for each in tries if look.target.node in (each.node, each.source)]
    bad = [each for each in tries if each.result != "open"]
    if tries and not bad:
        sheet.clear(f"{plural(len(tries), 'port')} between the nodes answer")
    by_source: dict[str, list[PortEvidence]] = defaultdict(list)
    by_node: dict[tuple[str, str], list[PortEvidence]] = defaultdict(list)
    for each in bad:
        by_source[each.source].append(each)
        by_node[each.node, each.result].append(each)
    told: set[int] = set()
    for source, failed in by_source.items():
        # One that reaches nobody, while others reach them: it is the one that cannot get out.
        reached = {each.node for each in tries if each.result == "open" and each.source != source}
        if len({each.node for each in failed}) > 1 and all(each.node in reached for each in failed):
            told.update(id(each) for each in failed)
            sheet.found(
                _no_way(failed, Culprit(node=source), f"{source} reaches none of {plural(len(failed), 'port')}")
            )
    for (node, result), failed in by_node.items():
        rest = [each for each in failed if id(each) not in told]
        if not rest:
            continue
        numbers = listed(sorted({str(each.port) for each in rest}), 4)
        sources = listed(sorted({each.source for each in rest}), 4)
        title = f"port {numbers} cannot be reached from {sources}: {result}"
        sheet.found(_no_way(rest, Culprit(node=node), title))


def _no_way(failed: list[PortEvidence], culprit: Culprit, title: str) -> Finding:
    cause, action = _WHAT_TO_DO.get(failed[0].result, (BY_ID["K11"].cause, BY_ID["K11"].action))
    items = tuple(
        Item(
            f"{each.source} to {each.node}:{each.port}", None, each.result + (f" ({each.purpose})" * bool(each.purpose))
        )
        for each in failed[:5]
    )
    return Finding(
        "K11", NETWORK, title, "certain", cause, action, culprit, "s", items, weight=19, hardware=True,
        explains=PEER | {"lost"},
    )  # fmt: skip


def service(look: Look, sheet: Sheet) -> None:
    """A service that cannot be reached: its status, its entries, the port, the route, the gateway, in this order."""
    serve = look.evidence.serve
    if serve is None:
        return
    place = f"service {serve.name}"
    ready = [each for each in serve.replicas if each.state == "RUNNING"]
    unready = [each for each in serve.replicas if each.state != "RUNNING"]
    down = sorted(node for node, state in serve.proxies.items() if state != "HEALTHY")
    if serve.status and serve.status not in ("RUNNING", "HEALTHY") and not ready:
        sheet.found(
            _service(f"service {serve.name} is {serve.status.lower()}",
                     as_sentence(serve.message) or "No replica of it runs.", "Look at the log of its replicas.",
                     Culprit(node=unready[0].node if unready else "", path=serve.name),
                     Item(place, None, f"{serve.status}: {shown(serve.message)}"), "certain")
        )  # fmt: skip
    elif serve.replicas and not ready:
        one = unready[0]
        sheet.found(
            _service(f"no replica of {serve.name} runs", as_sentence(one.reason) or f"Replica {one.id} is {one.state}.",
                     "Look at the log of its replicas.", Culprit(node=one.node, path=serve.name),
                     Item(f"replica {one.id} on {one.node}", None, f"{one.state}: {shown(one.reason)}"), "certain")
        )  # fmt: skip
    elif down:
        sheet.found(
            _service(f"the entry on {listed(down, 4)} is not healthy",
                     "Ray Serve's proxy there does not run or does not answer.", "Look at its log; restart Ray there.",
                     Culprit(node=down[0], nodes=tuple(down) if len(down) > 1 else ()),
                     Item(f"proxy on {down[0]}", None, serve.proxies[down[0]]), "certain")
        )  # fmt: skip
    elif serve.port_result and serve.port_result != "open":
        cause, action = _WHAT_TO_DO.get(serve.port_result, ("Not known.", "Try the port by hand."))
        sheet.found(
            _service(f"port {serve.port} of {serve.name}: {serve.port_result}", cause, action,
                     Culprit(path=f"port {serve.port}"), Item(place, None, f"port {serve.port}: {serve.port_result}"),
                     "certain")
        )  # fmt: skip
    elif serve.route and serve.routes and serve.route not in serve.routes:
        sheet.found(
            _service(f"nothing is served at {serve.route}", "The application has another route prefix.",
                     f"Ask for one of: {listed(serve.routes)}.", Culprit(path=serve.route),
                     Item(place, None, f"routes: {listed(serve.routes)}"), "certain")
        )  # fmt: skip
    elif serve.health_status is not None and serve.health_status != 200:
        sheet.found(
            _service(f"its health check answers {serve.health_status}", "The service runs and is not well.",
                     "Look at the log of its replicas.", Culprit(path=serve.name),
                     Item(place, None, f"health check: {serve.health_status}"), "likely")
        )  # fmt: skip
    elif serve.gateway_status is not None and serve.gateway_status != 200:
        sheet.found(
            _service(f"the gateway answers {serve.gateway_status}, the service itself is well",
                     "The gateway or load balancer has a wrong target or health check.",
                     "Look at its targets and its health check.", Culprit(path="gateway"),
                     Item("gateway", None, str(serve.gateway_status)), "likely")
        )  # fmt: skip
    else:
        sheet.clear(f"service {serve.name} is reached: replicas, entries, port and route are in order")
    wanted = serve.target_replicas
    if ready and wanted is not None and len(ready) < wanted:
        sheet.found(
            _service(f"{len(ready)} of {wanted} replicas of {serve.name} run",
                     as_sentence(unready[0].reason) if unready else "The others could not be placed.",
                     "Look why the others do not start.",
                     Culprit(node=unready[0].node if unready else "", path=serve.name),
                     Item(place, None, f"{len(ready)} of {wanted}"), "possible")
        )  # fmt: skip


def _service(title: str, cause: str, action: str, culprit: Culprit, item: Item, sure: Confidence) -> Finding:
    return Finding("S09", NETWORK, title, sure, cause, action, culprit, "", (item,), weight=21)
