"""Columns of the processes that hold a node's accelerators: whose each is, and whether it is left over. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from console.render.cells import Cell, Column, age, bytes_text, glyph, safe, state_glyph


@dataclass(frozen=True, slots=True)
class ProcessRow:
    """One process, however many accelerators it holds."""

    pid: int
    user: str
    command: str
    age_seconds: float | None
    gpus: tuple[int, ...]
    memory_used_bytes: int | None
    run: str = ""
    rank: int | None = None
    lives: bool | None = False
    """Whether it belongs to a run that lives; None where nobody knows of its run."""
    other: str = ""
    """What it is in Ray, where the controller says so: an actor or a task that raydeck did not start."""

    @property
    def left_over(self) -> bool:
        """It holds accelerators, and belongs to no run that lives."""
        return self.lives is False


def belongs(row: ProcessRow) -> Cell:
    """Whose it is, as sign and words."""
    if row.lives:
        return Cell(safe(row.run) + (f" rank {row.rank}" if row.rank is not None else ""), "accent")
    if row.lives is None:
        return Cell(f"? {safe(row.run)}, not known", "muted")
    if row.run:
        return Cell(f"{state_glyph('warn')} left over: {safe(row.run)}", "bad")
    if row.other:
        return Cell(f"{glyph('◇', '-')} not ours: {safe(row.other)}", "info")
    return Cell(f"{state_glyph('warn')} left over: no run", "warn")


def _memory(row: ProcessRow) -> Cell:
    return Cell("n/a", "muted") if row.memory_used_bytes is None else Cell(bytes_text(row.memory_used_bytes))


PROCESS_COLUMNS: tuple[Column[ProcessRow], ...] = (
    Column("gpu", "GPU", 4, lambda row: Cell(",".join(map(str, row.gpus))), align="right", sort=lambda row: row.gpus),
    Column("pid", "PID", 8, lambda row: Cell(str(row.pid), "title"), align="right", sort=lambda row: row.pid),
    Column("user", "USER", 10, lambda row: Cell(safe(row.user) or "?"), sort=lambda row: row.user),
    Column(
        "age",
        "AGE",
        6,
        lambda row: Cell("?", "muted") if row.age_seconds is None else Cell(age(row.age_seconds)),
        align="right",
        sort=lambda row: row.age_seconds if row.age_seconds is not None else -1.0,
        drop=1,
    ),
    Column("memory", "MEMORY", 7, _memory, align="right", sort=lambda row: row.memory_used_bytes or -1),
    Column("run", "BELONGS TO", 24, belongs, sort=lambda row: (not row.left_over, row.run)),
    Column("command", "COMMAND", 10, lambda row: Cell(safe(row.command), "muted"), grow=True),
)
