"""The line plot and the list of steps."""

import math
from typing import Any

import pytest

from console.render.cells import use_ascii
from console.widgets.plot import LinePlot, figure
from console.widgets.steps import StepList


async def test_a_plot_has_its_newest_value_its_limits_and_its_gaps(deck: Any) -> None:
    plot = LinePlot("loss")
    async with deck(plot).run_test(size=(60, 10)) as pilot:
        assert "nothing reported yet" in pilot.app.lines()[1]
        xs = list(range(100))
        plot.set_series("loss", xs, [None if 40 <= x < 60 else 10 - x / 11 for x in xs])
        await pilot.pause()
        lines = pilot.app.lines()
        assert lines[0] == "loss  1"
        assert lines[1].startswith("10 │")
        assert lines[-2].lstrip().startswith("1 │")
        assert lines[-1].split() == ["0", "99"]
        columns = [any(line[4:].ljust(60)[x] != " " for line in lines[1:-1]) for x in range(50)]
        assert True in columns[:20]
        assert not any(columns[24:32])
        assert True in columns[35:]


async def test_several_lines_have_their_colours(deck: Any) -> None:
    plot = LinePlot()
    async with deck(plot).run_test(size=(60, 10)) as pilot:
        plot.set_series("train", [0, 1], [0, 1])
        plot.set_series("eval", [0, 1], [1, 0])
        await pilot.pause()
        assert pilot.app.lines()[0] == "train 1  eval 0"
        styles = {segment.style for y in range(1, 8) for segment in plot.render_line(y) if segment.text.strip(" ")}
        assert plot.palette.style("busy") in styles
        assert plot.palette.style("ok") in styles
        plot.set_series("eval", [], [])
        await pilot.pause()
        assert pilot.app.lines()[0] == "train 1"


async def test_a_plot_of_nothing_says_why(deck: Any) -> None:
    plot = LinePlot("loss")
    async with deck(plot).run_test(size=(60, 10)) as pilot:
        plot.set_series("loss", [1, 2], [math.nan, math.inf])
        await pilot.pause()
        assert "only values that are not numbers" in pilot.app.lines()[1]
        assert "loss  ?" in pilot.app.lines()[0]
        plot.clear("this run has not reported a step")
        await pilot.pause()
        assert "this run has not reported a step" in pilot.app.lines()[1]
        with pytest.raises(ValueError, match="zip"):
            plot.set_series("loss", [1], [1, 2])


@pytest.mark.parametrize("size", [(60, 3), (60, 2), (60, 1), (8, 6), (2, 2)])
async def test_a_plot_without_room_does_not_fail(deck: Any, size: tuple[int, int]) -> None:
    plot = LinePlot("loss")
    async with deck(plot).run_test(size=size) as pilot:
        plot.set_series("loss", [1, 2], [1, 2])
        await pilot.pause()
        assert len(pilot.app.lines()) == size[1]


async def test_a_plot_in_ascii(deck: Any) -> None:
    use_ascii(True)
    try:
        plot = LinePlot("loss")
        async with deck(plot).run_test(size=(40, 8)) as pilot:
            plot.set_series("loss", [1, 2, 3], [1, 2, 1])
            await pilot.pause()
            text = "".join(pilot.app.lines())
            assert text.isascii()
            assert "*" in text
    finally:
        use_ascii(False)


def test_figures_of_an_axis_are_short() -> None:
    values = (0, 2.1034567, -0.00001234, 12_345, 123.456, math.nan)
    assert [figure(value) for value in values] == ["0", "2.103", "-1e-05", "12.3k", "123.5", "?"]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_steps_come_to_pass(deck: Any) -> None:
    clock = Clock()
    steps = StepList([("ray", "start Ray"), ("hosts", "start hosts"), ("go", "connect")], clock=clock)
    async with deck(steps).run_test(size=(50, 12)) as pilot:
        assert [line.split()[0] for line in pilot.app.lines()[:3]] == ["·", "·", "·"]
        steps.begin("ray")
        clock.now = 65.0
        await pilot.pause()
        assert pilot.app.lines()[0].split() == ["▶", "start", "Ray", "running", "1m05s"]
        steps.finish("ray")
        steps.begin("hosts", "two of eight")
        clock.now = 67.0
        steps.say("hosts", "three of eight")
        await pilot.pause()
        lines = pilot.app.lines()
        assert lines[0].split() == ["✓", "start", "Ray", "done", "1m05s"]
        assert lines[2].strip() == "three of eight"
        steps.fail("hosts", "host-2 has no python3; install python3 3.8 or later there, then press r")
        steps.skip("go")
        await pilot.pause()
        lines = pilot.app.lines()
        assert lines[1].startswith(" ✗ start hosts  failed")
        assert " ".join(line.strip() for line in lines[2:4]).startswith("host-2 has no python3; install python3 3.8 or")
        assert lines[4].startswith(" - connect      skipped")
        assert steps.size.height == 5
        assert steps.state_of("go") == "skipped"


async def test_the_seconds_of_a_running_step_go_on(deck: Any, until: Any) -> None:
    clock = Clock()
    steps = StepList([("a", "wait")], clock=clock)
    async with deck(steps).run_test(size=(50, 4)) as pilot:
        steps.begin("a")
        clock.now = 12.0
        await until(pilot, lambda: "12s" in pilot.app.lines()[0])
        with pytest.raises(KeyError):
            steps.begin("b")
