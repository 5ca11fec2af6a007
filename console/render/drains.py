"""Drains as rows and lines: how far each node is, what became of each run, what is to be chosen. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from console.preview import Preview
from console.render.cells import Cell, Column, Spans, age, glyph, safe, seconds_text, state_cell, state_glyph
from console.render.nodes import CHECK_SECONDS, deadline_text, left_text, note_text, progress_text
from console.render.prose import listed, moment, number, paragraph, some
from jobs.nodeview import Drain, DrainNode, DrainRun

Decision = Literal["cancel", "wait", "stop", "give_up"]


@dataclass(frozen=True, slots=True)
class DrainRow:
    """One node of one drain."""

    drain: Drain
    part: DrainNode
    now_wall: float

    @property
    def state(self) -> str:
        """Its state in a word."""
        part = self.part
        if part.overdue and not part.over:
            return "overdue"
        return {"waiting": "waiting turn", "moving": "draining"}.get(part.state, part.state)


def rows_of(drains: list[Drain], now_wall: float) -> dict[str, DrainRow]:
    """A row for each node of each drain: those that go on first, then the newest; in each what needs someone first."""
    rank = {"moving": 0, "checking": 1, "waiting": 2}
    found: dict[str, DrainRow] = {}
    for drain in sorted(drains, key=lambda each: (each.state != "running", -each.at)):
        for part in sorted(drain.nodes, key=lambda each: (not each.overdue, rank.get(each.state, 3))):
            found[f"{drain.id}/{part.node.name}"] = DrainRow(drain, part, now_wall)
    return found


_SIGNS = {"checking": ("◔", "o", "info"), "empty": ("∅", "=", "ok"), "stopped": ("■", "=", "muted"),
          "given up": ("✗", "x", "bad")}  # fmt: skip


def _state(row: DrainRow) -> Cell:
    word = row.state
    if word in _SIGNS:
        sign, plain, style = _SIGNS[word]
        return Cell(f"{glyph(sign, plain)} {word}", style)
    return state_cell(word)


def _time(row: DrainRow) -> Cell:
    part, now = row.part, row.now_wall
    told = deadline_text(part, now)
    if told:
        return Cell(told, "bad" if part.overdue else "info" if part.state == "checking" else "warn")
    if part.state == "waiting":
        return Cell("waits for its turn", "info")
    if part.ended_at is not None:
        took = f" after {age(part.ended_at - part.began_at)}" if part.began_at is not None else ""
        return Cell(f"{age(now - part.ended_at)} ago{took}", "muted")
    return Cell("-", "muted")


def _lost(part: DrainNode) -> Cell:
    told = [run.lost_steps for run in part.runs if run.lost_steps is not None]
    if not told:
        return Cell("-", "muted")
    return Cell(number(sum(told)), "warn" if sum(told) else "ok")


def _others(part: DrainNode) -> Cell:
    return Cell(number(len(part.others)), "warn") if part.others else Cell("-", "muted")


DRAIN_COLUMNS: tuple[Column[DrainRow], ...] = (
    Column(
        "node", "NODE", 14, lambda row: Cell(safe(row.part.node.name), "title"), sort=lambda row: row.part.node.name
    ),
    Column("state", "STATE", 14, _state, sort=lambda row: row.state),
    Column("left", "MOVED", 6, lambda row: Cell(progress_text(row.part) or "-"), align="right"),
    Column("time", "TIME", 27, _time, sort=lambda row: row.part.deadline_at or 0.0),
    Column("lost", "LOST", 5, lambda row: _lost(row.part), align="right", drop=2),
    Column("others", "OTHERS", 6, lambda row: _others(row.part), align="right", drop=3),
    Column("by", "BY", 8, lambda row: Cell(safe(row.drain.user)), sort=lambda row: row.drain.user),
    Column("why", "WHY", 16, lambda row: Cell(safe(row.drain.reason) or "-", "muted"), grow=True, drop=4),
    Column("drain", "DRAIN", 12, lambda row: Cell(safe(row.drain.id), "muted"), drop=5),
)


# --- the runs of one node ---------------------------------------------------------------------------------------------

_RUN_LOOKS = {"asked": ("▷", "^", "info", "asked"), "saving": ("▼", "v", "busy", "saving"),
              "left": ("…", ".", "info", "queued"), "again": ("▶", ">", "ok", "runs again"),
              "ended": ("■", "=", "muted", "ended")}  # fmt: skip


def _run_state(run: DrainRun) -> Cell:
    sign, plain, style, word = _RUN_LOOKS[run.state]
    return Cell(f"{glyph(sign, plain)} {word}", style)


def _steps(run: DrainRun) -> Cell:
    if run.step is None:
        return Cell("no step yet", "muted")
    saved = "none" if run.saved_step is None else number(run.saved_step)
    return Cell(f"{number(run.step)}{glyph(' → ', ' > ')}{saved}")


def _run_lost(run: DrainRun) -> Cell:
    if run.lost_steps is None:
        return Cell("-", "muted")
    return Cell(number(run.lost_steps), "warn" if run.lost_steps else "ok")


def _took(run: DrainRun) -> Cell:
    """From when it was asked until it had left, and until it ran again."""
    if run.asked_at is None or run.left_at is None:
        return Cell("-", "muted")
    away = "" if run.again_at is None else f", back {seconds_text(max(0.0, run.again_at - run.asked_at))}"
    return Cell(f"left {seconds_text(max(0.0, run.left_at - run.asked_at))}{away}")


def _again(run: DrainRun) -> Cell:
    if run.again_on:
        return Cell(listed(run.again_on, 4), "ok")
    return Cell(safe(run.note), "muted") if run.note else Cell("-", "muted")


RUN_COLUMNS: tuple[Column[DrainRun], ...] = (
    Column("run", "RUN", 13, lambda run: Cell(safe(run.run), "accent"), sort=lambda run: run.run),
    Column("user", "USER", 8, lambda run: Cell(safe(run.user), "muted"), drop=2),
    Column("state", "STATE", 12, _run_state, sort=lambda run: run.state),
    Column("steps", f"STEP{' '}SAVED", 16, _steps, align="right"),
    Column("lost", "LOST", 5, _run_lost, align="right"),
    Column("took", "TOOK", 20, _took, drop=1),
    Column("again", "AGAIN ON", 12, _again, grow=True),
)


# --- below the tables -------------------------------------------------------------------------------------------------


def drain_lines(row: DrainRow, width: int) -> list[Spans]:
    """The node under the cursor in sentences: how far it is, what is to be chosen, the policy, others' work."""
    drain, part, now = row.drain, row.part, row.now_wall
    lead: Spans = (Cell(f" {safe(part.node.name)}  ", "title"),)
    words = [text for text in (left_text(part), _empty_text(part, now) or deadline_text(part, now)) if text]
    first = ", ".join(words) or {"waiting": "waits for its turn"}.get(part.state, part.state)
    note = f"; {note_text(part)}" if part.note and part.note not in first and part.state != "checking" else ""
    lines = paragraph(
        f"{first}{note}", width, style="bad" if part.overdue and not part.over else "", lead=lead, indent=3
    )
    if part.overdue and not part.over:
        lines += paragraph(
            "choose: W wait on, H end at once what has not left, L give it up (it stays cordoned), X stop the drain",
            width, style="warn", lead=(Cell(f" {state_glyph('warn')} ", "warn"),),
        )  # fmt: skip
    if part.others:
        fate = "ended too" if drain.policy.others == "stop" else "left alone"
        shown = "; ".join(other.sentence for other in part.others[:4])
        more = f" and {len(part.others) - 4} more" if len(part.others) > 4 else ""
        lines += paragraph(f"not raydeck's, {fate}: {shown}{more}", width, style="warn", lead=(Cell("   "),))
    lines += paragraph(_policy_text(drain, now), width, style="muted", lead=(Cell("   "),))
    return lines


