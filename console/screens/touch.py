"""The third of the app that changes a cluster: preview → confirmation → controller → outcome, one method for each key.

Light, since the first paint imports it: what a change needs is imported when it is asked for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from console.actions import BY_NAME
from console.screens.place import Place
from console.screens.ways import WaysApp

if TYPE_CHECKING:
    from console.preview import Preview
    from console.screens.dialogs import Confirmed
    from jobs.client import ControllerClient
    from jobs.model import Run
    from jobs.wire import Rollback


class TouchingApp(WaysApp):
    """What every key that touches goes through. The app adds what it looks at, and where it leads."""

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that touch are off in read-only mode."""
        known = BY_NAME.get(action)
        return None if known is not None and known.touches and self.settings.read_only else True

    def touch(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Carry out what a key asked for, behind the screen; what goes wrong becomes a sentence."""
        if self.settings.read_only:
            work.close()
            self.notify("read-only: nothing is changed", severity="warning")
            return
        self.run_worker(work, name=name, exit_on_error=False, group="touch")

    async def confirmed(self, preview: Preview) -> Confirmed | None:
        """Ask; none means no."""
        from console.screens.dialogs import ConfirmDialog

        return await self.push_screen_wait(ConfirmDialog(preview))

    def tell(self, text: str) -> None:
        """What came of it, in a line. Names from the cluster are no markup."""
        self.notify(text, markup=False)

    @property
    def you(self) -> str:
        """The user that the controller sees; empty while it has not said."""
        status = self.session.work.status if self.session else None
        return status.you if status else ""

    def _chosen(self) -> list[str]:
        return list(self.screen.selected_runs()) if isinstance(self.screen, Place) else []

    async def _runs(self, client: ControllerClient, keys: Sequence[str]) -> list[Run]:
        """The runs of these ids: as they are known here, else as the controller has them."""
        session = self.session
        known = session.work.runs if session else {}
        foreign = session.work.ray_jobs if session else {}
        return [known[key] if key in known else await client.run(key) for key in keys if key not in foreign]

    # --- launch, stop, controller -------------------------------------------------------------------------------------

    def action_launch(self) -> None:
        """Launch a workflow."""
        self.touch(self._launch(None), "launch")

    async def _launch(self, named: str | None) -> None:
        from console import dispatch
        from console.screens.dialogs import LaunchDialog

        named = named or await self.push_screen_wait(LaunchDialog())
        if named is None or self.session is None:
            return
        prepared = await asyncio.to_thread(dispatch.prepare, named)
        nodes = self.session.fleet.nodes.values()
        known = [node for node in nodes if node.ray.state == "alive" and node.ray_gpus_total is not None]
        free = int(sum((node.ray_gpus_total or 0) - (node.ray_gpus_used or 0) for node in known)) if known else None
        if await self.confirmed(dispatch.preview_launch(prepared, free)) is None:
            return
        launched = await dispatch.launch(await self.session.controller(), prepared)
        first = launched[0]
        self.run_in_focus = first.id
        self.tell(
            f"{first.id}: {first.state.value}" if len(launched) == 1 else f"{len(launched)} runs of {first.sweep}"
        )
        self.action_runs()
        if first.sweep:
            self.open_sweep(first.sweep)

    def action_validate(self) -> None:
        """Prove the marked nodes, or all of them."""
        self.touch(self._validate(), "validate")

    async def _validate(self) -> None:
        from console import validating
        from console.screens.validateform import ProfileDialog

        session = self.session
        if session is None:
            return
        marked = list(self.screen.marked_nodes()) if isinstance(self.screen, Place) else []
        profile = await self.push_screen_wait(ProfileDialog(marked))
        if profile is None:
            return
        ask = validating.ask_for(session, profile, (), marked)
        if await self.confirmed(validating.preview(session, ask)) is None:
            return
        run = await validating.launch(await session.controller(), ask)
        self.tell(f"{run.id}: {run.state.value}")
        self.action_validations()
        self.open_validation(run.id)

    def action_stop(self) -> None:
        """Stop the chosen runs."""
        self.touch(self._stop(self._chosen()), "stop")

    async def _stop(self, chosen: list[str]) -> None:
        from console import dispatch

        session = self.session
        if session is None:
            return
        client = await session.controller()
        runs = await self._runs(client, chosen)
        if not runs and chosen:
            self.notify("that is not one of raydeck's runs", severity="warning")
            return
        answer = await self.confirmed(dispatch.preview_stop(runs, session.head_wall(), you=self.you))
        if answer is None:
            return
        stopped = await dispatch.stop(client, runs, answer.reason)
        self.tell(", ".join(f"{run.id}: {run.state.value}" for run in stopped))

    def action_controller(self) -> None:
        """Start the controller on the head."""
        self.touch(self._controller(), "controller")

    async def _controller(self) -> None:
        from console.preview import Preview
        from console.sources.head import start_controller

        session = self.session
        if session is None or session.context.head is None:
            return
        lines = (
            f"On {session.context.head.name}, as a process of its own, under {session.context.metadata_store}.",
            "Nothing is installed; it listens on a Unix socket only.",
        )
        if await self.confirmed(Preview("Start the controller", lines)) is None:
            return
        answer = await start_controller(session, restart=False)
        self.tell(f"controller {answer['event']}, pid {answer['pid']}")

    # --- arrange ------------------------------------------------------------------------------------------------------

    def action_arrange(self) -> None:
        """Change how the chosen runs wait."""
        self.touch(self._arrange(self._chosen()), "arrange")

    async def _arrange(self, chosen: list[str]) -> None:
        from console import dispatch
        from console.screens.arrange import ArrangeDialog

        session = self.session
        if session is None:
            return
        client = await session.controller()
        runs = [run for run in await self._runs(client, chosen) if not run.state.ended]
        if not runs:
            said = f"{chosen[0]} has ended: R restarts it" if chosen else "no run is under the cursor"
            self.notify(said, severity="warning", markup=False)
            return
        queue = session.work.queue
        change = await self.push_screen_wait(ArrangeDialog(runs, queue))
        if change is None:
            return
        answer = await self.confirmed(dispatch.preview_arrange(runs, change, queue=queue, you=self.you))
        if answer is None:
            return
        changed = await dispatch.arrange(client, [run for run in runs if run.state.waiting] or runs, change,
                                         answer.reason)  # fmt: skip
        self.tell(f"done: {', '.join(run.id for run in changed[:4])}{' …' if len(changed) > 4 else ''}")

    # --- restart ------------------------------------------------------------------------------------------------------

    def action_restart(self) -> None:
        """Restart the run under the cursor from one of its checkpoints."""
        chosen = self._chosen()
        if len(chosen) > 1:
            self.notify("one run at a time is restarted: take the marks off (a)", severity="warning")
        elif chosen:
            self.touch(self.restart(chosen[0]), "restart")
        else:
            self.notify("no run is under the cursor", severity="warning")

    async def restart(self, key: str) -> None:
        """Choose a checkpoint, see what will happen, ask, do it, and go to the run."""
        from console import dispatch
        from console.screens.restart import RestartDialog

        session = self.session
        if session is None:
            return
        client = await session.controller()
        runs = await self._runs(client, [key])
        if not runs:
            self.notify("that is not one of raydeck's runs", severity="warning")
            return
        chosen = await self.push_screen_wait(RestartDialog(client, runs[0], session.head_wall()))
        if chosen is None:
            return
        answer = await self.confirmed(dispatch.preview_restart(runs[0], chosen.plan, session.head_wall(), you=self.you))
        if answer is None:
            return
        done = await dispatch.restart(client, runs[0], answer.reason, chosen.step)
        begins = "the beginning" if done.from_step is None else f"step {done.from_step}"
        self.tell(f"{done.run.id}: {done.run.state.value}, from {begins}")
        self.open_run(done.run.id)

    # --- roll back ----------------------------------------------------------------------------------------------------

    def action_rollback(self) -> None:
        """Put an earlier release in the place of what runs, or take that back."""
        screen = self.screen
        if isinstance(screen, Place):
            workflow, release = screen.selected_release()
            if workflow:
                self.touch(self.rollback(workflow, release), "rollback")
            else:
                self.notify("no run or release of raydeck's is under the cursor", severity="warning")

    async def rollback(self, workflow: str, release: str = "") -> None:
        """Choose a release of a workflow, see the difference and what is stopped, ask, do it, and go to the new run."""
        from console import dispatch
        from console.screens.rollback import Back, RollbackDialog, ask_rollback
        from jobs.release import difference

        session = self.session
        if session is None:
            return
        client = await session.controller()
        choice = await self.push_screen_wait(RollbackDialog(client, workflow, release, session.head_wall()))
        if choice is None:
            return
        plan = choice.plan
        back = isinstance(choice, Back)  # what it started is there only then
        names = [*plan.stopped, *([plan.started] if back and plan.started else [])]
        runs = {run.id: run for run in await self._runs(client, names)}
        if isinstance(choice, Back):
            answer = await self.confirmed(dispatch.preview_undo(plan, runs, session.head_wall(), you=self.you))
            if answer is None:
                return
            done = await dispatch.undo(client, choice.rollback, answer.reason)
            self._follow(done.stopped[0] if done.stopped else "", f"rollback {done.id} is taken back")
            return
        changes = None if choice.old is None else len(difference(choice.old, choice.new))
        preview = dispatch.preview_rollback(plan, runs, session.head_wall(), differences=changes, you=self.you)
        answer = await self.push_screen_wait(ask_rollback(preview, choice.old, choice.new))
        if answer is None:
            return
        done = await dispatch.roll_back(client, workflow, plan.to_release, answer.reason)
        self._follow(done.started, _rolled_back(done))

    def _follow(self, run: str, said: str) -> None:
        self.tell(said)
        if run:
            self.run_in_focus = run
            self.open_run(run)


def _rolled_back(done: Rollback) -> str:
    begins = "from the beginning" if done.from_step is None else f"from step {done.from_step}"
    stops = f" after {', '.join(done.stopped)}" if done.stopped else ""
    starts = f"{done.started} starts {begins}" if done.started else "it runs already, and goes on"
    return f"{done.workflow} goes back to {done.to_release}: {starts}{stops} (B, u: take it back)"
