"""What is told of an alert and when: once, when it changes, again, to others, and that it is over."""

from __future__ import annotations

import itertools
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.alertview import Alert
from jobs.controller.notify.book import SETTLE_SECONDS, Book, Entry
from tests.unit.notify_harness import acknowledged, alert, cluster

SINKS = """
    sinks:
      - {name: team, kind: webhook, url: "http://127.0.0.1/"}
      - {name: pager, kind: webhook, url: "http://127.0.0.1/", levels: [critical]}
      - {name: boss, kind: webhook, url: "http://127.0.0.1/", levels: []}
    escalate_to: [boss]
"""
CONFIG = cluster(SINKS).alerting
NO_BOSS = cluster("{sinks: [{name: team, kind: webhook, url: 'http://x/'}]}").alerting


class Days:
    """A book, and time that passes second by second."""

    def __init__(self, config: Any = CONFIG, **settings: Any) -> None:
        self.book = Book(config, **settings)
        self.now = 1_700_000_000.0

    def pass_by(self, seconds: float, *alerts: Alert) -> list[tuple[str, tuple[str, ...]]]:
        """The kinds of what is told meanwhile, and through which sinks."""
        told: list[tuple[str, tuple[str, ...]]] = []
        for _ in range(int(seconds)):
            self.now += 1
            told += [(due.notice.kind, tuple(due.sinks)) for due in self.book.step(alerts, self.now)]
        return told


def test_a_new_alert_is_told_once_when_it_is_whole() -> None:
    days = Days()
    assert days.pass_by(SETTLE_SECONDS, alert()) == []
    wider = alert(entities=["gpu-1", "gpu-2", "gpu-3"])
    days.now += 1
    (due,) = days.book.step([wider], days.now)
    assert (due.notice.kind, due.sinks, due.notice.alert.entities) == ("firing", ["team", "pager"], wider.entities)
    assert days.pass_by(600, wider) == []


def test_what_is_gone_before_it_is_told_is_not_told_at_all() -> None:
    days = Days()
    assert days.pass_by(4, alert()) + days.pass_by(60) == []
    assert days.book.entries == {}


def test_its_end_is_told_to_whom_its_beginning_was() -> None:
    days = Days()
    assert days.pass_by(10, alert(level="warning")) == [("firing", ("team",))]
    assert days.pass_by(3) + days.pass_by(10, alert(level="warning")) == []  # a hiccup
    assert days.pass_by(60) == [("cleared", ("team",))]
    ended = alert(state="cleared", ended_at=1.0)
    assert days.pass_by(60, ended) == []


def test_an_end_says_what_the_view_last_said_of_it() -> None:
    days = Days()
    days.pass_by(10, alert())
    ended = alert(state="cleared", ended_at=7.0, cleared_by="kim", cleared_reason="replaced")
    days.pass_by(5, ended)
    (due,) = days.book.step([ended], days.now + 1)
    assert (due.notice.alert.cleared_by, due.notice.alert.ended_at, due.notice.alert.state) == ("kim", 7.0, "cleared")


def test_another_level_is_told_to_those_of_both() -> None:
    days = Days()
    days.pass_by(10, alert(level="warning"))
    assert days.pass_by(10, alert()) == [("changed", ("team", "pager"))]
    assert days.pass_by(3, alert(level="warning")) + days.pass_by(10, alert()) == []
    assert days.pass_by(10, alert(level="info")) == [("changed", ("team", "pager"))]
    assert days.pass_by(10) == [("cleared", ("team", "pager"))]


def test_many_new_members_are_told_and_a_few_are_not() -> None:
    days = Days()
    names = [f"gpu-{number}" for number in range(20)]
    days.pass_by(10, alert(entities=names[:4]))
    assert days.pass_by(30, alert(entities=names[:6])) == []
    assert days.pass_by(30, alert(entities=names[2:7])) == [("changed", ("team", "pager"))]
    assert days.pass_by(30, alert(entities=names[2:9])) == []
    assert days.pass_by(30, alert(entities=names[:2])) == []  # fewer is better
    assert days.pass_by(30, alert(entities=names)) == [("changed", ("team", "pager"))]


def test_reminders_and_one_escalation_while_nobody_has_it() -> None:
    days = Days()
    days.pass_by(10, alert())
    assert days.pass_by(890, alert()) == []
    assert days.pass_by(100, alert()) == [("escalated", ("boss",))]
    assert days.pass_by(2700, alert()) == [("reminder", ("team", "pager", "boss"))]
    assert days.pass_by(3600, alert()) == [("reminder", ("team", "pager", "boss"))]
    assert days.book.entries["a1"].escalated == 3
    assert days.pass_by(10) == [("cleared", ("team", "pager", "boss"))]


def test_a_warning_is_told_again_seldom_and_never_escalated() -> None:
    days = Days()
    days.pass_by(10, alert(level="warning"))
    assert days.pass_by(4 * 3600, alert(level="warning")) == [("reminder", ("team",))]


