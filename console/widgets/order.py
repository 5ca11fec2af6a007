"""Which rows a table shows, and in which order: filter and sort over keys, worked out in small steps.

No screen and no clock. What is worked out for a row (its text, its sort value) is kept until the row is touched, so a
second letter in the filter costs a search through known text. `steps` yields after every few rows; whoever drives it
decides how long it may go on before keys are looked at again.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Generic

from console.render.cells import Column, Row, spans_of
from probes.reading import Missing

STEP_ROWS = 32
"""After so many rows `steps` lets go."""


def _nothing(key: str) -> Any:
    raise KeyError(key)


def _known(value: object) -> bool:
    """Can this sort value be compared? What is missing is not: such rows come last, whichever way one sorts."""
    return not (value is None or isinstance(value, Missing) or (isinstance(value, float) and math.isnan(value)))


class RowOrder(Generic[Row]):
    """The rows of one table: all of them, and those that stand in `view`."""

    def __init__(self, columns: Sequence[Column[Row]]) -> None:
        self.columns = tuple(columns)
        self.keys: list[str] = []
        self.row_of: Callable[[str], Row] = _nothing
        self.view: list[str] = []
        """The keys that pass the filter, sorted."""
        self.filter_text = ""
        self.sort_column: Column[Row] | None = None
        self.reverse = False
        self._texts: dict[str, str] = {}
        self._values: dict[str, Any] = {}
        self.stale_texts: set[str] = set()
        """Rows that changed since their text was taken. They keep their place until `refresh_texts` comes by."""
        self.stale_values: set[str] = set()

    # What changes

    def set_columns(self, columns: Sequence[Column[Row]]) -> None:
        """Other columns. What was sorted by is sorted by no more; a filter stays."""
        self.columns = tuple(columns)
        self.sort_column = None
        self._texts.clear()
        self._values.clear()
        self.stale_texts.clear()
        self.stale_values.clear()

    def set_rows(self, keys: Sequence[str], row_of: Callable[[str], Row]) -> None:
        """All rows anew; any of them may have changed."""
        self.keys = list(keys)
        self.row_of = row_of
        if self._texts or self._values:
            there = set(self.keys)
            for known in (self._texts, self._values):
                for key in known.keys() - there:
                    del known[key]
            self.stale_texts = set(self._texts)
            self.stale_values = set(self._values)

    def has(self, key: str) -> bool:
        """Is there such a row, shown or not?"""
        return key in self.keys

    def touch(self, keys: Iterable[str]) -> None:
        """These rows' contents changed."""
        if self._texts:
            self.stale_texts |= self._texts.keys() & keys
        if self._values:
            self.stale_values |= self._values.keys() & keys

    def set_filter(self, text: str) -> None:
        """Show only rows whose text has this in it, whatever the case; with ``!`` in front, those that do not."""
        self.filter_text = text
        if not self.needle:
            self._texts.clear()
            self.stale_texts.clear()

    def sort_by(self, key: str | None, reverse: bool) -> None:
        """Sort by the column of this key; ``None`` and a column without a sort value give the order of `set_rows`."""
        column = next((column for column in self.columns if column.key == key and column.sort is not None), None)
        if column is not self.sort_column:
            self._values.clear()
            self.stale_values.clear()
        self.sort_column = column
        self.reverse = reverse and column is not None

    @property
    def needle(self) -> str:
        """What is searched for, in lower case; empty: every row passes."""
        return self.filter_text.removeprefix("!").strip().casefold()

    @property
    def sortable(self) -> list[Column[Row]]:
        """The columns that can be sorted by."""
        return [column for column in self.columns if column.sort is not None]

    # What follows from it

    def row(self, key: str) -> Row | None:
        """The row, or ``None`` if its owner let go of it since `set_rows`."""
        try:
            return self.row_of(key)
        except KeyError:
            return None

    def text(self, key: str) -> str:
        """What the row's columns say, for the filter."""
        row = self.row(key)
        if row is None:
            return key.casefold()
        cells = (span.text for column in self.columns for span in spans_of(column.cell(row)))
        return " ".join(cells).casefold()

    def missing(self) -> int:
        """For how many rows `steps` has something to work out."""
        need = 0
        if self.needle:
            need += len(self.keys) - len(self._texts)
        if self.sort_column is not None:
            need += len(self.keys) - len(self._values) + len(self.stale_values)
        return need

    def steps(self) -> Iterator[None]:
        """Work out what `arrange` needs, letting go after every few rows. May be left and begun again at any time."""
        done = 0
        if self.needle:
            for key in self.keys:
                if key not in self._texts:
                    self._texts[key] = self.text(key)
                    done += 1
                    if done % STEP_ROWS == 0:
                        yield
        column = self.sort_column
        if column is not None and column.sort is not None:
            for key in self.keys:
                if key not in self._values or key in self.stale_values:
                    row = self.row(key)
                    self._values[key] = None if row is None else column.sort(row)
                    self.stale_values.discard(key)
                    done += 1
                    if done % STEP_ROWS == 0:
                        yield

    def refresh_texts(self) -> Iterator[None]:
        """Take the texts of touched rows anew, letting go after every few rows."""
        done = 0
        while self.stale_texts:
            key = self.stale_texts.pop()
            self._texts[key] = self.text(key)
            done += 1
            if done % STEP_ROWS == 0:
                yield

    def arrange(self) -> None:
        """Make `view` from what is known. Call it when `steps` has ended."""
        view = self.keys
        if needle := self.needle:
            texts = self._texts
            wanted = not self.filter_text.startswith("!")
            view = [key for key in view if (needle in texts[key]) is wanted]
        if self.sort_column is not None:
            values = self._values
            known = [key for key in view if _known(values[key])]
            unknown = [key for key in view if not _known(values[key])] if len(known) < len(view) else []
            try:
                known.sort(key=values.__getitem__, reverse=self.reverse)
            except TypeError:  # values of several kinds in one column: their text has an order at least
                known.sort(key=lambda key: str(values[key]), reverse=self.reverse)
            view = known + unknown
        self.view = list(view) if view is self.keys else view
