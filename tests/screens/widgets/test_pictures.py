"""Pictures of the widgets, at the smallest and at a large screen. Each test says first what must be seen on it."""

import math
from typing import Any

import pytest

from console.render.cells import Cell, Column, age, bytes_text, level_style, mini_bars, percent, reading, state_cell
from console.widgets.buffer import LineBuffer
from console.widgets.heatmap import GpuCell, Heatmap
from console.widgets.log import LogView
from console.widgets.plot import LinePlot
from console.widgets.table import VirtualTable
from probes.reading import ERROR, UNSUPPORTED, Missing

Row = int

STATES = ("alive", "silent", "dead", "connecting", "cordoned")
COLUMNS: tuple[Column[Row], ...] = (
    Column("name", "node", 10, lambda row: Cell(f"gpu-{row:03d}"), sort=lambda row: row, grow=True),
    Column(
        "state", "state", 12, lambda row: state_cell(("alive", "silent", "dead", "connecting", "cordoned")[row % 5])
    ),
    Column("gpus", "gpus", 8, lambda row: mini_bars([abs(100 * math.sin(row + gpu)) for gpu in range(8)])),
    Column("util", "util", 6, lambda row: _util(row), "right", lambda row: row % 101),
    Column("memory", "memory", 7, lambda row: Cell(bytes_text(row * 3.1e9)), "right", drop=1),
    Column("age", "age", 6, lambda row: Cell(age(row * 7.0), "muted"), "right", drop=2),
)


def _util(row: int) -> Cell:
    if row % 7 == 3:
        return reading(Missing(UNSUPPORTED, "MIG"), percent)
    if row % 7 == 5:
        return reading(Missing(ERROR, "lost"), percent)
    return reading(row % 101, percent, style=level_style(row % 101), stale=row % 7 == 6)


def levels(node: str) -> list[GpuCell]:
    number = int(node[-4:])
    cells: list[GpuCell] = [(max(0.0, 100 * math.sin(number / 9 + gpu / 3)), "") for gpu in range(8)]
    if number % 11 == 4:
        cells[5] = (Missing(ERROR, "fell off the bus"), "")
    if number % 13 == 2:
        cells[1] = (None, "")
    return cells


@pytest.mark.parametrize("size", [(80, 24), (200, 60)], ids=["80x24", "200x60"])
def test_table(deck: Any, snap_compare: Any, size: tuple[int, int]) -> None:
    table: VirtualTable[Row] = VirtualTable(COLUMNS)

    async def before(pilot: Any) -> None:
        table.set_rows([f"{row:03d}" for row in range(500)], int)
        table.sort_by("util", True)
        table.move_to("090")
        table.toggle_mark()
        table.message, table.message_style = "the head does not answer for 12 s, these rows are from before", "warn"
        await pilot.pause()
        assert any(line.startswith("● gpu-090") for line in pilot.app.lines())

    assert snap_compare(deck(table), terminal_size=size, run_before=before)


@pytest.mark.parametrize(
    ("nodes", "total", "size"),
    [(1, "8", (80, 24)), (32, "256", (80, 24)), (32, "256", (200, 60)), (1000, "8.0k", (80, 24))],
    ids=["8-gpus-80x24", "256-gpus-80x24", "256-gpus-200x60", "8000-gpus-80x24"],
)
def test_heatmap(deck: Any, snap_compare: Any, nodes: int, total: str, size: tuple[int, int]) -> None:
    heatmap = Heatmap(levels, max_lines=10 if nodes < 1000 else 24)

    async def before(pilot: Any) -> None:
        heatmap.set_groups([(f"gpu-{node:04d}", 8) for node in range(nodes)])
        heatmap.highlight("gpu-0000", {"gpu-0000": [2, 3]} if nodes == 1 else {"gpu-0005": range(8)})
        await pilot.pause()
        assert f"gpu-0000 · {'8' if nodes == 1 else '256' if nodes == 32 else '8.0k'} GPUs" in "".join(
            pilot.app.lines()
        )

    assert snap_compare(deck(heatmap), terminal_size=size, run_before=before)


def test_log(deck: Any, snap_compare: Any) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)

    async def before(pilot: Any) -> None:
        for i in range(60):
            buffer.append([f"step={i} loss={9 / (i + 1):.3f} token=abcdefgh{i}"], i % 4)
        buffer.append(["RuntimeError: NCCL timeout on rank 3 after 600000 ms"], 3)
        view.grew()
        view.search("step=5")
        for _ in range(200):
            if "match in line 6" in view.status:
                break
            await pilot.pause(0.01)
        assert "match in line 6" in view.status

    assert snap_compare(deck(view), terminal_size=(80, 24), run_before=before)


@pytest.mark.parametrize("theme", ["raydeck-dark", "raydeck-light", "raydeck-16"])
def test_plot(deck: Any, snap_compare: Any, theme: str) -> None:
    plot = LinePlot("loss")

    async def before(pilot: Any) -> None:
        xs = list(range(2000))
        ys = [3 * math.exp(-x / 400) + 0.1 * math.sin(x / 7) if not 900 < x < 1100 else None for x in xs]
        plot.set_series("loss", xs, ys)
        await pilot.pause()
        assert pilot.app.lines()[0].startswith("loss  ")

    assert snap_compare(deck(plot, theme=theme), terminal_size=(80, 24), run_before=before)
