"""One sink's notices: in order of urgency, tried again, not too many, and in the way of no other sink's."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from pydantic import BaseModel, Field

from jobs.alertview import Delivery
from jobs.controller.notify.notice import WORSE, Failed, Held, HeldBack, Notice, Way
from jobs.controller.notify.words import HELD_SHOWN, TITLE_SIGNS, clean
from jobs.spans import span
from jobs.within import within

log = logging.getLogger(__name__)

HOUR = 3600.0
TRY_FOR_SECONDS = HOUR
"""A notice that did not go out for so long is given up; a reminder will be due."""
FIRST_WAIT_SECONDS = 2.0
LONGEST_WAIT_SECONDS = 300.0
LONGEST_PAUSE_SECONDS = 30.0
"""After failures, between any two tries: a new notice does not wait for the back-off of an older one."""
LOOK_SECONDS = 60.0
"""It wakes up so often by itself, however far the clock says that the next thing is."""
PENDING_AT_MOST = 256
LINES_AT_MOST = 200
DELIVERED_AT_MOST = 4096
DETAIL_SIGNS = 300
CLOSE_SECONDS = 3.0

Report = Callable[[str, Delivery], None]
"""Told of each try: the alert's id, and how it went."""


class Item(BaseModel):
    """A notice that waits."""

    notice: Notice
    tries: int = 0
    again_at: float = 0.0
    why: str = ""


class LaneState(BaseModel):
    """What must outlive the controller, so that nothing is told twice, and nothing lost."""

    pending: list[Item] = Field(default_factory=list)
    sent: list[float] = Field(default_factory=list)
    """When something went out in the last hour."""
    delivered: list[str] = Field(default_factory=list)
    """Alerts of which something was told, the oldest first."""
    held: HeldBack = Field(default_factory=HeldBack)


