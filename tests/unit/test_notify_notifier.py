"""Notices through real sinks: each in its own time, tried again, and not too many."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import time
from collections.abc import AsyncGenerator

import pytest
from aiohttp import web

from jobs.alertview import Delivery
from jobs.controller.notify import lane as lanes
from jobs.controller.notify.notice import Failed, Notice
from jobs.errors import Refused
from tests.unit.notify_harness import (
    ONE,
    Controller,
    Got,
    Receiver,
    acknowledged,
    alert,
    mail_server,
    receiver,
    until,
)


@pytest.fixture
async def there() -> AsyncGenerator[Receiver]:
    async with receiver() as one:
        yield one


async def test_an_alert_is_told_once_and_so_is_its_end(there: Receiver) -> None:
    here = Controller(ONE.format(there.url, ""))
    here.tell(alert(), seconds=60)
    await until(lambda: len(there.got) == 1)
    await until(lambda: here.of() is not None)
    assert here.of() == Delivery(
        sink="hook", at=here.clock.at, ok=True, detail=f"firing: http://127.0.0.1:{there.port} took it (200)"
    )
    assert here.changes >= 2
    here.tell(seconds=10)
    await until(lambda: len(there.got) == 2)
    assert there.kinds() == ["firing", "cleared"]
    await here.notifier.close()
    assert here.notifier.waiting() == {"hook": 0}


async def test_what_failed_is_tried_again(there: Receiver) -> None:
    there.answers = [web.Response(status=500), web.Response(status=503)]
    here = Controller(ONE.format(there.url, ""))
    here.tell(alert(), seconds=6)
    await until(lambda: "try 1, again in 2 s" in here.said())
    assert here.of() == Delivery(
        sink="hook",
        at=here.clock.at,
        ok=False,
        detail=f"http://127.0.0.1:{there.port} answers 500; try 1, again in 2 s",
    )
    here.tell(alert(), seconds=1)
    assert (len(there.got), here.notifier.waiting()) == (1, {"hook": 1})
    here.tell(alert(), seconds=1)
    await until(lambda: "answers 503; try 2, again in 4 s" in here.said())
    here.tell(alert(), seconds=4)
    await until(lambda: bool(here.of() and here.of().ok))  # pyright: ignore[reportOptionalMemberAccess]
    assert here.said().endswith("took it (200), at try 3")
    assert len({got.body["key"] for got in there.got}) == 1
    await here.notifier.close()


async def test_what_will_never_be_taken_is_not_tried_again(there: Receiver) -> None:
    there.answers = [web.Response(status=400)]
    here = Controller(ONE.format(there.url, ""))
    here.tell(alert(), seconds=6)
    await until(lambda: here.said().endswith("answers 400; not tried again"))
    here.tell(alert(), seconds=3600)
    await until(lambda: len(there.got) == 2)  # escalated
    assert there.kinds()[1] == "escalated"
    await here.notifier.close()


async def test_another_is_not_tried_before_the_sink_wants_it(there: Receiver) -> None:
    there.answers = [web.Response(status=429, headers={"Retry-After": "120"})]
    here = Controller(ONE.format(there.url, ""))
    here.tell(alert(), seconds=6)
    await until(lambda: "answers 429; try 1, again in 2 min" in here.said() or "again in 120 s" in here.said())
    for _ in range(11):
        here.tell(alert(), alert("b"), seconds=10)
        await asyncio.sleep(0.005)  # time enough for a try that must not be
    assert len(there.got) == 1
    here.tell(alert(), alert("b"), seconds=20)
    await until(lambda: len(there.got) == 3)
    await here.notifier.close()


async def test_a_new_alert_does_not_wait_for_the_back_off_of_an_old_one(there: Receiver) -> None:
    there.answers = [web.Response(status=500) for _ in range(7)]
    here = Controller(ONE.format(there.url, ""))
    here.tell(alert(), seconds=6)
    for tries in range(1, 8):
        await until(lambda tries=tries: f"try {tries}, " in here.said())
        here.tell(alert(), seconds=0 if tries == 7 else 2.0**tries)
    here.tell(alert(), alert("b"), seconds=31)
    await until(lambda: "took it" in here.said("b"))
    assert here.said().endswith("try 7, again in 2 min 8 s")
    await here.notifier.close()


async def test_nobody_answers_and_in_the_end_it_is_given_up() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        here = Controller(
            ONE.format(f"http://127.0.0.1:{port}/", ", repeat_after: {critical: never}, escalate_after: never")
        )
        here.tell(alert(), seconds=6)
        await until(lambda: "Connection refused; try 1" in here.said())
        before = here.said()
        for _ in range(40):
            here.tell(alert(), seconds=310)
            if "given up" in here.said():
                break
            await until(lambda before=before: here.said() != before)
            before = here.said()
        assert here.said().startswith("given up after ")
        assert here.said().endswith("Connection refused")
        assert here.notifier.waiting() == {"hook": 0}
        await here.notifier.close()


async def test_one_that_was_never_told_through_a_sink_does_not_end_there(there: Receiver) -> None:
    there.answers = [web.Response(status=500), web.Response(status=500)]
    here = Controller(ONE.format(there.url, ""))
    here.tell(alert(), seconds=6)
    await until(lambda: "try 1" in here.said())
    here.tell(seconds=8)
    await until(lambda: here.notifier.waiting() == {"hook": 0})
    await until(lambda: "over before it could be told" in here.said())
    assert "cleared" not in there.kinds()
    await here.notifier.close()


async def test_a_slow_sink_holds_up_no_other(there: Receiver) -> None:
    free = asyncio.Event()

    async def hang(got: Got) -> web.Response:
        await free.wait()
        return web.json_response({})

    async with receiver() as slow:
        slow.answers = [hang]
        sinks = [
            f"{{name: {name}, kind: webhook, url: '{url}'}}" for name, url in (("slow", slow.url), ("hook", there.url))
        ]
        both = f"{{sinks: [{', '.join(sinks)}]}}"
        here = Controller(both)
        here.tell(alert(), seconds=6)
        await until(lambda: len(slow.got) == 1)
        here.tell(alert(), alert("b"), seconds=6)
        await until(lambda: len(there.got) == 2)
        here.tell(seconds=6)
        await until(lambda: there.kinds() == ["firing", "firing", "cleared", "cleared"])
        assert (len(slow.got), here.notifier.waiting()["slow"]) == (1, 3)
        free.set()
        await until(lambda: here.notifier.waiting()["slow"] == 0)
        assert slow.kinds() == ["firing", "cleared"]  # b was over before its turn came
        await here.notifier.close()


async def test_a_sink_that_hangs_has_a_limit(there: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    async def hang(got: Got) -> web.Response:
        await asyncio.sleep(60)
        return web.json_response({})

    there.answers = [hang]
    here = Controller(ONE.format(there.url, ""))
    monkeypatch.setattr(here.notifier._lanes["hook"]._way, "limit_seconds", 0.1)
    here.tell(alert(), seconds=6)
    await until(lambda: "no end within 0.1 s; try 1" in here.said())
    await here.notifier.close()


async def test_only_so_many_in_an_hour_and_the_rest_is_counted(there: Receiver) -> None:
    here = Controller(ONE.format(there.url, ", rate: 6"))
    warnings = [alert(f"w{number}", "warning") for number in range(8)]
    here.tell(*warnings, seconds=6)
    await until(lambda: len(there.got) == 4 and here.notifier.waiting() == {"hook": 0})
    await until(lambda: here.said("w7") != "")
    assert here.said("w7") == "held back: 6 in an hour are the most; it is told with the next one"
    # A third is kept for what is critical, and that one tells of the rest.
    here.tell(*warnings, alert(), seconds=6)
    await until(lambda: len(there.got) == 5)
    last = there.got[-1].body
    assert (last["alert"]["level"], last["held_back"]["count"]) == ("critical", 4)
    assert last["held_back"]["lines"][0].startswith("[warning] gpu-1/3 is lost (w4)")
    assert "held back before, since too many were told in an hour: 4 (4 warning)" in last["text"]
    await until(lambda: here.said("w7") == "told among 4 that had been held back")
    # What was told among them may end.
    here.tell(*warnings[:7], alert(), seconds=3600)
    await until(lambda: "cleared" in there.kinds() or any("cleared" in str(got.body["held_back"]) for got in there.got))
    await here.notifier.close()


async def test_what_was_held_back_is_told_even_if_nothing_else_is(there: Receiver) -> None:
    here = Controller(ONE.format(there.url, ", rate: 1, repeat_after: {warning: never}"))
    here.tell(alert("a", "warning"), alert("b", "warning"), seconds=7)
    await until(lambda: len(there.got) == 1 and "held back" in here.said("b"))
    here.tell(alert("a", "warning"), alert("b", "warning"), seconds=3500)
    assert len(there.got) == 1
    here.tell(alert("a", "warning"), alert("b", "warning"), seconds=120)
    await until(lambda: len(there.got) == 2)
    last = there.got[-1].body
    assert (last["kind"], last["subject"]) == ("held", "[WARNING, HELD BACK] 1 alert was held back")
    await until(lambda: here.said("b") == "told among 1 that had been held back")
    here.tell(alert("a", "warning"), alert("b", "warning"), seconds=7200)
    assert len(there.got) == 2
    await here.notifier.close()


async def test_it_escalates_to_others_and_counts_it(there: Receiver) -> None:
    config = (
        f"{{sinks: [{{name: team, kind: webhook, url: '{there.url}'}},"
        f" {{name: boss, kind: webhook, url: '{there.url}/boss', levels: []}}],"
        " escalate_to: [boss], escalate_after: 10m}"
    )
    here = Controller(config)
    here.tell(alert(), seconds=700)
    await until(lambda: len(there.got) == 2)
    assert [(got.path.rpartition("/")[2], got.body["kind"]) for got in there.got] == [
        ("SECRETPATH", "firing"),
        ("boss", "escalated"),
    ]
    assert there.got[1].body["subject"].startswith("[CRITICAL, NOBODY HAS IT]")
    assert there.got[1].body["alert"]["escalated"] == here.notifier.escalated("a1") == 1
    assert here.notifier.escalated("other") == 0
    here.tell(acknowledged(alert()), seconds=9000)
    assert len(there.got) == 2
    await here.notifier.close()


async def test_runs_that_failed_are_told_only_if_the_file_wants_it(there: Receiver) -> None:
    failed = alert(rule="run.failed")
    here = Controller(ONE.format(there.url, ""), more="  observability: {alert_on_failure: false}\n")
    here.tell(failed, seconds=60)
    assert here.notifier.waiting() == {"hook": 0}
    other = Controller(ONE.format(there.url, ""))
    other.tell(failed, seconds=60)
    await until(lambda: len(there.got) == 1)
    await here.notifier.close()
    await other.notifier.close()


async def test_a_test_goes_through_all_at_once_and_says_how_each_went(there: Receiver) -> None:
    async with mail_server() as mails:
        there.answers = [web.Response(status=500)]
        config = f"""
    rate: 1
    sinks:
      - {{name: hook, kind: webhook, url: "{there.url}"}}
      - {{name: post, kind: email, host: 127.0.0.1, port: {mails.port}, tls: none, from: a@b.c, to: [d@e.f]}}
      - {{name: few, kind: webhook, url: "{there.url}", levels: [info]}}
