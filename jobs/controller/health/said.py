"""What people say to alerts: acknowledge, silence, clear, try the ways out. Checked, written, audited, in force."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from pydantic import BaseModel

from jobs.alertview import (
    Acknowledged,
    AcknowledgeRequest,
    Alert,
    AlertsReply,
    AlertsView,
    ClearRequest,
    EndSilenceRequest,
    Level,
    Matcher,
    Silence,
    SilenceRequest,
    TestReply,
    TestRequest,
)
from jobs.controller.access import Access, Caller, Role
from jobs.controller.audit import Act
from jobs.controller.health.book import Book
from jobs.controller.health.rows import AlertRows
from jobs.controller.journal import Journal, JournalThread
from jobs.controller.nodes.asked import listed, made_id
from jobs.controller.runs import NoSuch, Runs, request_digest
from jobs.errors import Refused, Usage

Test = Callable[[Level, str, str], Awaitable[TestReply]]
"""Sends one alert of a level, marked as a test and with who sends it, through one way out or all. Raises `Refused`."""


class Said:
    """Requests about alerts, one after the other."""

    def __init__(
        self,
        book: Book,
        journal: JournalThread,
        runs: Runs,
        access: Access,
        *,
        view: Callable[[], AlertsView],
        clear: Callable[[Alert], None],
        test: Test,
        longest_silence: float,
        wall: Callable[[], float] = time.time,
    ) -> None:
        """``clear`` has the rules forget that it was so; ``test`` sends through the ways out."""
        self._book = book
        self._journal = journal
        self._runs = runs
        self._access = access
        self._view = view
        self._clear = clear
        self._test = test
        self._longest = longest_silence
        self._wall = wall
        self._lock = asyncio.Lock()
        self.changed = asyncio.Event()
        """Something was said: what is told is to be told anew."""

    async def acknowledge(self, asked: AcknowledgeRequest, caller: Caller) -> AlertsReply:
        """Somebody has them. Raises `NotAllowed`, `NoSuch`."""
        self._allow(caller, f"acknowledge {listed(asked.alerts)}")
        async with self._lock:
            digest = _digest("acknowledge", asked)
            if await self._runs.repeated(asked.request_id, digest):
                return self._again()
            there = self._found(asked.alerts)
            already = [_already(each) for each in there if each.acknowledged is not None or each.state != "firing"]
            fresh = [each for each in there if each.acknowledged is None and each.state == "firing"]
            said = Acknowledged(user=caller.user, at=self._wall(), reason=asked.reason)
            after = [each.model_copy(update={"acknowledged": said, "changed_at": said.at}) for each in fresh]
            act = Act(caller.user, "acknowledge", listed(asked.alerts), True, asked.reason)
            await self._accept(act, asked.request_id, digest, AlertRows(alerts=tuple(after)))
            changed = [taken for each in fresh if (taken := self._book.acknowledge(each.id, said)) is not None]
            return self._reply(changed, already)

    async def silence(self, asked: SilenceRequest, caller: Caller) -> AlertsReply:
        """Have what matches not told of for a while. Raises `NotAllowed`, `Usage`."""
        self._allow(caller, f"silence {asked.matcher.words}")
        if asked.matcher == Matcher():
            raise Usage("a silence needs a rule, a node, a run or a level", "Nothing silences everything")
        if asked.seconds > self._longest:
            raise Refused(
                f"a silence lasts at most {self._longest / 3600:g} hours here", "alerting.silences_longest says so"
            )
        async with self._lock:
            digest = _digest("silence", asked)
            hidden = [each for each in self._book.shown(self._wall()) if _fires(each) and asked.matcher.matches(each)]
            if asked.dry_run:
                return AlertsReply(view=self._view(), changed=hidden)
            if await self._runs.repeated(asked.request_id, digest):
                return self._again()
            now = self._wall()
            same = [
                each
                for each in self._book.silences.values()
                if each.user == caller.user and each.matcher == asked.matcher
            ]
            silence = Silence(
                id=same[0].id if same else made_id("silence", asked.request_id),
                matcher=asked.matcher,
                user=caller.user,
                reason=asked.reason,
                at=now,
                until=now + asked.seconds,
            )
            act = Act(caller.user, "silence", asked.matcher.words, True, f"{asked.seconds:g} s; {asked.reason}")
            await self._accept(act, asked.request_id, digest, AlertRows(silences=(silence,)), silence.id)
            self._book.silences[silence.id] = silence
            already = ["you had silenced this before; its end and reason are the new ones"] if same else []
            return self._reply(hidden, already, silence)

    async def end_silence(self, identity: str, asked: EndSilenceRequest, caller: Caller) -> AlertsReply:
        """End it before its time. Raises `NotAllowed`."""
        self._allow(caller, f"end {identity}")
        async with self._lock:
            silence = self._book.silences.get(identity)
            if silence is None:
                return self._reply([], [f"there is no silence {identity}; it may have ended"])
            digest = _digest(f"end {identity}", asked)
            act = Act(caller.user, "end silence", silence.matcher.words, True, asked.reason)
            await self._accept(act, asked.request_id, digest, AlertRows(over=(identity,)), identity)
            self._book.silences.pop(identity, None)
            told = [each for each in self._book.shown(self._wall()) if _fires(each) and silence.matcher.matches(each)]
            return self._reply(told, [], silence)

    async def clear(self, asked: ClearRequest, caller: Caller) -> AlertsReply:
        """Clear them after a repair. Raises `NotAllowed`, `NoSuch`, `Refused` for those that end by themselves."""
        self._allow(caller, f"clear {listed(asked.alerts)}")
        async with self._lock:
            digest = _digest("clear", asked)
            if await self._runs.repeated(asked.request_id, digest):
                return self._again()
            there = self._found(asked.alerts)
            firm = [each for each in there if _fires(each) and not (each.latched or each.flapping)]
            if firm:
                raise Refused(
                    f"{firm[0].id} ends by itself when {firm[0].rule} no longer holds",
                    "Acknowledge it, or silence it, meanwhile; only what is latched or flapping is cleared by hand",
                )
            fires = [each for each in there if _fires(each)]
            now = self._wall()
            said = {"state": "cleared", "cleared_by": caller.user, "cleared_reason": asked.reason, "ended_at": now}
            act = Act(caller.user, "clear alert", listed(asked.alerts), True, asked.reason)
            rows = AlertRows(alerts=tuple(each.model_copy(update=said) for each in fires))
            await self._accept(act, asked.request_id, digest, rows)
            changed: list[Alert] = []
            for each in fires:
                self._clear(each)
                ended = self._book.cleared(each.id, caller.user, asked.reason, now)
                if ended is not None:
                    changed.append(ended)
            return self._reply(changed, [_already(each) for each in there if not _fires(each)])

    async def test(self, asked: TestRequest, caller: Caller) -> TestReply:
        """Try the ways out. Raises `NotAllowed`, `Refused` (there is none)."""
        self._allow(caller, "send a test alert")
        act = Act(caller.user, "test alert", asked.sink or "all ways out", True, asked.level)
        await self._journal(Journal.audit, act, self._wall())
        return await self._test(asked.level, asked.sink, caller.user)

    def _allow(self, caller: Caller, what: str) -> None:
        self._access.require(caller, Role.OPERATOR, what)

    def _found(self, names: Sequence[str]) -> list[Alert]:
        found = [(name, self._book.alert(name)) for name in dict.fromkeys(names)]
        missing = [name for name, alert in found if alert is None]
        if missing:
            raise NoSuch(f"there is no alert {missing[0]}; it may have ended: raydeck alerts history")
        return [alert for _, alert in found if alert is not None]

    async def _accept(self, act: Act, request: str, digest: str, rows: AlertRows, answer: str = "") -> None:
        await self._journal(
            Journal.accept, [], act, self._wall(), request=request, digest=digest, answer=answer, alerts=rows
        )
        self.changed.set()

    def _reply(self, changed: list[Alert], already: list[str], silence: Silence | None = None) -> AlertsReply:
        return AlertsReply(view=self._view(), changed=changed, already=already, silence=silence)

    def _again(self) -> AlertsReply:
        return self._reply([], ["this very request was carried out before"])


def _fires(alert: Alert) -> bool:
    return alert.state == "firing"


def _already(alert: Alert) -> str:
    if alert.state != "firing":
        return f"{alert.id} has ended"
    by = alert.acknowledged.user if alert.acknowledged is not None else "somebody"
    return f"{alert.id} is acknowledged by {by} already"


def _digest(verb: str, asked: BaseModel) -> str:
    return request_digest(verb, asked.model_dump_json())