class Lane:
    """One sink. Its task lives while something waits; `close` ends it."""

    def __init__(self, name: str, way: Way, rate: int, wall: Callable[[], float], report: Report) -> None:
        self.name = name
        self._way = way
        self._rate = rate
        self._wall = wall
        self._report = report
        self._items: dict[str, Item] = {}
        """By alert: of each, only the newest notice waits."""
        self._trying: Item | None = None
        self._sent: list[float] = []
        self._delivered: dict[str, None] = {}
        self._held = HeldBack()
        self._failures = 0
        self._pause_until = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def waiting(self) -> int:
        """Notices that have not gone out yet."""
        return len(self._items) + (self._trying is not None)

    def state(self) -> LaneState:
        """What must outlive the controller."""
        trying = [self._trying] if self._trying is not None and self._trying.notice.kind != "held" else []
        return LaneState(
            pending=[*trying, *self._items.values()],
            sent=self._sent,
            delivered=list(self._delivered),
            held=self._held,
        )

    def restore(self, state: LaneState) -> None:
        """Goes on from there."""
        for item in state.pending:
            self._put(item)
        self._sent = sorted(state.sent)
        self._delivered = dict.fromkeys(state.delivered)
        self._held = state.held

    def offer(self, notice: Notice) -> None:
        """Have it told."""
        self._put(Item(notice=notice))
        while len(self._items) > PENDING_AT_MOST:
            last = max(self._items.values(), key=lambda item: (item.notice.rank, item.notice.at))
            self._hold(self._items.pop(last.notice.alert.id), "too many wait")

    def poke(self) -> None:
        """Look whether something is to be done: a notice came, or time has passed."""
        self._wake.set()
        if self._closed or (self._task is not None and not self._task.done()):
            return
        if self._items or self._held.count:
            self._task = asyncio.create_task(self._run(), name=f"notices through {self.name}")

    async def close(self, seconds: float = CLOSE_SECONDS) -> None:
        """A try that was begun may end; what waits, waits for the next controller."""
        self._closed = True
        self._wake.set()
        if self._task is not None:
            await asyncio.wait({self._task}, timeout=seconds)
            self._task.cancel()
            await asyncio.wait({self._task})

    async def test(self, notice: Notice) -> Delivery:
        """One try of a test, now; it counts for nothing."""
        try:
            detail, ok = await self._try(notice), True
        except Failed as error:
            detail, ok = str(error), False
        return self._delivery(ok, detail)

    async def _run(self) -> None:
        try:
            await self._work()
        except Exception:
            # The boundary of a sink; the next poke starts it again.
            log.exception("%s: telling of alerts went wrong", self._way.where)

    async def _work(self) -> None:
        while not self._closed and (self._items or self._held.count):
            self._wake.clear()
            item, wait = self._next(self._wall())
            if item is not None:
                await self._send(item)
                continue
            try:
                await within(self._wake.wait(), min(wait, LOOK_SECONDS))
            except asyncio.TimeoutError:
                continue

    def _next(self, now: float) -> tuple[Item | None, float]:
        """What to try now, or how long there is nothing to try."""
        self._sent = [at for at in self._sent if now - HOUR < at <= now]
        self._drop_stale(now)
        if self._pause_until - now > LONGEST_WAIT_SECONDS * 2:
            self._pause_until = now  # the clock was set back
        if now < self._pause_until:
            return None, self._pause_until - now
        while ready := [item for item in self._items.values() if item.again_at <= now]:
            item = min(ready, key=lambda item: (item.notice.rank, item.tries > 0, item.notice.at))
            del self._items[item.notice.alert.id]
            if self._room(item.notice.rank):
                return item, 0.0
            self._hold(item, f"{self._rate} in an hour are the most")
        if self._held.count and not self._items:
            digest = Notice.of_held(self.name, self._held, now)
            if self._room(digest.rank):
                return Item(notice=digest), 0.0
        waits = [item.again_at - now for item in self._items.values()]
        waits += [self._sent[0] + HOUR - now] if self._held.count and self._sent else []
        return None, max(min(waits, default=LOOK_SECONDS), 0.01)

    def _room(self, rank: int) -> bool:
        """A third of what may go out in an hour is kept for what is critical."""
        return len(self._sent) < (self._rate if rank == WORSE["critical"] else self._rate - self._rate // 3)

    def _drop_stale(self, now: float) -> None:
        for name, item in list(self._items.items()):
            notice = item.notice
            if notice.kind == "cleared" and name not in self._delivered:
                del self._items[name]
                self._unhold(name)
                if item.why:
                    self._tell(notice, False, f"it was over before it could be told: {item.why}")
            elif now - notice.at > TRY_FOR_SECONDS:
                del self._items[name]
                self._tell(notice, False, f"given up after {item.tries} tries in {span(TRY_FOR_SECONDS)}: {item.why}")
            elif item.again_at - now > LONGEST_WAIT_SECONDS * 2:
                item.again_at = now  # the clock was set back

    async def _send(self, item: Item) -> None:
        notice = self._as_told_here(item.notice)
        self._trying = item
        try:
            detail = await self._try(notice)
        except Failed as error:
            self._trying = None
            self._failed(item, error)
            return
        except asyncio.CancelledError:
            self._trying = None
            self._put_back(item)
            raise
        now = self._wall()
        self._trying = None
        self._sent.append(now)
        self._failures, self._pause_until = 0, 0.0
        if notice.kind == "cleared":
            self._delivered.pop(notice.alert.id, None)
        elif notice.kind != "held":
            self._mark(notice.alert.id)
        self._told_of_held(notice.held)
        tries = f", at try {item.tries + 1}" if item.tries else ""
        self._tell(notice, True, f"{notice.kind}: {detail}{tries}")

    def _told_of_held(self, held: HeldBack) -> None:
        """It is no longer held back; more may be since the notice was made."""
        for place, each in enumerate(held.lines):
            if place < HELD_SHOWN and not each.over:
                self._mark(each.alert)
            self._report(each.alert, self._delivery(True, f"told among {held.count} that had been held back"))
        told = [each.alert for each in held.lines]
        self._held = HeldBack(
            lines=[each for each in self._held.lines if each.alert not in told],
            more=max(self._held.more - held.more, 0),
        )

    def _failed(self, item: Item, error: Failed) -> None:
        now, notice = self._wall(), item.notice
        item.tries += 1
        item.why = str(error)
        self._failures += 1
        pause = min(FIRST_WAIT_SECONDS * 2.0 ** min(self._failures - 1, 20), LONGEST_PAUSE_SECONDS)
        self._pause_until = now + (error.after if error.after is not None else pause)
        if not error.again:
            self._failures, self._pause_until = 0, now
            self._sent.append(now)
            self._tell(notice, False, f"{item.why}; not tried again")
            return
        wait = min(FIRST_WAIT_SECONDS * 2.0 ** min(item.tries - 1, 20), LONGEST_WAIT_SECONDS)
        item.again_at = max(now + wait, self._pause_until)
        self._put_back(item)
        self._tell(notice, False, f"{item.why}; try {item.tries}, again in {span(round(item.again_at - now))}")

    async def _try(self, notice: Notice) -> str:
        try:
            return await within(self._way.send(notice), self._way.limit_seconds)
        except asyncio.TimeoutError:
            raise Failed(f"no end within {self._way.limit_seconds:g} s") from None
        except Failed:
            raise
        except Exception as error:
            # The boundary of a sink: a mistake in one must not silence the others. Its words may hold a secret.
            log.error("%s: a notice went wrong: %s", self._way.where, type(error).__name__)
            raise Failed(f"raydeck made a mistake ({type(error).__name__})", again=False) from None

    def _as_told_here(self, notice: Notice) -> Notice:
        known = notice.alert.id in self._delivered
        kind = "firing" if not known and notice.kind in ("changed", "reminder") else notice.kind
        held = notice.held if notice.kind == "held" else self._held
        return notice.model_copy(update={"kind": kind, "reply": known, "held": held})

    def _put(self, item: Item) -> None:
        """Waits from now on; an older notice of the same alert gives its place to it."""
        older = self._items.pop(item.notice.alert.id, None)
        if older is not None:
            item.tries, item.again_at, item.why = older.tries, older.again_at, older.why
            if older.notice.kind == "escalated" and item.notice.kind in ("changed", "reminder"):
                item.notice = item.notice.model_copy(update={"kind": "escalated"})
        self._items[item.notice.alert.id] = item

    def _put_back(self, item: Item) -> None:
        """It was tried, and waits again; a newer one of the same alert may have come meanwhile."""
        if item.notice.kind == "held":
            return  # it is made anew of what is held back
        newer = self._items.pop(item.notice.alert.id, None)
        self._put(item)
        if newer is not None:
            self._put(newer)

    def _hold(self, item: Item, why: str) -> None:
        notice = item.notice
        self._unhold(notice.alert.id)
        title = clean(notice.alert.title, TITLE_SIGNS)
        over = notice.kind == "cleared"
        if over:
            self._delivered.pop(notice.alert.id, None)
        if len(self._held.lines) < LINES_AT_MOST:
            line = f"[{'cleared' if over else notice.alert.level}] {title}"
            held = Held(alert=notice.alert.id, level=notice.alert.level, line=line, over=over)
            self._held = HeldBack(lines=[*self._held.lines, held], more=self._held.more)
        else:
            self._held = HeldBack(lines=self._held.lines, more=self._held.more + 1)
        self._tell(notice, False, f"held back: {why}; it is told with the next one")

    def _unhold(self, name: str) -> None:
        lines = [each for each in self._held.lines if each.alert != name]
        self._held = HeldBack(lines=lines, more=self._held.more)

    def _mark(self, name: str) -> None:
        self._delivered.pop(name, None)
        self._delivered[name] = None
        while len(self._delivered) > DELIVERED_AT_MOST:
            del self._delivered[next(iter(self._delivered))]

    def _tell(self, notice: Notice, ok: bool, detail: str) -> None:
        delivery = self._delivery(ok, detail)
        log.log(logging.INFO if ok else logging.WARNING, "%s: %s: %s", self._way.where, notice.key, delivery.detail)
        if notice.kind != "held":
            self._report(notice.alert.id, delivery)

    def _delivery(self, ok: bool, detail: str) -> Delivery:
        return Delivery(sink=self.name, at=self._wall(), ok=ok, detail=clean(detail, DETAIL_SIGNS))
