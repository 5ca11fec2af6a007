"""The fourth of the app that keeps nodes free of work: cordon, uncordon, drain, retire, rejoin, sweep.

Light, since the first paint imports it. What takes long goes on behind the screen; the row says what is being done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from console.screens.place import Place
from console.screens.touch import TouchingApp

if TYPE_CHECKING:
    from console.hands.sweep import GpuProcess
    from console.render.drains import Decision
    from console.screens.nodeforms import CordonValues, RetireValues
    from console.settings import NodeEntry
    from console.sources.session import Session
    from jobs.nodeview import Drain, DrainPolicy, NodesPlan
    from jobs.wire import NodesReply

AT_ONCE = 4
"""So many nodes are brought back, or end Ray, at the same time."""
RETIRING_SECONDS = 30.0
"""How long Ray may take to say that it drains a node, before Ray is ended there."""
NAMED = 4


class KeepingApp(TouchingApp):
    """What every key about nodes goes through."""

    def keep(self, verb: str, names: Sequence[str] | None = None) -> None:
        """Do this with these nodes, or with those that the screen in front means."""
        if names is None:
            names = list(self.screen.selected_nodes()) if isinstance(self.screen, Place) else []
        session = self.session
        if session is None or not names:
            self.notify("no node is under the cursor", severity="warning")
            return
        work: dict[str, Callable[[Session, list[str]], Coroutine[Any, Any, None]]] = {
            "cordon": self._cordon,
            "uncordon": self._uncordon,
            "drain": self._drain,
            "retire": self._retire,
            "rejoin": self._rejoin,
        }
        self.touch(work[verb](session, list(names)), verb)

    def action_cordon(self) -> None:
        """Keep new work off nodes."""
        self.keep("cordon")

    def action_uncordon(self) -> None:
        """Take holds back."""
        self.keep("uncordon")

    def action_drain(self) -> None:
        """Move the work off nodes."""
        self.keep("drain")

    def action_retire(self) -> None:
        """Take nodes out of Ray."""
        self.keep("retire")

    def action_rejoin(self) -> None:
        """Start Ray on nodes again."""
        self.keep("rejoin")

    # --- by the controller --------------------------------------------------------------------------------------------

    async def _cordon(self, session: Session, names: list[str]) -> None:
        from console import upkeep
        from console.screens.nodeforms import CordonDialog, cordon_preview

        nodes = upkeep.refs(names, session.fleet)

        async def ask(values: CordonValues, reason: str, *, dry_run: bool = True) -> NodesReply:
            seconds = values.seconds(datetime.now().astimezone())
            client = await session.controller()
            return await upkeep.cordon(client, nodes, reason, seconds=seconds, gpus=values.gpus, dry_run=dry_run)

        agreed = await self.push_screen_wait(
            CordonDialog(
                _title("Cordon", names),
                _plan_of(ask),
                lambda plan, values: cordon_preview(plan, values, self.you, session.head_wall()),
            )
        )
        if agreed is not None:
            self._told(await ask(agreed.values, agreed.reason, dry_run=False))

    async def _uncordon(self, session: Session, names: list[str]) -> None:
        from console import upkeep
        from console.screens.uncordon import UncordonDialog, ask_preview

        nodes = upkeep.refs(names, session.fleet)
        client = await session.controller()
        taken = await self.push_screen_wait(UncordonDialog(client, nodes, self.you, session.head_wall()))
        if taken is None:
            return
        answer = await self.confirmed(ask_preview(taken, self.you, session.head_wall()))
        if answer is not None:
            of = "" if taken.own else taken.user
            self._told(await upkeep.uncordon(client, nodes, answer.reason, of=of))

    async def _drain(self, session: Session, names: list[str]) -> None:
        from console import upkeep
        from console.screens.nodeforms import DrainDialog

        nodes = upkeep.refs(names, session.fleet)

        async def ask(policy: DrainPolicy, reason: str, *, dry_run: bool = True) -> NodesReply:
            return await upkeep.drain(await session.controller(), nodes, reason, policy, dry_run=dry_run)

        known = session.fleet.nodes
        agreed = await self.push_screen_wait(
            DrainDialog(
                _title("Drain", names),
                _plan_of(ask),
                lambda plan, policy: upkeep.preview(
                    plan, you=self.you, now_wall=session.head_wall(), policy=policy, gpus=policy.gpus
                ),
                silent=[name for name in names if name in known and known[name].ssh.state in ("silent", "lost")],
            )
        )
        if agreed is not None:
            reply = await ask(agreed.values, agreed.reason, dry_run=False)
            self._told(reply, "it goes on by itself: 6 shows it" if reply.drain else "")

    async def _retire(self, session: Session, names: list[str]) -> None:
        from console import upkeep
        from console.screens.nodeforms import RetireDialog

        nodes = upkeep.refs(names, session.fleet)

        async def ask(values: RetireValues, reason: str, *, dry_run: bool = True) -> NodesReply:
            client = await session.controller()
            return await upkeep.retire(client, nodes, reason, deadline_seconds=values.deadline_seconds, dry_run=dry_run)

        agreed = await self.push_screen_wait(
            RetireDialog(
                _title("Retire", names),
                _plan_of(ask),
                lambda plan, _: upkeep.preview(plan, you=self.you, now_wall=session.head_wall()),
            )
        )
        if agreed is None:
            return
        self._told(await ask(agreed.values, agreed.reason, dry_run=False))
        if agreed.values.end_ray:
            await self._each(
                session, names, "ending Ray over SSH", lambda entry: self._end_ray(session, entry, agreed.reason)
            )

    async def _end_ray(self, session: Session, entry: NodeEntry, reason: str) -> str:
        from console.hands.raystop import stop_ray

        def leaving() -> bool:
            view = session.work.nodes.named(entry.name)
            return view is None or view.ray != "alive" or view.ray_draining_until is not None

        await session.until(leaving, RETIRING_SECONDS)
        return await stop_ray(session, await session.controller(), entry, reason, self._step(session, entry))

    def _told(self, reply: NodesReply, more: str = "") -> None:
        """How each node stands then; what was so already is said too."""
        from console.render.nodes import standing_word

        if self.session is not None:
            self.session.work.nodes.take(reply.view)  # what was just done is seen at once, not with the next event
        words = [f"{node.name}: {standing_word(reply.view.node(node.name))}" for node in reply.plan.nodes[:NAMED]]
        if len(reply.plan.nodes) > NAMED:
            words.append(f"and {len(reply.plan.nodes) - NAMED} more")
        already = [said for node in reply.plan.nodes[:NAMED] for said in node.already]
        if already:
            words.append(f"before: {'; '.join(already)}")
        self.tell("\n".join([*words, more] if more else words))

    # --- over SSH -----------------------------------------------------------------------------------------------------

    def _entries(self, session: Session, names: Sequence[str]) -> list[NodeEntry]:
        """The nodes that the context names, since only those can be reached. The others are said to be none."""
        found = {entry.name: entry for entry in session.context.nodes}
        missing = [name for name in names if name not in found]
        if missing:
            said = f"{', '.join(missing[:NAMED])}: not in context {session.context.name}, so that SSH does not reach it"
            self.notify(said, severity="warning", markup=False)
        return [found[name] for name in names if name in found]

    async def _rejoin(self, session: Session, names: list[str]) -> None:
        from console.hands import rejoin
        from console.preview import Preview

        entries = self._entries(session, names)
        if not entries:
            return
        store = session.work.nodes
        previews = [rejoin.preview(entry, store.of(session.fleet.nodes[entry.name]), self.you) for entry in entries]
        preview = previews[0]
        if len(previews) > 1:
            lines = [line for one in previews for line in (one.title, *(f"  {line}" for line in one.lines))]
            count = str(len(entries))
            preview = Preview(f"Rejoin {count} nodes", tuple(lines), "count", count, True)
        answer = await self.confirmed(preview)
        if answer is None:
            return
        client = await session.controller()

        async def join(entry: NodeEntry) -> str:
            return await rejoin.rejoin(session, client, entry, answer.reason, self._step(session, entry))

        await self._each(session, [entry.name for entry in entries], "starting Ray over SSH", join)

    def _step(self, session: Session, entry: NodeEntry) -> Callable[[str], None]:
        """What is told while it is being done stands in the node's row."""
        return lambda sentence: session.work.nodes.begin(entry.name, sentence)

    async def _each(
        self, session: Session, names: Sequence[str], doing: str, act: Callable[[NodeEntry], Awaitable[str]]
    ) -> None:
        """Do it on each node, a few at a time; what goes wrong on one does not keep it from the others."""
        from jobs.errors import RaydeckError

        gate = asyncio.Semaphore(AT_ONCE)

        async def one(entry: NodeEntry) -> None:
            session.work.nodes.begin(entry.name, doing)
            try:
                async with gate:
                    self.tell(await act(entry))
            except RaydeckError as error:
                self.notify(f"{entry.name}: {error}", severity="error", timeout=12, markup=False)
            finally:
                session.work.nodes.finish(entry.name)

        await asyncio.gather(*(one(entry) for entry in self._entries(session, names)))

    # --- processes ----------------------------------------------------------------------------------------------------

    def action_end_process(self) -> None:
        """End left-over processes."""
        self._sweep(kill=False)

    def action_kill_process(self) -> None:
        """The same, and kill those that do not heed it."""
        self._sweep(kill=True)

    def _sweep(self, *, kill: bool) -> None:
        from console.screens.node import NodeScreen

        if self.session is not None and isinstance(self.screen, NodeScreen):
            name = self.screen.selected_node()
            self.touch(self._end(self.session, name, self.screen.selected_processes(), kill), "sweep")

    async def _end(self, session: Session, name: str, chosen: list[GpuProcess], kill: bool) -> None:
        from console.hands import sweep

        entries = self._entries(session, [name])
        runs = session.work.runs
        spared = [process for process in chosen if sweep.lives(process, runs) is not False]
        meant = [process for process in chosen if process not in spared]
        if spared:
            said = "; ".join(f"{process.pid} is {sweep.belongs(process, runs)}" for process in spared[:NAMED])
            self.notify(f"left alone: {said}", severity="warning", markup=False)
        if not meant or not entries:
            if not spared:
                self.notify(f"{name}: nothing of a run is left over; for others: tab to the processes, and mark")
            return
        preview = sweep.preview(entries[0], meant, runs, kill=kill)
        if len(meant) == 1 and not meant[0].run:  # it may be somebody's notebook
            preview = replace(preview, ask="name", expected=str(meant[0].pid))
        answer = await self.confirmed(preview)
        if answer is None:
            return
        client = await session.controller()
        ended = await sweep.end(session, client, entries[0], meant, answer.reason, kill=kill, tell=self.tell)
        self.notify("\n".join(each.sentence for each in ended), markup=False,
                    severity="information" if all(each.well for each in ended) else "warning")  # fmt: skip

    # --- drains -------------------------------------------------------------------------------------------------------

    def action_more_time(self) -> None:
        """Wait on."""
        self._decide("wait")

    def action_end_rest(self) -> None:
        """End what has not left."""
        self._decide("stop")

    def action_give_up(self) -> None:
        """Give up the nodes that are not empty."""
        self._decide("give_up")

    def action_stop_drain(self) -> None:
        """Stop the drain as it stands."""
        self._decide("cancel")

    def _decide(self, decision: Decision) -> None:
        from console.screens.drains import DrainsScreen

        if self.session is None or not isinstance(self.screen, DrainsScreen):
            return
        drain = self.screen.selected_drain()
        if drain is None:
            self.notify("no drain is under the cursor", severity="warning")
        elif drain.state != "running":
            self.tell(f"the drain of {drain.user} is over already: {drain.state}")
        else:
            self.touch(self._decided(self.session, drain, decision), decision)

    async def _decided(self, session: Session, drain: Drain, decision: Decision) -> None:
        from console import upkeep
        from console.render.drains import decision_preview
        from console.screens.drains import MoreTime, WaitDialog

        preview = decision_preview(drain, decision, you=self.you)
        if decision == "wait":
            answer = await self.push_screen_wait(WaitDialog(preview))
        else:
            answer = await self.confirmed(preview)
        if answer is None:
            return
        seconds = answer.seconds if isinstance(answer, MoreTime) else upkeep.WAIT_SECONDS
        done = await upkeep.decide(
            await session.controller(), drain.id, decision, seconds=seconds, reason=answer.reason
        )
        self.tell(f"the drain by {done.user}: {done.state}")


def _title(verb: str, names: Sequence[str]) -> str:
    return f"{verb} {names[0]}" if len(names) == 1 else f"{verb} {len(names)} nodes"


def _plan_of(ask: Callable[[Any, str], Awaitable[NodesReply]]) -> Callable[[Any, str], Awaitable[NodesPlan]]:
    async def plan(values: Any, reason: str) -> NodesPlan:
        return (await ask(values, reason)).plan

    return plan
