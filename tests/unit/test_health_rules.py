"""The rules as data: each says what it has to, asks for figures that exist, and does not contradict itself."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from probes.health.figures import MEASURES, advice, written
from probes.health.rule import CRITICAL, INFO, LEVELS, WARNING, Missing, Rule
from probes.health.rules import BY_ID, RULES, VERSION
from probes.health.states import COMPARE
from probes.health.xids import OF_PROGRAM, RECOVERY_ACTIONS, XIDS, meaning, recovery_advice

KEYS = {"D", "C", "K", "R", "i", "l", "s"}
EVERY = pytest.mark.parametrize("rule", RULES, ids=[rule.id for rule in RULES])
FAMILIES = {rule.family or rule.id for rule in RULES}


def test_every_rule_has_its_own_name_and_the_table_a_version() -> None:
    assert len(BY_ID) == len(RULES) >= 80
    assert VERSION


@EVERY
def test_what_a_rule_looks_at_is_a_figure_of_its_kind(rule: Rule) -> None:
    assert MEASURES[rule.measure].of == rule.of
    if rule.when:
        assert MEASURES[rule.when].of == rule.of
        assert MEASURES[rule.when].unit in ("flag", "count")
    assert rule.id.startswith({"queue": "queue.", "cluster": "cluster."}.get(rule.of, rule.of + "."))


@EVERY
def test_a_rule_says_how_bad_why_and_what_to_do(rule: Rule) -> None:
    assert rule.level in LEVELS
    assert rule.key in KEYS
    assert rule.for_seconds >= 0
    assert rule.clear_seconds >= 0
    for text in (rule.title, rule.cause, rule.action):
        assert text
        assert set(re.findall(r"\{(\w*)\}", text)) <= {"name", "value", "detail", "advice"}
    # The cluster and the controller are one each.
    assert "{name}" in rule.title or rule.of == "cluster"
    if "{advice}" in rule.action:
        assert MEASURES[rule.measure].unit in ("xid", "action")


@EVERY
def test_what_clears_a_rule_does_not_fire_it(rule: Rule) -> None:
    if rule.clears is None:
        return
    fires, clears = COMPARE[rule.fires[0]], COMPARE[rule.clears[0]]
    for value in (rule.fires[1], rule.clears[1], -1e9, 0.0, 1e9, (rule.fires[1] + rule.clears[1]) / 2):
        assert not (fires(value, rule.fires[1]) and clears(value, rule.clears[1]))
    # Somewhere it does clear: else it would go on for ever.
    edge = rule.clears[1]
    assert any(clears(value, edge) for value in (edge, edge - 1, edge + 1))


@EVERY
def test_what_is_latched_or_at_once_is_no_small_matter(rule: Rule) -> None:
    if rule.latch:
        assert rule.level == CRITICAL
    if rule.at_once:
        assert rule.of in ("gpu", "node", "mount")
        assert rule.level != INFO


def test_what_hides_a_rule_is_a_family_and_no_family_hides_itself_in_the_end() -> None:
    above: dict[str, set[str]] = {}
    for rule in RULES:
        assert set(rule.hidden_by) <= FAMILIES, rule.id
        above.setdefault(rule.family or rule.id, set()).update(rule.hidden_by)
    for family in above:
        passed: set[str] = set()
        waiting = list(above[family])
        while waiting:
            one = waiting.pop()
            assert one != family
            if one not in passed:
                passed.add(one)
                waiting += above.get(one, ())


def test_every_figure_has_a_reader_and_a_known_unit() -> None:
    read = {rule.measure for rule in RULES} | {rule.when for rule in RULES}
    assert set(MEASURES) - read == {"run_stuck_seconds"}  # told for people
    units = {"%", "s", "°C", "bytes", "share", "count", "flag", "xid", "action"}
    assert {figure.unit for figure in MEASURES.values()} <= units


def test_worse_kin_ask_for_worse_figures() -> None:
    """Of two rules of one family that look at one figure the more critical one fires later."""
    for worse in RULES:
        for lighter in RULES:
            same = worse.measure == lighter.measure and worse.when == lighter.when
            if not same or LEVELS.index(worse.level) >= LEVELS.index(lighter.level):
                continue
            assert (worse.family or worse.id) == (lighter.family or lighter.id)
            beyond = COMPARE[lighter.fires[0]](
                worse.fires[1] + (1e-6 if ">" in worse.fires[0] else -1e-6), lighter.fires[1]
            )
            assert beyond, (worse.id, lighter.id)


@pytest.mark.parametrize(
    ("code", "level"),
    [
        (13, WARNING),
        (31, WARNING),
        (43, INFO),
        (45, INFO),
        (48, CRITICAL),
        (63, WARNING),
        (64, CRITICAL),
        (74, CRITICAL),
        (79, CRITICAL),
        (94, WARNING),
        (95, CRITICAL),
        (119, CRITICAL),
        (999, INFO),
    ],
)
def test_xids_have_the_levels_of_the_catalogue(code: int, level: str) -> None:
    assert meaning(code).level == level


def test_the_drivers_line_says_how_bad_a_link_is_and_what_it_asks_for() -> None:
    assert meaning(149, "Xid 149, NETIR_LINK_EVT Fatal XC0 i0 Link 08").level == CRITICAL
    assert meaning(149, "Xid 149, NETIR_LINK_EVT Nonfatal XC0 i0 Link 08").level == WARNING
    assert meaning(154, "GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)").level == CRITICAL
    assert meaning(154, "GPU recovery action changed from 0x2 to 0x0 (None)").level == INFO
    assert "not in this table" in meaning(4711).words


def test_each_xid_says_what_to_do_and_programs_are_blamed_for_no_critical_one() -> None:
    for code, xid in XIDS.items():
        assert xid.words, code
        assert xid.action.endswith("."), code
        assert xid.level in LEVELS
    assert all(XIDS[code].level != CRITICAL for code in OF_PROGRAM)
    assert all(recovery_advice(action) for action in RECOVERY_ACTIONS)


def test_figures_are_written_with_what_they_mean() -> None:
    assert written("gpu_xid_critical", 79) == "79 (fallen off the bus)"
    assert written("gpu_recovery_action", 2.0) == "node reboot"
    assert written("gpu_recovery_action", 42) == "action 42, which is not in this table"
    assert written("gpu_orphaned_bytes", 3 * 1024**3) == "3.0 GiB"
    assert written("node_driver_blocked_seconds", 47.3) == "47 s"
    assert written("node_clock_offset_seconds", 0.61) == "0.6 s"
    assert written("gpu_held_idle_seconds", 900) == "15 min"
    assert written("mount_free_percent", 4.25) == "4.2 %"
    assert written("gpu_peer_share", 0.512) == "0.51"
    assert written("gpu_lost", Missing("stale", "too old")) == "too old"
    assert "reboot" in advice("gpu_recovery_action", 2)
    assert advice("gpu_lost", 1) == ""


@given(st.sampled_from(sorted(MEASURES)), st.floats(0, 1e12))
def test_every_value_of_every_figure_can_be_written(measure: str, value: float) -> None:
    assert written(measure, value)
    advice(measure, value)


def test_a_rule_can_be_changed_without_changing_the_table() -> None:
    changed = replace(RULES[0], level=INFO)
    assert changed != RULES[0]
    assert BY_ID[changed.id].level == CRITICAL
