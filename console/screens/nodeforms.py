"""The forms of `C`, `D` and `E`: what has to be said before nodes are cordoned, drained or retired."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import ClassVar

from textual.app import ComposeResult
from textual.widgets import Input

from console import upkeep
from console.preview import Preview
from console.screens.place import is_open
from console.screens.plans import PlanDialog, row
from console.widgets.choice import Choice, Tick
from jobs.nodeview import DrainPolicy, NodesPlan
from jobs.values import seconds


@dataclass(frozen=True, slots=True)
class CordonValues:
    """How a cordon is."""

    ends: str = ""
    """As it was typed: a span, ``until 06:00``, or nothing."""
    gpus: bool = False

    def seconds(self, now: datetime) -> float | None:
        """When it ends by itself, from now; None: when somebody takes it back. Raises `ValueError`."""
        return ends_in(self.ends, now)


@dataclass(frozen=True, slots=True)
class RetireValues:
    """How a retirement is."""

    deadline_seconds: float
    end_ray: bool = False
    """Then end Ray there over SSH."""


def ends_in(text: str, now: datetime) -> float | None:
    """``2h``, ``30m``, or ``until 06:00`` (the next one, by this machine's clock), as seconds from now.

    Empty: None. Raises `ValueError` with a sentence.
    """
    text = text.strip().lower()
    if not text:
        return None
    clock = text.removeprefix("until").strip()
    if ":" in clock:
        try:
            read = datetime.strptime(clock, "%H:%M")  # noqa: DTZ007 - it is this machine's own time
        except ValueError:
            raise ValueError(f"{clock!r} is no time of day such as 06:00") from None
        at = now.replace(hour=read.hour, minute=read.minute, second=0, microsecond=0)
        return ((at if at > now else at + timedelta(days=1)) - now).total_seconds()
    return span(clock)


def span(text: str) -> float:
    """``30m``, ``1h30m``, ``45s`` as seconds. A number without a unit is refused: it could be anything."""
    if text.strip().replace(".", "", 1).isdigit():
        raise ValueError(f"{text.strip()} of what? Say {text.strip()}m, {text.strip()}h or {text.strip()}s")
    try:
        return seconds(text)
    except ValueError as error:
        raise ValueError(f"{text!r} {error}") from None


class CordonDialog(PlanDialog[CordonValues, NodesPlan]):
    """Keep new work off nodes."""

    LETTERS: ClassVar[dict[str, str]] = {"u": "ends", "g": "gpus"}

    def fields(self) -> ComposeResult:
        """When it ends, and the GPUs."""
        yield row("u until", Input(placeholder="2h, 30m, until 06:00; empty: no end", id="ends", compact=True))
        yield row("g GPUs", Tick("hold idle GPUs too (best effort)", id="gpus"))

    def values(self) -> CordonValues:
        """What is chosen."""
        values = CordonValues(self.query_one("#ends", Input).value.strip(), self.query_one("#gpus", Tick).ticked)
        values.seconds(datetime.now().astimezone())
        return values


class DrainDialog(PlanDialog[DrainPolicy, NodesPlan]):
    """Move the work off nodes."""

    LETTERS: ClassVar[dict[str, str]] = {
        "d": "deadline", "t": "then", "o": "others", "n": "most", "s": "share", "g": "gpus", "b": "gone",
    }  # fmt: skip

    def __init__(
        self,
        title: str,
        ask: Callable[[DrainPolicy, str], Awaitable[NodesPlan]],
        show: Callable[[NodesPlan, DrainPolicy], Preview],
        silent: Collection[str] = (),
    ) -> None:
        """``silent``: those of the nodes that do not answer; that they are off is asked only of such."""
        super().__init__(title, ask, show)
        self._silent = bool(silent)

    def fields(self) -> ComposeResult:
        """Deadline, what then, others' work, how many at a time, and whether they are off."""
        yield row(
            "d deadline",
            Input("30m", id="deadline", compact=True, classes="short"),
        )
        yield row(
            "t then",
            Choice([("wait", "wait, I choose"), ("stop", "end what is left"), ("give_up", "give up")], id="then"),
        )
        yield row("o others", Choice([("leave", "leave others' work"), ("stop", "end it too")], id="others"))
        yield row(
            "n at most",
            Input(placeholder="nodes away", id="most", compact=True, classes="short"),
            Input(placeholder="s: 25% of GPUs", id="share", compact=True, classes="short"),
            Tick("g: hold idle GPUs", id="gpus"),
        )
        yield row("b off", Tick("it is off: nothing of it can still write", id="gone"), id="gone-row")

    def on_mount(self) -> None:
        """Only of nodes that do not answer it can be said. Textual calls the other class's way of it as well."""
        if is_open(self):
            self.query_one("#gone-row").display = self._silent

    def planned(self, plan: NodesPlan) -> None:
        """Only of nodes that do not answer it may be said that they are off."""
        silent = self._silent or any(node.at_once or not node.alive for node in plan.nodes)
        self.query_one("#gone-row").display = silent or self.query_one("#gone", Tick).ticked

    def values(self) -> DrainPolicy:
        """What is chosen."""

        def chosen(name: str) -> str:
            return self.query_one(f"#{name}", Choice).value

        most = self.query_one("#most", Input).value.strip()
        if most and not (most.isdigit() and int(most) > 0):
            raise ValueError(f"{most!r} is no number of nodes")
        deadline = self.query_one("#deadline", Input).value.strip()
        return DrainPolicy.model_validate(
            {
                "deadline_seconds": 0.0 if deadline in ("0", "now") else span(deadline),
                "at_deadline": chosen("then"),
                "others": chosen("others"),
                "most_nodes": int(most) if most else None,
                "most_share": share(self.query_one("#share", Input).value),
                "gpus": self.query_one("#gpus", Tick).ticked,
                "gone": self.query_one("#gone", Tick).ticked,
            }
        )


class RetireDialog(PlanDialog[RetireValues, NodesPlan]):
    """Take nodes out of Ray."""

    LETTERS: ClassVar[dict[str, str]] = {"d": "deadline", "e": "end"}

    def fields(self) -> ComposeResult:
        """What Ray is told, and whether Ray is ended there."""
        yield row("d deadline", Input("10m", id="deadline", compact=True, classes="short"))
        yield row("e end", Tick("then end Ray there, over SSH (ray stop)", id="end"))

    def values(self) -> RetireValues:
        """What is chosen."""
        return RetireValues(span(self.query_one("#deadline", Input).value), self.query_one("#end", Tick).ticked)


def share(text: str) -> float | None:
    """``25%`` or ``0.25`` as a share; empty: None. Raises `ValueError` with a sentence."""
    text = text.strip()
    if not text:
        return None
    try:
        found = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        found = 0.0
    if not 0 < found <= 1:
        raise ValueError(f"{text!r} is no share: say 25%")
    return found


def cordon_preview(plan: NodesPlan, values: CordonValues, you: str, now_wall: float) -> Preview:
    """What a cordon does."""
    return upkeep.preview(plan, you=you, now_wall=now_wall, gpus=values.gpus)
