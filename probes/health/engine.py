"""Judges the rules: what holds long enough fires, and goes on until it has been clear long enough. No I/O, no clock.

Of each rule on each thing there is one state: nothing, pending (it holds, but not for long enough), firing, clearing
(it is clear, but not for long enough). A figure that is missing moves nothing: it neither fires a rule nor clears it,
and what fires says after a while that nobody knows whether it still holds.
"""

from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, List, Mapping, NamedTuple, Optional, Sequence, Set, Tuple

from probes.health.rule import Entity, Measure, Rule, Seen, Thresholds
from probes.health.states import ABSENT, FLAPS, Glance, Key, Mended, Ready, State
from probes.reading import Missing

GRACE_SECONDS = 15.0
"""From the first sight of a node: while it starts, much is not as it will be."""
NO_DATA_SECONDS = 30.0
FLAP_SECONDS = 1800.0
"""For so long it is remembered how often something fired; what flaps has to be quiet for as long."""
VANISHED_SECONDS = 600.0
"""Something that was not seen for so long (a file system that is not watched any more) is forgotten."""
MENDED_SECONDS = 120.0
"""After somebody cleared what was latched: so long the very figure that it was about is not news, since some stand for
a minute. If it stands for longer, nothing was mended."""
LONGEST_STEP_SECONDS = 60.0
"""More than this between two steps counts as this: nobody looked meanwhile, or the clock was set."""

_NOT_SEEN = "it is not seen any more"


class Firing(NamedTuple):
    """A rule that fires on one thing."""

    rule: Rule
    entity: Entity
    since: float
    value: Measure
    """The newest figure that there was."""
    detail: str
    no_data: str
    """Why it is not known whether it still holds; empty while it is."""
    flapping: bool
    fired: int
    """How often it has begun to fire since it was first seen."""
    hidden_by: str
    """The rule, and on what, that this follows from in the end; empty where it stands for itself."""

    @property
    def key(self) -> Key:
        """What names it."""
        return (self.rule.id, self.entity.kind, self.entity.name)


