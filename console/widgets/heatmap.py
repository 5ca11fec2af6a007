"""Every accelerator as a cell, grouped by node: figures for a few nodes, one sign each for thousands.

The form is chosen by the room there is. A level is told by its sign as well as by its colour.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import ClassVar

from rich.segment import Segment
from textual import events
from textual.binding import BindingType
from textual.geometry import Region, Size
from textual.message import Message
from textual.reactive import reactive
from textual.strip import Strip

from console.render.cells import (
    Cell,
    cell_len,
    count,
    fit,
    glyph,
    is_ascii,
    level_sign,
    state_glyph,
    state_style,
)
from console.widgets.grid import Grid, choose_grid, short_names
from console.widgets.looks import GpuCell, Item, Looks
from console.widgets.paint import PaintedView

__all__ = ["GpuCell", "Heatmap"]


class Heatmap(PaintedView):
    """The accelerators of a fleet.

    Give it the nodes with `set_groups`, then say with `touch` whose figures changed; `levels` is asked when a line is
    painted.
    """

    DEFAULT_CSS = """
    Heatmap {
        height: auto;
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = []

    max_lines: reactive[int] = reactive(10, layout=True)
    """The most lines that it takes by itself, its legend among them. What has no room is scrolled to."""

    class Picked(Message):
        """An accelerator was clicked."""

        def __init__(self, heatmap: "Heatmap", node: str, gpu: int) -> None:
            self.heatmap = heatmap
            self.node = node
            self.gpu = gpu
            super().__init__()

        @property
        def control(self) -> "Heatmap":
            return self.heatmap

    def __init__(
        self,
        levels: Callable[[str], Sequence[GpuCell]],
        *,
        max_lines: int = 10,
        id: str | None = None,  # noqa: A002
        empty: str = "no accelerators",
    ) -> None:
        """A heatmap.

        Args:
            levels: Node to one `GpuCell` for each of its GPUs, by position. Fewer than announced: the rest is unknown.
            max_lines: See the property.
            id: The widget's id.
            empty: What is said while there are no groups.
        """
        super().__init__(id=id)
        self.levels = levels
        self.empty = empty
        self.set_reactive(Heatmap.max_lines, max_lines)
        self._groups: list[tuple[str, int]] = []
        self._labels: list[str] = []
        self._position: dict[str, int] = {}
        self._selected: str | None = None
        self._held: Mapping[str, Collection[int]] = {}
        self._apart: Mapping[str, str] = {}
        self._grids: dict[tuple[int, int], Grid] = {}
        self._strips: dict[int, Strip] = {}
        self._looks: Looks | None = None
        self._total = 0

    # What it shows

    def set_groups(self, groups: Sequence[tuple[str, int]]) -> None:
        """The nodes in their order, each with its number of GPUs. The same groups again cost nothing."""
        new = list(groups)
        if new == self._groups:
            return
        self._groups = new
        self._labels = short_names([node for node, _ in new])
        self._position = {node: position for position, (node, _) in enumerate(new)}
        self._total = sum(gpus for _, gpus in new)
        self._grids.clear()
        self._strips.clear()
        self._resize_virtual()
        self.refresh(layout=True)

    def touch(self, nodes: Iterable[str]) -> None:
        """The figures of these nodes changed."""
        grid = self._grid
        lines: set[int] = set()
        position = self._position
        for node in nodes:
            where = position.get(node)
            if where is not None:
                first = where // grid.across * grid.deep
                lines.update(range(first, first + grid.deep))
        self._refresh_lines(lines)

    def highlight(self, node: str | None, held: Mapping[str, Collection[int]] | None = None) -> None:
        """Point out a node, and the GPUs that a run holds.

        Args:
            node: The node under the cursor elsewhere; it is scrolled into view. ``None``: no node.
            held: Node to the positions of its GPUs that the selected run holds.
        """
        held = held or {}
        changed = {self._selected, node} if node != self._selected else set[str | None]()
        if held != self._held:
            changed |= self._held.keys() | held.keys()
        self._selected = node
        self._held = held
        self.touch(name for name in changed if name is not None)
        self._refresh_legend()
        where = self._position.get(node) if node is not None else None
        if where is not None:
            grid = self._grid
            line = where // grid.across * grid.deep
            page = max(1, self._page)
            if not self.scroll_offset.y <= line < self.scroll_offset.y + page:
                self.scroll_to(y=max(0, line - page // 2), animate=False, force=True)

    def set_apart(self, states: Mapping[str, str]) -> None:
        """Nodes that take no work, each with its state: a sign at its name and for its idle GPUs, and in the legend."""
        if states != self._apart:
            changed = {name for name in states.keys() | self._apart.keys() if states.get(name) != self._apart.get(name)}
            self._apart = dict(states)
            self.touch(changed)
            self._refresh_legend()

    @property
    def selected_node(self) -> str | None:
        """The node that is pointed out."""
        return self._selected

    # Layout

    @property
    def _grid(self) -> Grid:
        width = max(1, self.scrollable_content_region.width or self.size.width)
        return self._grid_for(width, self._room)

    @property
    def _room(self) -> int:
        """Lines for accelerators, without the legend."""
        auto = self.styles.height is None or self.styles.height.is_auto
        return max(1, (self.max_lines if auto else self.size.height) - 1)

    @property
    def _page(self) -> int:
        return max(0, self.size.height - 1)

    def _grid_for(self, width: int, room: int) -> Grid:
        grid = self._grids.get((width, room))
        if grid is None:
            labels = (
                max((cell_len(node) for node, _ in self._groups), default=0),
                max(map(cell_len, self._labels), default=0),
            )
            most = max((gpus for _, gpus in self._groups), default=1)
            grid = self._grids[width, room] = choose_grid(len(self._groups), most, labels, width, room)
        return grid

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many lines as the form for this width takes, and the legend; never more than `max_lines`."""
        if not self._groups:
            return min(2, self.max_lines)
        return min(self.max_lines, self._grid_for(max(1, width), max(1, self.max_lines - 1)).lines + 1)

    def get_content_width(self, container: Size, viewport: Size) -> int:
        """All the width there is."""
        return container.width

    def _resize_virtual(self) -> None:
        lines = self._grid.lines + 1 if self._groups else 1
        self.virtual_size = Size(self.size.width, lines)

    def on_resize(self) -> None:
        """Another width: another layout."""
        self._strips.clear()
        self._resize_virtual()

    def watch_max_lines(self) -> None:
        """Another height: perhaps another form."""
        self._strips.clear()
        self._resize_virtual()

    def palette_changed(self) -> None:
        """Lines in old colours are void."""
        self._strips.clear()
        self._looks = None

    # Painting

    def _refresh_lines(self, lines: Collection[int]) -> None:
        """Paint these lines, and put on screen only those that look different: a busy fleet mostly stays as it is."""
        top, page = self.scroll_offset.y, self._page
        shown = [line for line in lines if top <= line < top + page]
        before = {line: self._strips.get(line) for line in shown}
        for line in lines:
            self._strips.pop(line, None)
        changed: list[int] = []
        width = self.scrollable_content_region.width
        for line in shown:
            old = before[line]
            if old is not None:
                new = self._line(line, width)
                self._strips[line] = old if new == old else new
                if new == old:
                    continue
            changed.append(line - top)
        if len(changed) == page:
            self.refresh()
        elif changed:
            self.refresh(*(Region(0, y, self.size.width, 1) for y in changed))

    def _refresh_legend(self) -> None:
        self.refresh(Region(0, max(0, self.size.height - 1), self.size.width, 1))

    def render_line(self, y: int) -> Strip:
        """A line of accelerators; the last line is the legend."""
        width = self.scrollable_content_region.width
        if not self._groups:
            return self.palette.strip([Cell(fit(self.empty if y == 0 else "", width), "muted")], width)
        if y >= self._page:
            return self._legend(width)
        line = self.scroll_offset.y + y
        strip = self._strips.get(line)
        if strip is None:
            strip = self._strips[line] = self._line(line, width)
        return strip

    def _line(self, line: int, width: int) -> Strip:
        grid = self._grid
        looks = self._looks
        if looks is None or looks.wide != grid.form.cell:
            looks = self._looks = Looks(self.palette, grid.form.cell)
        row, part = divmod(line, grid.deep)
        first = row * grid.across
        items: list[Item] = []
        for where in range(first, min(first + grid.across, len(self._groups))):
            self._before(where, part, grid, where == first, looks, items)
            self._gpus(where, part, grid, looks, items)
        strip = Strip(looks.segments(items), grid.cells(row, len(self._groups)))
        return strip.adjust_cell_length(width, self.palette.blank)

    def _before(self, where: int, part: int, grid: Grid, first: bool, looks: Looks, items: list[Item]) -> None:
        """What stands before a node's GPUs: the gap to its neighbour, and its name."""
        node = self._groups[where][0]
        selected = node == self._selected
        style = self.palette.style
        apart = self._apart.get(node)
        if grid.form.gap and not first:
            gap = " " * grid.form.gap
            before = self._groups[where - 1][0]
            if selected and not grid.label:
                items.append((gap[1:] + glyph("▸", ">"), looks.number(style("accent"))))
            elif before == self._selected or before in self._held:
                items.append((gap, looks.blank))
            else:  # a space looks the same in any colour, and so stays in its neighbour's segment
                items.append((gap, items[-1][1]))
        if grid.label:
            name = "" if part else node if grid.whole_names else self._labels[where]
            room = grid.label - 1
            if cell_len(name) > room:  # the end of a name tells nodes apart, not its beginning
                name = glyph("…", "~") + name[-(room - 1) :]
            look = style("accent", "cursor") if selected else style(state_style(apart) if apart else "muted")
            items.append((fit(name, room), looks.number(look)))
            items.append(
                (state_glyph(apart) if apart and not part else " ", looks.number(look) if apart else looks.blank)
            )

    def _gpus(self, where: int, part: int, grid: Grid, looks: Looks, items: list[Item]) -> None:
        """The accelerators of one node on one line."""
        node, gpus = self._groups[where]
        start = part * grid.columns
        stop = min(start + grid.columns, gpus)
        cells = self.levels(node)
        new = looks.items(cells if start == 0 and len(cells) == stop else cells[start:stop])
        if len(new) < stop - start:  # announced, and not told of
            new += [looks.unknown] * (stop - start - len(new))
        apart = self._apart.get(node)
        if apart is not None:
            idle, sign = looks.sign(level_sign(0.0)), looks.sign(state_glyph(apart))
            look = looks.number(self.palette.style(state_style(apart)))
            new = [(sign, look) if text == idle else (text, number) for text, number in new]
        held = self._held.get(node)
        if held is not None:
            new = [
                (text, looks.held) if start + gpu in held else (text, number) for gpu, (text, number) in enumerate(new)
            ]
        if node == self._selected and not grid.label:
            new = [item if item[1] == looks.held else looks.pointed_out(item) for item in new]
        items += new
        if start + grid.columns > gpus:
            items.append((" " * grid.form.cell * (start + grid.columns - max(start, gpus)), looks.blank))

    def _legend(self, width: int) -> Strip:
        """How to read it, who is kept free, and how much there is; without the first where there is no room."""
        ramp = "1-9#" if is_ascii() else "▁▃▅█"
        how = [
            *(Cell(f"{level_sign(0.0)} ", "idle"), Cell("idle ", "muted")),
            *(Cell(ramp[i : i + 1], f"load{i + 1}") for i in range(4)),
            *(Cell(" load ", "muted"), Cell("?", "muted"), Cell(" unknown ", "muted")),
            *(Cell("!", "bad"), Cell(" lost", "muted")),
        ]
        counts = Counter(self._apart[name] for name in self._apart if name in self._position)
        apart = [Cell(f"  {state_glyph(state)} {count(number)} {state}", state_style(state)) for state, number in
                 sorted(counts.items())]  # fmt: skip
        nodes = len(self._groups)
        total = f"{count(self._total)} GPU{'s'[self._total == 1 :]} on {count(nodes)} node{'s'[nodes == 1 :]}"
        right = f"{self._selected} · {total}" if self._selected in self._position else total
        if is_ascii():
            right = right.replace("·", "|")
        held = [Segment(" ", self.palette.blank), Segment("held", self.palette.held)] if self._held else []
        for left, tail in ((how + apart, right), (apart, right), (apart, total)):
            segments = [*map(self.palette.segment, left), *held]
            room = width - sum(segment.cell_length for segment in segments) - 2
            if left and room >= cell_len(tail):
                segments += [
                    Segment("  ", self.palette.blank),
                    self.palette.segment(Cell(fit(tail, room, "right"), "title")),
                ]
                return Strip(segments).adjust_cell_length(width, self.palette.blank)
        if apart:
            return self.palette.strip(apart, width)
        return self.palette.strip([Cell(fit(right, width, "right"), "title")], width)

    # Mouse

    def on_click(self, event: events.Click) -> None:
        """Say which accelerator was clicked."""
        grid = self._grid
        if event.y >= self._page:
            return
        row, part = divmod(self.scroll_offset.y + event.y, grid.deep)
        across, x = divmod(event.x, grid.block)
        where = row * grid.across + across
        gpu = part * grid.columns + (x - grid.label) // grid.form.cell
        if across < grid.across and where < len(self._groups) and 0 <= gpu < self._groups[where][1]:
            self.post_message(self.Picked(self, self._groups[where][0], gpu))
