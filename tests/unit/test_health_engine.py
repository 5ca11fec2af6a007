"""The engine, rule by rule: pending, firing, clearing, missing, latched, flapping, hidden, kept over a restart."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from probes.health.engine import (
    FLAP_SECONDS,
    GRACE_SECONDS,
    MENDED_SECONDS,
    NO_DATA_SECONDS,
    VANISHED_SECONDS,
    Engine,
    Firing,
)
from probes.health.rule import CRITICAL, INFO, WARNING, Entity, Measure, Missing, Rule, Seen, Thresholds

START = 1_750_000_000.0
GONE = Missing("stale", "no sample for 20 s or more")

HOT = Rule(
    "gpu.hot", "gpu", WARNING, "celsius", (">=", 85), "{name}: {value}", "cause", "action", clears=("<", 80),
    for_seconds=60, clear_seconds=120,
)  # fmt: skip
LOST = Rule("gpu.lost", "gpu", CRITICAL, "lost", (">=", 1), "{name}", "c", "a", at_once=True)
LATCHED = Rule("gpu.ecc", "gpu", CRITICAL, "errors", (">=", 1), "{name}", "c", "a", latch=True)
LOADED = Rule("gpu.slow", "gpu", WARNING, "slow", (">=", 1), "{name}", "c", "a", when="load", clear_seconds=20)
GPU = Entity("gpu", "gpu-1/3", "gpu-1", "run-a")


class Bench:
    """An engine, its clock, and what it is shown."""

    def __init__(self, *rules: Rule, thresholds: Thresholds | None = None, settled: bool = True) -> None:
        self.rules = rules
        self.engine = Engine(rules, thresholds)
        self.now = START
        if settled:
            self.show({}, GRACE_SECONDS + 1, entity=Entity("node", "gpu-1", "gpu-1"))

    def show(
        self, measures: Mapping[str, Measure], seconds: float = 0.0, every: float = 1.0, entity: Entity = GPU
    ) -> list[Firing]:
        """The same figures for so long, one step at once."""
        end = self.now + seconds
        while True:
            details = dict.fromkeys(measures, "as it was told")
            self.engine.step(self.now, [Seen(entity, dict(measures), details)])
            if self.now + every > end:
                return self.firing
            self.now += every

    def look(self, *seen: Seen, seconds: float = 0.0) -> list[Firing]:
        """Several things at once, for so long."""
        for _ in range(int(seconds) + 1):
            self.now += 1.0
            self.engine.step(self.now, [Seen(each.entity, dict(each.measures)) for each in seen])
        return self.firing

    @property
    def firing(self) -> list[Firing]:
        return self.engine.firing()

    @property
    def ids(self) -> list[str]:
        return [each.rule.id for each in self.firing]


def test_it_fires_when_it_held_for_long_enough_and_ends_when_it_was_clear_for_long_enough() -> None:
    bench = Bench(HOT)
    assert bench.show({"celsius": 90}, 59) == []
    [firing] = bench.show({"celsius": 91}, 2)
    assert (firing.rule, firing.entity, firing.value, firing.fired) == (HOT, GPU, 91, 1)
    assert firing.detail == "as it was told"
    assert START < firing.since <= bench.now
    assert bench.show({"celsius": 79}, 119)
    assert bench.show({"celsius": 79}, 2) == []


def test_between_the_two_figures_it_neither_fires_nor_ends() -> None:
    bench = Bench(HOT)
    assert bench.show({"celsius": 84}, 600) == []
    assert bench.show({"celsius": 85}, 62)
    [firing] = bench.show({"celsius": 82}, 600)
    assert firing.value == 82
    bench.show({"celsius": 79}, 100)
    assert bench.show({"celsius": 81}, 5), "the time that it was clear starts anew"
    assert bench.show({"celsius": 79}, 100)
    assert bench.show({"celsius": 79}, 30) == []


def test_a_dip_before_it_fired_starts_the_time_anew() -> None:
    bench = Bench(HOT)
    bench.show({"celsius": 90}, 50)
    bench.show({"celsius": 70})
    assert bench.show({"celsius": 90}, 50) == []


@pytest.mark.parametrize("nothing", [{}, {"celsius": GONE}], ids=["not told", "missing"])
def test_what_is_missing_neither_fires_nor_clears(nothing: dict[str, Measure]) -> None:
    bench = Bench(HOT)
    assert bench.show(nothing, 600) == []
    bench.show({"celsius": 90}, 61)
    [firing] = bench.show(nothing, NO_DATA_SECONDS - 2)
    assert firing.no_data == ""
    [firing] = bench.show(nothing, 3600)
    assert firing.no_data == (GONE.reason if nothing else "nothing tells of it")
    assert firing.value == 90
    [firing] = bench.show({"celsius": 90})
    assert firing.no_data == ""
    assert bench.show({"celsius": 70}, 119)
    assert bench.show({"celsius": 70}, 5) == []


def test_seconds_that_nobody_saw_count_neither_for_firing_nor_for_clearing() -> None:
    bench = Bench(HOT)
    for _ in range(5):
        bench.show({"celsius": 90}, 10)
        bench.show({"celsius": GONE}, 20)
    assert bench.firing == []
    assert bench.show({"celsius": 90}, 15), "10 s of each 30 s were seen"
    for _ in range(5):
        assert bench.show({"celsius": 70}, 20)
        assert bench.show({"celsius": GONE}, 20)
    assert bench.show({"celsius": 70}, 25) == []


def test_a_condition_that_began_is_forgotten_when_nothing_is_known_for_long() -> None:
    bench = Bench(HOT)
    bench.show({"celsius": 90}, 50)
    bench.show({"celsius": GONE}, NO_DATA_SECONDS + 5)
    assert bench.show({"celsius": 90}, 50) == []


def test_without_load_a_rule_about_load_does_not_hold_and_ends() -> None:
    bench = Bench(LOADED)
    assert bench.show({"slow": 1, "load": 0}, 60) == []
    assert bench.show({"slow": 1}, 60) == [], "nobody says whether there is load"
    assert bench.show({"slow": 1, "load": 1})
    assert bench.show({"slow": 1, "load": GONE}, 60)
    assert bench.show({"slow": 1, "load": 0}, 19)
    assert bench.show({"slow": 1, "load": 0}, 3) == []


def test_what_is_latched_stays_until_somebody_clears_it() -> None:
    bench = Bench(LATCHED)
    bench.show({"errors": 1})
    [firing] = bench.show({"errors": 0}, 86_400, every=60)
    assert firing.rule.latch
    bench.engine.clear("gpu.ecc", [("gpu", "gpu-1/3")])
    assert bench.show({"errors": 0}, 10) == []
    assert bench.show({"errors": 1})


def test_what_is_cleared_by_hand_and_still_holds_fires_again() -> None:
    bench = Bench(LOST)
    bench.show({"lost": 1})
    bench.engine.clear("gpu.lost", [("gpu", "gpu-1/3")])
    assert bench.firing == []
    assert bench.show({"lost": 1}, 1)


def test_what_was_cleared_from_a_latch_is_no_news_while_its_figure_stands() -> None:
    """The number of a critical XID stands for a minute: whoever clears it at once is not told of it again."""
    bench = Bench(LATCHED)
    bench.show({"errors": 79})
    bench.engine.clear("gpu.ecc", [("gpu", "gpu-1/3")])
    assert bench.show({"errors": 79}, 60) == []
    bench.show({"errors": 0}, 5)
    assert bench.show({"errors": 79}, 1), "it came again"
    bench.engine.clear("gpu.ecc", [("gpu", "gpu-1/3")])
    assert bench.show({"errors": 95}, 1), "it is another one"
    bench.engine.clear("gpu.ecc", [("gpu", "gpu-1/3")])
    assert bench.show({"errors": 95}, MENDED_SECONDS - 2) == []
    assert bench.show({"errors": 95}, 4), "it was not mended"


def test_a_restart_keeps_what_was_cleared() -> None:
    bench = Bench(LATCHED)
    bench.show({"errors": 79})
    bench.engine.clear("gpu.ecc", [("gpu", "gpu-1/3")])
    kept = json.loads(json.dumps(bench.engine.dump()))
    bench.engine = Engine([LATCHED])
    bench.engine.load(kept)
    assert bench.show({"errors": 79}, 60) == []
    assert bench.show({"errors": 79}, MENDED_SECONDS)


def test_clearing_takes_along_what_is_latched_and_followed_from_it() -> None:
    follows = Rule("gpu.xid", "gpu", CRITICAL, "xid", (">=", 1), "x", "c", "a", latch=True, hidden_by=("gpu.ecc",))
    bench = Bench(LATCHED, follows)
    bench.show({"errors": 1, "xid": 48})
    assert bench.ids == ["gpu.ecc", "gpu.xid"]
    bench.engine.clear("gpu.ecc", [("gpu", "gpu-1/3")])
    assert bench.show({"errors": 0, "xid": 0}, 5) == []


def test_a_node_that_was_just_seen_is_given_time_but_not_for_what_is_lost() -> None:
    bench = Bench(HOT, LOST, LATCHED, settled=False)
    bench.show({"lost": 1, "errors": 1, "celsius": 90}, GRACE_SECONDS - 1)
    assert bench.ids == ["gpu.lost"]
    bench.show({"lost": 1, "errors": 1, "celsius": 90}, 2)
    assert bench.ids == ["gpu.lost", "gpu.ecc"]


def test_what_is_on_no_node_is_judged_at_once() -> None:
    failed = Rule("run.failed", "run", WARNING, "failed", (">=", 1), "x", "c", "a")
    bench = Bench(failed, settled=False)
    assert bench.show({"failed": 1}, entity=Entity("run", "run-a", "", "run-a"))


def test_what_comes_and_goes_is_held_and_said_to_flap_until_it_was_quiet() -> None:
    bench = Bench(LOST)
    flaps: list[bool] = []
    for _ in range(3):
        flaps.append(bench.show({"lost": 1}, 10)[0].flapping)
        bench.show({"lost": 0}, 60)
    assert flaps == [False, False, True]
    [firing] = bench.firing
    assert firing.fired == 3
    bench.show({"lost": 0}, FLAP_SECONDS - 120)
    bench.show({"lost": 1}, 2)
    [firing] = bench.show({"lost": 0}, FLAP_SECONDS - 2)
    assert (firing.flapping, firing.fired) == (True, 3)
    assert bench.show({"lost": 0}, 5) == []


def test_three_times_in_a_day_is_no_flapping() -> None:
    bench = Bench(LOST)
    for _ in range(4):
        assert not bench.show({"lost": 1}, 10)[0].flapping
        assert bench.show({"lost": 0}, FLAP_SECONDS, every=30) == []


def test_what_is_not_seen_any_more_says_so_and_is_forgotten_later() -> None:
    bench = Bench(LOST)
    bench.show({"lost": 1})
    node = Seen(Entity("node", "gpu-1", "gpu-1"))
    [firing] = bench.look(node, seconds=NO_DATA_SECONDS + 1)
    assert firing.no_data == "it is not seen any more"
    assert bench.look(node, seconds=VANISHED_SECONDS - NO_DATA_SECONDS - 10)
    assert bench.look(node, seconds=20) == []


def test_a_latch_waits_for_somebody_though_its_machine_is_gone() -> None:
    bench = Bench(LATCHED)
    bench.show({"errors": 1})
    assert bench.look(seconds=4 * VANISHED_SECONDS)


def test_a_run_that_is_told_of_no_more_has_no_alerts() -> None:
    failed = Rule("run.failed", "run", WARNING, "failed", (">=", 1), "x", "c", "a")
    spent = Rule("run.spent", "run", CRITICAL, "spent", (">=", 1), "x", "c", "a", latch=True)
    bench = Bench(failed, spent)
    bench.show({"failed": 1, "spent": 1}, entity=Entity("run", "run-a", "", "run-a"))
    assert bench.ids == ["run.failed", "run.spent"]
    assert [each.rule.id for each in bench.look(seconds=1)] == ["run.spent"]
    assert bench.look(seconds=VANISHED_SECONDS + 2) == []


def test_what_is_forgotten_is_gone_at_once() -> None:
    bench = Bench(LATCHED)
    bench.show({"errors": 1})
    bench.engine.forget(GPU)
    assert bench.firing == []


def test_a_cluster_file_changes_figures_times_levels_and_turns_rules_off() -> None:
    thresholds = Thresholds(("gpu.lost",), {"gpu.hot": 95}, {"gpu.hot": 10}, {"gpu.hot": 40}, {"gpu.hot": INFO})
    bench = Bench(HOT, LOST, thresholds=thresholds)
    bench.show({"celsius": 94, "lost": 1}, 300)
    assert bench.firing == []
    [firing] = bench.show({"celsius": 95}, 11)
    assert firing.rule.level == INFO
    bench.show({"celsius": 90}, 600)
    assert bench.ids, "90 is where it clears now, as far below as before"
    assert bench.show({"celsius": 89}, 35)
    assert bench.show({"celsius": 89}, 10) == []


def test_a_clock_that_is_set_makes_nothing_fire_and_nothing_end() -> None:
    bench = Bench(HOT)
    bench.show({"celsius": 90}, 30)
    for jump in (7200.0, -86_400.0):
        bench.now += jump
        bench.show({"celsius": 70})
        bench.show({"celsius": 90}, 30)
        assert bench.firing == []
    bench.show({"celsius": 90}, 40)
    bench.show({"celsius": 70}, 30)
    bench.now -= 7200.0
    assert bench.show({"celsius": 70}, 60)
    assert bench.show({"celsius": 70}, 40) == []


# --- what follows from what -------------------------------------------------------------------------------------------

NODE_LOST = Rule("node.ray", "node", CRITICAL, "dead", (">=", 1), "x", "c", "a", family="node.lost")
DRIVER = Rule("node.driver", "node", CRITICAL, "blocked", (">=", 1), "x", "c", "a", hidden_by=("node.lost",))
UNDER_DRIVER = Rule("gpu.xid", "gpu", CRITICAL, "xid", (">=", 1), "x", "c", "a", hidden_by=("node.driver",))
STUCK = Rule("node.stuck", "node", WARNING, "stuck", (">=", 1), "x", "c", "a", hidden_by=("mount.hangs",))
HANGS = Rule("mount.hangs", "mount", CRITICAL, "hangs", (">=", 1), "x", "c", "a")
RUN_FAILED = Rule("run.failed", "run", WARNING, "failed", (">=", 1), "x", "c", "a")
ENDED = Rule("gpu.ended", "gpu", INFO, "ended", (">=", 1), "x", "c", "a", hidden_by=("run.failed",))
RAY = Rule("cluster.ray", "cluster", CRITICAL, "away", (">=", 1), "x", "c", "a")
UNWATCHED = Rule("node.unwatched", "node", WARNING, "age", (">=", 1), "x", "c", "a", hidden_by=("cluster.ray",))

NODE = Entity("node", "gpu-1", "gpu-1")
OTHER = Entity("node", "gpu-2", "gpu-2")
MOUNT = Entity("mount", "gpu-1:/data", "gpu-1")
RUN = Entity("run", "run-a", "", "run-a")
CLUSTER = Entity("cluster", "cluster")


@pytest.mark.parametrize(
    ("cause", "effect", "expected"),
    [
        (Seen(NODE, {"blocked": 1}), Seen(GPU, {"xid": 1}), "node.driver on gpu-1"),
        (Seen(OTHER, {"blocked": 1}), Seen(GPU, {"xid": 1}), ""),
        (Seen(MOUNT, {"hangs": 1}), Seen(NODE, {"stuck": 1}), "mount.hangs on gpu-1:/data"),
        (Seen(MOUNT, {"hangs": 1}), Seen(OTHER, {"stuck": 1}), ""),
        (Seen(RUN, {"failed": 1}), Seen(GPU, {"ended": 1}), "run.failed on run-a"),
        (Seen(RUN, {"failed": 1}), Seen(GPU._replace(run="run-b"), {"ended": 1}), ""),
        (Seen(CLUSTER, {"away": 1}), Seen(NODE, {"age": 1}), "cluster.ray on cluster"),
    ],
)
def test_a_consequence_is_hidden_by_its_cause_on_its_node_run_or_cluster(
    cause: Seen, effect: Seen, expected: str
) -> None:
    bench = Bench(DRIVER, UNDER_DRIVER, STUCK, HANGS, RUN_FAILED, ENDED, RAY, UNWATCHED)
    bench.look(seconds=1)
    bench.look(cause, effect, Seen(OTHER), seconds=GRACE_SECONDS + 2)
    by_rule = {each.rule.id: each for each in bench.firing}
    assert len(by_rule) == 2
    hidden = next(each for each in by_rule.values() if each.entity == effect.entity)
    assert hidden.hidden_by == expected


def test_a_chain_of_causes_ends_at_the_first_one() -> None:
    bench = Bench(NODE_LOST, DRIVER, UNDER_DRIVER)
    seen = (Seen(GPU, {"xid": 1}), Seen(NODE, {"blocked": 1, "dead": 1}))
    hidden = {each.rule.id: each.hidden_by for each in bench.look(*seen, seconds=1)}
    assert hidden == {"gpu.xid": "node.ray on gpu-1", "node.driver": "node.ray on gpu-1", "node.ray": ""}


def test_of_one_family_on_one_thing_the_worst_is_shown_and_of_equals_the_first_in_the_table() -> None:
    first = Rule("gpu.a", "gpu", CRITICAL, "a", (">=", 1), "x", "c", "a", family="f")
    second = Rule("gpu.b", "gpu", CRITICAL, "b", (">=", 1), "x", "c", "a", family="f")
    light = Rule("gpu.c", "gpu", INFO, "c", (">=", 1), "x", "c", "a", family="f")
    bench = Bench(light, first, second)
    bench.show({"b": 1, "c": 1}, 1)
    assert {each.rule.id: each.hidden_by for each in bench.firing} == {"gpu.b": "", "gpu.c": "gpu.b on gpu-1/3"}
    bench.show({"a": 1, "b": 1, "c": 1}, 1)
    shown = {each.rule.id: each.hidden_by for each in bench.firing}
    assert shown == {"gpu.a": "", "gpu.b": "gpu.a on gpu-1/3", "gpu.c": "gpu.a on gpu-1/3"}


# --- kept over a restart ----------------------------------------------------------------------------------------------


def restarted(bench: Bench, *rules: Rule) -> Bench:
    """Another engine that goes on from what this one wrote down."""
    after = Bench(*(rules or bench.rules), settled=False)
    after.engine.load(json.loads(json.dumps(bench.engine.dump())))
    after.now = bench.now + 5
    return after


def test_what_fires_goes_on_after_a_restart_with_its_time_and_its_latch() -> None:
    bench = Bench(HOT, LATCHED)
    bench.show({"celsius": 90, "errors": 2}, 70)
    before = {each.rule.id: (each.since, each.value, each.fired, each.detail) for each in bench.firing}
    after = restarted(bench)
    after.show({"celsius": GONE, "errors": 0}, 5)
    assert {each.rule.id: (each.since, each.value, each.fired, each.detail) for each in after.firing} == before
    after.show({"celsius": 70, "errors": 0}, 130)
    assert after.ids == ["gpu.ecc"]


def test_flapping_is_remembered_over_a_restart() -> None:
    bench = Bench(LOST)
    for _ in range(2):
        bench.show({"lost": 1}, 5)
        bench.show({"lost": 0}, 30)
    after = restarted(bench)
    [firing] = after.show({"lost": 1}, 5)
    assert (firing.flapping, firing.fired) == (True, 3)


def test_a_rule_that_is_no_more_and_what_another_version_wrote_are_passed_over() -> None:
    bench = Bench(HOT, LATCHED)
    bench.show({"errors": 2})
    assert restarted(bench, HOT).firing == []
    fresh = Engine([LATCHED])
    with pytest.raises((KeyError, TypeError, ValueError)):
        fresh.load({"states": [{"rule": "gpu.ecc"}]})
    assert fresh.firing() == []


def test_a_node_that_was_known_before_a_restart_is_given_no_new_grace() -> None:
    bench = Bench(LATCHED)
    assert restarted(bench).show({"errors": 1})


def test_what_was_seen_calm_and_changes_in_place_is_looked_at_again() -> None:
    engine = Engine([LOST])
    seen = Seen(GPU, {"lost": 0})
    engine.step(START, [seen])
    assert seen.calm
    seen.measures["lost"], seen.calm = 1, False
    engine.step(START + 1, [seen])
    assert engine.firing()