class Engine:
    """All rules on all things."""

    def __init__(self, rules: Sequence[Rule], thresholds: Optional[Thresholds] = None) -> None:
        changes = thresholds if thresholds is not None else Thresholds()
        self._rules: Dict[str, Ready] = {
            rule.id: Ready(changes.of(rule), rank) for rank, rule in enumerate(rules) if rule.id not in changes.off
        }
        self._by_kind: Dict[str, List[Tuple[str, Callable[[float, float], bool], float, Ready]]] = {}
        for ready in self._rules.values():
            one = (ready.rule.measure, ready.compare, ready.figure, ready)
            self._by_kind.setdefault(ready.rule.of, []).append(one)
        self._glances = {kind: Glance([each[3] for each in of_kind]) for kind, of_kind in self._by_kind.items()}
        self._states: Dict[Tuple[str, str], Dict[str, State]] = {}
        """Kind and name of a thing to the rules on it that have a state."""
        self._first_seen: Dict[str, float] = {}
        """Node to when it was first seen, by the engine's own count."""
        self._unseen: Dict[Tuple[str, str], float] = {}
        """Things with a state that are not seen, and for how long."""
        self._mended: Dict[Tuple[str, str], Dict[str, Mended]] = {}
        """Kind and name of a thing to the rules on it that somebody cleared just now."""
        self._at: Optional[float] = None
        self._count = 0.0
        """Seconds that were judged so far."""

    def step(self, now: float, seen: Iterable[Seen]) -> None:
        """Judge everything at this moment. ``now``: wall seconds, for what is told; between steps at most a minute."""
        elapsed = 0.0 if self._at is None else min(max(now - self._at, 0.0), LONGEST_STEP_SECONDS)
        self._at = now
        self._count += elapsed
        there: Set[Tuple[str, str]] = set()
        for each in seen:
            kind, name, node, _ = each.entity
            place = (kind, name)
            there.add(place)
            fresh = False
            if node:
                fresh = self._count - self._first_seen.setdefault(node, self._count) < GRACE_SECONDS
            if place not in self._states and place not in self._mended:
                if each.calm or kind not in self._glances:
                    continue
                each.calm = not self._glances[kind].stirs(each.measures)
                if each.calm:
                    continue
            self._judge(each, place, fresh, elapsed)
        for place in list(self._states):
            if place in there:
                self._unseen.pop(place, None)
            else:
                self._vanished(place, elapsed)

    def firing(self) -> List[Firing]:
        """All that fires, with what each follows from."""
        return [self._told(state, hider) for state, hider in self._with_hiders()]

    def clear(self, rule: str, entities: Iterable[Tuple[str, str]]) -> None:
        """Somebody mended it: latches and flaps of this rule on these things (kind and name) are forgotten.

        So is what is latched and followed from it: it would come up as an alert of its own. What a latch was about does
        not fire again for being there still, until `MENDED_SECONDS` have passed; anything new does.
        """
        mended = {(rule, kind, name) for kind, name in entities}
        for state, hider in self._with_hiders():
            if state.ready.rule.latch and (state.key in mended or (hider is not None and hider.key in mended)):
                told = Mended(state.value, state.detail, self._count + MENDED_SECONDS)
                self._mended.setdefault(state.key[1:], {})[state.key[0]] = told
                self._drop(state.key)
        for key in mended:
            self._drop(key)

    def forget(self, entity: Entity) -> None:
        """This thing is no more."""
        place = (entity.kind, entity.name)
        self._states.pop(place, None)
        self._unseen.pop(place, None)
        self._mended.pop(place, None)
        if entity.kind == "node":
            self._first_seen.pop(entity.name, None)

    def dump(self) -> Dict[str, Any]:
        """What has to survive a restart, as JSON."""
        states = [
            {
                "rule": state.ready.rule.id,
                "entity": list(state.entity),
                "since": state.since,
                "fired": state.fired,
                "begun": list(state.begun),
                "held": state.held,
                "value": None if isinstance(state.value, Missing) else state.value,
                "detail": state.detail,
            }
            for of_thing in self._states.values()
            for state in of_thing.values()
            if state.since is not None or state.begun
        ]
        mended = [
            [rule, *place, None if isinstance(told.value, Missing) else told.value, told.detail, told.until]
            for place, of_thing in self._mended.items()
            for rule, told in of_thing.items()
        ]
        return {
            "count": self._count,
            "states": states,
            "first_seen": dict(self._first_seen),
            "mended": mended,
        }

    def load(self, kept: Mapping[str, Any]) -> None:
        """Go on where an earlier one was; before the first `step`. Rules that are no more are passed over."""
        states: List[State] = []
        for each in kept.get("states", ()):
            ready = self._rules.get(str(each["rule"]))
            if ready is None:
                continue
            kind, name, node, run = (str(part) for part in each["entity"])
            state = State(ready, Entity(kind, name, node, run))
            state.since = None if each["since"] is None else float(each["since"])
            state.fired, state.held = int(each["fired"]), bool(each["held"])
            state.begun.extend(float(at) for at in each["begun"])
            state.value = 0 if each["value"] is None else float(each["value"])
            state.detail = str(each["detail"])
            states.append(state)
        mended = [
            (str(rule), (str(kind), str(name)), Mended(float(value or 0), str(detail), float(until)))
            for rule, kind, name, value, detail, until in kept.get("mended", ())
        ]
        # Nothing is taken over of what cannot be read to its end.
        self._count = float(kept.get("count", 0.0))
        self._first_seen.update({str(node): float(at) for node, at in dict(kept.get("first_seen", {})).items()})
        for state in states:
            self._states.setdefault((state.entity.kind, state.entity.name), {})[state.ready.rule.id] = state
        for rule, place, told in mended:
            self._mended.setdefault(place, {})[rule] = told

    # --- one thing ----------------------------------------------------------------------------------------------------

    def _judge(self, each: Seen, place: Tuple[str, str], fresh: bool, elapsed: float) -> None:
        measures = each.measures
        states, mended = self._states.get(place), self._mended.get(place)
        for measure, compare, figure, ready in self._by_kind.get(place[0], ()):
            value = measures.get(measure)
            state = None if states is None else states.get(ready.rule.id)
            missing = value is None or value.__class__ is Missing
            if missing:
                if state is None:
                    continue
                holds = False
            else:
                holds = compare(value, figure)  # type: ignore[arg-type]
                if holds and mended is not None and self._is_mended(mended, ready.rule.id, each, value):
                    continue
                if not holds and state is None:
                    if mended is not None:
                        mended.pop(ready.rule.id, None)
                    continue
            rests = False
            if ready.rule.when and not missing:
                when = measures.get(ready.rule.when)
                if when is None or isinstance(when, Missing):
                    missing, holds = True, False
                elif when <= 0:
                    rests, holds = True, False
            if state is None:
                if not holds or (fresh and not ready.rule.at_once):
                    continue
                state = State(ready, each.entity)
                states = self._states.setdefault(place, {})
                states[ready.rule.id] = state
            state.entity = each.entity
            if missing:
                self._missing(state, value.reason if isinstance(value, Missing) else ABSENT.reason, elapsed)
            elif holds:
                state.value, state.detail = value, each.details.get(measure, "")  # type: ignore[assignment]
                self._holds(state, elapsed)
            else:
                self._holds_not(state, value, rests, elapsed)  # type: ignore[arg-type]
            if self._over(state):
                self._drop(state.key)
                states = self._states.get(place)
        if mended is not None and not mended:
            del self._mended[place]

    def _is_mended(self, mended: Dict[str, Mended], rule: str, each: Seen, value: Optional[Measure]) -> bool:
        """This is what somebody cleared, and nothing new."""
        told = mended.get(rule)
        if told is None:
            return False
        detail = each.details.get(self._rules[rule].rule.measure, "")
        if value == told.value and detail == told.detail and self._count < told.until:
            return True
        del mended[rule]
        return False

    def _holds(self, state: State, elapsed: float) -> None:
        state.missing, state.missing_for, state.clear_for = "", None, None
        if state.since is not None:
            return
        state.pending_for = 0.0 if state.pending_for is None else state.pending_for + elapsed
        if state.pending_for >= state.ready.rule.for_seconds:
            state.pending_for, state.since = None, self._at
            state.fired += 1
            state.begun.append(self._count)
            state.held = len(state.begun) == FLAPS and self._count - state.begun[0] <= FLAP_SECONDS

    def _holds_not(self, state: State, value: float, rests: bool, elapsed: float) -> None:
        """``rests``: what the rule is about does not go on (no load): that is as good as clear."""
        state.missing, state.missing_for, state.pending_for = "", None, None
        if state.since is None or state.ready.rule.latch:
            return
        if not rests and not state.ready.clear(value):
            # Between the two figures: it is neither.
            state.clear_for = None
            state.value = value
            return
        state.clear_for = 0.0 if state.clear_for is None else state.clear_for + elapsed
        if state.clear_for >= max(state.ready.rule.clear_seconds, FLAP_SECONDS if state.held else 0.0):
            state.since, state.clear_for, state.held = None, None, False

    def _missing(self, state: State, reason: str, elapsed: float) -> None:
        """Time that nobody saw counts for nothing."""
        state.missing_for = 0.0 if state.missing_for is None else state.missing_for + elapsed
        if state.missing_for >= NO_DATA_SECONDS:
            state.missing, state.pending_for = reason, None

    def _over(self, state: State) -> bool:
        """Nothing of it has to be kept."""
        if state.since is not None or state.pending_for is not None:
            return False
        return not state.begun or self._count - state.begun[-1] > FLAP_SECONDS

    def _vanished(self, place: Tuple[str, str], elapsed: float) -> None:
        unseen = self._unseen[place] = self._unseen.get(place, 0.0) + elapsed
        for state in list(self._states[place].values()):
            self._missing(state, _NOT_SEEN, elapsed)
            # A latch on a machine waits for somebody, though the machine is gone; one on a run that is over does not.
            latched = state.ready.rule.latch and state.since is not None
            of_run = place[0] == "run"
            if self._over(state) or (unseen > VANISHED_SECONDS and (of_run or not latched)) or (of_run and not latched):
                self._drop(state.key)

    def _drop(self, key: Key) -> None:
        place = (key[1], key[2])
        states = self._states.get(place)
        if states is not None and states.pop(key[0], None) is not None and not states:
            del self._states[place]
            self._unseen.pop(place, None)

    # --- what is told -------------------------------------------------------------------------------------------------

    def _with_hiders(self) -> List[Tuple[State, Optional[State]]]:
        """Each state that fires, and the one that it follows from in the end."""
        found = [state for states in self._states.values() for state in states.values() if state.since is not None]
        families: Dict[Tuple[str, str], List[State]] = {}
        for state in found:
            for place in _places(state.entity):
                families.setdefault((place, _family(state)), []).append(state)
        direct = {state.key: _worse_kin(state, families) or _cause(state, families) for state in found}
        return [(state, _root(state, direct)) for state in found]

    def _told(self, state: State, hider: Optional[State]) -> Firing:
        return Firing(
            state.ready.rule,
            state.entity,
            state.since if state.since is not None else 0.0,
            state.value,
            state.detail,
            state.missing,
            state.held,
            state.fired,
            "" if hider is None else "{} on {}".format(hider.ready.rule.id, hider.entity.name),
        )


