"""The preflight judged: each node by itself, and the nodes beside each other. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from jobs.validation.criteria import judge_rate, majority, peers_of
from jobs.validation.measured import Measured
from jobs.validation.plan import BY_ID, FIGURES
from jobs.validationview import CheckResult, Culprit, Figure, Verdict, worst

MUST_AGREE = ("driver", "cuda", "nccl", "torch", "python", "ray")
SHOULD_AGREE = ("kernel", "glibc", "image", "nccl_env")
CLOCK_FAIL_SECONDS, CLOCK_WARN_SECONDS = 2.0, 0.5
DISK_IS_SLOW_MB = 50.0
"""A disk that is slower than its like and faster than this is no reason to leave a node out: a warning."""


def judge_preflight(
    wanted: Sequence[str],
    measured: Mapping[str, Sequence[Measured]],
    offsets: Mapping[str, tuple[float, float]],
    troubles: Mapping[str, str],
) -> list[CheckResult]:
    """One verdict for each check and node.

    Args:
        wanted: The checks' ids.
        measured: What each node told.
        offsets: Node to its clock less the head's, and how far off that may be, in seconds.
        troubles: Nodes whose program did not come to its end, and how it ended.
    """
    by_node = {node: {each.check: each for each in told} for node, told in measured.items()}
    found: list[CheckResult] = []
    for check in wanted:
        for node, told in by_node.items():
            found.append(_one(check, node, told.get(check), troubles.get(node, "")))
    by_place = {(result.check, result.node): result for result in found}
    told = {check: {node: each[check] for node, each in by_node.items() if check in each} for check in wanted}
    _versions(by_place, told.get("preflight.versions", {}))
    _clocks(by_place, offsets)
    _gpus(by_place, told.get("preflight.inventory", {}))
    _models(by_place, told.get("preflight.inventory", {}))
    _mtu(by_place, told.get("preflight.names", {}))
    _ports(by_place, told.get("preflight.ports", {}))
    _mounts(by_place, told.get("preflight.mounts", {}))
    _shared(by_place, told.get("preflight.shared", {}))
    _disks(by_place, told.get("preflight.disk", {}))
    return found


def judge_data(measured: Mapping[str, Sequence[Measured]]) -> list[CheckResult]:
    """The dataset as each node reads it: what is wrong on all of them is the file's fault, else the node's."""
    told = {node: each[0] for node, each in measured.items() if each}
    everywhere = [set(each.facts.get("bad", {})) for each in told.values() if not each.skipped]
    common = set[str]().union(*everywhere).intersection(*everywhere) if everywhere else set[str]()
    found: list[CheckResult] = []
    for node in measured:
        result = _one("cluster.data", node, told.get(node), "")
        result.stage = "cluster"
        if result.verdict == "pass":
            each = told[node]
            result.sentence = f"{each.facts['files']} files, {each.facts['bytes'] / 1e6:.0f} MB, each as it was"
        bad = set[str](told[node].facts.get("bad", {})) if node in told else set[str]()
        if bad and bad <= common:
            result.culprits = [Culprit(kind="file", detail=sorted(bad)[0])]
        elif bad:
            result.culprits = [Culprit(kind="node", nodes=[node], detail=sorted(bad - common)[0])]
        found.append(result)
    return found


def common_versions(measured: Mapping[str, Sequence[Measured]]) -> dict[str, str]:
    """What most nodes run on, by name."""
    told: dict[str, dict[str, str]] = defaultdict(dict)
    for node, each in measured.items():
        for one in each:
            if one.check == "preflight.versions":
                for name, value in one.facts.items():
                    told[name][node] = str(value)
    agreed = {name: majority(values)[0] for name, values in told.items()}
    return {name: value for name, value in agreed.items() if value}


def _one(check: str, node: str, measured: Measured | None, trouble: str) -> CheckResult:
    plan = BY_ID[check]
    made = CheckResult(
        check=check, title=plan.title, stage="preflight", node=node, verdict="pass", sentence=plan.passes,
        criterion=plan.passes,
    )  # fmt: skip
    if measured is None:
        made.verdict, made.sentence = "unknown", trouble or "it told nothing"
        return made
    made.seconds, made.evidence = measured.seconds, list(measured.evidence)
    made.facts = measured.facts
    if measured.skipped:
        made.verdict, made.sentence = "skipped", measured.skipped
    elif measured.wrong:
        made.verdict, made.sentence = "fail", measured.wrong
        made.culprits = [Culprit(kind="node", nodes=[node], detail=plan.title)]
        made.evidence += [measured.warned] if measured.warned else []
    elif measured.warned:
        made.verdict, made.sentence = "warn", measured.warned
    return made


Places = Mapping[tuple[str, str], CheckResult]


def _worse(result: CheckResult | None, verdict: Verdict, sentence: str, detail: str) -> None:
    """One more thing that was found on a node: the worst counts, and its sentence; the others are evidence."""
    if result is None or result.verdict in ("skipped", "unknown"):
        return
    both = worst([result.verdict, verdict])
    if both == result.verdict:
        result.evidence.append(sentence)
        return
    if result.verdict != "pass":
        result.evidence.append(result.sentence)
    result.verdict, result.sentence = both, sentence
    if both == "fail":
        result.culprits = [Culprit(kind="node", nodes=[result.node], detail=detail)]


def _versions(places: Places, told: Mapping[str, Measured]) -> None:
    for name in (*MUST_AGREE, *SHOULD_AGREE):
        values = {node: str(each.facts[name]) for node, each in told.items() if each.right and name in each.facts}
        if len(set(values.values())) < 2:
            continue
        common, odd = majority(values)
        verdict = "fail" if name in MUST_AGREE and common is not None else "warn"
        for node in odd:
            others = f"most have {common}" if common is not None else "and no version has a majority"
            sentence = f"{name} {values[node]}, {others}"
            _worse(places.get(("preflight.versions", node)), verdict, sentence, name)


def _clocks(places: Places, offsets: Mapping[str, tuple[float, float]]) -> None:
    for (check, node), result in places.items():
        if check != "preflight.clock":
            continue
        if node not in offsets:
            # The node told how late it is there; that alone says nothing.
            if result.verdict == "pass":
                result.verdict, result.sentence = "unknown", "its clock was not compared with the head's"
            continue
        ahead, uncertain = offsets[node]
        result.facts = {**result.facts, "ahead_seconds": ahead, "uncertain_seconds": uncertain}
        if result.verdict != "pass":
            continue
        sure = max(0.0, abs(ahead) - uncertain)
        way = "ahead of" if ahead > 0 else "behind"
        result.sentence = f"{abs(ahead) * 1000:.0f} ms {way} the head, give or take {uncertain * 1000:.0f} ms"
        if sure >= CLOCK_FAIL_SECONDS:
            _worse(result, "fail", f"{abs(ahead):.1f} s {way} the head", "clock")
        elif sure >= CLOCK_WARN_SECONDS:
            _worse(result, "warn", f"{abs(ahead):.2f} s {way} the head", "clock")


def _gpus(places: Places, told: Mapping[str, Measured]) -> None:
    owners: dict[str, list[str]] = defaultdict(list)
    for node, each in told.items():
        gpus: list[dict[str, Any]] = each.facts.get("gpus") or []
        result = places.get(("preflight.inventory", node))
        if result is not None and result.verdict == "pass" and gpus:
            result.sentence = f"{len(gpus)} × {gpus[0]['name'] or 'GPU'}"
        for uuid in {str(gpu.get("uuid")) for gpu in gpus if gpu.get("uuid")}:
            owners[uuid].append(node)
    for uuid, nodes in owners.items():
        for node in nodes if len(nodes) > 1 else ():
            sentence = f"the GPU {uuid} is on {', '.join(nodes)}: one of them shows another machine's"
            _worse(places.get(("preflight.inventory", node)), "fail", sentence, "inventory")


def _models(places: Places, told: Mapping[str, Measured]) -> None:
    """A node of other GPUs than most is no fault, and yet every figure of runs that span it is of two kinds."""
    models: dict[str, str] = {}
    for node, each in told.items():
        gpus: list[dict[str, Any]] = each.facts.get("gpus") or []
        if names := sorted({str(gpu["name"]) for gpu in gpus if gpu.get("name")}):
            models[node] = " and ".join(names)
    if len(set(models.values())) < 2:
        return
    common, odd = majority(models)
    for node in odd:
        others = f"most nodes have {common}" if common is not None else "and no model has a majority"
        _worse(places.get(("preflight.inventory", node)), "warn", f"its GPUs are {models[node]}, {others}", "model")


def _mtu(places: Places, told: Mapping[str, Measured]) -> None:
    values = {
        node: each.facts["mtu"]
        for node, each in told.items()
        if "mtu" in each.facts and each.facts.get("interface") != "lo"
    }
    if len(set(values.values())) < 2:
        return
    common, odd = majority(values)
    for node in odd:
        others = f"most take {common}" if common is not None else "and no size has a majority"
        sentence = f"its interface takes packets of {values[node]} bytes, {others}"
        _worse(places.get(("preflight.names", node)), "warn", sentence, "MTU")


def _ports(places: Places, told: Mapping[str, Measured]) -> None:
    """No answer is said of a way, which has two ends: which of them is to blame, the other ways tell."""
    silent: dict[tuple[str, str], list[int]] = {}
    for node, each in told.items():
        for other, ports in dict(each.facts.get("silent", {})).items():
            first, second = sorted((node, str(other)))
            silent.setdefault((first, second), []).extend(ports)
    if not silent:
        return
    nodes = list(told)
    degrees = {node: sum(node in edge for edge in silent) for node in nodes}
    for node in nodes:
        result = places.get(("preflight.ports", node))
        mine = [edge for edge in silent if node in edge]
        if result is None or result.verdict != "fail" or not mine:
            continue
        most = max(nodes, key=lambda each: degrees[each])
        alone = (
            len(nodes) > 2 and degrees[most] * 2 > len(nodes) - 1 and list(degrees.values()).count(degrees[most]) == 1
        )
        detail = f"port {', '.join(map(str, sorted({port for edge in mine for port in silent[edge]})))}"
        if alone and all(most in edge for edge in mine):
            result.culprits = [Culprit(kind="node", nodes=[most], detail=detail)]
        else:
            result.culprits = [Culprit(kind="link", nodes=list(edge), detail=detail) for edge in mine]


def _mounts(places: Places, told: Mapping[str, Measured]) -> None:
    """A node that misses a path is to blame for that path."""
    for node, each in told.items():
        result, bad = places.get(("preflight.mounts", node)), each.facts.get("bad")
        if result is not None and result.verdict == "fail" and bad:
            result.culprits = [Culprit(kind="node", nodes=[node], detail=", ".join(bad))]


def _shared(places: Places, told: Mapping[str, Measured]) -> None:
    """What one node has written and another does not see has two ends too: who is at all of them is to blame."""
    pairs = [
        (node, str(writer), str(path))
        for node, each in told.items()
        for path, writers in dict(each.facts.get("unseen", {})).items()
        for writer in writers
    ]
    nodes = sorted({node for node, _, _ in pairs} | {writer for _, writer, _ in pairs})
    everywhere = [node for node in nodes if all(node in pair[:2] for pair in pairs)]
    if len(told) < 3 or len(everywhere) != 1:
        return
    (odd,) = everywhere
    where = ", ".join(sorted({path for _, _, path in pairs}))
    for node in told:
        result = places.get(("preflight.shared", node))
        if result is None or result.verdict in ("skipped", "unknown"):
            continue
        result.verdict, result.culprits = "pass", []
        if node == odd:
            _worse(result, "fail", f"{where} is not what the other nodes have there", where)
        elif any(node == looker for looker, _, _ in pairs):
            result.sentence = f"seen of all but {odd}"


def _disks(places: Places, told: Mapping[str, Measured]) -> None:
    for name in ("disk_write", "disk_read"):
        values = {node: median(each.figures[name]) for node, each in told.items() if each.figures.get(name)}
        peers = peers_of(values)
        for node, value in values.items():
            result = places.get(("preflight.disk", node))
            if result is None:
                continue
            kind = FIGURES[name]
            figure = Figure(name=name, unit=kind.unit, samples=told[node].figures[name], peers=peers.get(node))
            result.figures.append(figure)
            verdict, _ = judge_rate(figure, cpu=True)
            result.criterion = f"warn below {DISK_IS_SLOW_MB:g} MB/s where its like are faster"
            words = f"{kind.title} {value:.0f} {kind.unit}"
            result.sentence = (
                words if result.sentence == BY_ID["preflight.disk"].passes else f"{result.sentence}; {words}"
            )
            # Many nodes write to one storage at the same time here: whose turn comes last is no fault of his.
            if verdict != "pass" and value < DISK_IS_SLOW_MB:
                _worse(result, "warn", f"{words}, the others {peers[node]:.0f}", "disk")
