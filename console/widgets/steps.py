"""A list of steps as they come to pass: waiting, running with the time so far, done, or failed with a sentence."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.geometry import Size
from textual.strip import Strip
from textual.timer import Timer

from console.render.cells import Cell, cell_len, fit, seconds_text, state_glyph, state_style
from console.widgets.paint import PaintedView

TICK_SECONDS = 0.5


@dataclass(slots=True)
class _Step:
    key: str
    title: str
    state: str = "waiting"
    began: float = 0.0
    seconds: float | None = None
    sentence: str = ""


class StepList(PaintedView):
    """Steps in their order, one line each; a sentence stands on the line below its step.

    Args:
        steps: Key and title of each.
        id: The widget's id.
        clock: Seconds that only go forward.
    """

    DEFAULT_CSS = """
    StepList {
        height: auto;
        overflow-y: hidden;
    }
    """

    def __init__(
        self,
        steps: Sequence[tuple[str, str]] = (),
        *,
        id: str | None = None,  # noqa: A002
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(id=id)
        self._clock = clock
        self._steps: dict[str, _Step] = {}
        self._timer: Timer | None = None
        self.set_steps(steps)

    def set_steps(self, steps: Sequence[tuple[str, str]]) -> None:
        """Other steps, all of them waiting."""
        self._steps = {key: _Step(key, title) for key, title in steps}
        self._changed()

    def on_mount(self) -> None:
        """Begin to count the seconds of steps that run."""
        self._timer = self.set_interval(TICK_SECONDS, self.refresh, pause=not self._any_running)

    @property
    def _any_running(self) -> bool:
        return any(step.state == "running" for step in self._steps.values())

    def begin(self, key: str, sentence: str = "") -> None:
        """A step has begun. Raises `KeyError` for a key that is not in the list."""
        step = self._steps[key]
        step.state, step.began, step.seconds, step.sentence = "running", self._clock(), None, sentence
        self._changed()

    def say(self, key: str, sentence: str) -> None:
        """What a running step is doing."""
        self._steps[key].sentence = sentence
        self._changed()

    def finish(self, key: str, sentence: str = "") -> None:
        """A step is done."""
        self._end(key, "done", sentence)

    def fail(self, key: str, sentence: str) -> None:
        """A step has failed; the sentence says why, and what to do."""
        self._end(key, "failed", sentence)

    def skip(self, key: str, sentence: str = "") -> None:
        """A step is not needed."""
        self._end(key, "skipped", sentence)

    def state_of(self, key: str) -> str:
        """``waiting``, ``running``, ``done``, ``failed`` or ``skipped``."""
        return self._steps[key].state

    def _end(self, key: str, state: str, sentence: str) -> None:
        step = self._steps[key]
        if step.state == "running":
            step.seconds = max(0.0, self._clock() - step.began)
        step.state, step.sentence = state, sentence
        self._changed()

    def _changed(self) -> None:
        if self._timer is not None:
            if self._any_running:
                self._timer.resume()
            else:
                self._timer.pause()
        if self.is_attached:
            self.refresh(layout=True)

    # Painting

    def _lines(self, width: int) -> list[list[Cell]]:
        room = max(8, width - 14)
        title_width = min(room, max((cell_len(step.title) for step in self._steps.values()), default=0))
        lines: list[list[Cell]] = []
        for step in self._steps.values():
            style = state_style(step.state)
            seconds = step.seconds
            if step.state == "running":
                seconds = max(0.0, self._clock() - step.began)
            lines.append(
                [
                    Cell(f" {state_glyph(step.state)} ", style),
                    Cell(fit(step.title, title_width), "muted" if step.state == "waiting" else ""),
                    Cell(f"  {step.state:<8}", style),
                    Cell("" if seconds is None else seconds_text(seconds), "muted"),
                ]
            )
            lines.extend([Cell("     "), Cell(text, style)] for text in _wrapped(step.sentence, max(8, width - 6)))
        return lines

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A line for each step, and those of its sentence."""
        return len(self._lines(max(1, width)))

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """All the width there is."""
        return container.width

    def render_line(self, y: int) -> Strip:
        """One line."""
        width = self.size.width
        lines = self._lines(width)
        return self.palette.strip(lines[y] if y < len(lines) else [], width)


def _wrapped(sentence: str, width: int) -> list[str]:
    """A sentence in lines of at most ``width`` cells, broken between words; a longer word is cut."""
    lines: list[str] = []
    for word in sentence.split():
        if lines and cell_len(lines[-1]) + 1 + cell_len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return [fit(line, width).rstrip() for line in lines]
