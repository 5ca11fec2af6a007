"""The first screen: what is being started, each step with its time. It gives way to the fleet when all is ready."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.widgets import Static

from console.screens.base import DeckScreen, bindings_for
from console.widgets.steps import StepList
from jobs.errors import RaydeckError

if TYPE_CHECKING:
    from console.demo.runner import Demo
    from console.settings import Context

STEPS = ("3 SSH hosts", "import ray", "ray head", "ray dashboard", "ray worker-1", "ray worker-2", "controller")
"""What the demo's keeper says that it does, in the order in which it ends."""


class StartScreen(DeckScreen):
    """Starts a demo, or only imports what reads a cluster."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere")

    def __init__(self, demo: Demo | None, context: Context | None) -> None:
        super().__init__()
        self._demo, self._opened = demo, context

    @property
    def place(self) -> str:
        """What happens."""
        return "starting a demo" if self._demo else f"opening {self._opened.name}" if self._opened else ""

    def body(self) -> ComposeResult:
        """Title, steps, what went wrong."""
        with Vertical(id="start"):
            if self._demo is not None:
                yield Static("Starting an embedded cluster: Ray head, 2 workers × 4 SIMULATED GPUs", id="start-title")
                yield StepList([(step, step) for step in STEPS], id="steps")
                yield Static("All of it ends with this console.", id="start-note")
            yield Static("", id="start-error", markup=False)

    def on_mount(self) -> None:
        """Begin behind the first frame."""
        self.call_after_refresh(self._begin)

    def _begin(self) -> None:
        # Owned by the app: this screen ends in the middle of it, and would take its own workers with it.
        self.app.run_worker(self._start(), name="start", exit_on_error=False)

    async def _start(self) -> None:
        try:
            if self._demo is None:
                assert self._opened is not None
                await self.deck.open_context(self._opened)
                return
            steps = self.query_one(StepList)
            async for event in self._demo.events():
                if event["event"] == "step" and event["name"] in STEPS:
                    self._tell(steps, event)
            await self.deck.open_context(self._demo.context())
        except RaydeckError as error:
            self.query_one("#start-error", Static).update(f"{error}\n\nq: quit")

    @staticmethod
    def _tell(steps: StepList, event: dict[str, Any]) -> None:
        name, state, detail = event["name"], event["state"], event.get("detail", "")
        {"start": steps.begin, "done": steps.finish, "failed": steps.fail}[state](name, detail)
