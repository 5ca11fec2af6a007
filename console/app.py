"""The app: composes settings, session, screens and the frame timer. No feature lives here."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import SystemCommand
from textual.binding import Binding, BindingType
from textual.command import Provider
from textual.screen import Screen
from textual.worker import Worker, WorkerState

from console.actions import ACTIONS, check_keys
from console.screens.place import Place, place_in_front
from console.screens.replay import ReplayingApp
from console.screens.start import StartScreen
from console.settings import Context, Settings
from console.theme import THEMES, choose_theme
from jobs.errors import RaydeckError, Refused
from jobs.within import within

if TYPE_CHECKING:
    from console.demo.runner import Demo
    from console.sources.hostkeys import HostKeyQuestion
    from console.sources.session import Session

FRAMES_PER_SECOND = 4
"""Figures come once a second; more frames than this only cost, over SSH most of all."""
CLOSE_SECONDS = 5.0
LEAVE_SECONDS = 15.0
"""The longest that leaving may take once the terminal is gone or somebody asked for the end; then it is simply over."""
QUIET_SECONDS = 1.0
"""Without news a frame is painted this often all the same, since ages move."""


def _run_commands() -> type[Provider]:
    from console.screens.palette import RunCommands

    return RunCommands


def _node_commands() -> type[Provider]:
    from console.screens.palette import NodeCommands

    return NodeCommands


class RaydeckApp(ReplayingApp):
    """The console on one context, or on a demo that is still being started."""

    TITLE = "raydeck"
    CSS = "Screen { background: $background; color: $foreground; }"
    ENABLE_COMMAND_PALETTE = True
    COMMAND_PALETTE_BINDING = "colon"
    COMMANDS = ReplayingApp.COMMANDS | {_run_commands, _node_commands}
    BINDINGS: ClassVar[list[BindingType]] = [Binding("ctrl+c", "leave", "quit", show=False, priority=True)]

    def __init__(self, settings: Settings, environ: dict[str, str], find: Callable[[], Context] | Demo) -> None:
        """``find`` finds the context, behind the first frame; or a demo, which is yet to be started, has it."""
        super().__init__()
        self.settings = settings
        self.environ = environ
        self.find = find
        self.context: Context | None = None
        self.session: Session | None = None
        self.run_in_focus: str | None = None
        self.mouse_on = not (environ.get("SSH_CONNECTION") or environ.get("SSH_TTY"))
        """Off over SSH, so that the terminal can select text."""
        self._framed_at = 0.0
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = settings.theme or choose_theme(environ)

    # --- life ---------------------------------------------------------------------------------------------------------

    async def on_mount(self) -> None:
        """Paint first; what costs time is imported and started behind the first frame."""
        self.set_keymap(dict(check_keys(self.settings.keys)))
        await self.push_screen(self.first_screen())
        self.set_interval(1 / FRAMES_PER_SECOND, self._frame)

    def first_screen(self) -> Screen[Any]:
        """What is painted first; it opens the context."""
        return StartScreen(self.find)

    async def open_context(self, context: Context) -> None:
        """Read a cluster, and show its fleet."""
        from console.screens.fleet import FleetScreen
        from console.sources.replay import RecordedContext
        from console.sources.session import Session

        self.context = context
        if isinstance(context, RecordedContext):
            self.session = self.open_recording(context)
        else:
            self.session = Session(context, ask=self._ask_host_key)
            self.session.start()
        await self.switch_screen(FleetScreen())

    async def close_session(self) -> None:
        """End everything that reads the cluster."""
        session, self.session = self.live_session(), None
        if session is not None:
            await within(session.close(), CLOSE_SECONDS)

    async def action_leave(self) -> None:
        """Quit from anywhere."""
        self.exit()

    # --- frames -------------------------------------------------------------------------------------------------------

    def _frame(self) -> None:
        session, screen = self.session, place_in_front(self)
        if session is None or screen is None:
            return
        nodes, runs = session.fleet.take_changed(), session.work.take_changed()
        nodes |= session.work.nodes.take_changed()
        others = [session.work.take_queue_changed(), session.work.nodes.take_drains_changed()]
        others.append(session.work.alerts.take_changed())
        now = time.monotonic()
        if nodes or runs or any(others) or now - self._framed_at >= QUIET_SECONDS:
            self._framed_at = now
            screen.frame(nodes, runs)

    # --- keys that mean the same everywhere ---------------------------------------------------------------------------

    def action_help(self) -> None:
        """The keys of the screen in front."""
        from console.screens.dialogs import TextDialog, help_text

        scopes = self.screen.SCOPES if isinstance(self.screen, Place) else ("everywhere",)
        self.push_screen(TextDialog("Keys", help_text(scopes, self.settings.read_only)))

    def action_command(self) -> None:
        """The command palette."""
        self.action_command_palette()

    def action_refresh(self) -> None:
        """Ask again now."""
        if self.session is not None:
            if self.session.ray_watcher is not None:
                self.session.ray_watcher.refresh()
            for connection in self.session.connections:
                connection.retry()
            if isinstance(self.screen, Place):
                self.screen.ask_again()
            self.notify("asking again")

    def action_copy(self) -> None:
        """Copy what is under the cursor: OSC 52, and a file for terminals that have it not."""
        text = self.screen.copy_text() if isinstance(self.screen, Place) else ""
        if not text:
            return
        self.copy_to_clipboard(text)
        self.notify(f"copied {text if len(text) < 60 else f'{len(text)} characters'}")

    def action_raw(self) -> None:
        """The thing under the cursor as JSON."""
        if isinstance(self.screen, Place):
            self.show_raw(self.screen.raw())

    def show_raw(self, body: object | None) -> None:
        """A thing as JSON."""
        if body is not None:
            from console.screens.dialogs import TextDialog

            self.push_screen(TextDialog("JSON", json.dumps(body, indent=2, ensure_ascii=False, default=str)))

    def action_mouse(self) -> None:
        """Mouse on or off."""
        driver: Any = self._driver
        self.mouse_on = not self.mouse_on
        # Textual has no public switch for this; a driver without a terminal has no mouse at all.
        getattr(driver, "_enable_mouse_support" if self.mouse_on else "_disable_mouse_support", lambda: None)()
        self.notify(f"mouse {'on' if self.mouse_on else 'off'}")

    def action_shell(self) -> None:
        """An SSH shell on the node under the cursor; the screen comes back when it ends."""
        from console.sources.shell import run_shell, shell_argv

        name = self.screen.selected_node() if isinstance(self.screen, Place) else None
        entry = next((node for node in self.context.nodes if node.name == name), None) if self.context else None
        if entry is None or self.context is None:
            self.notify("no node of this context is under the cursor", severity="warning")
            return
        with self.suspend():
            code = run_shell(shell_argv(entry, self.context.ssh))
        if code:
            self.notify(f"ssh ended with {code}", severity="warning")

    def on_worker_state_changed(self, event: Worker.StateChanged) -> None:
        """What went wrong behind the screen, in words."""
        if event.state is not WorkerState.ERROR:
            return
        from console.screens.dialogs import TextDialog
        from jobs.load import FileMistakes

        error = event.worker.error
        if isinstance(error, FileMistakes):
            lines = [
                f"line {mistake.line}, column {mistake.column}: {mistake.message}"
                + (f"\n    did you mean {mistake.suggestion}?" if mistake.suggestion else "")
                for mistake in error.mistakes
            ]
            self.push_screen(TextDialog(f"Mistakes in {error.mistakes[0].file}", "\n".join(lines)))
        elif isinstance(error, RaydeckError):
            # A recording has no logs, which is no reason to warn.
            absent = self.replay is not None and isinstance(error, Refused)
            self.notify(str(error), severity="information" if absent else "error", timeout=12, markup=False)
        elif error is not None:
            # A fault of ours, not of the cluster: end with the trace rather than go on half broken.
            self._handle_exception(error)  # pyright: ignore[reportArgumentType]

    async def _ask_host_key(self, question: HostKeyQuestion) -> bool:
        from console.screens.dialogs import HostKeyDialog

        answer: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def answered(yes: bool | None) -> None:
            if not answer.done():
                answer.set_result(bool(yes))

        self.push_screen(HostKeyDialog(question), answered)
        return await answer

    # --- palette ------------------------------------------------------------------------------------------------------

    def get_system_commands(self, screen: Screen[Any]) -> Iterable[SystemCommand]:
        """Every action of the screen in front, every node and workflow, by name; for runs see `screens.palette`."""
        scopes = screen.SCOPES if isinstance(screen, Place) else ()
        for action in ACTIONS:
            handler = getattr(screen, f"action_{action.name}", None) or getattr(self, f"action_{action.name}", None)
            if action.scope in scopes and handler is not None and not (action.touches and self.settings.read_only):
                yield SystemCommand(action.name.replace("_", " "), action.sentence, handler)
        yield SystemCommand("quit now", "End raydeck", self.exit)
        for theme in THEMES:
            yield SystemCommand(f"theme {theme.name}", "Colours", lambda name=theme.name: self._set_theme(name))
        if self.session is None:
            return
        if not self.settings.read_only:
            for workflow in sorted({run.workflow for run in self.session.work.runs.values()}):
                yield SystemCommand(
                    f"rollback {workflow}",
                    "Put an earlier release in its place",
                    lambda workflow=workflow: self.touch(self.rollback(workflow), "rollback"),
                )

    def _set_theme(self, name: str) -> None:
        self.theme = name


async def _run(app: RaydeckApp) -> int:
    """Until it is closed, in whatever way; then let go of everything, in order, each wait bounded."""
    loop = asyncio.get_running_loop()

    def leave(number: int) -> None:
        # Textual's thread that writes dies with the terminal, and its loop then waits for it without a limit.
        last = threading.Timer(LEAVE_SECONDS, os._exit, (128 + number,))
        last.daemon = True
        last.start()
        app.exit(return_code=128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        # Textual would die without giving the terminal back.
        loop.add_signal_handler(number, leave, number)
    try:
        await app.run_async(mouse=app.mouse_on)
    finally:
        await app.close_session()
        if not callable(app.find):
            await app.find.close()
    return app.return_code or 0


def run_app(settings: Settings, environ: dict[str, str], find: Callable[[], Context] | Demo) -> int:
    """Open the console; returns the exit code when it is closed."""
    return asyncio.run(_run(RaydeckApp(settings, environ, find)))
