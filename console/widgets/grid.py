"""How the cells of a heatmap are laid out: what a GPU gets of the room there is. Pure arithmetic."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

LABEL_LIMIT = 16


@dataclass(frozen=True, slots=True)
class Form:
    """How much room a GPU gets."""

    cell: int
    """Terminal cells for one GPU: 4 has its figure, 2 and 1 its sign."""
    label: bool
    """Is the node's name beside its GPUs?"""
    gap: int
    """Between two nodes on a line."""


FORMS = (Form(4, True, 2), Form(2, True, 2), Form(1, True, 2), Form(1, False, 1), Form(1, False, 0))
"""From the richest to the densest. The first that fits is taken; if none does, the fourth, and it scrolls."""
SCROLLING = FORMS[3]


@dataclass(frozen=True, slots=True)
class Grid:
    """A form, laid out for a width."""

    form: Form
    label: int
    """Cells for a name, with the space after it."""
    across: int
    """Nodes on a line."""
    columns: int
    """GPUs of one node on a line; a node with more takes several lines."""
    deep: int
    """Lines of one node."""
    lines: int
    whole_names: bool = False
    """Is there room for names as they are?"""

    @property
    def block(self) -> int:
        """Cells of one node, with the gap after it."""
        return self.label + self.columns * self.form.cell + self.form.gap

    def cells(self, row: int, nodes: int) -> int:
        """Cells of a whole line."""
        return max(0, min(self.across, nodes - row * self.across) * self.block - self.form.gap)


def _shared(names: Sequence[str]) -> str:
    """What all names begin with."""
    first, last = min(names), max(names)
    length = 0
    while length < min(len(first), len(last)) and first[length] == last[length]:
        length += 1
    return first[:length]


def short_names(names: Sequence[str]) -> list[str]:
    """Names without what all of them begin and end with, cut at a separator, so that the part that differs is seen."""
    if len(names) < 2:
        return list(names)
    start = _shared(names)
    start = start[: max(start.rfind(sign) for sign in "-_./") + 1]
    end = _shared([name[::-1] for name in names])[::-1]
    end = end[end.find(".") :] if "." in end else ""
    return [name[len(start) : len(name) - len(end)] or name for name in names]


def _lay_out(form: Form, nodes: int, most: int, label: int, width: int) -> Grid:
    label = min(LABEL_LIMIT, label) + 1 if form.label else 0
    columns = max(1, min(max(1, most), (width - label) // form.cell))
    deep = -(-max(1, most) // columns)
    across = max(1, (width + form.gap) // (label + columns * form.cell + form.gap))
    return Grid(form, label, across, columns, deep, -(-nodes // across) * deep)


def choose_grid(nodes: int, most: int, labels: tuple[int, int], width: int, room: int) -> Grid:
    """The richest form that fits, with whole names if that costs no richness.

    Args:
        nodes: How many there are.
        most: GPUs of the node that has most of them.
        labels: Cells of the longest name, whole and shortened.
        width: Terminal cells across.
        room: Lines there are. If no form fits, more are taken, and the view scrolls.
    """
    whole, short = (_first_that_fits(nodes, most, label, width, room) for label in labels)
    if whole.form is short.form and labels[0] <= LABEL_LIMIT:
        return replace(whole, whole_names=True)
    return short


def _first_that_fits(nodes: int, most: int, label: int, width: int, room: int) -> Grid:
    tried = [_lay_out(form, nodes, most, label, width) for form in FORMS]
    return next((grid for grid in tried if grid.lines <= room), tried[FORMS.index(SCROLLING)])
