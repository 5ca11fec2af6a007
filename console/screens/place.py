"""What the app asks of the screen in front. Light, since the first paint imports it; `base` has what screens share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, ClassVar, cast

from textual.app import App
from textual.screen import Screen

if TYPE_CHECKING:
    from console.app import RaydeckApp
    from console.render.cells import Spans
    from console.sources.session import Session


def is_open(screen: Screen[Any]) -> bool:
    """Whether a screen has not been left yet: keys that are struck in a row may close one before it was shown."""
    return screen in screen.app.screen_stack


def place_in_front(app: App[Any]) -> Place | None:
    """The place that is looked at, for what a timer does: None behind a dialog, and while screens come and go."""
    stack = app.screen_stack
    screen = stack[-1] if stack else None
    if not isinstance(screen, Place):
        return None
    # The widgets of one that is on its way out go before it does.
    return screen if app.is_running and screen.is_mounted and screen.is_running else None


class Place(Screen[None]):
    """A screen that is a place to be, rather than a dialog that covers one."""

    SCOPES: ClassVar[tuple[str, ...]] = ("everywhere",)
    """The scopes of actions that are offered here."""

    @property
    def deck(self) -> RaydeckApp:
        """The app, as what it is."""
        return cast("RaydeckApp", self.app)

    @property
    def place(self) -> str:
        """Where one is, for the status line."""
        return ""

    def status(self, width: int) -> list[Spans]:
        """The status line."""
        session: Session | None = self.deck.session
        if session is None:
            from console.render.cells import Cell

            return [(Cell(" raydeck ", "title"), Cell(self.place, "muted"))]
        # Not above: it brings pydantic, and the first paint has no use for it.
        from console.render.status import status_spans

        return [
            status_spans(
                session.context.name,
                session.fleet,
                session.work,
                place=self.place,
                simulated=session.context.simulated,
                read_only=self.deck.settings.read_only,
                now=session.now(),
                width=width,
            )
        ]

    def on_mount(self) -> None:
        """Begin, if it is still open."""
        if is_open(self):
            self.begin()

    def on_resize(self) -> None:
        """Fit, if it is still open."""
        if is_open(self):
            self.fit()

    def begin(self) -> None:
        """It is shown now: show what is known already, and ask for the rest."""

    def fit(self) -> None:
        """More room, or less."""

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """Something changed; called at most a few times a second, for the screen in front only."""

    def copy_text(self) -> str:
        """What `c` copies."""
        return ""

    def raw(self) -> object | None:
        """What `y` shows as JSON."""
        return None

    def selected_runs(self) -> Iterable[str]:
        """The runs that a key is about."""
        return ()

    def selected_node(self) -> str | None:
        """The node that a key is about."""
        return None

    def selected_nodes(self) -> Iterable[str]:
        """The nodes that a key about several is about."""
        name = self.selected_node()
        return (name,) if name else ()

    def marked_nodes(self) -> Iterable[str]:
        """The nodes that were chosen on purpose, for a key that is about all of them else."""
        return ()

    def selected_release(self) -> tuple[str, str]:
        """The workflow that a rollback is about, and the release to go to; empty: none, or the last good one."""
        session = self.deck.session
        key = next(iter(self.selected_runs()), None)
        run = session.work.runs.get(key) if session and key else None
        return (run.workflow, "") if run else ("", "")

    def ask_again(self) -> None:
        """The operator wants what was asked for once to be asked for again."""