def _family(state: State) -> str:
    return state.ready.rule.family or state.ready.rule.id


def _places(entity: Entity) -> List[str]:
    """Where others look for what explains them: the thing itself, and for what is on a node also among its things."""
    own = "{}:{}".format(entity.kind, entity.name)
    return [own] if not entity.node or entity.kind == "node" else [own, "of:" + entity.node]


def _worse_kin(state: State, families: Mapping[Tuple[str, str], Sequence[State]]) -> Optional[State]:
    """Of one family on one thing only the worst is shown."""
    own = "{}:{}".format(state.entity.kind, state.entity.name)
    best = min(families[(own, _family(state))], key=lambda each: each.ready.rank)
    return None if best is state else best


def _cause(state: State, families: Mapping[Tuple[str, str], Sequence[State]]) -> Optional[State]:
    entity, wanted = state.entity, state.ready.rule.hidden_by
    if not wanted:
        return None
    places = ["{}:{}".format(entity.kind, entity.name), "cluster:cluster"]
    if entity.node:
        places.append("node:" + entity.node)
    if entity.run:
        places.append("run:" + entity.run)
    if entity.kind == "node":
        places.append("of:" + entity.name)
    for family in wanted:
        for place in places:
            others = [other for other in families.get((place, family), ()) if other is not state]
            if others:
                return min(others, key=lambda each: each.ready.rank)
    return None


def _root(state: State, direct: Mapping[Key, Optional[State]]) -> Optional[State]:
    """What it follows from in the end."""
    passed = {state.key}
    root, hider = None, direct[state.key]
    while hider is not None and hider.key not in passed:
        passed.add(hider.key)
        root, hider = hider, direct[hider.key]
    return root
