"""Makes few alerts of many firing rules: what has one reason is one alert, with all names. No I/O, no clock.

What follows from something else is not told by itself: it stands in the evidence of that. The GPUs of one node with
one trouble are one; so are nodes on which the same began within a minute, as when a switch fails. Who is in a group
stays in it, whoever comes and goes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from probes.health.engine import Firing
from probes.health.figures import advice, explained, told
from probes.health.rule import Rule
from probes.health.states import Key
from probes.reading import Missing

TOGETHER_SECONDS = 60.0
NAMED = 8
EVIDENCE = 24
_APART = ("run", "queue")
"""Of these kinds each is for itself: what two runs have in common is seldom the same trouble."""


@dataclass(frozen=True)
class Group:
    """One alert in the making."""

    key: str
    """The same for as long as it lasts, also after a restart."""
    rule: str
    family: str
    level: str
    title: str
    entities: Tuple[str, ...]
    nodes: Tuple[str, ...]
    run: str
    since: float
    evidence: Tuple[str, ...]
    cause: str
    action: str
    key_hint: str
    latched: bool
    flapping: bool
    no_data: str
    fired: int
    members: Tuple[Tuple[str, str], ...] = ()
    """Kind and name of each thing: what `Engine.clear` takes."""


@dataclass
class _Open:
    """A group that has members."""

    key: str
    since: float
    newest: float


class Grouper:
    """Remembers who is with whom."""

    def __init__(self) -> None:
        self._of: Dict[Key, _Open] = {}

    def groups(self, firing: Iterable[Firing]) -> List[Group]:
        """All that is to be told of what fires now."""
        everything = sorted(firing, key=lambda each: (each.since, each.entity.name))
        hidden: Dict[str, List[Firing]] = {}
        for each in everything:
            if each.hidden_by:
                hidden.setdefault(each.hidden_by, []).append(each)
        # What is hidden for a while by something else is afterwards where it was.
        there = {each.key for each in everything}
        self._of = {key: group for key, group in self._of.items() if key in there}
        on_node: Dict[Tuple[str, str], _Open] = {}
        newest: Dict[str, _Open] = {}
        for key, group in self._of.items():
            _enter(key, group, on_node, newest)
        members: Dict[str, List[Firing]] = {}
        for each in everything:
            if each.hidden_by:
                continue
            group = self._of.get(each.key)
            if group is None:
                group = self._of[each.key] = _joined(each, on_node, newest)
                group.newest = max(group.newest, each.since)
                _enter(each.key, group, on_node, newest)
            members.setdefault(group.key, []).append(each)
        since = {group.key: group.since for group in self._of.values()}
        return [_made(key, since[key], each, hidden) for key, each in members.items()]

    def forget(self, rule: str, members: Iterable[Tuple[str, str]]) -> None:
        """Somebody cleared it: what fires of it from now on is another alert."""
        for kind, name in members:
            self._of.pop((rule, kind, name), None)

    def dump(self) -> List[List[Any]]:
        """Who is with whom, as JSON."""
        return [[*key, group.key, group.since, group.newest] for key, group in self._of.items()]

    def load(self, kept: Iterable[Sequence[Any]]) -> None:
        """Go on where an earlier one was; before the first `groups`."""
        groups: Dict[str, _Open] = {}
        found: Dict[Key, _Open] = {}
        for rule, kind, name, key, since, newest in kept:
            group = groups.setdefault(str(key), _Open(str(key), float(since), float(newest)))
            found[(str(rule), str(kind), str(name))] = group
        self._of = found


def _joined(each: Firing, on_node: Mapping[Tuple[str, str], _Open], newest: Mapping[str, _Open]) -> _Open:
    """The group that it belongs to: one of its rule on its node, or one that has just begun; else its own."""
    rule, entity = each.rule.id, each.entity
    if entity.kind not in _APART:
        if entity.node and (rule, entity.node) in on_node:
            return on_node[(rule, entity.node)]
        group = newest.get(rule)
        if group is not None and abs(each.since - group.newest) <= TOGETHER_SECONDS:
            return group
    return _Open("{}|{}|{:.3f}".format(rule, entity.name, each.since), each.since, each.since)


def _enter(key: Key, group: _Open, on_node: Dict[Tuple[str, str], _Open], newest: Dict[str, _Open]) -> None:
    """Have others find it."""
    rule, kind, _ = key
    if kind in _APART:
        return
    on_node[(rule, _node_of(key))] = group
    known = newest.get(rule)
    if known is None or known.newest <= group.newest:
        newest[rule] = group


def _node_of(key: Key) -> str:
    name = key[2]
    return name.split("/")[0] if key[1] == "gpu" else name.split(":")[0] if key[1] == "mount" else name


def _made(key: str, since: float, members: Sequence[Firing], hidden: Dict[str, List[Firing]]) -> Group:
    first = members[0]
    rule = first.rule
    runs = {each.entity.run for each in members}
    evidence = [_line(each) for each in members]
    for each in members:
        place = "{} on {}".format(each.rule.id, each.entity.name)
        evidence += ["follows from it: {}".format(_line(other)) for other in hidden.get(place, ())]
    if len(evidence) > EVIDENCE:
        evidence = [*evidence[: EVIDENCE - 1], "and {} more".format(len(evidence) - EVIDENCE + 1)]
    unknown = [each.no_data for each in members if each.no_data]
    return Group(
        key=key,
        rule=rule.id,
        family=rule.family or rule.id,
        level=rule.level,
        title=_text(rule.title, rule, first, names([each.entity.name for each in members])),
        entities=tuple(each.entity.name for each in members),
        nodes=tuple(dict.fromkeys(each.entity.node for each in members if each.entity.node)),
        run=runs.pop() if len(runs) == 1 else "",
        since=since,
        evidence=tuple(evidence),
        cause=_text(rule.cause, rule, first, first.entity.name),
        action=_text(rule.action, rule, first, first.entity.name),
        key_hint=rule.key,
        latched=rule.latch,
        flapping=any(each.flapping for each in members),
        no_data=unknown[0] if len(unknown) == len(members) else "",
        fired=max(each.fired for each in members),
        members=tuple((each.entity.kind, each.entity.name) for each in members),
    )


def _line(each: Firing) -> str:
    """What was seen: the detail of whoever saw it, else the figure and what it means."""
    return "{} {}: {}".format(each.entity.name, each.rule.id, each.detail or explained(each.rule.measure, each.value))


def _text(text: str, rule: Rule, each: Firing, name: str) -> str:
    value = each.value
    known = not isinstance(value, Missing)
    filled = text.replace("{name}", name).replace("{value}", told(rule.measure, value))
    filled = filled.replace("{advice}", advice(rule.measure, value) if known else "")
    return filled.replace("{detail}", each.detail).strip()


def names(found: Sequence[str]) -> str:
    """Names as people write them: the GPUs of a node together, and of many things the first and how many more."""
    gpus: Dict[str, List[int]] = {}
    others: List[str] = []
    for name in found:
        node, slash, index = name.rpartition("/")
        if slash and index.isdigit() and ":" not in node:
            gpus.setdefault(node, []).append(int(index))
        else:
            others.append(name)
    told = ["{}/{}".format(node, _ranges(sorted(indexes))) for node, indexes in gpus.items()] + others
    if len(told) <= NAMED:
        return ", ".join(told)
    return "{} and {} more".format(", ".join(told[:NAMED]), len(told) - NAMED)


def _ranges(indexes: Sequence[int]) -> str:
    parts: List[str] = []
    begin = end = indexes[0]
    for index in [*indexes[1:], -1]:
        if index == end + 1:
            end = index
            continue
        parts.append(str(begin) if begin == end else "{}-{}".format(begin, end))
        begin = end = index
    return ",".join(parts)
