"""Notices by HTTP: JSON webhooks, and the chats' incoming webhooks, which say in the body what went wrong.

The address is a secret: of it only scheme and host are ever said, and of an answer's body only its own short
words.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from urllib.request import getproxies, proxy_bypass

import aiohttp

from jobs.alertspec import Sink
from jobs.controller.notify import bodies
from jobs.controller.notify.notice import Failed, Notice
from jobs.controller.notify.references import References, hidden
from jobs.controller.notify.words import clean

ANSWER_BYTES = 16 * 1024
ANSWER_SIGNS = 120
CONNECT_SECONDS = 8.0
SHORTEST_SEGMENT = 8
LONGEST_WAIT_SECONDS = 600.0
"""A Retry-After of more is cut to this."""
_AGAIN = frozenset((408, 409, 425, 429))
"""Beside all from 500; what else is refused will be refused again."""
_SLACK_WORD = re.compile(r"[a-z][a-z_]{1,60}")
_TOO_FAST = {"feishu": (11232, 9499), "dingtalk": (-1, 130101, 130102, 410100)}
"""Codes that mean: later. All others say that the message, the signature or the bot is wrong."""


class Web:
    """One address that notices are posted to."""

    limit_seconds = 20.0

    def __init__(
        self, sink: Sink, cluster: str, wall: Callable[[], float], environ: Mapping[str, str] = os.environ
    ) -> None:
        self._sink = sink
        self._cluster = cluster
        self._wall = wall
        self._environ = environ
        self._references = References(environ)
        self.where = f"{sink.kind} {sink.name}"

    async def send(self, notice: Notice) -> str:
        """One try. Raises `Failed`."""
        names = list(self._sink.headers)
        url, secret, *values = await self._references.resolve(
            self._sink.url, self._sink.secret, *self._sink.headers.values()
        )
        place = _place(url)
        headers = {
            **dict(zip(names, values, strict=True)),
            "Content-Type": "application/json; charset=utf-8",
            "User-Agent": "raydeck",
            "Idempotency-Key": notice.key,
        }
        if any("\r" in value or "\n" in value for value in values):
            raise Failed("a header has more than one line", again=False)
        url, body = self._body(notice, url, secret)
        status, after, answer = await _post(url, place, json.dumps(body).encode(), headers, _proxy(url))
        secrets = [url, secret, *values, *_parts(url)]
        if not 200 <= status < 300:
            word = answer.decode("utf-8", "replace").strip() if self._sink.kind == "slack" else ""
            said = f": {hidden(word, secrets)}" if _SLACK_WORD.fullmatch(word) else ""
            raise Failed(f"{place} answers {status}{said}", again=status in _AGAIN or status >= 500, after=after)
        self._look_inside(place, answer, secrets)
        return f"{place} took it ({status})"

    def _body(self, notice: Notice, url: str, secret: str) -> tuple[str, dict[str, Any]]:
        now = self._wall()
        if self._sink.kind == "slack":
            return url, bodies.slack(notice, self._cluster)
        if self._sink.kind == "feishu":
            return url, bodies.feishu(notice, self._cluster, secret, now)
        if self._sink.kind == "dingtalk":
            if secret:
                url += ("&" if "?" in url else "?") + bodies.dingtalk_query(secret, now)
            return url, bodies.dingtalk(notice, self._cluster)
        return url, bodies.generic(notice, self._cluster)

    def _look_inside(self, place: str, answer: bytes, secrets: list[str]) -> None:
        """Feishu and DingTalk answer 200 to what they do not take, with a code in the body."""
        if self._sink.kind not in _TOO_FAST:
            return
        try:
            told = json.loads(answer)
        except ValueError:
            told = None
        if not isinstance(told, dict):
            raise Failed(f"{place} answers 200, and not as a {self._sink.kind} bot does")
        codes, words = (("code", "StatusCode"), ("msg", "StatusMessage"))
        if self._sink.kind == "dingtalk":
            codes, words = (("errcode",), ("errmsg",))
        code = next((told[name] for name in codes if name in told), None)
        if code in (0, "0"):
            return
        said = next((told[name] for name in words if isinstance(told.get(name), str)), "")
        shown = code if isinstance(code, int) else "none"
        raise Failed(
            f"{place} answers 200 with the code {shown}: {clean(hidden(said, secrets), ANSWER_SIGNS)}".rstrip(": "),
            again=code in _TOO_FAST[self._sink.kind],
        )


def _place(url: str) -> str:
    """Scheme and host, which may be said. Raises `Failed` for what is no address."""
    try:
        parts = urlsplit(url)
        port = f":{parts.port}" if parts.port else ""
    except ValueError:
        parts, port = urlsplit(""), ""
    if parts.scheme not in ("http", "https") or not parts.hostname or re.search(r"\s", url):
        raise Failed("what url stands for is no http:// or https:// address", again=False)
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{clean(host, 100)}{port}"


def _parts(url: str) -> list[str]:
    """What is secret in an address, piece by piece; short words of a path are not."""
    parts = urlsplit(url)
    segments = [segment for segment in parts.path.split("/") if len(segment) >= SHORTEST_SEGMENT]
    return [*segments, *(value for _, value in parse_qsl(parts.query))]


def _proxy(url: str) -> str | None:
    """The proxy that the controller's environment names for this address."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxy = getproxies().get(parts.scheme)
    return proxy if proxy and proxy.startswith(("http://", "https://")) else None


async def _post(
    url: str, place: str, body: bytes, headers: Mapping[str, str], proxy: str | None
) -> tuple[int, float | None, bytes]:
    """Status, seconds to wait before another try, and the beginning of the answer. Raises `Failed`."""
    bounds = aiohttp.ClientTimeout(total=Web.limit_seconds - 1, connect=CONNECT_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(trust_env=False, timeout=bounds) as session,
            session.post(url, data=body, headers=headers, proxy=proxy, allow_redirects=False) as answer,
        ):
            return answer.status, _after(answer.headers.get("Retry-After", "")), await _beginning(answer)
    except asyncio.TimeoutError:
        raise Failed(f"{place} gives no answer in time") from None
    except aiohttp.ClientConnectorCertificateError:
        raise Failed(f"{place} shows a certificate that this machine does not trust") from None
    except aiohttp.ClientConnectorError as error:
        number = error.errno or 0
        why = os.strerror(number) if number > 0 else "its name is not found" if number < 0 else "no connection"
        raise Failed(f"{place} cannot be reached: {why}") from None
    except (aiohttp.ClientError, OSError, ValueError) as error:
        # Their own words may hold the address.
        raise Failed(f"{place} ended the exchange: {type(error).__name__}") from None


async def _beginning(answer: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for piece in answer.content.iter_chunked(4096):
        body += piece
        if len(body) >= ANSWER_BYTES:
            break
    return bytes(body[:ANSWER_BYTES])


def _after(text: str) -> float | None:
    """A Retry-After: seconds, or a date."""
    text = text.strip()
    if not text:
        return None
    if text.isdecimal():
        return min(float(text[:9]), LONGEST_WAIT_SECONDS)
    try:
        then = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    if then.tzinfo is None:
        then = then.replace(tzinfo=timezone.utc)
    return min(max((then - datetime.now(timezone.utc)).total_seconds(), 0.0), LONGEST_WAIT_SECONDS)
