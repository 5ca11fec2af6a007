"""How much needs someone: the head of the alerts' screen, the strip on the fleet's, the status line. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from console.render.alerts import clean
from console.render.cells import Cell, Spans, cell_len, fit_spans, safe, state_glyph, state_style
from console.render.prose import listed, number, paragraph, some
from console.state.alerts import Counts, Line, counted
from jobs.alertview import LEVELS, AlertsView

KEY = "7"
"""What opens the screen of alerts."""
SPOTS = 3
WORDS_WIDTH = 100
"""From so many cells on there is room for words instead of signs."""


# --- above the table --------------------------------------------------------------------------------------------------


def counts_text(counts: Counts) -> str:
    """``1 critical, 2 warning, 1 acknowledged, 2 silenced``; empty where there is nothing."""
    told = [(counts.critical, "critical"), (counts.warning, "warning"), (counts.info, "info"),
            (counts.acknowledged, "acknowledged"), (counts.silenced, "silenced")]  # fmt: skip
    return ", ".join(f"{number(amount)} {word}" for amount, word in told if amount)


def summary_lines(
    lines: Sequence[Line], view: AlertsView | None, width: int, *, trouble: str = "", own_nodes: int = 0
) -> list[Spans]:
    """What there is in all, and what nobody can see.

    Args:
        lines: All of them.
        view: What the controller told; None: nothing.
        width: In cells.
        trouble: Why the controller says nothing now; empty while it does.
        own_nodes: Nodes that this console judges by itself.
    """
    counts = counted([line for line in lines if line.alert is not None] if view is not None else lines)
    besides = counted(line for line in lines if line.alert is None) if view is not None else Counts()
    sign = Cell(" ") if counts.open else Cell(f" {state_glyph('ok')} ", state_style("ok"))
    first = [sign, Cell(counts_text(counts) or "no alert", "title" if counts.open else "muted")]
    if besides.open:
        told = f"besides, {counts_text(besides)}" if width >= WORDS_WIDTH else f"{besides.open} more that are no alerts"
        first.append(Cell(f"; {told}", "warn"))
    if view is not None:
        first.append(Cell(f"   {some(view.watched_nodes, 'node')} watched", "muted"))
        if not view.sinks:
            first.append(Cell("; no way out is set up", "muted"))
    out: list[Spans] = [tuple(first)]
    if view is None or trouble:
        why = trouble or "the controller tells of no alerts"
        old = "; what it told before is shown" if view is not None else ""
        judged = f"; {some(own_nodes, 'node')} judged from here" if own_nodes else ""
        out += paragraph(f"{why}{old}{judged}", width, style="warn", lead=(Cell(f" {state_glyph('warn')} ", "warn"),))
        return out[:3]
    spots: list[str] = []
    if view.unwatched:
        reasons = list(dict.fromkeys(view.unwatched.values()))
        spots.append(f"not watched by the controller: {listed(list(view.unwatched), 4)} ({listed(reasons, 2)})")
    spots += view.blind
    if spots:
        more = f"; and {len(spots) - SPOTS} more" if len(spots) > SPOTS else ""
        out += paragraph(f"cannot be seen: {'; '.join(spots[:SPOTS])}{more}", width, style="muted", lead=(Cell("   "),))
    return out[:3]


# --- the strip and the status line ------------------------------------------------------------------------------------


def strip_lines(lines: Sequence[Line], width: int, most: int, *, mark_own: bool) -> list[Spans]:
    """What needs someone, worst first, a line each; the first one says how much is set aside, and which key shows it.

    Args:
        lines: As `console.state.alerts.attention` gives them.
        width: In cells.
        most: So many lines at most; the last one then counts what is not shown.
        mark_own: Mark what only this console sees: the controller has a say too.
    """
    counts = counted(lines)
    wanted = [line for line in lines if not line.ended and not line.aside]
    tail = _aside(counts, width)
    if not wanted:
        said = (Cell(f" {state_glyph('ok')} ", state_style("ok")), Cell("nothing needs you", "muted"))
        return [_with_tail(said, tail, width)]
    shown = wanted if len(wanted) <= most else wanted[: most - 1]
    out = [_strip_line(line, mark_own) for line in shown]
    out[0] = _with_tail(out[0], tail, width)
    rest = counted(wanted[len(shown) :])
    if rest.open:
        out.append((Cell(f"   and {rest.open} more: {counts_text(rest)}", "warn"),))
    return out


def _strip_line(line: Line, mark_own: bool) -> Spans:
    more = line.short or ("seen from this console" if line.own and mark_own else "")
    flapping = "; flapping" if line.alert is not None and line.alert.flapping else ""
    blind = "; no data now" if line.alert is not None and line.alert.no_data else ""
    return (
        Cell(f" {state_glyph(line.level)} ", state_style(line.level)),
        Cell(f"{line.level} ", state_style(line.level)),
        Cell(clean(safe(line.text)) if line.alert is not None else safe(line.text)),
        Cell(f"{flapping}{blind}{f'; {more}' if more else ''}", "muted"),
    )


def _aside(counts: Counts, width: int) -> str:
    """How many are acknowledged and silenced, and the key, in as many words as have room."""
    parts = [(counts.acknowledged, "acknowledged", "ack"), (counts.silenced, "silenced", "sil")]
    told = [(amount, word, short) for amount, word, short in parts if amount]
    if width < WORDS_WIDTH:
        return ", ".join([f"{amount} {short}" for amount, _, short in told]) + (" " if told else "") + f"[{KEY}]"
    return ", ".join([f"{amount} {word}" for amount, word, _ in told]) + (", " if told else "") + f"{KEY} shows all"


def _with_tail(spans: Spans, tail: str, width: int) -> Spans:
    room = width - cell_len(tail) - 3
    return (*fit_spans(spans, max(8, room)), Cell(f"  {tail} ", "key"))


def status_texts(counts: Counts) -> list[str]:
    """What the status line says of alerts, in three lengths, the longest first; empty where there is none."""
    if not counts.all:
        return []
    signs = [f"{state_glyph(level)}{amount}" for level in LEVELS if (amount := getattr(counts, level))]
    short = " ".join([*signs, f"+{counts.acknowledged + counts.silenced}"]
                     if counts.acknowledged + counts.silenced else signs)  # fmt: skip
    words = [f"{counts.acknowledged} ack"] if counts.acknowledged else []
    words += [f"{counts.silenced} silenced"] if counts.silenced else []
    return [f"alerts {counts_text(counts)}", " ".join(["alerts", *signs, *words]), short]
