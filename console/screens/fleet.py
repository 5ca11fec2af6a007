"""The fleet: what needs someone, every accelerator, every node."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from textual import on
from textual.app import ComposeResult
from textual.binding import BindingType

from console.render.attention import strip_lines
from console.render.cells import Spans
from console.render.documents import node_document
from console.render.fleet import NODE_COLUMNS, NodeRow, gpu_style
from console.render.nodes import standing_lines
from console.screens.base import DeckScreen, bindings_for
from console.screens.node import NodeScreen
from console.state.alerts import attention
from console.widgets.heatmap import GpuCell, Heatmap
from console.widgets.lines import Lines
from console.widgets.table import VirtualTable

STRIP_LINES = 3
STRIP_LINES_TALL = 6
TALL = 40
NOTE_LINES = 3
NOTE_LINES_TALL = 8


APART = {"overdue": "draining"}
"""States that the heatmap, where there is room for one sign, shows as another: ``!`` is a lost GPU there."""


class FleetScreen(DeckScreen):
    """The first screen."""

    BINDINGS: ClassVar[list[BindingType]] = bindings_for("everywhere", "table", "fleet", "upkeep")
    SCOPES = ("everywhere", "table", "fleet", "upkeep")

    def __init__(self) -> None:
        super().__init__()
        self._membership = -1
        self._second = 0
        self._apart: dict[str, str] = {}

    def body(self) -> ComposeResult:
        """Strip, heatmap, table."""
        yield Lines(self._findings, id="attention")
        yield Heatmap(self._levels, id="heatmap")
        yield VirtualTable(NODE_COLUMNS, id="nodes", empty="this context names no node")
        yield Lines(self._note, id="note", most=NOTE_LINES_TALL)

    @property
    def place(self) -> str:
        """Where one is."""
        return "fleet"

    def begin(self) -> None:
        """Show what is known already."""
        self.frame(set(), set())

    def _findings(self, width: int) -> list[Spans]:
        session = self.deck.session
        if session is None:
            return []
        lines = attention(session.fleet, session.work, session.now(), session.head_wall())
        most = STRIP_LINES_TALL if self.size.height >= TALL else STRIP_LINES
        return strip_lines(lines, width, most, mark_own=session.work.alerts.view is not None)

    def _note(self, width: int) -> list[Spans]:
        """Who keeps the node under the cursor free, and why: the table may have no room for it."""
        name, session = self.selected_node(), self.deck.session
        if name is None or session is None or name not in session.fleet.nodes:
            return []
        standing = self._row(name).standing
        most = NOTE_LINES_TALL if self.size.height >= TALL else NOTE_LINES
        return standing_lines(standing, width, most, name=True, wrap=self.size.height >= TALL)

    def _look_apart(self, names: Iterable[str]) -> None:
        """Which of these nodes take no work, each with its state."""
        session = self.deck.session
        assert session is not None
        for name in names:
            state = self._row(name).standing.state if name in session.fleet.nodes else "open"
            if state in ("open", "unknown"):
                self._apart.pop(name, None)
            else:
                self._apart[name] = APART.get(state, state)

    def _levels(self, name: str) -> Sequence[GpuCell]:
        session = self.deck.session
        if session is None or name not in session.fleet.nodes:
            return ()
        node, now = session.fleet.nodes[name], session.now()
        return [gpu_style(node, index, now) for index in node.gpu_indexes]

    def _held(self) -> dict[str, set[int]]:
        """Node to the positions of the accelerators that the run in focus holds."""
        session, run = self.deck.session, self.deck.run_in_focus
        held: dict[str, set[int]] = {}
        if session is None or run is None:
            return held
        for node in session.fleet.nodes.values():
            indexes = node.gpu_indexes
            for index, (holder, _) in session.work.holders(node.ray_node_id).items():
                if holder == run and index in indexes:
                    held.setdefault(node.name, set()).add(indexes.index(index))
        return held

    def _highlight(self) -> None:
        self.query_one(Heatmap).highlight(self.selected_node(), self._held())

    def _row(self, name: str) -> NodeRow:
        session = self.deck.session
        assert session is not None
        return NodeRow(session.fleet.nodes[name], session.work, session.now(), session.head_wall())

    def frame(self, nodes: set[str], runs: set[str]) -> None:
        """New figures: tell the widgets which rows they are of."""
        super().frame(nodes, runs)
        session = self.deck.session
        if session is None:
            return
        table, heatmap = self.query_one(VirtualTable), self.query_one(Heatmap)
        if session.fleet.membership != self._membership:
            self._membership = session.fleet.membership
            order = sorted(session.fleet.nodes.values(), key=lambda node: node.role != "head")
            table.set_rows([node.name for node in order], self._row)
            heatmap.set_groups([(node.name, len(node.gpu_indexes)) for node in order if node.gpu_indexes])
        second = int(session.now())
        if second != self._second:
            # Ages move without any news, so that every row is looked at again; only those on screen are painted.
            self._second = second
            nodes = set(session.fleet.nodes)
        table.touch(nodes)
        heatmap.touch(nodes)
        self._look_apart(nodes)
        heatmap.set_apart(self._apart)
        self._highlight()
        self.query_one("#attention", Lines).touch()
        self.query_one("#note", Lines).touch()

    @on(VirtualTable.Highlighted)
    def _node_chosen(self) -> None:
        self._highlight()
        self.query_one("#note", Lines).touch()

    @on(VirtualTable.Opened)
    def _node_opened(self, event: VirtualTable.Opened) -> None:
        self.app.push_screen(NodeScreen(event.key))

    def selected_node(self) -> str | None:
        """The node under the cursor."""
        return self.query_one(VirtualTable).cursor_key

    def marked_nodes(self) -> Iterable[str]:
        """The marked nodes in their order."""
        table = self.query_one(VirtualTable)
        return [name for name in table.view if name in table.marked] or sorted(table.marked)

    def selected_nodes(self) -> Iterable[str]:
        """The marked nodes in their order, else the one under the cursor."""
        return self.marked_nodes() or super().selected_nodes()

    def copy_text(self) -> str:
        """The node's name."""
        return self.selected_node() or ""

    def raw(self) -> Any:
        """The node as JSON."""
        name, session = self.selected_node(), self.deck.session
        if name is None or session is None:
            return None
        return node_document(session.fleet.nodes[name], session.work, session.now())

    def action_why(self) -> None:
        """Triage of the node under the cursor."""
        if name := self.selected_node():
            self.deck.triage(name)
