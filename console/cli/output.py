"""The only standard output and the only standard error of the command line: JSON, tables, sentences, exit codes.

Exit codes: 0 done, 1 refused or failed, 2 wrong usage, 3 not reachable.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from console.render.cells import cell_len, fit, safe
from jobs.errors import RaydeckError

DONE, FAILED, USAGE, UNREACHABLE = 0, 1, 2, 3


def say(text: str) -> None:
    """A line for a person."""
    print(text)


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


def table(rows: Iterable[Mapping[str, Any]], columns: Sequence[str], empty: str) -> None:
    """Rows under headings, cut to the terminal's width where there is one; whole where there is none."""
    texts = [[_text(row.get(column)) for column in columns] for row in rows]
    if not texts:
        note(empty)
        return
    heads = [column.replace("_", " ").upper() for column in columns]
    widths = [max(cell_len(line[at]) for line in (heads, *texts)) for at in range(len(columns))]
    limit = shutil.get_terminal_size((10_000, 24)).columns if sys.stdout.isatty() else 10_000
    for texts_of_line in (heads, *texts):
        painted = "  ".join(
            text + " " * (width - cell_len(text)) for text, width in zip(texts_of_line, widths, strict=True)
        )
        print(fit(painted.rstrip(), limit).rstrip() if cell_len(painted) > limit else painted.rstrip())


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
        note(f"raydeck: {len(mistakes)} mistake{'s' * (len(mistakes) > 1)} in {safe(mistakes[0].file)}")
    else:
        note(f"raydeck: {safe(str(error))}")
    return error.exit_code
