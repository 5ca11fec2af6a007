"""What a run's panes show: the facts about it, its attempts, its checkpoints, its moves. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from console.render.cells import Cell, Column, Spans, age, bytes_text, glyph, safe, seconds_text
from console.render.prose import facts, listed, moment
from console.render.queue import waiting_state
from console.render.work import (
    age_of,
    checkpoint_text,
    gpus_text,
    loss_text,
    parameters_text,
    progress_of,
    run_state,
    throughput_text,
)
from console.state.work import failed_attempt, status_of
from jobs.model import Attempt, Move, Run, RunState
from jobs.queueview import Waiting
from jobs.wire import CheckpointRow

# --- the head and the facts -------------------------------------------------------------------------------------------


def head_lines(run: Run, now_wall: float) -> list[Spans]:
    """Two lines: what it is, and how far it has come."""
    point = progress_of(run)
    words = f"release {safe(run.release)}  {gpus_text(run)} GPUs  by {safe(run.user)}  for {age(age_of(run, now_wall))}"
    first: Spans = (Cell(" "), run_state(run), Cell(f"  {safe(run.workflow)}  ", "accent"), Cell(words, "muted"))
    figures = [
        f"step {point.step}" if point else "no step yet",
        f"loss {loss_text(point) or '?'}" if point else "",
        (throughput_text(point) or "") if point else "",
        f"checkpoint {checkpoint_text(run)}",
        f"attempt {run.attempt.number}" if run.attempt else "no attempt yet",
    ]
    return [first, (Cell(" " + "   ".join(part for part in figures if part)),)]


def run_facts(run: Run, waiting: Waiting | None, width: int, now_wall: float) -> list[Spans]:
    """Why it is in its state, what failed, where it waits, what it began from, what to know about it."""
    status, attempt, broken = status_of(run), run.attempt, failed_attempt(run)
    reason = run.reason or (status.detail if status else "")
    pairs: list[tuple[str, str, str]] = []
    if run.held:
        words = f"by {run.held.user} for {age(now_wall - run.held.at)}" + (
            f": {run.held.reason}" if run.held.reason else ""
        )
        pairs.append(("held", words, "warn"))
    if waiting is not None:
        place = "" if waiting.position is None else f"position {waiting.position}: "
        pairs.append(("waits", f"{place}{waiting.sentence}   (i: all of it)", "info"))
    if reason and (waiting is None or run.state is RunState.FAILED):
        pairs.append(("because", reason, "bad" if run.state is RunState.FAILED else ""))
    if broken is not None:
        pairs += _failure(run, broken)
    if run.max_retry or run.retries:
        soon = run.not_before if run.state.waiting else None
        again = f"; the next one in {age(soon - now_wall)}" if soon is not None and soon > now_wall else ""
        pairs.append(("retries", f"{run.retries} of {run.max_retry} used{again}", "warn" if run.retries else ""))
    pairs.append(("queue", f"{run.queue}, priority {run.priority}", ""))
    if attempt is not None:
        pairs += [("began from", began_from(attempt), "")]
        pairs += [("skipped", text, "warn") for text in attempt.skipped]
        pairs.append(("kept off", listed(attempt.excluded), "warn"))
    pairs.append(("suspects", suspects_text(run), "warn"))
    pairs += [("warning", text, "warn") for text in (status.warnings if status and not run.state.ended else [])]
    if run.sweep:
        pairs.append(("sweep", f"{run.sweep}   {parameters_text(run)}   (w: all of it)", "accent"))
    if run.rollback:
        pairs.append(("rollback", f"{run.rollback} started it   (B: take it back)", "accent"))
    pairs.append(("after", listed(run.after), "") if run.state.waiting else ("", "", ""))
    if run.max_duration_seconds is not None:
        pairs.append(("time limit", age(run.max_duration_seconds), ""))
    pairs.append(("directory", run.run_directory, "muted"))
    return facts(pairs, width)


def _failure(run: Run, broken: Attempt) -> list[tuple[str, str, str]]:
    """What kind of failure it was, and how one knows; for an earlier attempt, what came of that."""
    kind = broken.failure.value if broken.failure else "of unknown kind"
    evidence = broken.outcome.evidence if broken.outcome else ""
    style = "bad" if run.state is RunState.FAILED else "warn"
    pairs = [("failure", kind if run.state is RunState.FAILED else f"attempt {broken.number}: {kind}", style)]
    if run.state is not RunState.FAILED:
        pairs.append(("", f"{broken.reason}" if broken.reason else "", "muted"))
    return [*pairs, ("evidence", evidence, "muted")]


def began_from(attempt: Attempt) -> str:
    """Where an attempt took up the work."""
    if attempt.resume_step is None:
        return "the beginning"
    return f"step {attempt.resume_step}" + (f" of {attempt.resume_run}" if attempt.resume_run else "")


def suspects_text(run: Run) -> str:
    """The nodes that may be to blame for its failures, and which of them it is kept off."""
    words = [
        f"{safe(name)} ({times} times: left out)" if times > 1 else f"{safe(name)} once"
        for name, times in sorted(run.suspects.items(), key=lambda item: (-item[1], item[0]))
    ]
    return ", ".join(words)


# --- attempts ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class AttemptRow:
    """What a row of attempts is painted from."""

    attempt: Attempt
    now_wall: float


def _took(row: AttemptRow) -> Cell:
    begun = row.attempt.started_at
    if begun is None:
        return Cell("-", "muted")
    return Cell(age(max(0.0, (row.attempt.ended_at or row.now_wall) - begun)), "muted")


def _what_failed(row: AttemptRow) -> Spans:
    attempt = row.attempt
    evidence = (attempt.outcome.evidence if attempt.outcome else "") or attempt.reason
    kind = (Cell(f"{attempt.failure.value}  ", "bad"),) if attempt.failure else ()
    return (*kind, Cell(safe(evidence), "muted"))


ATTEMPT_COLUMNS: tuple[Column[AttemptRow], ...] = (
    Column("number", "NO", 3, lambda row: Cell(str(row.attempt.number), "title"), align="right"),
    Column("state", "STATE", 11, lambda row: waiting_state(row.attempt.state)),
    Column("from", "FROM", 7, lambda row: Cell("start" if row.attempt.resume_step is None else
                                               str(row.attempt.resume_step)), align="right"),
    Column("last", "LAST", 7, lambda row: _last_step(row.attempt), align="right", drop=1),
    Column("took", "TOOK", 7, _took, align="right"),
    Column("nodes", "NODES", 18, lambda row: Cell(listed(row.attempt.nodes, 4) or "-"), drop=2),
    Column("excluded", "KEPT OFF", 12, lambda row: Cell(listed(row.attempt.excluded, 3), "warn"), drop=3),
    Column("failure", "FAILURE AND EVIDENCE", 20, _what_failed, grow=True),
)  # fmt: skip


def _last_step(attempt: Attempt) -> Cell:
    step = attempt.outcome.last_step if attempt.outcome else None
    if step is None and attempt.status and attempt.status.progress:
        step = attempt.status.progress.step
    return Cell("-", "muted") if step is None else Cell(str(step))


def attempt_lines(attempt: Attempt, width: int) -> list[Spans]:
    """All about one attempt, below the table."""
    outcome = attempt.outcome
    pairs = [
        ("job", attempt.job_id, "muted"),
        ("nodes", listed(attempt.nodes, 12), ""),
        ("kept off", listed(attempt.excluded, 12), "warn"),
        ("began from", began_from(attempt), ""),
        *(("skipped", text, "warn") for text in attempt.skipped),
        ("because", attempt.reason, "bad" if attempt.state is RunState.FAILED else ""),
    ]
    if outcome is not None:
        codes = ", ".join(f"rank {rank}: {'?' if code is None else code}" for rank, code in outcome.exit_codes.items())
        pairs += [
            ("evidence", outcome.evidence, ""),
            ("suspects", listed(outcome.suspects), "warn"),
            ("exit codes", codes, "muted"),
            ("still alive", ", ".join(str(pid) for pid in outcome.survivors), "bad"),
            ("not asked", listed(outcome.unanswered), "bad"),
        ]
    return facts(pairs, width)


# --- checkpoints ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SavedRow:
    """What a row of checkpoints is painted from."""

    row: CheckpointRow
    now_wall: float


def checkpoint_key(row: CheckpointRow) -> str:
    """One row's key: a step may be there twice, once of them set aside."""
    return f"{row.step}:{row.path}"


