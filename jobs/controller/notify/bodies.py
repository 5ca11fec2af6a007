"""The bodies of notices: JSON of our own for webhooks and commands, and what each chat's incoming webhook takes. Pure.

Our own, version 1 (fields are only ever added; ``key`` is also in the header Idempotency-Key)::

    {"version": 1, "key": "…", "kind": "firing|changed|reminder|escalated|cleared|held|test", "at": 1700000000.0,
     "cluster": "…", "subject": "[CRITICAL] …", "text": "…",
     "held_back": {"count": 0, "lines": ["…"]},
     "alert": {"id", "rule", "level", "state", "title", "entities" (the first 200), "entities_total", "nodes", "run",
               "since", "ended_at", "evidence", "cause", "action", "latched", "flapping", "fired", "no_data",
               "acknowledged_by", "cleared_by", "cleared_reason", "escalated", "test"}}

Times are seconds since 1970. A notice of kind ``held`` is about no alert of its own: its ``alert`` tells the worst
level.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from typing import Any
from urllib.parse import quote_plus

from jobs.alertview import Alert
from jobs.controller.notify.notice import Notice
from jobs.controller.notify.words import TITLE_SIGNS, clean, message, subject

VERSION = 1
ENTITIES_SHOWN = 200
EVIDENCE_SHOWN = 20
CHAT_SIGNS = 3000
"""Slack takes 40,000, Feishu 20 KB in all, DingTalk 20 KB."""


def generic(notice: Notice, cluster: str) -> dict[str, Any]:
    """Our own JSON."""
    return {
        "version": VERSION,
        "key": notice.key,
        "kind": notice.kind,
        "at": notice.at,
        "cluster": cluster,
        "subject": subject(notice),
        "text": message(notice, cluster),
        "held_back": {
            "count": notice.held.count,
            "lines": [clean(each.line, TITLE_SIGNS) for each in notice.held.lines],
        },
        "alert": _alert(notice.alert),
    }


def _alert(alert: Alert) -> dict[str, Any]:
    return {
        "id": alert.id,
        "rule": alert.rule,
        "level": alert.level,
        "state": alert.state,
        "title": clean(alert.title, TITLE_SIGNS),
        "entities": [clean(name) for name in alert.entities[:ENTITIES_SHOWN]],
        "entities_total": len(alert.entities),
        "nodes": [clean(name) for name in alert.nodes[:ENTITIES_SHOWN]],
        "run": clean(alert.run),
        "since": alert.since,
        "ended_at": alert.ended_at,
        "evidence": [clean(line) for line in alert.evidence[:EVIDENCE_SHOWN]],
        "cause": clean(alert.cause),
        "action": clean(alert.action),
        "latched": alert.latched,
        "flapping": alert.flapping,
        "fired": alert.fired,
        "no_data": clean(alert.no_data),
        "acknowledged_by": clean(alert.acknowledged.user) if alert.acknowledged else "",
        "cleared_by": clean(alert.cleared_by),
        "cleared_reason": clean(alert.cleared_reason),
        "escalated": alert.escalated,
        "test": alert.test,
    }


def _chat(notice: Notice, cluster: str) -> str:
    return message(notice, cluster)[:CHAT_SIGNS]


def slack(notice: Notice, cluster: str) -> dict[str, Any]:
    """A Slack incoming webhook's. Its three signs are escaped, so that no title calls a whole channel."""
    text = _chat(notice, cluster).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return {"text": text}


def feishu(notice: Notice, cluster: str, secret: str, now: float) -> dict[str, Any]:
    """A Feishu or Lark custom bot's, as rich text: there, other than in plain text, no name calls everybody."""
    lines = _chat(notice, cluster).split("\n")
    post = {"title": lines[0], "content": [[{"tag": "text", "text": line}] for line in lines[1:]]}
    body: dict[str, Any] = {"msg_type": "post", "content": {"post": {"zh_cn": post}}}
    if secret:
        stamp = str(int(now))
        body |= {"timestamp": stamp, "sign": feishu_sign(stamp, secret)}
    return body


def feishu_sign(stamp: str, secret: str) -> str:
    """The time in seconds and the secret are the key; what is signed is empty."""
    return base64.b64encode(hmac.new(f"{stamp}\n{secret}".encode(), b"", hashlib.sha256).digest()).decode()


def dingtalk(notice: Notice, cluster: str) -> dict[str, Any]:
    """A DingTalk custom bot's. Nobody is called by name."""
    return {"msgtype": "text", "text": {"content": _chat(notice, cluster)}, "at": {"isAtAll": False}}


def dingtalk_query(secret: str, now: float) -> str:
    """What goes with the address: the time in milliseconds, and it with the secret signed by the secret."""
    stamp = str(int(now * 1000))
    digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
    return f"timestamp={stamp}&sign={quote_plus(base64.b64encode(digest))}"
