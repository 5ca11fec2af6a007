"""How a node that is kept free of work is shown: its state in a cell, who and why in a line, all of it as a page. Pure.

The three truths of a node (SSH, Ray, driver) stay in columns of their own; this is the fourth: what people want of it.
"""

from __future__ import annotations

from dataclasses import dataclass

from console.render.cells import Cell, Spans, age, glyph, safe, state_cell
from console.render.prose import moment, paragraph, some
from console.state.fleet import Node
from console.state.work import WorkStore
from jobs.nodeview import Drain, DrainNode, Hold, NodeView

CHECK_SECONDS = 30.0
"""So long an empty node is looked at by the controller before it is called drained."""


@dataclass(frozen=True, slots=True)
class Standing:
    """A node, what the controller says of it, and the clocks to read that by."""

    node: Node
    work: WorkStore
    now_wall: float
    """The head's clock, seconds since 1970."""

    @property
    def view(self) -> NodeView | None:
        """What the controller says of it; None: nothing but that it takes work, or nobody has said."""
        return self.work.nodes.of(self.node)

    @property
    def part(self) -> tuple[Drain, DrainNode] | None:
        """Its part in the drain that holds it."""
        view = self.view
        found = self.work.nodes.part(view.name) if view is not None else None
        return found if view is not None and view.drain and found is not None else None

    @property
    def out_of_ray(self) -> bool:
        """SSH answers there, and Ray has it no longer."""
        return self.node.can_rejoin

    @property
    def doing(self) -> str:
        """What this console does there right now."""
        return self.work.nodes.doing.get(self.node.name, "")

    @property
    def state(self) -> str:
        """One of `STATE_GLYPHS`; ``unknown`` where no controller has said."""
        view, part = self.view, self.part
        if self.doing:
            return "rejoining"
        if view is None or view.state == "open":
            if self.out_of_ray:
                return "out of Ray"
            return "open" if self.work.nodes.view is not None else "unknown"
        if view.state == "draining" and part is not None and part[1].overdue:
            return "overdue"
        return "waiting turn" if view.state == "waiting" else view.state


# --- in a row ---------------------------------------------------------------------------------------------------------


def progress_text(part: DrainNode) -> str:
    """How many of its runs have left: ``2/3``; empty where it had none."""
    return f"{sum(run.left_at is not None for run in part.runs)}/{len(part.runs)}" if part.runs else ""


def state_words(row: Standing) -> Cell:
    """Its state as sign and word, with what is counted: ``↓ draining 2/3``, ``⊘ cordoned +1``."""
    state, view, part = row.state, row.view, row.part
    cell = Cell("-", "muted") if state == "unknown" else state_cell(state)
    more = ""
    if part is not None and state in ("draining", "overdue") and progress_text(part[1]):
        more = f" {progress_text(part[1])}"
    elif view is not None and view.slipped:
        more = f" +{len(view.slipped)}"
    style = "bad" if view is not None and view.slipped and state != "draining" else cell.style
    late = "" if row.work.controller.state in ("ok", "unknown") or state in ("unknown", "open", "out of Ray") else "*"
    return Cell(cell.text + more + late, "stale" if late else style)


def deadline_text(part: DrainNode, now_wall: float) -> str:
    """How long it has still, or what has to be chosen: ``12m04s to go``, ``overdue for 2m10s: choose``."""
    if part.state == "checking" and part.empty_since is not None:
        left = max(0.0, CHECK_SECONDS - (now_wall - part.empty_since))
        return f"empty; checked for {left:.0f}s more"
    if part.over or part.deadline_at is None:
        return ""
    if now_wall < part.deadline_at:
        return f"{age(part.deadline_at - now_wall)} to go"
    late = age(now_wall - part.deadline_at)
    return f"overdue for {late}: choose" if part.overdue else f"overdue for {late}"


def left_text(part: DrainNode) -> str:
    """How many of its runs have left, in words: ``2 of 3 have left``."""
    gone = sum(run.left_at is not None for run in part.runs)
    if not part.runs:
        return ""
    return f"{gone} of {len(part.runs)} {'has' if gone == 1 else 'have'} left"


def note_text(part: DrainNode) -> str:
    """What is waited for; without what an overdue node is to be chosen for, since that is said with the keys for it."""
    return part.note.partition("; its deadline")[0] if part.overdue else part.note


def _hold_words(hold: Hold, now_wall: float) -> str:
    until = "" if hold.until is None else f" (until {moment(hold.until, now_wall)})"
    return f"{hold.user}{f': {hold.reason}' if hold.reason else ''}{until}"


def others_text(view: NodeView) -> str:
    """What slipped onto it: ``+1 other: actor Trainer of job 03, 2 GPUs``."""
    slipped = view.slipped
    if not slipped:
        return ""
    more = f" and {len(slipped) - 1} more" if len(slipped) > 1 else ""
    return f"+{len(slipped)} {'other' if len(slipped) == 1 else 'others'}: {slipped[0].sentence}{more}"


def _lost_words(node: Node) -> str:
    says = "Ray says dead" if node.ray.state == "dead" else "Ray does not list it"
    return f"SSH answers, {says}: J rejoins"