def _optional(text: str | None) -> Cell:
    return Cell("-", "muted") if text is None else Cell(text)


def _saved_note(saved: SavedRow) -> Cell:
    row = saved.row
    if not row.complete or row.reason:
        return Cell(safe(row.reason), "warn")
    return Cell(f"in use by {listed(row.in_use_by, 3)}" if row.in_use_by else "", "info")


def usable(row: CheckpointRow) -> bool:
    """Can a run begin from it?"""
    return row.complete and not row.reason


def complete_cell(row: CheckpointRow) -> Cell:
    """Sign and word: usable, set aside, or broken."""
    if not row.complete:
        return Cell(f"{glyph('✗', 'x')} incomplete", "bad")
    return Cell(f"{glyph('·', '.')} set aside", "muted") if row.reason else Cell(f"{glyph('✓', '+')} complete", "ok")


CHECKPOINT_COLUMNS: tuple[Column[SavedRow], ...] = (
    Column("step", "STEP", 8, lambda saved: Cell(str(saved.row.step), "title"), align="right",
           sort=lambda saved: saved.row.step),
    Column("complete", "STATE", 12, lambda saved: complete_cell(saved.row), sort=lambda saved: saved.row.complete),
    Column("size", "SIZE", 7, lambda saved: _optional(
        None if saved.row.size_bytes is None else bytes_text(saved.row.size_bytes)), align="right",
        sort=lambda saved: saved.row.size_bytes),
    Column("seconds", "TOOK", 6, lambda saved: _optional(
        None if saved.row.seconds is None else seconds_text(saved.row.seconds)), align="right",
        sort=lambda saved: saved.row.seconds),
    Column("loss", "LOSS", 8, lambda saved: _optional(
        None if saved.row.loss is None else f"{saved.row.loss:.4f}"), align="right", sort=lambda saved: saved.row.loss),
    Column("age", "AGE", 6, lambda saved: _optional(
        None if saved.row.written_at is None else age(saved.now_wall - saved.row.written_at)), align="right",
        sort=lambda saved: -(saved.row.written_at or 0.0)),
    Column("world", "RANKS", 5, lambda saved: _optional(
        None if saved.row.world_size is None else str(saved.row.world_size)), align="right", drop=2),
    Column("format", "FORMAT", 11, lambda saved: Cell(safe(saved.row.format), "muted"), drop=3),
    Column("reason", "REASON", 14, _saved_note, grow=True),
)  # fmt: skip


