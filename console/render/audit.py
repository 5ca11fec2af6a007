"""The audit log as rows: who asked for what, and whether it was allowed. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from console.render.cells import Cell, Column, Spans, glyph, safe
from console.render.prose import moment
from jobs.wire import AuditEntry


@dataclass(frozen=True, slots=True)
class AuditRow:
    """What a row of the audit log is painted from."""

    entry: AuditEntry
    now_wall: float


def allowed_cell(entry: AuditEntry) -> Cell:
    """Sign and word, never by colour alone."""
    return Cell(f"{glyph('✓', '+')} allowed", "ok") if entry.allowed else Cell(f"{glyph('✗', 'x')} REFUSED", "bad")


def _word(entry: AuditEntry, text: str) -> Cell:
    return Cell(safe(text), "" if entry.allowed else "bad")


AUDIT_COLUMNS: tuple[Column[AuditRow], ...] = (
    Column("seq", "NO", 5, lambda row: Cell(str(row.entry.seq), "muted"), align="right",
           sort=lambda row: row.entry.seq),
    Column("at", "AT", 11, lambda row: Cell(moment(row.entry.at, row.now_wall), "muted"),
           sort=lambda row: row.entry.at),
    Column("user", "USER", 8, lambda row: Cell(safe(row.entry.user), "accent"), sort=lambda row: row.entry.user),
    Column("allowed", "", 9, lambda row: allowed_cell(row.entry), sort=lambda row: row.entry.allowed),
    Column("action", "ACTION", 9, lambda row: _word(row.entry, row.entry.action), sort=lambda row: row.entry.action),
    Column("target", "TARGET", 15, lambda row: _word(row.entry, row.entry.target), sort=lambda row: row.entry.target),
    Column("reason", "REASON", 10, lambda row: _word(row.entry, row.entry.reason), grow=True),
    Column("hash", "HASH", 12, lambda row: Cell(row.entry.hash[:12], "muted"), drop=1),
)  # fmt: skip


def chain_line(broken: str | None, entries: int, refused: int) -> Spans:
    """Whether the log's chain of hashes holds.

    Args:
        broken: Where it does not, in words; empty: it holds; None: nobody has looked yet.
        entries: How many are listed.
        refused: How many of those were refused.
    """
    words = Cell(f" {entries} entries, the newest first", "muted")
    no = Cell(f"   {refused} refused", "bad" if refused else "muted")
    if broken is None:
        return words, no, Cell("   the chain of hashes is being looked at", "muted")
    if broken:
        return Cell(f" {glyph('!', '!')} the audit log was changed: {safe(broken)}", "bad"), words, no
    return words, no, Cell(f"   {glyph('✓', '+')} its chain of hashes holds", "ok")
