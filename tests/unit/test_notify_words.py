"""An alert in words: short, complete, and with nothing in it that a terminal or a mail header would obey."""

from __future__ import annotations

import json
import unicodedata

from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.controller.notify import bodies
from jobs.controller.notify.notice import Held, HeldBack, Notice
from jobs.controller.notify.words import clean, message, subject, text
from tests.unit.notify_harness import alert

FEISHU = "hr9XYhIKnr9hsmPfMb6rGd7Y0SONRmoNUPqB7k9RizM="
DINGTALK = "a968F04%2BGabcSQqJlO0Hg2q9gjzK%2BHyZVo40eg%2FlWbE%3D"


def test_the_text_says_what_where_since_why_and_what_to_do() -> None:
    one = alert(run="lm-7", entities=[f"gpu-{number}" for number in range(10)], flapping=True, fired=4)
    assert text(one, "lab", one.since + 840).split("\n") == [
        "gpu-1/3 is lost (a1)",
        "where: gpu-0, gpu-1, gpu-2, gpu-3, gpu-4, gpu-5, gpu-6, gpu-7 and 2 more; run lm-7; cluster lab",
        "since: 2023-11-14 22:13:20 UTC (14 min); it came and went 4 times",
        "cause: The GPU fell off the bus",
        "do: Drain gpu-1",
        "look: raydeck alerts show a1",
    ]


def test_what_somebody_cleared_is_said_with_the_reason() -> None:
    one = alert(state="cleared", ended_at=1_700_000_060.0, cleared_by="kim", cleared_reason="GPU replaced")
    notice = Notice(key="k", kind="cleared", alert=one, at=1_700_000_070.0)
    assert subject(notice) == "[CLEARED] gpu-1/3 is lost (a1)"
    assert "since: 2023-11-14 22:13:20 UTC (60 s)" in message(notice)
    assert "cleared: by kim: GPU replaced" in message(notice)


def test_what_was_held_back_is_counted_and_its_beginning_told() -> None:
    lines = [Held(alert=f"h{number}", level="warning", line=f"[warning] disk {number}") for number in range(12)]
    notice = Notice(key="k", kind="firing", alert=alert(), at=1.0, held=HeldBack(lines=lines, more=3))
    told = message(notice).split("\n")
    assert told[-12] == "held back before, since too many were told in an hour: 15 (12 warning, 3 not listed)"
    assert told[-11] == "- [warning] disk 0"
    assert told[-1] == "- and 5 more: raydeck alerts"


@settings(deadline=None, max_examples=60)
@given(st.text(max_size=400), st.text(max_size=4000))
def test_nothing_that_acts_comes_through(title: str, cause: str) -> None:
    one = alert(title=title, cause=cause, evidence=[cause], nodes=[title], run=title)
    notice = Notice(key="k", kind="firing", alert=one, at=1.0)
    for line in [*message(notice, title).split("\n"), subject(notice)]:
        assert not any(unicodedata.category(sign) in ("Cc", "Cf", "Cs", "Zl", "Zp") for sign in line)
    assert len(message(notice)) < 3000
    for body in (bodies.generic(notice, title), bodies.slack(notice, title), bodies.feishu(notice, title, "s", 1.0)):
        json.dumps(body).encode()
        json.dumps(body, ensure_ascii=False).encode()


def test_text_that_turns_around_is_straightened() -> None:
    assert clean("a\u202eb\x1b[31mc\nd\ud800\u200b") == "a b [31mc d"
    assert clean("x" * 600) == "x" * 499 + "…"


def test_a_title_calls_no_channel() -> None:
    one = alert(title="<!channel> & <at user_id='all'>all</at>")
    notice = Notice(key="k", kind="firing", alert=one, at=1.0)
    assert "&lt;!channel&gt; &amp; &lt;at" in bodies.slack(notice, "lab")["text"]
    assert bodies.dingtalk(notice, "lab")["at"] == {"isAtAll": False}
    feishu = bodies.feishu(notice, "lab", "", 1.0)
    assert feishu["msg_type"] == "post"
    assert "sign" not in feishu


def test_signatures_are_those_of_the_chats() -> None:
    # Worked out with openssl: printf '' | openssl dgst -sha256 -hmac "$(printf '1700000000\nhush')" -binary | base64
    assert bodies.feishu_sign("1700000000", "hush") == FEISHU
    assert bodies.dingtalk_query("hush", 1700000000.0) == f"timestamp=1700000000000&sign={DINGTALK}"


def test_no_secret_of_a_log_leaves_the_head() -> None:
    """An alert's title and evidence are lines of a program, and those print what they were called with."""
    line = "rank 1: connection to postgres://lm:hunter2secret@db failed, --api-key sk-aaaaaaaaaaaaaaaaaaaaaaaa"
    one = alert(title=line, cause=line, evidence=[line], action=line)
    notice = Notice(key="k", kind="firing", alert=one, at=1.0)
    told = [subject(notice), message(notice, "lab"), text(one, "lab")]
    told += [json.dumps(body) for body in (bodies.generic(notice, "lab"), bodies.slack(notice, "lab"))]
    for each in told:
        assert "hunter2secret" not in each
        assert "sk-aaaa" not in each
        assert "rank 1: connection to postgres://lm:" in each
