"""The queues as bars, those that wait as rows, and why one waits as a page. Pure."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from console.render.cells import (
    Cell,
    Column,
    Spans,
    age,
    cell_len,
    fit,
    glyph,
    safe,
    seconds_text,
    state_cell,
    state_glyph,
)
from console.render.prose import estimate, facts, heading, moment, number, paragraph, some
from jobs.model import RunState
from jobs.queueview import Explanation, QueueUse, QueueView, UserUse, Waiting

BAR_WIDE, BAR_NARROW = 32, 16
NAME_CELLS = 16


@dataclass(frozen=True, slots=True)
class WaitingRow:
    """What a row of those that wait is painted from."""

    waiting: Waiting
    now_wall: float
    """The head's clock, seconds since 1970."""


# --- the queues as bars -----------------------------------------------------------------------------------------------


def queue_bar(used: int, waiting: int, most: int | None, scale: int, width: int) -> Spans:
    """What is used, what waits behind it, and what is left of the quota, in exactly ``width`` cells.

    Args:
        used: Accelerators held.
        waiting: Accelerators that those who wait ask for.
        most: The quota; None: there is none. Where more waits than it has room for, a mark stands at its end.
        scale: What the whole width stands for, where nothing stands out beyond the quota.
        width: Terminal cells.
    """
    full = most is not None and used >= most
    if most and used + waiting > most:  # what waits does not all fit: it stands out beyond the quota's end
        scale = min(used + waiting, 2 * max(most, used))
    scale = max(1, scale)
    used_cells = min(width, _cells(used, scale, width))
    waiting_cells = min(width - used_cells, _cells(waiting, scale, width))
    signs = glyph("█", "#") * used_cells + glyph("▒", "=") * waiting_cells
    signs += glyph("░", ".") * (width - len(signs))
    looks = ["warn" if full else "busy"] * used_cells + ["info"] * waiting_cells
    looks += ["idle"] * (width - len(looks))
    if most and scale > most:
        end = min(width - 1, _cells(most, scale, width))
        signs, looks[end] = f"{signs[:end]}{glyph('│', '|')}{signs[end + 1 :]}", "title"
    parts = groupby(zip(looks, signs, strict=True), itemgetter(0))
    return tuple(Cell("".join(sign for _, sign in part), look) for look, part in parts)


def _cells(amount: int, scale: int, width: int) -> int:
    """At least one cell for anything, so that a little never looks like nothing."""
    return max(1, math.floor(amount / scale * width + 0.5)) if amount else 0


def _queue_text(use: QueueUse, wide: bool) -> list[Cell]:
    quota = "no quota" if use.max_accelerators is None else f"of {number(use.max_accelerators)}"
    full = use.max_accelerators is not None and use.used_accelerators >= use.max_accelerators
    held = f"{number(use.used_accelerators)} {quota}"
    if use.max_accelerators is None:
        held = f"{number(use.used_accelerators)} in use, no quota"
    cells = [Cell(f"  {held}", "warn" if full else "")]
    if use.waiting:
        cells.append(Cell(f" · {number(use.waiting)} wait for {number(use.waiting_accelerators)}", "info"))
    else:
        cells.append(Cell(" · none waits", "muted"))
    if wide:
        words = [some(use.running, "run"), f"priority {use.priority}", "the default" if use.default else ""]
        cells.append(Cell("   " + ", ".join(safe(word) for word in words if word), "muted"))
    return cells


def total_line(view: QueueView, width: int) -> Spans:
    """The cluster in one line: who holds its accelerators, how many runs are active, how many wait."""
    cells: list[Cell] = [Cell(" ")]
    if view.accelerators is None:
        cells.append(Cell("Ray does not tell how many GPUs there are", "warn"))
    else:
        ours = sum(use.used_accelerators for use in view.queues)
        cells.append(Cell(f"{some(view.accelerators, 'GPU')}: {number(ours)} by runs"))
        if view.foreign_accelerators:
            cells.append(Cell(f", {number(view.foreign_accelerators)} by others", "warn"))
        if view.free_accelerators is not None:
            cells.append(Cell(f", {number(view.free_accelerators)} free", "ok" if view.free_accelerators else "muted"))
    limit = f" of {number(view.max_active_runs)}" if view.max_active_runs else ""
    cells.append(Cell(f" · {number(view.active_runs)}{limit} active", "muted"))
    cells.append(Cell(f" · {number(view.waiting_total)} wait", "info" if view.waiting_total else "muted"))
    if view.held_total:
        cells.append(Cell(f" · {number(view.held_total)} held", "warn"))
    if view.preemption:
        cells.append(Cell(" · preemption on", "warn"))
    if not view.backfill:
        cells.append(Cell(" · backfill off", "muted"))
    if view.pass_seconds is not None and width >= 120:
        took = seconds_text(view.pass_seconds) if view.pass_seconds >= 0.001 else "under 1ms"
        cells.append(Cell(f" · a pass takes {took}", "muted"))
    return tuple(cells)