def _parts(row: Standing) -> list[Cell]:
    """What is to be said of it in a line, the most urgent first."""
    view, found = row.view, row.part
    cells: list[Cell] = [Cell(row.doing, "info")] if row.doing else []
    if found is not None and view is not None and view.state in ("draining", "cordoned", "waiting"):
        part = found[1]
        if part.state == "waiting":
            cells.append(Cell("waits for its turn", "info"))
        elif not part.over:
            told = deadline_text(part, row.now_wall)
            words = ", ".join(text for text in (left_text(part), told) if text)
            cells.append(Cell(words or "moving its work off", "bad" if part.overdue else "warn"))
    if view is not None and view.slipped:
        cells.append(Cell(others_text(view), "bad"))
    if row.out_of_ray and not row.doing:
        cells.append(Cell(_lost_words(row.node), "bad" if row.state not in ("retiring", "retired") else "muted"))
    if view is not None and view.holds:
        hold = view.holds[0]
        more = f" and {some(len(view.holds) - 1, 'more hold')}" if len(view.holds) > 1 else ""
        cells.append(Cell(_hold_words(hold, row.now_wall) + more))
        if view.gpu_hold is not None:
            held = view.gpu_hold
            cells.append(Cell(f"GPUs {held.held}/{held.wanted} held", "warn" if held.trouble else "muted"))
    return [cell for cell in cells if cell.text]


def held_words(row: Standing) -> Spans:
    """Who holds it and why, and what goes on there, in one line."""
    out: list[Cell] = []
    for cell in _parts(row):
        if out:
            out.append(Cell(glyph(" · ", " | "), "muted"))
        out.append(Cell(safe(cell.text), cell.style))
    return tuple(out) or (Cell(""),)


# --- below a table, and as a page -------------------------------------------------------------------------------------


def hold_sentence(hold: Hold, now_wall: float) -> str:
    """One hold whole: who, since when, why, until when."""
    until = "until somebody takes it back" if hold.until is None else f"until {moment(hold.until, now_wall)}"
    if hold.until is not None and hold.until > now_wall:
        until += f" ({age(hold.until - now_wall)} more)"
    verb = {"cordon": "cordoned", "drain": "drained", "retire": "retired"}[hold.kind]
    gpus = ", idle GPUs held too (best effort)" if hold.gpus else ""
    reason = f": {hold.reason}" if hold.reason else ", no reason given"
    return f"{verb} by {hold.user} {age(now_wall - hold.at)} ago{reason}; {until}{gpus}"


def standing_lines(row: Standing, width: int, most: int = 12, *, name: bool = False, wrap: bool = True) -> list[Spans]:
    """All that is to be said of a node that is kept free of work, or is out of Ray; nothing for one that is not.

    ``name``: its name stands in front. Without ``wrap`` a sentence that is too long for its line is cut by the line.
    """
    view, found, now = row.view, row.part, row.now_wall
    if view is None and not row.out_of_ray and not row.doing:
        return []
    named = Cell(f" {safe(row.node.name)} " if name else " ", "title")
    lead = (named, state_words(row), Cell("  "))
    texts: list[tuple[str, str]] = []
    if row.doing:
        texts.append((row.doing, "info"))
    if found is not None and not found[1].over:
        texts.append((_drain_sentence(*found, now), "bad" if found[1].overdue else ""))
    if row.out_of_ray and not row.doing:
        why = f" ({row.node.ray.reason})" if row.node.ray.reason else ""
        texts.append((f"{_lost_words(row.node)}{why}", "bad" if not (view and view.state == "retired") else "muted"))
    if view is not None:
        texts += [(f"landed although it is held: {other.sentence}{_pid(other.pid)}", "bad") for other in view.slipped]
        texts += [(hold_sentence(hold, now), "") for hold in view.holds]
        texts += [
            (f"not raydeck's: {other.sentence}{_pid(other.pid)}", "muted") for other in view.others if not other.slipped
        ]
        texts += _more(view, now)
    out: list[Spans] = []
    for text, style in texts:
        out += paragraph(text, width, style=style, lead=lead, indent=5) if wrap else [(*lead, Cell(safe(text), style))]
        lead = (Cell("   "),)
    if len(out) > most:
        rest = len(out) - most + 1
        out = [*out[: most - 1], (Cell(f" and {some(rest, 'more line')}: i shows all", "muted"),)]
    return out


def _pid(pid: int | None) -> str:
    return "" if pid is None else f", pid {pid}"


def _more(view: NodeView, now_wall: float) -> list[tuple[str, str]]:
    texts: list[tuple[str, str]] = []
    if view.runs:
        texts.append((f"on it still: {', '.join(view.runs)}", ""))
    if view.gpu_hold is not None:
        held = view.gpu_hold
        why = f": {held.trouble}" if held.trouble else ""
        texts.append((f"{held.held} of {held.wanted} idle GPUs are held in Ray, best effort{why}",
                      "warn" if held.trouble else "muted"))  # fmt: skip
    if view.ray_draining_until:
        ends = moment(view.ray_draining_until, now_wall)
        texts.append((f"Ray itself drains it, until {ends}; only starting Ray there again (J) brings it back", "warn"))
    if view.note and view.state not in ("draining", "waiting"):
        texts.append((view.note, "muted"))
    return texts


def _drain_sentence(drain: Drain, part: DrainNode, now_wall: float) -> str:
    """How far the drain of one node is."""
    if part.state == "waiting":
        return f"the drain by {drain.user} has not begun here: {part.note or 'it waits for its turn'}"
    words = [text for text in (left_text(part), deadline_text(part, now_wall)) if text]
    choose = " (6: wait on, end what is left, give up)" if part.overdue else ""
    note = f"; {note_text(part)}" if part.note and part.state != "checking" else ""
    return f"drain by {drain.user}: {', '.join(words) or part.state}{choose}{note}"


# --- outcomes ---------------------------------------------------------------------------------------------------------


def standing_word(view: NodeView | None) -> str:
    """How a node stands after a request, in a word or two."""
    if view is None or view.state == "open":
        return "open for new work"
    more = f", by {', '.join(dict.fromkeys(hold.user for hold in view.holds))}" if view.holds else ""
    return f"{view.state}{more}"
