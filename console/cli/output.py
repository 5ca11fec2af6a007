"""The only standard output and the only standard error of the command line: JSON, tables, sentences, exit codes.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not reachable.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from console.render.cells import Column, Row, Spans, cell_len, fit, safe, spans_of
from console.render.prose import wrapped
from jobs.errors import RaydeckError

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3
INDENT = "      "
UNCUT = 10_000
"""Cells of a line where nothing cuts it."""


def say(text: str) -> None:
    """A line for a person."""
    print(text)


def step(text: str) -> None:
    """A line for a person who waits for the next one: out at once, through a pipe too."""
    print(text, flush=True)


def note(text: str) -> None:
    """A line for a person that is no part of the answer."""
    print(text, file=sys.stderr)


def document(value: Any) -> None:
    """One JSON document: indented for a terminal, one line for a pipe."""
    indent = 2 if sys.stdout.isatty() else None
    print(json.dumps(value, indent=indent, ensure_ascii=False, default=str))


def line(value: Any) -> None:
    """One line of NDJSON, out at once."""
    print(json.dumps(value, ensure_ascii=False, default=str), flush=True)


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:.0f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(_text(part) for part in value)  # pyright: ignore[reportUnknownVariableType]
    return safe(str(value))


def table(rows: Iterable[Mapping[str, Any]], named: Sequence[str], empty: str) -> None:
    """Rows under headings. Where the terminal is too narrow for all of it, the last column's texts stand below."""
    texts = [[_text(row.get(column)) for column in named] for row in rows]
    if not texts:
        note(empty)
        return
    heads = [column.replace("_", " ").upper() for column in named]
    limit = width()
    rooms = [max(cell_len(line[at]) for line in (heads, *texts)) for at in range(len(heads))]
    folds = sum(rooms) + 2 * (len(rooms) - 1) > limit
    shown = len(rooms) - folds
    for cells in (heads, *texts):
        _line("  ".join(fit(text, room) for text, room in zip(cells[:shown], rooms, strict=False)), limit)
        if folds and cells is not heads:
            _below(cells[-1], limit)


def _line(painted: str, limit: int) -> None:
    painted = painted.rstrip()
    print(fit(painted, limit).rstrip() if cell_len(painted) > limit else painted)


def _below(text: str, limit: int) -> None:
    """A text that had no room in its row, under it."""
    for line in wrapped(text, limit - len(INDENT)) if text not in ("", "-") else ():
        print(f"{INDENT}{line}")


def documents(found: Sequence[Any], watch: bool) -> None:
    """A list of documents; where it comes again and again, a line each."""
    if not watch:
        document(found)
        return
    for one in found:
        line(one)


def width(piped: int = UNCUT) -> int:
    """How many cells a line may have: the terminal's, or ``piped`` where there is none."""
    return shutil.get_terminal_size((piped, 24)).columns if sys.stdout.isatty() else piped


def lines(painted: Iterable[Spans]) -> None:
    """Lines as a screen shows them, without its colours: every state has its word."""
    for spans in painted:
        print("".join(cell.text for cell in spans).rstrip())


def columns(shown: Sequence[Column[Row]], rows: Sequence[Row], empty: str) -> None:
    """Rows as a screen's table has them, as wide as they need.

    Where the terminal is too narrow, the texts of the last column that may grow stand below their rows; then columns
    are left out, as on a screen.
    """
    if not rows:
        note(empty)
        return
    texts = {
        column.key: ["".join(safe(cell.text) for cell in spans_of(column.cell(row))).strip() for row in rows]
        for column in shown
    }
    kept = [column for column in shown if any(texts[column.key])]
    rooms = {column.key: max(map(cell_len, (column.title, *texts[column.key]))) for column in kept}
    limit = width()
    below = None
    if _total(kept, rooms) > limit and kept[-1].grow:
        below = kept.pop()
    while _total(kept, rooms) > limit and any(column.drop for column in kept):
        kept.remove(max(kept, key=lambda column: column.drop))
    _line("  ".join(fit(column.title, rooms[column.key], column.align) for column in kept), limit)
    for at in range(len(rows)):
        _line("  ".join(fit(texts[column.key][at], rooms[column.key], column.align) for column in kept), limit)
        if below is not None:
            _below(texts[below.key][at], limit)


def _total(kept: Sequence[Column[Any]], rooms: Mapping[str, int]) -> int:
    return sum(rooms[column.key] for column in kept) + 2 * max(0, len(kept) - 1)


def failure(error: RaydeckError, as_json: bool) -> int:
    """Tell what went wrong; returns the exit code."""
    mistakes = getattr(error, "mistakes", [])
    if as_json:
        body: dict[str, Any] = {"error": {"sentence": error.sentence, "hint": error.hint}}
        if mistakes:
            body["error"]["mistakes"] = [mistake.model_dump() for mistake in mistakes]
        print(json.dumps(body, ensure_ascii=False))
        return error.exit_code
    for mistake in mistakes:
        near = f" (did you mean {mistake.suggestion}?)" if mistake.suggestion else ""
        note(safe(f"{mistake.file}:{mistake.line}:{mistake.column}: {mistake.message}{near}"))
    if mistakes:
        files = " and ".join(dict.fromkeys(safe(mistake.file) for mistake in mistakes))
        note(f"raydeck: {len(mistakes)} mistake{'s' * (len(mistakes) > 1)} in {files}")
    else:
        note(f"raydeck: {safe(str(error))}")
    return error.exit_code
