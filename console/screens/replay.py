"""Back in time: the keys that go through a recording, in the screens that show the cluster as it is now.

While a recording is looked at, the app has a session of it in place of the live one, which reads on in the background.
Nothing that touches the cluster works then. Light, since the first paint imports it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Iterable
from typing import TYPE_CHECKING, Any

from textual.screen import Screen
from textual.timer import Timer
from textual.worker import Worker

from console.screens.keep import KeepingApp
from console.screens.place import Place, place_in_front

if TYPE_CHECKING:
    from console.render.cells import Spans
    from console.sources.replay import HeadRecording, RecordedContext, ReplaySession
    from console.sources.session import Session
    from jobs.recordview import Mark

STEP_SECONDS = 10.0
MINUTE_SECONDS = 60.0
SPEEDS = {0: 1, 1: 10, 10: 0}
"""What `p` makes of each."""
TICK_SECONDS = 0.25
LIVE_SECONDS = 4.0
"""Closer to now than this there is no recording yet: it is written every few seconds."""
REFRESH_SECONDS = 2.0
AROUND_SECONDS = 5.0
HISTORY_SECONDS = 600.0
KEPT_BYTES = 64 * 1024 * 1024
KEPT_SECONDS = 900.0
REFUSED = "a recording is shown: nothing is changed from here; esc goes back to now"


class Replay:
    """A recording that is looked at, and how far one has come in it."""

    def __init__(self, session: ReplaySession, live: Session | None, source: HeadRecording | None) -> None:
        """``live``: what one goes back to, and ``source``: where more of it is; both None for a file."""
        self.session = session
        self.live = live
        self.source = source
        self.speed = 0
        self.target = session.timeline.at
        """Where one wants to be."""
        self.asked_at = time.monotonic()
        """When the head was last asked how far its recording goes."""
        self.loading = False

    @property
    def span(self) -> tuple[float, float]:
        """From when to when something is recorded."""
        return self.source.span if self.source is not None else self.session.timeline.span

    @property
    def marks(self) -> list[Mark]:
        """What happened."""
        return self.source.marks if self.source is not None else self.session.timeline.marks

    def keys(self) -> Spans:
        """What keys do here."""
        from console.render.replay import key_spans

        return key_spans(self.live is not None)

    def line(self, place: str, width: int) -> Spans:
        """The status line."""
        from console.render.replay import Shown, replay_spans

        timeline, context = self.session.timeline, self.session.context
        now = self.live.head_wall() if self.live is not None else None
        shown = Shown(timeline.at, now, self.span, self.speed, timeline.gap_seconds, self.loading)
        return replay_spans(context.name, place, shown, self.marks, simulated=context.simulated, width=width)


class ReplayingApp(KeepingApp):
    """What the keys `,` and `.` go through."""

    replay: Replay | None = None
    _going: Worker[None] | None = None
    _playing: Timer | None = None
    _played_at = 0.0
    _back_seconds = 0.0

    # --- what is refused ----------------------------------------------------------------------------------------------

    def touch(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Carry out what a key asked for; of a recording nothing can be changed."""
        if self.replay is not None:
            work.close()
            self.notify(REFUSED if self.replay.live is not None else REFUSED.partition(";")[0], severity="warning")
            return
        super().touch(work, name)

    # --- keys ---------------------------------------------------------------------------------------------------------

    def action_earlier(self) -> None:
        """Back in time."""
        self._travel(-STEP_SECONDS)

    def action_later(self) -> None:
        """Forward in time."""
        self._travel(STEP_SECONDS)

    def action_minute_earlier(self) -> None:
        """Back a minute."""
        self._travel(-MINUTE_SECONDS)

    def action_minute_later(self) -> None:
        """Forward a minute."""
        self._travel(MINUTE_SECONDS)

    def action_mark_before(self) -> None:
        """To what happened before."""
        self._jump(-1)

    def action_mark_after(self) -> None:
        """To what happened next."""
        self._jump(1)

    def action_play(self) -> None:
        """Play, faster, pause."""
        replay = self.replay
        if replay is None:
            self.notify("this is now; , goes back in time, and p then plays what was recorded")
            return
        replay.speed = SPEEDS[replay.speed]
        self._played_at = time.monotonic()
        self._touch_status()

    def _travel(self, seconds: float) -> None:
        replay = self.replay
        if replay is not None:
            replay.speed = 0
            self._to(replay.target + seconds)
        elif seconds > 0:
            self.notify("this is now; , goes back in time")
        else:
            self._enter(-seconds)

    def _jump(self, by: int) -> None:
        from console.render.replay import SAME_SECONDS, before_and_after

        replay = self.replay
        if replay is None:
            if by < 0:
                self._enter(0.0)
            else:
                self.notify("this is now; , goes back in time")
            return
        replay.speed = 0
        at = replay.target - 3 * SAME_SECONDS if by < 0 else replay.target
        before, after = before_and_after(replay.marks, at)
        mark = before if by < 0 else after
        if mark is None:
            self.notify(f"nothing happened {'before' if by < 0 else 'after'} that in what is recorded")
            return
        self._to(mark.at + SAME_SECONDS)
        self.notify(mark.text, markup=False, timeout=8,
                    severity="information" if mark.level == "info" else "warning")  # fmt: skip

    # --- into a recording, and out of it ------------------------------------------------------------------------------

    def _enter(self, seconds: float) -> None:
        """Go back by so much; 0: to what happened last."""
        self._back_seconds += seconds
        if self.session is None or (self._going is not None and not self._going.is_finished):
            return
        busy = [work.name for work in self.workers if work.group == "touch" and not work.is_finished]
        if busy:
            self._back_seconds = 0.0
            self.notify(f"{busy[0]} is under way: back in time when it is done", severity="warning", markup=False)
            return
        self._going = self.run_worker(self._entered(self.session), name="replay", exit_on_error=False)

    async def _entered(self, live: Session) -> None:
        from console.render.replay import SAME_SECONDS, before_and_after
        from console.sources.replay import HeadRecording, ReplaySession
        from console.state.replay import Timeline
        from jobs.recordcalls import RecordCalls

        wanted = self._back_seconds
        try:
            source = HeadRecording(RecordCalls.beside(await live.controller()))
            await source.refresh()
            wanted = self._back_seconds
            start, end = source.span
            at = live.head_wall() - wanted
            if not wanted:
                last = before_and_after(source.marks, end)[0]
                at = last.at + SAME_SECONDS if last is not None else end - STEP_SECONDS
            at = min(max(at, start), end)
            timeline = Timeline(live.fleet.nodes.values())
            timeline.take(await source.fetch(at - AROUND_SECONDS, at))
            timeline = await asyncio.to_thread(timeline.moved, at)
        finally:
            more, self._back_seconds = self._back_seconds - wanted, 0.0
        if self.session is not live:
            return
        self.replay = Replay(ReplaySession(live.context, timeline), live, source)
        self._playing = self.set_interval(TICK_SECONDS, self._tick)
        self._swap(self.replay.session)
        self._fetch_history(self.replay)
        if more:
            self.call_later(self._travel, -more)

    def open_recording(self, context: RecordedContext) -> Session:
        """A recording in a file, from its end; there is nothing to go back to."""
        from console.sources.replay import ReplaySession
        from console.state.replay import Timeline

        timeline = Timeline()
        timeline.take(context.parts)
        timeline.seek(timeline.span[1])
        self.replay = Replay(ReplaySession(context, timeline), None, None)
        self._playing = self.set_interval(TICK_SECONDS, self._tick)
        return self.replay.session

    def leave_replay(self) -> bool:
        """Back to now; False where nothing else than a recording is there, or none is shown."""
        replay = self.replay
        if replay is None or replay.live is None:
            return False
        self.replay = None
        if self._playing is not None:
            self._playing.stop()
        self._swap(replay.live)
        self.notify("now again")
        return True

    def live_session(self) -> Session | None:
        """What reads the cluster, whatever is shown."""
        replay, self.replay = self.replay, None
        return replay.live or replay.session if replay is not None else self.session

    def _swap(self, session: Session) -> None:
        """Have every screen show other stores."""
        self.session = session
        fleet, work = session.fleet, session.work
        work.nodes.drains_changed = work.queue_changed = True
        names, runs = set(fleet.nodes), {*work.runs, *work.ray_jobs}
        work.nodes.changed |= names  # whoever looks at the next frame sees all of it as new, too
        if any(name not in names for name in _nodes_of(self.screen_stack)):
            while len(self.screen_stack) > 2:  # it is about a node that is not there
                self.pop_screen()
        for screen in self.screen_stack:
            if isinstance(screen, Place) and screen.is_running:
                screen.frame(names, runs)

    # --- on the way ---------------------------------------------------------------------------------------------------

    def _to(self, at: float) -> None:
        """Go to a moment; beyond the end of what can be recorded it is now."""
        replay = self.replay
        if replay is None:
            return
        start, end = replay.span
        if replay.live is not None and at >= replay.live.head_wall() - LIVE_SECONDS:
            self.leave_replay()
            return
        if at < start:
            self.notify("the recording begins here")
        elif replay.live is None and at > end:
            replay.speed = 0
            self.notify("the recording ends here")
        replay.target = max(start, at) if replay.live is not None else min(max(start, at), end)
        if self._going is None or self._going.is_finished:
            self._going = self.run_worker(self._go_on(replay), name="replay", exit_on_error=False)

    async def _go_on(self, replay: Replay) -> None:
        """Until it is where one wants to be, which may be somewhere else by then."""
        from jobs.errors import RaydeckError

        try:
            replay.loading = True
            while replay is self.replay:
                at = replay.target
                await self._arrive(replay, at)
                if at == replay.target:
                    break
        except RaydeckError:
            replay.speed, replay.target = 0, replay.session.timeline.at
            raise
        finally:
            replay.loading = False
            self._touch_status()

    async def _arrive(self, replay: Replay, at: float) -> None:
        timeline, source = replay.session.timeline, replay.source
        if source is not None:
            if at > source.span[1] and time.monotonic() - replay.asked_at >= REFRESH_SECONDS:
                replay.asked_at = time.monotonic()
                await source.refresh()
            if at > source.span[1]:  # what is not written yet cannot be looked at
                at = replay.target = source.span[1]
            if source.lacks(at - AROUND_SECONDS, at):
                timeline.take(await source.fetch(at - AROUND_SECONDS, at))
        moved = await asyncio.to_thread(timeline.moved, at)
        if replay is not self.replay:
            return
        if source is not None and moved.size_bytes > KEPT_BYTES:
            moved.let_go(KEPT_SECONDS)
            source.forget(moved)
        replay.session.show(moved)
        self._swap(replay.session)
        if not replay.speed:
            self._fetch_history(replay)

    def _fetch_history(self, replay: Replay) -> None:
        """Bring the ten minutes before, behind what is looked at."""
        at, source = replay.session.timeline.at, replay.source
        if source is not None and source.lacks(at - HISTORY_SECONDS, at):
            self.run_worker(self._history(replay, source, at), name="replay history", group="replay history",
                            exclusive=True, exit_on_error=False)  # fmt: skip

    async def _history(self, replay: Replay, source: HeadRecording, at: float) -> None:
        parts = await source.fetch(at - HISTORY_SECONDS, at)
        if replay is self.replay:
            replay.session.timeline.take(parts)

    def _tick(self) -> None:
        """Four times a second while a recording is looked at."""
        replay, now = self.replay, time.monotonic()
        if replay is None:
            return
        if not replay.speed or (self._going is not None and not self._going.is_finished):
            self._played_at = now
            return
        timeline = replay.session.timeline
        at = timeline.at + (now - self._played_at) * replay.speed
        if replay.source is not None and at > replay.span[1] and now - replay.asked_at < REFRESH_SECONDS:
            return  # the head is asked for more in a moment, and what was missed is made up for then
        self._played_at = now
        if not (timeline.near(at) and timeline.covers(at)):
            self._to(at)
            return
        replay.target = at
        timeline.advance(at)
        self._touch_status()

    def _touch_status(self) -> None:
        screen = place_in_front(self)
        if screen is not None and self.session is not None:
            screen.frame(set(), set())


def _nodes_of(screens: Iterable[Screen[Any]]) -> list[str]:
    """The nodes that screens are about, by name."""
    from console.screens.node import NodeScreen

    return [screen.selected_node() for screen in screens if isinstance(screen, NodeScreen)]
