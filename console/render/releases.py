"""Releases as rows and as a page, and two of them side by side. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from console.render.cells import Cell, Column, Spans, age, count, fit, glyph, safe, state_cell
from console.render.prose import facts, heading, listed, moment, wrapped
from jobs.release import Change, difference
from jobs.wire import Release, ReleaseRow

DIGEST_DIGITS = 12
VALUE_LINES = 4
"""A value longer than this many lines is cut; enter shows the release whole."""


@dataclass(frozen=True, slots=True)
class ShownRelease:
    """What a row of releases is painted from."""

    row: ReleaseRow
    now_wall: float


def _outcome(row: ReleaseRow) -> Cell:
    return state_cell(row.outcome) if row.outcome else Cell("never ran", "muted")


def _note(row: ReleaseRow) -> Spans:
    cells = [
        Cell(f"{glyph('✓', '+')} last good" if row.last_good else "", "ok"),
        Cell(f"runs now: {listed(row.active, 2)}" if row.active else "", "busy"),
        Cell(safe(row.reason), "bad" if row.outcome == "failed" else "muted"),
    ]
    told = [cell for cell in cells if cell.text]
    return tuple(Cell(cell.text + "  " * (cell is not told[-1]), cell.style) for cell in told)


def _optional(text: str | None) -> Cell:
    return Cell("-", "muted") if text is None else Cell(text)


def throughput_of(row: ReleaseRow) -> str | None:
    """What its newest run got done in a second."""
    return None if row.throughput is None else f"{count(row.throughput)} {safe(row.throughput_unit) or 'it'}/s"


def _loss(row: ReleaseRow) -> str | None:
    return None if row.loss is None else f"{row.loss:.4f}"


def _whole(value: int | None) -> str | None:
    return None if value is None else str(value)


RELEASE_COLUMNS: tuple[Column[ShownRelease], ...] = (
    Column("id", "RELEASE", 20, lambda shown: Cell(safe(shown.row.id), "title"), sort=lambda shown: shown.row.id),
    Column("workflow", "WORKFLOW", 12, lambda shown: Cell(safe(shown.row.workflow)),
           sort=lambda shown: shown.row.workflow, drop=4),
    Column("made", "AGE", 6, lambda shown: Cell(age(shown.now_wall - shown.row.created_at), "muted"), align="right",
           sort=lambda shown: -shown.row.created_at),
    Column("user", "USER", 8, lambda shown: Cell(safe(shown.row.user), "muted"), sort=lambda shown: shown.row.user,
           drop=5),
    Column("outcome", "OUTCOME", 11, lambda shown: _outcome(shown.row), sort=lambda shown: shown.row.outcome),
    Column("runs", "RUNS", 4, lambda shown: Cell(str(shown.row.runs), "muted"), align="right",
           sort=lambda shown: shown.row.runs, drop=3),
    Column("step", "STEP", 7, lambda shown: _optional(_whole(shown.row.last_step)), align="right",
           sort=lambda shown: shown.row.last_step),
    Column("loss", "LOSS", 8, lambda shown: _optional(_loss(shown.row)), align="right",
           sort=lambda shown: shown.row.loss),
    Column("throughput", "THROUGHPUT", 14, lambda shown: _optional(throughput_of(shown.row)), align="right",
           sort=lambda shown: shown.row.throughput, drop=2),
    Column("checkpoint", "CKPT", 7, lambda shown: _optional(_whole(shown.row.checkpoint_step)), align="right", drop=6),
    Column("note", "", 14, lambda shown: _note(shown.row), grow=True),
)  # fmt: skip
"""All that is told of a release in one line; `console.widgets.table` leaves out what has no room."""


# --- one release ------------------------------------------------------------------------------------------------------


def release_lines(row: ReleaseRow, width: int, now_wall: float) -> list[Spans]:
    """All about one release: who, what came of it, its environment, its configuration."""
    saved = "" if row.checkpoint_step is None else f"step {row.checkpoint_step} of {row.checkpoint_run}"
    figures = [
        "" if row.last_step is None else f"step {row.last_step}",
        "" if row.loss is None else f"loss {_loss(row)}",
        throughput_of(row) or "",
    ]
    lines: list[Spans] = [
        (
            Cell(f" {safe(row.id)}  ", "title"),
            _outcome(row),
            Cell("  "),
            *_note(row)[: row.last_good + bool(row.active)],
        )
    ]
    lines += facts(
        [
            ("workflow", row.workflow, ""),
            ("made", f"{moment(row.created_at, now_wall)}, {age(now_wall - row.created_at)} ago, by {row.user}", ""),
            ("runs", f"{row.runs}" + (f", the newest {row.last_run}" if row.last_run else ""), ""),
            ("reason", row.reason, "bad" if row.outcome == "failed" else ""),
            ("figures", "   ".join(text for text in figures if text), ""),
            ("checkpoint", saved, ""),
            ("code", row.code_digest[:DIGEST_DIGITS] or "none", ""),
            ("data", " ".join(text for text in (row.data_version, row.data_digest[:DIGEST_DIGITS]) if text), ""),
            ("seed", "" if row.seed is None else str(row.seed), ""),
        ],
        width,
    )
    lines += heading("Environment")
    if row.environment:
        lines += facts([(name, value, "") for name, value in sorted(row.environment.items())], width)
    else:
        lines.append((Cell(" not known yet: the nodes tell it when a run of it starts", "muted"),))
    lines += heading("Configuration")
    return lines + facts([(path, value_text(value), "") for path, value in leaves(row.config)], width)


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every value below with its path, such as ``training.batch_size``; a list counts as one value."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves(inner, f"{path}.{name}" if path else str(name))
    else:
        yield path, value


def value_text(value: Any) -> str:
    """A value as a file would have it; what is not there is a dash."""
    if value is None:
        return "-"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)


# --- two of them side by side -----------------------------------------------------------------------------------------

PARTS = ("Configuration", "Code", "Environment", "Data")


def part_of(path: str) -> str:
    """What of a release a path belongs to."""
    if path == "code_digest":
        return "Code"
    if path.startswith("environment."):
        return "Environment"
    return "Data" if path in ("data_version", "data_digest") or path.startswith("data.") else "Configuration"


def difference_lines(old: Release, new: Release, width: int) -> list[Spans]:
    """What a step from one release to the other changes, both values beside each other, by part."""
    changes = difference(old, new)
    if not changes:
        return [(Cell(f" {safe(old.id)} and {safe(new.id)} are the same in all parts", "muted"),)]
    left = min(max(len(change.path.removeprefix("environment.")) for change in changes) + 2, max(14, width // 3))
    half = max(10, (width - left - 4) // 2)
    lines: list[Spans] = [
        (
            Cell(" " * (left + 1)),
            Cell(fit(old.id, half), "muted"),
            Cell("  "),
            Cell(fit(new.id, half), "title"),
        )
    ]
    for part in PARTS:
        inside = [change for change in changes if part_of(change.path) == part]
        if [change.path for change in inside] == ["code_digest"]:
            lines += _beside(inside[0], left, half, " Code")
        elif inside:
            lines.append((Cell(f" {part}", "accent"),))
            for change in inside:
                lines += _beside(change, left, half)
    same = [part for part in PARTS if part not in {part_of(change.path) for change in changes}]
    if same:
        lines.append((Cell(f" the same: {', '.join(same).lower()}", "muted"),))
    return lines


def _beside(change: Change, left: int, half: int, title: str = "") -> list[Spans]:
    digits = DIGEST_DIGITS if change.path.endswith("_digest") else None
    before, after = (_cut(wrapped(value_text(value)[:digits], half)) for value in (change.old, change.new))
    name = title or f"  {change.path.removeprefix('environment.')}"
    return [
        (
            Cell(fit(name if number == 0 else "", left), "accent" if title else ""),
            Cell(" "),
            Cell(fit(_at(before, number), half), "muted"),
            Cell(glyph("→ ", "> ") if number == 0 else "  ", "muted"),
            Cell(fit(_at(after, number), half), "warn"),
        )
        for number in range(max(len(before), len(after)))
    ]


def _at(lines: list[str], number: int) -> str:
    return lines[number] if number < len(lines) else ""


def _cut(lines: list[str]) -> list[str]:
    return lines if len(lines) <= VALUE_LINES else [*lines[: VALUE_LINES - 1], glyph("…", "...")]


def newest_first(rows: Iterable[ReleaseRow]) -> list[ReleaseRow]:
    """In the order in which they are listed."""
    return sorted(rows, key=lambda row: (-row.created_at, row.id))
