"""What a log view reads from: lines by range, and a ring buffer that is one such source."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol

LINE_LIMIT = 16_384
"""Characters of one line that are kept. A longer line is cut, and says so."""


class LogLine(NamedTuple):
    """One line as it was written: neither made safe nor redacted."""

    text: str
    rank: int | None = None
    """The rank that wrote it, if the log has several."""
    number: int = 0
    """Its number in its log, from 1; 0 if not known."""


class LineSource(Protocol):
    """Lines by position. Position 0 is the oldest line that is still there.

    All three are called from the screen's event loop and must answer from memory, at once.
    """

    def count(self) -> int:
        """How many lines there are."""
        ...

    def dropped(self) -> int:
        """How many lines have fallen out at the front so far. A line's position plus this never changes."""
        ...

    def lines(self, start: int, stop: int) -> Sequence[LogLine]:
        """The lines at positions ``start`` to ``stop``, without the latter; fewer where there are no more."""
        ...


class LineBuffer:
    """The newest lines of a log, up to a limit, with a filter by rank.

    Args:
        limit: Lines that are kept. For a moment there may be a quarter more.
    """

    def __init__(self, limit: int = 100_000) -> None:
        self.limit = limit
        self.total = 0
        """Lines ever appended."""
        self._texts: list[str] = []
        self._ranks: list[int | None] = []
        self._first = 0
        """The number, from 0, of the oldest line that is kept."""
        self._wanted: frozenset[int | None] | None = None
        self._shown: list[int] = []
        """With a filter: the numbers, from 0, of the lines that pass."""
        self._shown_dropped = 0

    def append(self, texts: Sequence[str], rank: int | None = None) -> None:
        """Add lines of one rank, without their newlines."""
        if any(map(LINE_LIMIT.__lt__, map(len, texts))):
            texts = [self._cut(text) for text in texts]
        self._texts.extend(texts)
        self._ranks.extend([rank] * len(texts))
        if self._wanted is not None and rank in self._wanted:
            self._shown.extend(range(self.total, self.total + len(texts)))
        self.total += len(texts)
        excess = len(self._texts) - self.limit
        if excess > self.limit // 4 or excess >= len(texts) > self.limit:
            self._drop(excess)

    def extend(self, lines: Sequence[LogLine]) -> None:
        """Add lines that say themselves who wrote them. Their numbers are given anew."""
        start = 0
        for position in range(1, len(lines) + 1):
            if position == len(lines) or lines[position].rank != lines[start].rank:
                self.append([line.text for line in lines[start:position]], lines[start].rank)
                start = position

    def clear(self) -> None:
        """Forget all lines, as if they had fallen out."""
        self._drop(len(self._texts))

    def show_ranks(self, ranks: Collection[int | None] | None) -> None:
        """Give only the lines of these ranks; ``None``: of all. Positions start anew: set the view's source again."""
        self._wanted = None if ranks is None else frozenset(ranks)
        wanted = self._wanted
        self._shown_dropped = 0
        if wanted is None:
            self._shown = []
        else:
            self._shown = [number for number, rank in enumerate(self._ranks, self._first) if rank in wanted]

    @staticmethod
    def _cut(text: str) -> str:
        return text if len(text) <= LINE_LIMIT else f"{text[:LINE_LIMIT]} [{len(text) - LINE_LIMIT} characters more]"

    def _drop(self, lines: int) -> None:
        del self._texts[:lines]
        del self._ranks[:lines]
        self._first += lines
        if self._wanted is not None:
            gone = bisect_left(self._shown, self._first)
            del self._shown[:gone]
            self._shown_dropped += gone

    # LineSource

    def count(self) -> int:
        """See `LineSource`."""
        return len(self._texts) if self._wanted is None else len(self._shown)

    def dropped(self) -> int:
        """See `LineSource`."""
        return self._first if self._wanted is None else self._shown_dropped

    def lines(self, start: int, stop: int) -> Sequence[LogLine]:
        """See `LineSource`."""
        start, stop = max(0, start), max(0, stop)
        first = self._first
        if self._wanted is None:
            texts, ranks = self._texts[start:stop], self._ranks[start:stop]
            numbers = range(first + start + 1, first + start + 1 + len(texts))
            return [LogLine(*line) for line in zip(texts, ranks, numbers, strict=True)]
        return [
            LogLine(self._texts[number - first], self._ranks[number - first], number + 1)
            for number in self._shown[start:stop]
        ]
