"""Alerts as rows, as what is to be read of one, and as the strip of what needs someone. Pure; the clock is given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from console.render.cells import (
    Cell,
    Column,
    Spans,
    age,
    fit,
    glyph,
    safe,
    state_cell,
    state_glyph,
    state_style,
)
from console.render.prose import listed, moment, number, paragraph, some
from console.state.alerts import Line, attention
from console.state.fleet import FleetStore
from console.state.work import WorkStore
from jobs.alertview import LEVELS, Alert, Delivery, Silence

LISTED = 12
SPOTS = 3


@dataclass(frozen=True, slots=True)
class AlertRow:
    """A row of the screen: something that needs someone, or a silence that hides nothing at the moment."""

    line: Line | None
    silence: Silence | None
    """The silence that hides it, or that it is."""
    now_wall: float

    @property
    def key(self) -> str:
        """What names it."""
        return self.line.key if self.line is not None else f"silence {self.silence.id if self.silence else ''}"

    @property
    def alert(self) -> Alert | None:
        """The alert that it is."""
        return self.line.alert if self.line is not None else None

    @property
    def level(self) -> str:
        """Its level; a silence has none."""
        return self.line.level if self.line is not None else "silence"


def alert_row(alert: Alert, silence: Silence | None, now_wall: float) -> AlertRow:
    """An alert by itself as a row."""
    return AlertRow(Line(alert.id, alert.level, alert.title, alert.since, alert), silence, now_wall)


def attention_rows(fleet: FleetStore, work: WorkStore, now: float, head_wall: float) -> list[AlertRow]:
    """All that needs someone, and the silences that hide nothing at the moment."""
    rows: list[AlertRow] = []
    for line in attention(fleet, work, now, head_wall):
        by = line.alert.silenced_by if line.alert is not None and not line.ended else ""
        rows.append(AlertRow(line, work.alerts.silence(by) if by else None, head_wall))
    hiding = {row.silence.id for row in rows if row.silence is not None}
    view = work.alerts.view
    silences = [each for each in (view.silences if view is not None else ()) if each.id not in hiding]
    return [*rows, *(AlertRow(None, each, head_wall) for each in silences)]


def clean(text: str) -> str:
    """A text without what looks like a secret: titles and evidence may quote a log."""
    from console.render.redact import redact  # 15 ms, and the first fleet is painted without any alert

    return redact(text)


# --- the table --------------------------------------------------------------------------------------------------------


def _level(row: AlertRow) -> Cell:
    if row.line is None:
        return Cell(f"{glyph('○', '-')} silence", "muted")
    if row.line.ended or row.line.aside:
        return Cell(f"{state_glyph(row.level)} {row.level}", "muted")
    return state_cell(row.level)


def _rank(row: AlertRow) -> int:
    return LEVELS.index(row.line.level) if row.line is not None else len(LEVELS)


def _what(row: AlertRow) -> Cell:
    if row.line is None:
        assert row.silence is not None
        return Cell(row.silence.matcher.words, "muted")
    style = "muted" if row.line.ended or row.line.aside else ""
    return Cell(f"{clean(row.line.text)}{f'; {row.line.short}' if row.line.short else ''}", style)


def _where(row: AlertRow) -> Cell:
    return Cell(places(row.line, SPOTS) if row.line is not None else "-", "muted")


def places(line: Line, most: int = LISTED) -> str:
    """What it is on: the things themselves where it is an alert, else the node or run."""
    if line.alert is None:
        return safe(line.target) or "-"
    names = line.alert.entities or line.alert.nodes or ([line.alert.run] if line.alert.run else [])
    return listed(names, most) if names else "-"


def _since(row: AlertRow) -> Cell:
    at = row.line.since if row.line is not None else row.silence.at if row.silence is not None else None
    return Cell("-", "muted") if at is None else Cell(age(row.now_wall - at))


def _state(row: AlertRow) -> Cell:
    return state_of(row)


def state_of(row: AlertRow) -> Cell:
    """How it stands, a sign and a word: what was said to it comes before what it does."""
    line, alert, now = row.line, row.alert, row.now_wall
    if line is None:
        assert row.silence is not None
        return Cell(f"{glyph('○', '-')} until {moment(row.silence.until, now)}", "info")
    if alert is None:
        return Cell(f"{glyph('◇', '~')} from this console", "info") if line.own else Cell("-", "muted")
    if line.ended:
        by = f" by {safe(alert.cleared_by)}" if alert.cleared_by else ""
        ago = f" {age(now - alert.ended_at)} ago" if alert.ended_at is not None and not by else ""
        return Cell(f"{glyph('✓', '+')} cleared{by}{ago}", "ok")
    if alert.silenced_by:
        until = f" until {moment(row.silence.until, now)}" if row.silence is not None else ""
        return Cell(f"{glyph('○', '-')} silenced{until}", "info")
    if alert.acknowledged is not None:
        return Cell(f"{glyph('✓', '+')} ack {safe(alert.acknowledged.user)}", "ok")
    if alert.no_data:
        return Cell("? no data", "stale")
    if alert.flapping:
        return Cell(f"{glyph('≈', '%')} flapping", "warn")
    if line.own:
        return Cell(f"{glyph('◇', '~')} from this console", "info")
    return Cell(f"{glyph('▸', '>')} firing" + (", latched" if alert.latched else ""), state_style(row.level))


def _times(row: AlertRow) -> Cell:
    alert = row.alert
    return Cell(number(alert.fired)) if alert is not None else Cell("-", "muted")


def _rule(row: AlertRow) -> Cell:
    return Cell(row.alert.rule if row.alert is not None else "-", "muted")


ALERT_COLUMNS: tuple[Column[AlertRow], ...] = (
    Column("level", "LEVEL", 10, _level, sort=_rank),
    Column("what", "WHAT", 34, _what, grow=True, sort=lambda row: _what(row).text),
    Column("where", "WHERE", 16, _where, drop=1, sort=lambda row: _where(row).text),
    Column("since", "SINCE", 6, _since, align="right", sort=lambda row: row.line.since if row.line else None),
    Column("state", "STATE", 25, _state, sort=lambda row: state_of(row).text),
    Column("times", "TIMES", 5, _times, align="right", drop=2,
           sort=lambda row: row.alert.fired if row.alert else None),
    Column("rule", "RULE", 18, _rule, drop=3, sort=lambda row: _rule(row).text),
)  # fmt: skip


ID_COLUMN: Column[AlertRow] = Column("id", "ALERT", 20, lambda row: Cell(row.alert.id if row.alert else "-"))
"""What commands take."""


def _lasted(row: AlertRow) -> Cell:
    alert = row.alert
    assert alert is not None
    if alert.ended_at is None:
        return Cell("goes on", "warn")
    return Cell(age(alert.ended_at - alert.since))


def _began(row: AlertRow) -> Cell:
    alert = row.alert
    assert alert is not None
    return Cell(moment(alert.since, row.now_wall))


def _how(row: AlertRow) -> Cell:
    alert = row.alert
    assert alert is not None
    if alert.ended_at is None:
        return state_of(row)
    if alert.cleared_by:
        reason = f": {alert.cleared_reason}" if alert.cleared_reason else ""
        return Cell(f"cleared by {safe(alert.cleared_by)}{safe(reason)}")
    had = f", {alert.acknowledged.user} had it" if alert.acknowledged is not None else ""
    return Cell(f"ended by itself{safe(had)}", "muted")


HISTORY_COLUMNS: tuple[Column[AlertRow], ...] = (
    Column("level", "LEVEL", 10, _level, sort=_rank),
    Column("what", "WHAT", 34, _what, grow=True, sort=lambda row: _what(row).text),
    Column("began", "BEGAN", 11, _began, sort=lambda row: row.alert.since if row.alert is not None else None),
    Column("lasted", "LASTED", 7, _lasted, align="right"),
    Column("how", "HOW IT ENDED", 18, _how, grow=True),
    Column("times", "TIMES", 5, _times, align="right", drop=2),
    Column("rule", "RULE", 18, _rule, drop=3, sort=lambda row: _rule(row).text),
)


# --- one of them, in full ---------------------------------------------------------------------------------------------


def alert_lines(row: AlertRow, width: int) -> list[Spans]:
    """All there is to say of what is under the cursor."""
    line, now = row.line, row.now_wall
    if line is None:
        assert row.silence is not None
        return _silence_lines(row.silence, width, now)
    sign = Cell(f" {state_glyph(line.level)} ", "muted" if line.ended else state_style(line.level))
    lines = paragraph(clean(line.text), width, style="title", lead=(sign,))
    if line.alert is None:
        lines += _pairs([("where", places(line), ""), *_own(line)], width)
        return lines
    alert = line.alert
    pairs = [
        ("state", _standing(alert, row.silence, now), ""),
        ("where", places(line), ""),
        ("run", alert.run, ""),
        ("cause", clean(alert.cause), ""),
        ("do", clean(alert.action) + (f"  [{alert.key}]" if alert.key else ""), "accent"),
        *[("said" if at == 0 else "", text, "") for at, text in enumerate(_said(alert, row.silence, now))],
        *[("evidence" if at == 0 else "", clean(text), "") for at, text in enumerate(alert.evidence)],
        *_own(line),
        *[("told" if at == 0 else "", *_delivery(each, now)) for at, each in enumerate(alert.deliveries)],
        ("rule", f"{alert.rule}; alert {alert.id}", "muted"),
    ]  # fmt: skip
    return lines + _pairs(pairs, width)


def _pairs(pairs: Sequence[tuple[str, str, str]], width: int) -> list[Spans]:
    """Name and text, the texts in one column; what has no text is left out."""
    out: list[Spans] = []
    for name, text, style in pairs:
        if text.strip():
            out += paragraph(text, width, style=style, lead=(Cell(fit(f"   {name}", 13), "muted"),))
    return out


def _own(line: Line) -> list[tuple[str, str, str]]:
    if line.here:
        return [("from here" if at == 0 else "", text, "info") for at, text in enumerate(line.here)]
    return [("from here", "only this console sees it, over SSH or by Ray's dashboard", "info")] if line.own else []


def _standing(alert: Alert, silence: Silence | None, now: float) -> str:
    """In a sentence: since when, how often, and what keeps it."""
    began = f"since {moment(alert.since, now)} ({age(now - alert.since)})"
    if alert.state == "cleared":
        ended = "" if alert.ended_at is None else f", over since {moment(alert.ended_at, now)}"
        return f"began {moment(alert.since, now)}{ended}"
    words = [f"fires {began}"]
    if alert.fired > 1:
        words.append(f"{number(alert.fired)} times so far")
    if alert.flapping:
        words.append("flapping: held until it has been quiet for a while")
    if alert.latched:
        words.append("latched: stays until somebody clears it after a repair (X)")
    if alert.no_data:
        words.append(f"no data: {alert.no_data}")
    if alert.test:
        words.append("a test")
    return "; ".join(words)


def _said(alert: Alert, silence: Silence | None, now: float) -> list[str]:
    """Who did what."""
    found: list[str] = []
    if alert.acknowledged is not None:
        said = alert.acknowledged
        reason = f": {said.reason}" if said.reason else ""
        found.append(f"{said.user} has it, since {moment(said.at, now)}{reason}")
    if alert.silenced_by:
        found.append(_silence_words(silence, now) if silence is not None else f"silenced by {alert.silenced_by}")
    if alert.cleared_by:
        found.append(f"cleared by {alert.cleared_by}{f': {alert.cleared_reason}' if alert.cleared_reason else ''}")
    if alert.escalated:
        found.append(f"told again {some(alert.escalated, 'time')}, since nobody had acknowledged it")
    return found


def _silence_words(silence: Silence, now: float) -> str:
    reason = f": {silence.reason}" if silence.reason else ""
    left = f" ({age(silence.until - now)} to go)" if silence.until > now else ""
    return f"silenced by {silence.user} until {moment(silence.until, now)}{left}{reason}; M ends that"


def _delivery(delivery: Delivery, now: float) -> tuple[str, str]:
    word = "sent" if delivery.ok else "failed"
    detail = f": {clean(delivery.detail)}" if delivery.detail else ""
    sign = state_glyph("done" if delivery.ok else "failed")
    return f"{sign} {delivery.sink} {word} {moment(delivery.at, now)}{detail}", "" if delivery.ok else "bad"


def _silence_lines(silence: Silence, width: int, now: float) -> list[Spans]:
    head = paragraph(f"silence on {silence.matcher.words}", width, style="title", lead=(Cell(" "),))
    pairs = [
        ("by", silence.user, ""),
        ("until", f"{moment(silence.until, now)} ({age(silence.until - now)} to go)", ""),
        ("reason", silence.reason, ""),
        ("hides", "nothing that fires now; M ends it", "muted"),
        ("silence", silence.id, "muted"),
    ]
    return head + _pairs(pairs, width)