def queue_lines(view: QueueView | None, width: int, room: int) -> list[Spans]:
    """The queues, a line each, in at most ``room`` lines: those with most to tell stay where not all have room."""
    if view is None:
        return [(Cell(" the controller has not told its queues yet", "muted"),)]
    lines = [total_line(view, width)]
    users = [use for use in view.users if use.max_accelerators is not None]
    spare = max(1, room - 1 - bool(users))
    shown = view.queues
    if len(shown) > spare:
        spare = max(1, spare - 1)
        kept = sorted(shown, key=lambda use: (-use.waiting, -use.used_accelerators))[:spare]
        shown = [use for use in shown if use in kept]
    left = min(NAME_CELLS, max((cell_len(safe(use.name)) for use in view.queues), default=0)) + 2
    most = max((use.used_accelerators + use.waiting_accelerators for use in view.queues), default=1)
    bar = BAR_WIDE if width >= 120 else BAR_NARROW
    for use in shown:
        scale = use.max_accelerators or view.accelerators or most
        spans = queue_bar(use.used_accelerators, use.waiting_accelerators, use.max_accelerators, scale, bar)
        lines.append((Cell(fit(f" {use.name}", left), "title"), *spans, *_queue_text(use, width >= 120)))
    if len(shown) < len(view.queues):
        rest = [use for use in view.queues if use not in shown]
        waits = sum(use.waiting for use in rest)
        lines.append((Cell(f" and {some(len(rest), 'more queue')}, {number(waits)} wait there", "muted"),))
    if users:
        lines.append(_users_line(users, width))
    return lines


def _users_line(users: list[UserUse], width: int) -> Spans:
    cells = [Cell(" users ", "muted")]
    for at, use in enumerate(sorted(users, key=lambda use: (-use.waiting, -use.used_accelerators))):
        full = use.max_accelerators is not None and use.used_accelerators >= use.max_accelerators
        text = f" {safe(use.user)} {number(use.used_accelerators)} of {number(use.max_accelerators or 0)}"
        text += f" ({number(use.waiting)} wait)" if use.waiting else ""
        if sum(cell_len(cell.text) for cell in cells) + cell_len(text) + 12 > width:
            cells.append(Cell(f" and {len(users) - at} more", "muted"))
            break
        cells.append(Cell(text + " ", "warn" if full else ""))
    return tuple(cells)


# --- those that wait, as rows -----------------------------------------------------------------------------------------


def _of(write: Callable[[Waiting], Cell]) -> Callable[[WaitingRow], Cell]:
    return lambda row: write(row.waiting)


def _position(waiting: Waiting) -> Cell:
    if waiting.position is None:
        return Cell("held", "warn")
    return Cell(f"{number(waiting.position)}{'*' if waiting.moved else ''}", "accent" if waiting.moved else "title")


def gpus_of(waiting: Waiting) -> str:
    """Nodes × accelerators on each."""
    nodes, gpus = waiting.nodes, waiting.gpus
    return f"{nodes}×{gpus // nodes}" if nodes and gpus % nodes == 0 else f"{gpus}"


def priority_rank(priority: str) -> float:
    """A priority as a number, to sort by; the words stand where the scheduler puts them."""
    known = {"low": -100.0, "normal": 0.0, "high": 100.0}
    if priority in known:
        return known[priority]
    try:
        return float(priority)
    except ValueError:
        return 0.0


WAITING_COLUMNS: tuple[Column[WaitingRow], ...] = (
    Column(
        "position", "POS", 6, _of(_position), align="right",
        sort=lambda row: math.inf if row.waiting.position is None else row.waiting.position,
    ),
    Column("run", "RUN", 18, _of(lambda w: Cell(safe(w.run), "title")), sort=lambda row: row.waiting.run),
    Column("user", "USER", 8, _of(lambda w: Cell(safe(w.user))), sort=lambda row: row.waiting.user, drop=6),
    Column("queue", "QUEUE", 10, _of(lambda w: Cell(safe(w.queue))), sort=lambda row: row.waiting.queue, drop=5),
    Column(
        "priority", "PRIO", 6, _of(lambda w: Cell(safe(w.priority), "accent" if w.priority == "high" else "")),
        sort=lambda row: priority_rank(row.waiting.priority),
    ),
    Column("gpus", "GPUS", 5, _of(lambda w: Cell(gpus_of(w))), align="right", sort=lambda row: row.waiting.gpus),
    Column(
        "since", "SINCE", 6, lambda row: Cell(age(row.now_wall - row.waiting.since), "muted"), align="right",
        sort=lambda row: row.waiting.since,
    ),
    Column(
        "estimate", "EST.", 7, lambda row: Cell(estimate(row.waiting.estimated_start, row.now_wall), "info"),
        align="right", sort=lambda row: row.waiting.estimated_start, drop=4,
    ),
    Column("why", "WHY", 16, _of(lambda w: Cell(safe(w.sentence), kind_style(w.kind))), grow=True),
)  # fmt: skip

