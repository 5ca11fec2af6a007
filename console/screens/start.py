"""The first screen: what is being started, each step with its time. It gives way to the fleet when all is ready."""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.widgets import Static

from console.screens.place import Place
from console.widgets.lines import Lines
from console.widgets.steps import StepList
from jobs.errors import RaydeckError

if TYPE_CHECKING:
    from console.demo.runner import Demo
    from console.settings import Context

STEPS = ("3 SSH hosts", "import ray", "ray head", "ray dashboard", "ray worker-1", "ray worker-2", "controller")
"""What the demo's keeper says that it does, in the order in which it ends."""


BEHIND_THE_FRAME = ("console.screens.fleet", "console.sources.session", "console.sources.sshwire", "httpx")


class StartScreen(Place):
    """Starts a demo, or only imports what reads a cluster."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q,escape", "app.leave", "quit", show=False)]
    DEFAULT_CSS = """
    StartScreen #status { background: $surface; height: 1; }
    StartScreen #start { padding: 1 2; }
    StartScreen #start-title { text-style: bold; margin: 0 0 1 0; }
    StartScreen #start-note { color: $text-muted; margin: 1 0 0 0; }
    StartScreen #start-error { color: $text-error; margin: 1 0 0 0; }
    """

    def __init__(self, find: Callable[[], Context] | Demo) -> None:
        super().__init__()
        self._find = find

    @property
    def place(self) -> str:
        """What happens."""
        return "opening a cluster" if callable(self._find) else "starting a demo"

    def compose(self) -> ComposeResult:
        """Status line, title, steps, what went wrong. No more: this is the frame that a person waits for."""
        yield Lines(self.status, id="status", most=1)
        with Vertical(id="start"):
            if not callable(self._find):
                yield Static("Starting an embedded cluster: Ray head, 2 workers × 4 SIMULATED GPUs", id="start-title")
                yield StepList([(step, step) for step in STEPS], id="steps")
                yield Static("All of it ends with this console.", id="start-note")
            yield Static("", id="start-error", markup=False)

    def on_mount(self) -> None:
        """Begin behind the first frame."""
        # Owned by the app: this screen ends in the middle of it, and would take its own workers with it.
        self.call_after_refresh(self.app.run_worker, self._start(), name="start", exit_on_error=False)

    async def _start(self) -> None:
        # In a thread, so that frames are painted meanwhile: these bring SSH and HTTP.
        importing = asyncio.gather(*(asyncio.to_thread(importlib.import_module, name) for name in BEHIND_THE_FRAME))
        try:
            if callable(self._find):
                context = await asyncio.to_thread(self._find)
            else:
                steps = self.query_one(StepList)
                async for event in self._find.events():
                    if event["event"] == "step" and event["name"] in STEPS:
                        self._tell(steps, event)
                context = self._find.context()
            await importing
            await self.deck.open_context(context)
        except RaydeckError as error:
            if callable(self._find):
                self.app.exit(return_code=error.exit_code, message=f"raydeck: {error}")
            else:
                self.query_one("#start-error", Static).update(f"{error}\n\nq: quit")

    @staticmethod
    def _tell(steps: StepList, event: dict[str, Any]) -> None:
        name, state, detail = event["name"], event["state"], event.get("detail", "")
        {"start": steps.begin, "done": steps.finish, "failed": steps.fail}[state](name, detail)