# --- moves ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class MoveRow:
    """What a row of events is painted from."""

    move: Move
    lasted: float | None
    """Seconds until the next one; None for the newest."""
    now_wall: float


def move_rows(moves: list[Move], now_wall: float) -> list[MoveRow]:
    """The newest first, each with how long the run stayed in that state."""
    rows = [
        MoveRow(move, moves[at + 1].at - move.at if at + 1 < len(moves) else None, now_wall)
        for at, move in enumerate(moves)
    ]
    return rows[::-1]


def _step_of(row: MoveRow) -> Spans:
    before = row.move.before
    lead = (Cell(f"{before.value} ", "muted"), Cell(glyph("→ ", "> "), "muted")) if before else ()
    return (*lead, waiting_state(row.move.after))


MOVE_COLUMNS: tuple[Column[MoveRow], ...] = (
    Column("at", "AT", 11, lambda row: Cell(moment(row.move.at, row.now_wall), "muted")),
    Column("attempt", "NO", 2, lambda row: Cell(str(row.move.attempt) if row.move.attempt else "-", "muted"),
           align="right"),
    Column("step", "FROM → TO", 23, _step_of),
    Column("lasted", "FOR", 7, lambda row: Cell("now" if row.lasted is None else seconds_text(row.lasted), "muted"),
           align="right", drop=1),
    Column("actor", "WHO", 8, lambda row: Cell(safe(row.move.actor), "accent")),
    Column("cause", "CAUSE", 16, lambda row: Cell(safe(row.move.cause)), grow=True),
)  # fmt: skip