def _empty_text(part: DrainNode, now_wall: float) -> str:
    if part.state == "empty" and part.empty_since is not None:
        if part.dead:
            return f"empty since {moment(part.empty_since, now_wall)}: there was nothing to wait for"
        return f"empty since {moment(part.empty_since, now_wall)}, and stayed so for {CHECK_SECONDS:.0f} s"
    return ""


def _policy_text(drain: Drain, now_wall: float) -> str:
    policy = drain.policy
    then = {"wait": "somebody chooses", "stop": "what is left is ended", "give_up": "it is given up"}[
        policy.at_deadline
    ]
    limits = [f"at most {some(policy.most_nodes, 'node')} away"] if policy.most_nodes else []
    limits += [f"at most {policy.most_share:.0%} of the GPUs away"] if policy.most_share else []
    state = "" if drain.state == "running" else f"; {drain.state}"
    by = f" by {drain.ended_by}" if drain.ended_by else ""
    lost = f", {some(drain.lost_steps, 'step')} lost in all" if drain.state != "running" else ""
    reason = f" ({drain.reason})" if drain.reason else ""
    return (
        f"drain {drain.id} of {some(len(drain.nodes), 'node')} by {drain.user} {age(now_wall - drain.at)} ago{reason}: "
        f"{age(policy.deadline_seconds)} each, then {then}{''.join(f', {each}' for each in limits)}{state}{by}{lost}"
    )


# --- what is to be chosen ---------------------------------------------------------------------------------------------


def decision_preview(drain: Drain, decision: Decision, *, you: str = "") -> Preview:
    """What a choice about a drain does, and how it is confirmed."""
    open_parts = [part for part in drain.nodes if not part.over]
    names = [part.node.name for part in open_parts]
    staying = list({run.run: run for part in open_parts for run in part.runs if run.left_at is None}.values())
    warnings = (f"it is the drain of {drain.user}, not yours",) if you and drain.user != you else ()
    still = [f"{run.run} ({run.user or 'unknown user'}) {_stands(run)}" for run in staying]
    if decision == "wait":
        lines = [f"{listed(names)}: so much more time, from now. Nothing is ended.", *still]
        return Preview("Wait on", tuple(lines), wants_reason=True, warnings=warnings)
    if decision == "stop":
        lines = ["What has not left is ended at once; its steps since the last checkpoint are done again.", *still]
        others = [run for run in staying if you and run.user and run.user != you]
        if others:
            warnings += (f"{some(len(others), 'run')} of {listed(sorted({run.user for run in others}))}, not yours",)
        if len(staying) > 1:
            return Preview("End what is left", tuple(lines), "count", str(len(staying)), True, warnings)
        name = staying[0].run if staying else ""
        return Preview("End what is left", tuple(lines), "name" if name else "y", name or "y", True, warnings)
    stays = f"{listed(names)} {'stays' if len(names) == 1 else 'stay'} cordoned; what is there goes on"
    if decision == "give_up":
        return Preview(
            "Give up", (f"{stays}. The drain ends as given up.", *still), wants_reason=True, warnings=warnings
        )
    lines = [f"{stays}. Nothing more is asked to leave; what has left starts again elsewhere.", *still]
    lines.append("U uncordons the nodes, and they take work again.")
    return Preview(f"Stop the drain of {listed(names)}", tuple(lines), wants_reason=True, warnings=warnings)


def _stands(run: DrainRun) -> str:
    if run.step is None:
        return "has no step yet"
    saved = "no checkpoint" if run.saved_step is None else f"checkpoint at step {number(run.saved_step)}"
    return f"is at step {number(run.step)}, {saved}"
