"""One node: accelerators with their last ten minutes, processes, the host, what Ray thinks, why anything is missing."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType

from console.hands.sweep import GpuProcess, held_by, left_over, lives
from console.render.cells import Cell, Spans, age, bytes_text, glyph, safe, sparkline, state_cell
from console.render.documents import gpu_document, node_document
from console.render.fleet import DEVICE_COLUMNS, DeviceRow
from console.render.nodes import Standing, standing_lines
from console.render.processes import PROCESS_COLUMNS, ProcessRow
from console.screens.base import DeckScreen, bindings_for
from console.state.fleet import HISTORY_COLUMNS, Node
from console.state.work import WorkStore
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable

HISTORY_TITLES = {
    "utilization_percent": ("util", "%", 0.0, 100.0),
    "memory_percent": ("memory", "%", 0.0, 100.0),
    "power_watts": ("power", "W", 0.0, None),
    "temperature_celsius": ("temp", "°C", None, None),
}


HOLD_LINES = 5
HOLD_LINES_TALL = 10
TALL = 40


def why_lines(node: Node, work: WorkStore, now: float, now_wall: float) -> list[str]:
    """The three truths of a node in words, each with where it is known from, and the reason of each missing figure."""

    def since(seconds: float) -> str:
        return f" for {age(now - seconds)}" if seconds else ""

    lines = [
        f"SSH     {node.ssh.state}{since(node.ssh.since)}  {node.ssh.reason}".rstrip(),
        f"        to {node.address}"
        + (f", round trip {node.round_trip_ms:.0f} ms" if node.round_trip_ms is not None else "")
        + (f", clock {node.clock_offset_seconds:+.2f} s" if node.clock_offset_seconds is not None else ""),
        f"Ray     {node.ray.state}{since(node.ray.since)}  {node.ray.reason}".rstrip(),
        f"        node id {node.ray_node_id or 'none'}",
        f"Driver  {node.driver.state}{since(node.driver.since)}  {node.driver.reason}".rstrip(),
    ]
    if node.facts is not None:
        facts = node.facts
        versions = ", ".join(
            part
            for part in (
                f"read from {facts.source}",
                f"driver {facts.driver_version}" if facts.driver_version else "",
                f"NVML {facts.library_version}" if facts.library_version else "",
                f"CUDA {facts.cuda_version}" if facts.cuda_version else "",
                f"kernel {facts.kernel}",
                f"Python {facts.python}",
            )
            if part
        )
        lines.append(f"        {versions}")
    held = standing_lines(Standing(node, work, now_wall), 100, 60)
    lines += ["", *("".join(cell.text for cell in line).rstrip() for line in held)] if held else []
    lines.append("")
    if node.sample is None:
        lines.append(f"No figures: {node.missing_because}.")
    elif node.stale(now):
        lines.append(f"Figures are {node.figures_age_seconds(now) or 0:.0f} s old: {node.missing_because}.")
    for index in node.gpu_indexes:
        document = gpu_document(node, index, work, now)
        lines += [f"GPU {index}  {field}: {reason}" for field, reason in document["missing"].items()]
    if node.sample is not None and not any("GPU" in line for line in lines):
        lines.append("No figure is missing.")
    return [safe(line) for line in lines]


class NodeScreen(DeckScreen):
    """One node, live."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "fleet", "node", "upkeep")
    SCOPES = ("everywhere", "table", "fleet", "node", "upkeep")

    def __init__(self, name: str) -> None:
        super().__init__()
        self._node_name = name
        self._indexes: list[int] = []
        self._table: dict[str, ProcessRow] = {}
        self._held: dict[str, GpuProcess] = {}

    def body(self) -> ComposeResult:
        """Head, accelerators, history of the one under the cursor, processes."""
        yield Lines(self._head, id="node-head")
        yield VirtualTable(DEVICE_COLUMNS, id="devices", empty="no accelerator is known on this node")
        yield Lines(self._history, id="history")
        yield VirtualTable(PROCESS_COLUMNS, id="processes", empty="no process holds an accelerator")

    @property
    def place(self) -> str:
        """Where one is."""
        return f"node {self._node_name}"

    @property
    def _node(self) -> Node:
        session = self.deck.session
        assert session is not None
        return session.fleet.nodes[self._node_name]

    @property
    def _work(self) -> WorkStore:
        session = self.deck.session
        assert session is not None
        return session.work

    @property
    def _now(self) -> float:
        session = self.deck.session
        assert session is not None
        return session.now()

    @property
    def _wall(self) -> float:
        session = self.deck.session
        assert session is not None
        return session.head_wall()

    def begin(self) -> None:
        """Show what is known already."""
        self.frame({self._node_name}, set())

    def _head(self, width: int) -> list[Spans]:
        node, now = self._node, self._now
        truths = (
            Cell(" "),
            *(part for word, truth in (("ssh", node.ssh), ("ray", node.ray), ("driver", node.driver)) for part in (
                Cell(f"{word} ", "muted"), state_cell(truth.state), Cell("   "))),
            Cell(f"{node.role}, {safe(node.address)}", "muted"),
        )  # fmt: skip
        lines: list[Spans] = [truths]
        standing = Standing(node, self._work, self._wall)
        tall = self.size.height >= TALL
        lines += standing_lines(standing, width, HOLD_LINES_TALL if tall else HOLD_LINES, wrap=tall)
        if node.sample is None:
            lines.append((Cell(f" {safe(node.missing_because)}", "warn"),))
            return lines
        host = node.sample.host
        parts = [
            _figure("cpu", host.cpu_percent, lambda v: f"{v:.0f}%"),
            _figure("load", host.load_1m, lambda v: f"{v:.1f}"),
            _figure(
                "memory",
                host.memory_used_bytes,
                lambda v: f"{bytes_text(v)}/{bytes_text(host.memory_total_bytes or 0)}",
            ),
            _figure("in", host.network_receive_bytes_per_second, lambda v: f"{bytes_text(v)}/s"),
            _figure("out", host.network_send_bytes_per_second, lambda v: f"{bytes_text(v)}/s"),
        ]
        if node.clock_offset_seconds is not None:
            parts.append(f"clock {node.clock_offset_seconds:+.2f}s")
        if node.ray_gpus_total:
            parts.append(f"Ray: {node.ray_gpus_used or 0:g}/{node.ray_gpus_total:g} GPU held")
        lines.append((Cell(" " + "   ".join(parts), "stale" if node.stale(now) else ""),))
        disks = [
            f"{safe(disk.path)} {100 * disk.used_bytes / disk.total_bytes:.0f}% of {bytes_text(disk.total_bytes)}"
            if disk.used_bytes is not None and disk.total_bytes
            else f"{safe(disk.path)}: {safe(disk.reason) or 'unknown'}"
            for disk in host.disks
        ]
        if disks:
            lines.append((Cell(" disks  " + "   ".join(disks), "muted"),))
        if node.stale(now):
            old = node.figures_age_seconds(now) or 0
            lines.append((Cell(f" figures are {age(old)} old: {safe(node.missing_because)}", "stale"),))
        return lines

    def _history(self, width: int) -> list[Spans]:
        key = self.query_one("#devices", VirtualTable).cursor_key
        if key is None:
            return [()]
        index = int(key)
        rings = self._node.history.get(index)
        lines: list[Spans] = [(Cell(f" GPU {index}, last ten minutes", "title"),)]
        held = self.size.height < TALL and standing_lines(Standing(self._node, self._work, self._wall), width)
        for column in HISTORY_COLUMNS[:1] if held else HISTORY_COLUMNS:  # room for who keeps the node free, and why
            title, unit, low, high = HISTORY_TITLES[column]
            head, tail_width = f" {title:<7}", 14
            room = max(10, width - len(head) - tail_width - 1)
            values = _squeezed(list(rings[column]) if rings else [], room)
            known = [value for value in values if value is not None]
            line = sparkline(values, room, low=low, high=high)
            unit = glyph(unit, unit.lstrip("°"))
            tail = f" {known[-1]:.0f} {unit}, max {max(known):.0f}" if known else " no figure"
            lines.append((Cell(head, "muted"), Cell(line, "busy"), Cell(tail, "" if known else "muted")))
        return lines

    def _row(self, key: str) -> DeviceRow:
        return DeviceRow(self._node, int(key), self._work, self._now)

    def _processes(self) -> dict[str, ProcessRow]:
        """The processes that hold its accelerators, those that are left over first."""
        node, runs = self._node, self._work.runs
        view = self._work.nodes.of(node)
        others = {other.pid: other for other in view.others if other.pid} if view is not None else {}
        ranks = {process.pid: process.rank for process in node.sample.processes} if node.sample else {}
        self._held = {f"{process.pid}/{process.started}": process for process in held_by(node)}
        rows: dict[str, ProcessRow] = {}
        for key, each in self._held.items():
            other = others.get(each.pid)
            rows[key] = ProcessRow(
                each.pid, each.user, each.command, each.age_seconds, each.gpus, each.memory_used_bytes, each.run,
                ranks.get(each.pid), lives(each, runs), f"{other.kind} {other.name or other.id[:8]}" if other else "",
            )  # fmt: skip
        return dict(sorted(rows.items(), key=lambda item: not item[1].left_over))

    def selected_processes(self) -> list[GpuProcess]:
        """Those that are marked, or the one under the cursor; from another pane all that runs have left over.

        One that is of no run may be somebody's notebook: it has to be pointed at.
        """
        table = self.query_one("#processes", VirtualTable)
        if table.marked:
            return [process for key, process in self._held.items() if key in table.marked]
        if table.has_focus and table.cursor_key in self._held:
            return [self._held[table.cursor_key]]
        return [process for process in left_over(list(self._held.values()), self._work.runs) if process.run]

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """New figures of this node, or simply older ones."""
        super().frame(nodes, runs)
        devices = self.query_one("#devices", VirtualTable)
        processes = self.query_one("#processes", VirtualTable)
        indexes = self._node.gpu_indexes
        if indexes != self._indexes:
            self._indexes = indexes
            devices.set_rows([str(index) for index in indexes], self._row)
            devices.styles.height = min(len(indexes), 16) + 1 if indexes else 2
            self.query_one("#history", Lines).display = bool(indexes)
        devices.touch([str(index) for index in indexes])
        before, self._table = self._table, self._processes()
        if list(before) != list(self._table):
            processes.set_rows(list(self._table), lambda key: self._table[key])
        processes.touch({key for key, row in self._table.items() if before.get(key) != row})
        self.query_one("#node-head", Lines).touch()
        self.query_one("#history", Lines).touch()

    def on_virtual_table_highlighted(self) -> None:
        """Another accelerator: its history."""
        self.query_one("#history", Lines).touch()

    def marked_nodes(self) -> Iterable[str]:
        """This one."""
        return (self._node_name,)

    def selected_node(self) -> str:
        """This node."""
        return self._node_name

    def copy_text(self) -> str:
        """The UUID of the accelerator under the cursor, else the node's name."""
        key = self.query_one("#devices", VirtualTable).cursor_key
        device = self._node.device(int(key)) if key is not None else None
        return (device.uuid if device else None) or self._node_name

    def raw(self) -> Any:
        """The node and its accelerators as JSON."""
        now = self._now
        body = node_document(self._node, self._work, now)
        body["gpus"] = [gpu_document(self._node, index, self._work, now) for index in self._node.gpu_indexes]
        return body

    def action_why(self) -> None:
        """Triage of the accelerator under the cursor; from the processes, of the run that the one there is of."""
        devices, processes = self.query_one("#devices", VirtualTable), self.query_one("#processes", VirtualTable)
        held = self._held.get(processes.cursor_key or "") if processes.has_focus else None
        if held is not None and held.run:
            self.deck.triage(held.run)
        elif devices.has_focus and devices.cursor_key is not None:
            self.deck.triage(f"{self._node_name}/{devices.cursor_key}")
        else:
            self.deck.triage(self._node_name)


def _figure(word: str, value: float | None, write: Any) -> str:
    return f"{word} ?" if value is None else f"{word} {write(value)}"


def _squeezed(values: list[float | None], room: int) -> list[float | None]:
    """Ten minutes in as many cells as there are: the greatest of each stretch, so that no peak is lost."""
    if len(values) <= room:
        return values
    out: list[float | None] = []
    for at in range(room):
        part = [v for v in values[at * len(values) // room : (at + 1) * len(values) // room] if v is not None]
        out.append(max(part) if part else None)
    return out