"""
        here = Controller(config)
        told = await here.notifier.test("critical", user="kim")
        assert [(each.sink, each.ok) for each in told.deliveries] == [("hook", False), ("post", True)]
        assert told.deliveries[0].detail == f"http://127.0.0.1:{there.port} answers 500"
        assert told.alert.test
        assert "Subject: [TEST, CRITICAL] A test of the ways out by kim" in mails.letters[0].text
        # A sink that is named is tried whatever it takes otherwise, and nothing of it counts.
        (one,) = (await here.notifier.test("critical", "few")).deliveries
        assert (one.sink, one.ok) == ("few", True)
        with pytest.raises(Refused, match=r"no way out called hok\. Did you mean hook"):
            await here.notifier.test("critical", "hok")
        assert here.saved()["lanes"]["few"] == {
            "pending": [],
            "sent": [],
            "delivered": [],
            "held": {"lines": [], "more": 0},
        }
    with pytest.raises(Refused, match="no way out takes critical alerts"):
        await Controller("{}").notifier.test("critical")


async def test_a_mistake_in_one_way_is_said_without_its_words(
    there: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        limit_seconds = 1.0
        where = "webhook broken"

        async def send(self, notice: Notice) -> str:
            raise RuntimeError("hushhush")

    here = Controller(ONE.format(there.url, ""))
    here.notifier._lanes["hook"]._way = Broken()
    here.tell(alert(), seconds=6)
    await until(lambda: here.said() == "raydeck made a mistake (RuntimeError); not tried again")
    assert "hushhush" not in caplog.text
    await here.notifier.close()


async def test_no_address_and_no_secret_is_logged_or_kept(there: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    there.answers = [web.Response(status=500, text="SECRETPATH"), web.json_response({})]
    here = Controller("{sinks: [{name: hook, kind: webhook, url: '${env:URL}'}]}", URL=there.url)
    here.tell(alert(), seconds=6)
    await until(lambda: "try 1" in here.said())
    here.tell(alert(), seconds=3)
    await until(lambda: "took it" in here.said())
    kept = json.dumps(here.saved())
    await here.notifier.close()
    assert "SECRETPATH" not in caplog.text + kept
    assert "webhook hook: a1." in caplog.text


async def test_a_storm_waits_in_a_bounded_line(there: Receiver) -> None:
    async def gone(got: Got) -> web.Response:
        return web.Response(status=503)

    there.answers = [gone]
    here = Controller(ONE.format(there.url, ", rate: 1000"))
    storm = [alert(f"s{number}", "warning") for number in range(400)]
    here.tell(*storm, seconds=6)
    await until(lambda: len(there.got) >= 1 and here.notifier.waiting()["hook"] <= lanes.PENDING_AT_MOST)

    def told_all() -> bool:
        # Time goes on: the try after the 503 is due two seconds after it was heard of, whenever that is.
        here.tell(*storm, seconds=1)
        return here.notifier.waiting() == {"hook": 0}

    await until(told_all)
    assert len(there.got) <= lanes.PENDING_AT_MOST + 3
    told = {got.body["alert"]["id"] for got in there.got}
    counted = sum(got.body["held_back"]["count"] for got in there.got[1:])
    assert len(told) + counted >= 400
    await here.notifier.close()


async def test_a_thousand_alerts_cost_little_each_second(there: Receiver) -> None:
    here = Controller(ONE.format(there.url, ""))
    many = [alert(f"m{number}", "info", entities=[f"gpu-{n}" for n in range(10)]) for number in range(1000)]
    here.tell(*many, seconds=6)
    begun = time.process_time()
    here.tell(*many, seconds=10)
    assert (time.process_time() - begun) / 10 < 0.1
    await here.notifier.close()


def test_what_failed_says_whether_to_try_again() -> None:
    assert Failed("x").again
    assert Failed("x", again=False, after=3).after == 3