def test_with_nobody_to_escalate_to_the_same_are_told_again() -> None:
    days = Days(NO_BOSS)
    days.pass_by(10, alert())
    assert days.pass_by(1000, alert()) == [("escalated", ("team",))]
    assert days.pass_by(3490, alert()) == []  # its hour begins anew
    assert days.pass_by(200, alert()) == [("reminder", ("team",))]


def test_who_becomes_critical_later_is_escalated_later() -> None:
    days = Days()
    days.pass_by(1200, alert(level="warning"))
    assert days.pass_by(600, alert()) == [("changed", ("team", "pager"))]
    assert days.pass_by(600, alert()) == [("escalated", ("boss",))]


def test_an_acknowledged_one_is_quiet_until_it_is_over() -> None:
    days = Days()
    days.pass_by(10, alert())
    mine = acknowledged(alert())
    assert days.pass_by(9000, mine) == []
    assert days.pass_by(60, acknowledged(alert(entities=[f"g{number}" for number in range(99)]))) == []
    assert days.pass_by(10) == [("cleared", ("team", "pager"))]
    never_told = Days()
    assert never_told.pass_by(60, mine) + never_told.pass_by(60) == []


def test_a_silenced_one_is_told_when_the_silence_ends() -> None:
    days = Days()
    silenced = alert(silenced_by="s1")
    assert days.pass_by(9000, silenced) == []
    assert days.pass_by(1, alert()) == [("firing", ("team", "pager"))]
    assert days.pass_by(7200, silenced) + days.pass_by(60) == []
    days.pass_by(10, alert())
    assert days.pass_by(7200, silenced) == []
    assert [kind for kind, _ in days.pass_by(2, alert())] == ["escalated", "reminder"]


def test_a_rule_that_is_not_told() -> None:
    days = Days(quiet=("run.failed",))
    assert days.pass_by(60, alert(rule="run.failed"), alert(test=True)) == []
    assert days.pass_by(60, alert("b", rule="run.hung")) == [("firing", ("team", "pager"))]


def test_a_clock_that_is_set_back_stops_nothing() -> None:
    days = Days()
    days.pass_by(10, alert())
    days.now -= 86400
    assert [kind for kind, _ in days.pass_by(3602, alert())] == ["escalated", "reminder"]


def test_the_key_is_another_for_each_notice_and_the_same_after_a_restart() -> None:
    days = Days()
    days.pass_by(5, alert())
    saved = {name: Entry.model_validate(entry.model_dump(mode="json")) for name, entry in days.book.entries.items()}
    other = Book(CONFIG)
    other.entries = saved
    (first,), (again,) = (book.step([alert()], days.now + 1) for book in (days.book, other))
    assert first.notice.key == again.notice.key
    (reminder,) = days.book.step([alert()], days.now + 3700)
    assert reminder.notice.key not in ("", first.notice.key)


STATES = st.sampled_from(["gone", "critical", "warning", "info", "acknowledged", "silenced"])


@settings(deadline=None, max_examples=200)
@given(st.lists(st.tuples(STATES, st.integers(1, 4000)), max_size=25), st.integers(0, 24))
def test_however_it_comes_and_goes_it_is_told_in_order_and_not_too_often(
    course: list[tuple[str, int]], restart: int
) -> None:
    book, now = Book(CONFIG), 1_700_000_000.0
    told: list[tuple[float, str, str]] = []
    keys: set[str] = set()
    for number, (state, seconds) in enumerate(course):
        level = state if state in ("critical", "warning", "info") else "critical"
        one = alert(level=level, since=now)
        one = acknowledged(one) if state == "acknowledged" else one
        one = one.model_copy(update={"silenced_by": "s" if state == "silenced" else ""})
        if number == restart:
            fresh = Book(CONFIG)
            fresh.entries = {
                name: Entry.model_validate(entry.model_dump(mode="json")) for name, entry in book.entries.items()
            }
            book = fresh
        for step in sorted({1, 6, 7, 12, seconds}):
            if step <= seconds:
                for due in book.step([] if state == "gone" else [one], now + step):
                    assert state != "silenced"
                    assert state != "acknowledged"
                    assert (due.notice.kind == "cleared") == (state == "gone")
                    assert due.notice.key not in keys
                    keys.add(due.notice.key)
                    told.append((now + step, due.notice.kind, level))
        now += seconds
    open_now = False
    for _, kind, _ in told:
        assert open_now or kind == "firing"
        if not any(state == "silenced" for state, _ in course):  # what ends in silence ends untold
            assert not open_now or kind != "firing"
        open_now = kind != "cleared"
    reminders = [(at, level) for at, kind, level in told if kind == "reminder"]
    for (before, _), (after, level) in itertools.pairwise(reminders):
        assert after - before >= (3600 if level == "critical" else 4 * 3600)