_KIND_STYLES = {"hold": "warn", "never": "bad", "ray": "bad", "cordon": "warn", "suspected": "warn", "back_off": "warn"}


def kind_style(kind: str) -> str:
    """How what is in a run's way is painted: in plain text where waiting is all that has to be done."""
    return _KIND_STYLES.get(kind, "")


def waiting_note(waiting: Waiting, width: int, now_wall: float) -> list[Spans]:
    """The run under the cursor in full, since the table may have no room for it."""
    where = f"{safe(waiting.user)}, queue {safe(waiting.queue)}, priority {safe(waiting.priority)}"
    moved = ", put there by hand" if waiting.moved else ""
    start = waiting.estimated_start
    likely = f"   likely to start in {estimate(start, now_wall)}, an estimate" if start is not None else ""
    return [
        (Cell(f" {safe(waiting.run)}  ", "title"), Cell(f"{where}{moved}", "muted"), Cell(likely, "info")),
        *paragraph(waiting.sentence, width, style=kind_style(waiting.kind), lead=(Cell(" "),)),
    ]


# --- why one waits, as a page -----------------------------------------------------------------------------------------

KIND_WORDS = {
    "hold": "held", "after": "after another run", "back_off": "back-off", "queue_quota": "queue quota",
    "user_quota": "user quota", "user_runs": "user's runs", "active_runs": "active runs", "sweep": "sweep",
    "cordon": "cordon", "suspected": "suspected node", "resources": "no room", "order": "order", "ray": "Ray",
    "never": "never",
}  # fmt: skip


def explanation_lines(told: Explanation, width: int, now_wall: float) -> list[Spans]:
    """The whole answer to "why does it wait": sentence, place, what is in the way, who is ahead, nodes, estimate."""
    place = "" if told.position is None else f"   position {number(told.position)}"
    lines: list[Spans] = [(Cell(" "), waiting_state(told.state), Cell(f"  {safe(told.run)}{place}", "title")), ()]
    lines += paragraph(told.sentence, width, style="title", lead=(Cell(" "),))
    if told.blocked_by:
        lines += heading("In its way")
        for blocker in told.blocked_by:
            lead = (Cell(f" {glyph('✗', 'x')} ", "warn"), Cell(fit(KIND_WORDS[blocker.kind], 17), "warn"))
            lines += paragraph(blocker.sentence, width, lead=lead)
            if blocker.would_start_if:
                lines += paragraph(
                    blocker.would_start_if,
                    width,
                    style="ok",
                    lead=(Cell(" " * 20), Cell(glyph("→ if ", "> if "), "ok")),
                )
    rest = [text for text in told.would_start_if if text not in {one.would_start_if for one in told.blocked_by}]
    if rest:
        lines += heading("It would start if")
        for text in rest:
            lines += paragraph(text, width, style="ok", lead=(Cell(glyph(" → ", " > "), "ok"),))
    if told.ahead:
        lines += heading(f"Ahead of it: {some(told.ahead_total or len(told.ahead), 'run')}")
        for one in told.ahead:
            words = f"{safe(one.user)}, {safe(one.queue)}, {safe(one.priority)}, {some(one.gpus, 'GPU')}"
            lines += paragraph(words, width, style="muted", lead=(Cell(f"   {safe(one.run)}  ", "accent"),))
            lines += paragraph(one.sentence, width, lead=(Cell("     "),))
        if told.ahead_total > len(told.ahead):
            lines.append((Cell(f"   and {number(told.ahead_total - len(told.ahead))} more", "muted"),))
    if told.nodes:
        lines += heading("Nodes, for this run")
        left = min(24, max(cell_len(safe(note.node)) for note in told.nodes)) + 2
        for note in told.nodes:
            sign = "ok" if note.usable else "none"
            lead = (Cell(f" {state_glyph(sign)} ", "ok" if note.usable else "muted"), Cell(fit(note.node, left)))
            lines += paragraph(note.sentence, width, style="" if note.usable else "muted", lead=lead)
    lines += heading("When")
    return lines + _when(told, width, now_wall)


def _when(told: Explanation, width: int, now_wall: float) -> list[Spans]:
    if told.estimated_start is None:
        return paragraph(f"no estimate: {told.estimated_from or 'nothing is known to go by'}", width, style="muted",
                         lead=(Cell(" "),))  # fmt: skip
    at = moment(told.estimated_start, now_wall)
    text = f"{estimate(told.estimated_start, now_wall)} (about {at}): an estimate, not a promise"
    return facts([("likely start", text, "info"), ("rests on", told.estimated_from, "muted")], width)


def waiting_state(state: RunState, held: bool = False) -> Cell:
    """A state's sign and word; that a run is held is a state of its own to the eye."""
    if held and state.waiting:
        return Cell(f"{glyph('○', 'o')} held", "warn")
    return state_cell(state.value)
