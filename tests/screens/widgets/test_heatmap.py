"""The heatmap: every accelerator has its cell, at any size of fleet and screen."""

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.message import Message

from console.render.cells import use_ascii
from console.widgets.grid import choose_grid, short_names
from console.widgets.heatmap import GpuCell, Heatmap
from probes.reading import ERROR, STALE, Missing

patient = settings(deadline=None)
"""The machine that runs the tests may be busy with others."""


class Fleet:
    """Made-up levels, and which nodes were asked for."""

    def __init__(self, nodes: int, gpus: int = 8) -> None:
        self.groups = [(f"gpu-{i:04d}", gpus) for i in range(nodes)]
        self.special: dict[tuple[str, int], GpuCell] = {}
        self.asked: list[str] = []

    def levels(self, node: str) -> list[GpuCell]:
        self.asked.append(node)
        number = int(node[-4:])
        plain = [(abs(100 * math.sin(number / 5 + gpu / 3)), "") for gpu in range(dict(self.groups)[node])]
        return [self.special.get((node, gpu), cell) for gpu, cell in enumerate(plain)]


SIGNS = set("·▁▂▃▄▅▆▇█?!")


async def test_few_gpus_show_their_figures_and_names(deck: Any) -> None:
    fleet = Fleet(2)
    fleet.special = {
        ("gpu-0000", 0): (97.4, ""),
        ("gpu-0000", 1): (0.0, ""),
        ("gpu-0000", 2): (None, ""),
        ("gpu-0000", 3): (Missing(ERROR, "lost"), ""),
        ("gpu-0000", 4): (100.0, ""),
    }
    heatmap = Heatmap(fleet.levels)
    async with deck(heatmap).run_test(size=(100, 24)) as pilot:
        heatmap.set_groups(fleet.groups)
        await pilot.pause()
        first = pilot.app.lines()[0]
        assert first.startswith("gpu-0000  97   ·   ?   ! 100 ")
        assert "  gpu-0001 " in first
        assert heatmap.size.height == 2
        assert "16 GPUs on 2 nodes" in pilot.app.lines()[1]


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("nodes", [1, 32, 1000])
async def test_every_accelerator_has_a_cell(deck: Any, nodes: int, width: int) -> None:
    fleet = Fleet(nodes)
    heatmap = Heatmap(fleet.levels, max_lines=200)
    async with deck(heatmap).run_test(size=(width, 150)) as pilot:
        heatmap.set_groups(fleet.groups)
        await pilot.pause()
        lines = pilot.app.lines()[: heatmap.size.height - 1]
        if nodes == 1000 and width == 80:
            assert sum(sign in SIGNS for line in lines for sign in line) == nodes * 8
        assert set(fleet.asked) == {node for node, _ in fleet.groups}


async def test_it_takes_no_more_than_its_lines_and_scrolls_to_the_selected_node(deck: Any) -> None:
    fleet = Fleet(1000)
    heatmap = Heatmap(fleet.levels, max_lines=10)
    async with deck(heatmap).run_test(size=(80, 24)) as pilot:
        heatmap.set_groups(fleet.groups)
        await pilot.pause()
        assert heatmap.size.height == 10
        assert heatmap.virtual_size.height > 100
        heatmap.highlight("gpu-0900", {"gpu-0900": [0, 1]})
        await pilot.pause()
        assert "▸" in "".join(pilot.app.lines())
        assert "gpu-0900 · 8.0k GPUs on 1.0k nodes" in pilot.app.lines()[9]
        assert heatmap.selected_node == "gpu-0900"


async def test_only_lines_on_screen_are_painted_again(deck: Any) -> None:
    fleet = Fleet(1000)
    heatmap = Heatmap(fleet.levels, max_lines=10)
    async with deck(heatmap).run_test(size=(80, 24)) as pilot:
        heatmap.set_groups(fleet.groups)
        await pilot.pause()
        fleet.asked.clear()
        heatmap.touch({"gpu-0000", "gpu-0999"})
        await pilot.pause()
        assert "gpu-0000" in fleet.asked
        assert len(set(fleet.asked)) <= 9, "one line of nodes"


async def test_gpus_of_a_run_stand_out_and_no_others(deck: Any) -> None:
    fleet = Fleet(64)
    heatmap = Heatmap(fleet.levels)
    async with deck(heatmap).run_test(size=(80, 24)) as pilot:
        heatmap.set_groups(fleet.groups)
        heatmap.highlight(None, {"gpu-0001": [2, 3, 7]})
        await pilot.pause()
        held = heatmap.palette.held
        assert held.bgcolor != heatmap.palette.blank.bgcolor
        lines = range(heatmap.size.height - 1)
        assert sum(len(part.text) for y in lines for part in heatmap.render_line(y) if part.style == held) == 3
        assert "held" in pilot.app.lines()[heatmap.size.height - 1]
        heatmap.highlight(None)
        await pilot.pause()
        assert not any(part.style == held for y in lines for part in heatmap.render_line(y))


