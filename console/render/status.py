"""The status line: which cluster, is it real, what needs someone, how old is each kind of data."""

from __future__ import annotations

from console.render.attention import status_texts
from console.render.cells import Cell, Spans, age, cell_len, fit, safe
from console.state.alerts import counted
from console.state.fleet import FleetStore
from console.state.work import WorkStore

LATE_SECONDS = 3.0
OLD_SECONDS = 10.0
CONTROLLER_LATE_SECONDS = 6.0
WORDS_WIDTH = 150
SIGNS_WIDTH = 110


def _age_style(seconds: float, late: float = LATE_SECONDS, old: float = OLD_SECONDS) -> str:
    return "muted" if seconds <= late else "warn" if seconds <= old else "bad"


def _samples(fleet: FleetStore, now: float) -> Cell:
    """The age of the oldest figures among nodes that answer, which is the one to doubt."""
    ages = [seconds for node in fleet.nodes.values() if (seconds := node.age_seconds(now)) is not None]
    if not ages:
        return Cell("gpu -", "muted")
    return Cell(f"gpu {age(max(ages))}", _age_style(max(ages)))


def _ssh(fleet: FleetStore) -> Cell:
    wanted = [node for node in fleet.nodes.values() if node.ssh.state != "none"]
    up = sum(node.ssh.state == "up" for node in wanted)
    return Cell(f"ssh {up}/{len(wanted)}", "muted" if up == len(wanted) else "warn")


def _ray(fleet: FleetStore, now: float) -> Cell:
    if fleet.ray.state == "ok" and fleet.ray_read_at is not None:
        seconds = now - fleet.ray_read_at
        return Cell(f"ray {age(seconds)}", _age_style(seconds, 6.0, 20.0))
    if fleet.ray_read_at is not None:
        return Cell(f"ray {fleet.ray.state}, {age(now - fleet.ray_read_at)} old", "bad")
    return Cell(f"ray {fleet.ray.state}", "muted" if fleet.ray.state == "unknown" else "bad")


def _controller(work: WorkStore, now: float) -> Cell:
    state = work.controller.state
    if state == "ok" and work.heard_at is not None and now - work.heard_at > CONTROLLER_LATE_SECONDS:
        return Cell(f"controller silent {age(now - work.heard_at)}", "warn")
    styles = {"ok": "muted", "unknown": "muted", "connecting": "info", "absent": "warn"}
    return Cell("controller ok" if state == "ok" else f"controller {state}", styles.get(state, "bad"))


def _alerts(work: WorkStore, width: int) -> Cell | None:
    """How many fire and how many are set aside, in as many words as the width is for; none where nothing fires."""
    counts = counted(work.alerts.lines)
    told = status_texts(counts)
    if not told:
        return None
    style = "bad" if counts.critical else "warn" if counts.warning else "info" if counts.info else "muted"
    return Cell(told[0 if width >= WORDS_WIDTH else 1 if width >= SIGNS_WIDTH else 2], style)


def status_spans(
    name: str,
    fleet: FleetStore,
    work: WorkStore,
    *,
    place: str,
    simulated: bool,
    read_only: bool,
    now: float,
    width: int,
) -> Spans:
    """One line: where one is at the left, how fresh everything is at the right."""
    left = [Cell(" raydeck ", "title"), Cell(safe(name), "accent")]
    if simulated:
        left.append(Cell(" SIMULATED", "simulated"))
    if read_only:
        left.append(Cell(" READ ONLY", "warn"))
    right: list[Cell] = []
    alerts = _alerts(work, width)
    if alerts is not None:
        right += [alerts, Cell("  ")]
    for cell in (_ssh(fleet), _samples(fleet, now), _ray(fleet, now), _controller(work, now)):
        right += [cell, Cell("  ")]
    right[-1] = Cell(" ")
    used = sum(cell_len(cell.text) for cell in (*left, *right))
    if place and (room := min(cell_len(safe(place)), width - used - 3)) > 0:  # how fresh things are goes before it
        left.append(Cell(f"  {fit(place, room)}", ""))
        used += room + 2
    return (*left, Cell(" " * max(1, width - used)), *right)