async def test_a_style_of_its_own_wins_over_that_of_the_level(deck: Any) -> None:
    fleet = Fleet(1)
    fleet.special = {("gpu-0000", 0): (50.0, "stale"), ("gpu-0000", 1): (Missing(STALE, ""), "")}
    heatmap = Heatmap(fleet.levels)
    async with deck(heatmap).run_test(size=(80, 24)) as pilot:
        heatmap.set_groups(fleet.groups)
        await pilot.pause()
        found = {segment.text.strip(): segment.style for segment in heatmap.render_line(0)}
        assert found["50   ?"] is heatmap.palette.style("stale")


async def test_fewer_levels_than_announced_are_unknown(deck: Any) -> None:
    heatmap = Heatmap(lambda node: [(50, "")])
    async with deck(heatmap).run_test(size=(80, 24)) as pilot:
        heatmap.set_groups([("one", 3)])
        await pilot.pause()
        assert pilot.app.lines()[0] == "one  50   ?   ?"


async def test_without_groups_it_says_why(deck: Any) -> None:
    heatmap = Heatmap(lambda node: [], empty="no node has told of a GPU")
    async with deck(heatmap).run_test(size=(80, 24)) as pilot:
        assert pilot.app.lines()[0] == "no node has told of a GPU"
        heatmap.set_groups([("one", 1)])
        await pilot.pause()
        heatmap.set_groups([])
        await pilot.pause()
        assert pilot.app.lines()[0] == "no node has told of a GPU"


async def test_a_click_says_which_gpu(deck: Any) -> None:
    fleet = Fleet(1000)
    picked: list[tuple[str, int]] = []

    def hook(message: Message) -> None:
        if isinstance(message, Heatmap.Picked) and (message.node, message.gpu) not in picked:
            picked.append((message.node, message.gpu))

    heatmap = Heatmap(fleet.levels)
    async with deck(heatmap).run_test(size=(80, 24), message_hook=hook) as pilot:
        heatmap.set_groups(fleet.groups)
        await pilot.pause()
        await pilot.click(heatmap, offset=(9 * 2 + 3, 1))
        await pilot.click(heatmap, offset=(8, 0))  # a gap
        await pilot.pause()
        assert picked == [("gpu-0010", 3)]


async def test_ascii(deck: Any) -> None:
    use_ascii(True)
    try:
        fleet = Fleet(1000)
        heatmap = Heatmap(fleet.levels)
        async with deck(heatmap).run_test(size=(80, 24)) as pilot:
            heatmap.set_groups(fleet.groups)
            heatmap.highlight("gpu-0003", {"gpu-0003": [1]})
            await pilot.pause()
            text = "".join(pilot.app.lines())
            assert text.isascii()
            assert "#" in text
            assert ">" in text
    finally:
        use_ascii(False)


@patient
@given(st.integers(1, 2000), st.integers(1, 130), st.integers(1, 40), st.integers(10, 250), st.integers(1, 60))
def test_any_grid_has_room_for_every_gpu(nodes: int, most: int, label: int, width: int, room: int) -> None:
    grid = choose_grid(nodes, most, (label + 5, label), width, room)
    assert grid.columns * grid.deep >= most
    assert grid.across * (grid.lines // grid.deep) >= nodes
    assert grid.across * grid.block - grid.form.gap <= max(width, grid.block - grid.form.gap)
    assert grid.cells(0, nodes) <= max(width, grid.label + grid.form.cell)


async def test_names_are_shortened_when_that_makes_room(deck: Any) -> None:
    fleet = Fleet(32)
    heatmap = Heatmap(fleet.levels)
    async with deck(heatmap).run_test(size=(80, 24)) as pilot:
        heatmap.set_groups(fleet.groups)
        await pilot.pause()
        assert pilot.app.lines()[0].startswith("gpu-0000 ")
        await pilot.resize_terminal(60, 24)
        await pilot.pause()
        assert pilot.app.lines()[0].startswith("0000 ")


def test_names_are_cut_to_what_tells_them_apart() -> None:
    assert short_names(["a100-node-01.lab.example", "a100-node-02.lab.example"]) == ["01", "02"]
    assert short_names(["head", "worker"]) == ["head", "worker"]
    assert short_names(["only-one"]) == ["only-one"]
    assert short_names(["n-1", "n-1"]) == ["1", "1"]
    assert short_names(["gpu-", "gpu-1"]) == ["gpu-", "1"]
