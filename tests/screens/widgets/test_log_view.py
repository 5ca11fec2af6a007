"""The log view: it follows, stays where one looks, finds, and never paints what is not safe."""

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from textual.pilot import Pilot

from console.widgets.buffer import LINE_LIMIT, LineBuffer, LogLine
from console.widgets.log import LogView
from console.widgets.search import compiled, find

patient = settings(deadline=None)
"""The machine that runs the tests may be busy with others."""

Until = Callable[[Pilot[Any], Callable[[], bool]], Any]


def numbered(first: int, last: int) -> list[str]:
    return [f"line {i}" for i in range(first, last + 1)]


def shown(view: LogView, pilot: Pilot[Any]) -> list[str]:
    """The lines of the view that are not empty."""
    return [line for line in pilot.app.lines()[: view.size.height] if line]  # type: ignore[attr-defined]


async def test_it_follows_the_newest_line(deck: Any, until: Until) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)
    async with deck(view).run_test(size=(60, 10)) as pilot:
        assert shown(view, pilot) == ["no lines yet"]
        buffer.append(numbered(1, 500))
        for _ in range(100):
            view.grew()
        await until(pilot, lambda: shown(view, pilot)[-1].startswith("line 500"))
        assert len(shown(view, pilot)) == 10
        buffer.append(numbered(501, 502))
        view.grew()
        await until(pilot, lambda: shown(view, pilot)[-1].startswith("line 502"))


async def test_scrolling_up_pauses_and_counts_what_is_new(deck: Any, until: Until) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)
    async with deck(view).run_test(size=(60, 10)) as pilot:
        buffer.append(numbered(1, 100))
        view.grew()
        await until(pilot, lambda: shown(view, pilot)[-1].startswith("line 100"))
        await pilot.press("k")
        assert not view.follow
        top = shown(view, pilot)[0]
        buffer.append(numbered(101, 1300))
        view.grew()
        await until(pilot, lambda: "paused, 1.2k new lines" in shown(view, pilot)[-1])
        assert shown(view, pilot)[0] == top
        await pilot.press("f")
        await until(pilot, lambda: shown(view, pilot)[-1].startswith("line 1300"))
        await pilot.press("g")
        assert shown(view, pilot)[0].startswith("line 1")
        await pilot.press("G")
        assert view.follow
        await until(pilot, lambda: shown(view, pilot)[-1].startswith("line 1300"))


async def test_it_stays_on_its_line_while_old_ones_fall_out(deck: Any, until: Until) -> None:
    buffer = LineBuffer(100)
    view = LogView(buffer)
    async with deck(view).run_test(size=(60, 10)) as pilot:
        buffer.append(numbered(1, 100))
        view.grew()
        await until(pilot, lambda: shown(view, pilot)[-1].startswith("line 100"))
        await pilot.press("ctrl+u")
        top = shown(view, pilot)[0]
        buffer.append(numbered(101, 130))
        assert buffer.dropped() == 30
        view.grew()
        await until(pilot, lambda: "30 new lines" in shown(view, pilot)[-1])
        assert shown(view, pilot)[0] == top


async def test_text_is_made_safe_and_secrets_are_painted_over(deck: Any, until: Until) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)
    async with deck(view).run_test(size=(60, 10)) as pilot:
        buffer.append(["\x1b[31mboom\x1b[0m \x1b[2Jgone", "password=hunter2 ok", "x" * 100_000])
        view.grew()
        await until(pilot, lambda: "boom" in shown(view, pilot)[0])
        lines = shown(view, pilot)
        assert lines[0].startswith("boom ␛[2Jgone"), "colours are left out, all else is shown"
        assert lines[1].startswith("password=••• ok")
        assert lines[2].endswith("…")
        assert buffer.lines(1, 2)[0].text == "password=hunter2 ok", "the source keeps it as it was"


async def test_ranks_have_their_colours_and_errors_theirs(deck: Any, until: Until) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)
    async with deck(view).run_test(size=(60, 10)) as pilot:
        buffer.append(["fine"], 0)
        buffer.append(["RuntimeError: CUDA error"], 1)
        buffer.append(["WARNING slow"], 11)
        view.grew()
        await until(pilot, lambda: shown(view, pilot)[-1].startswith(" 11 "))
        first, second, third = (list(view.render_line(y)) for y in range(3))
        assert first[0].style != second[0].style
        assert second[1].style is view.palette.style("bad")
        assert third[1].style is view.palette.style("warn")


async def test_folding_shows_whole_lines(deck: Any, until: Until) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)
    async with deck(view).run_test(size=(31, 10)) as pilot:
        buffer.append([f"{i:02d} " + "abcdefghi " * 7 + f"end{i:02d}" for i in range(50)], 3)
        view.grew()
        await until(pilot, lambda: "49 " in shown(view, pilot)[-1])
        assert "end49" not in shown(view, pilot)[-1]
        await pilot.press("w")
        text = "".join(line[4:31].ljust(27) for line in shown(view, pilot)).replace(" ", "")
        assert text.endswith("end49")
        assert "end48" in text
        await pilot.press("g")
        assert shown(view, pilot)[0].startswith("  3 00 abc")
        assert shown(view, pilot)[1].startswith("    ")
        await pilot.press("j")
        assert shown(view, pilot)[0].startswith("  3 01 abc")
        await pilot.press("w")
        assert shown(view, pilot)[1].startswith("  3 02 abc")


async def test_sideways(deck: Any, until: Until) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)
    async with deck(view).run_test(size=(31, 5)) as pilot:
        buffer.append(["".join(f"{i:08d}" for i in range(20))], 3)
        view.grew()
        await until(pilot, lambda: shown(view, pilot)[0].startswith("  3 00000000"))
        await pilot.press("right")
        assert shown(view, pilot)[0].startswith("  3 0000000100000002")
        await pilot.press("left", "left")
        assert shown(view, pilot)[0].startswith("  3 00000000")


async def test_search_goes_to_matches_in_both_directions_and_around(deck: Any, until: Until) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)
    async with deck(view).run_test(size=(60, 11)) as pilot:
        lines = numbered(1, 20_000)
        for at in (100, 9000, 15_000):
            lines[at - 1] = f"NCCL timeout at {at}"
        buffer.append(lines)
        view.grew()
        await until(pilot, lambda: "line 20000" in shown(view, pilot)[-1])
        await pilot.press("g")
        view.search("nccl TIMEOUT")
        await until(pilot, lambda: "no match for nccl TIMEOUT" in view.status)
        view.search("nccl timeout")
        seen: list[str] = []

        async def found(number: int) -> None:
            await until(pilot, lambda: f"match in line {number}" in view.status)
            await pilot.pause()
            assert any(f"timeout at {number}" in line for line in shown(view, pilot))
            seen.append(view.status)

        await found(100)
        await pilot.press("n")
        await found(9000)
        await pilot.press("n")
        await found(15_000)
        await pilot.press("n")
        await found(100)
        assert "went around" in seen[-1]
        await pilot.press("N")
        await found(15_000)
        await pilot.press("N")
        await found(9000)
        assert not view.follow
        styles = [
            segment.text
            for y in range(10)
            for segment in view.render_line(y)
            if segment.style and segment.style.reverse
        ]
        assert styles == ["NCCL timeout"]
        view.search("")
        assert not any(s.style and s.style.reverse for y in range(10) for s in view.render_line(y))


async def test_a_pattern_that_is_no_expression_is_taken_as_written(deck: Any, until: Until) -> None:
    buffer = LineBuffer()
    view = LogView(buffer)
    async with deck(view).run_test(size=(60, 11)) as pilot:
        buffer.append(["a", "rank[3", "b"])
        view.search("rank[3")
        await until(pilot, lambda: "match in line 2" in view.status)


async def test_another_source_begins_anew(deck: Any, until: Until) -> None:
    first, second = LineBuffer(), LineBuffer()
    view = LogView(first)
    async with deck(view).run_test(size=(60, 10)) as pilot:
        first.append(numbered(1, 100))
        view.grew()
        await until(pilot, lambda: "line 100" in shown(view, pilot)[-1])
        await pilot.press("g")
        second.append(["other"])
        view.source = second
        await pilot.pause()
        assert view.follow
        assert shown(view, pilot)[0].startswith("other")


async def test_a_flood_is_painted_at_most_15_times_a_second(deck: Any, until: Until) -> None:
    painted = 0

    class Counting(LineBuffer):
        def dropped(self) -> int:
            return super().dropped()

        def lines(self, start: int, stop: int) -> Sequence[LogLine]:
            nonlocal painted
            painted += 1
            return super().lines(start, stop)

    buffer = Counting()
    view = LogView(buffer)
    async with deck(view).run_test(size=(60, 10)) as pilot:
        await pilot.pause()
        loop = asyncio.get_running_loop()
        begun, rounds = loop.time(), 0
        while loop.time() < begun + 0.5:
            buffer.append(numbered(1, 10))
            view.grew()
            rounds += 1
            await asyncio.sleep(0.002)
        assert rounds > 30
        assert 1 <= painted <= 0.5 * 15 + 4


# The buffer


@patient
@given(st.lists(st.tuples(st.integers(0, 30), st.sampled_from([None, 0, 1, 2]), st.booleans()), max_size=30))
def test_a_buffer_keeps_the_newest_lines_and_their_numbers(parts: list[tuple[int, int | None, bool]]) -> None:
    buffer, all_lines = LineBuffer(40), list[LogLine]()
    for number, rank, filtered in parts:
        texts = [f"{len(all_lines) + i}" for i in range(number)]
        all_lines += [LogLine(text, rank, len(all_lines) + i + 1) for i, text in enumerate(texts)]
        buffer.append(texts, rank)
        buffer.show_ranks([1, None] if filtered else None)
        kept = [line for line in all_lines if not filtered or line.rank in (1, None)]
        assert buffer.total == len(all_lines)
        assert len(buffer._texts) <= 50
        got = buffer.lines(0, 10**6)
        assert list(got) == kept[len(kept) - len(got) :]
        if not filtered:
            assert len(got) >= min(40, len(kept))
            assert buffer.dropped() + buffer.count() == buffer.total
        assert list(buffer.lines(2, 5)) == list(got[2:5])


def test_a_filter_by_rank_goes_on_as_lines_come() -> None:
    buffer = LineBuffer(100)
    buffer.show_ranks([1])
    for i in range(60):
        buffer.append([f"{i}", f"{i}b"], i % 2)
    assert [line.text for line in buffer.lines(buffer.count() - 2, buffer.count())] == ["59", "59b"]
    assert buffer.dropped() + buffer.count() == 60
    buffer.extend([LogLine("x", 1), LogLine("y", 0), LogLine("z", 1)])
    assert [line.text for line in buffer.lines(buffer.count() - 2, buffer.count())] == ["x", "z"]


def test_a_line_without_end_is_cut() -> None:
    buffer = LineBuffer()
    buffer.append(["x" * (LINE_LIMIT + 7)])
    assert buffer.lines(0, 1)[0].text == "x" * LINE_LIMIT + " [7 characters more]"
    buffer.clear()
    assert buffer.count() == 0
    assert buffer.total == 1


# The search


@patient
@given(st.lists(st.booleans(), max_size=40), st.integers(-3, 43), st.sampled_from([1, -1]))
def test_search_finds_what_a_plain_loop_finds(hits: list[bool], start: int, step: int) -> None:
    buffer = LineBuffer()
    buffer.append(["yes" if hit else "no" for hit in hits])
    got = asyncio.run(find(buffer, compiled("yes"), start, step))
    total = len(hits)
    begin = min(max(start, 0), total) if step > 0 else min(max(start, -1), total - 1)
    ahead = list(range(begin, total)) if step > 0 else list(range(begin, -1, -1))
    around = list(range(begin)) if step > 0 else list(range(total - 1, begin, -1))
    wanted = next(((at, at in around) for at in ahead + around if hits[at]), None)
    assert got == wanted


async def test_search_lets_others_run_and_keeps_up_with_dropped_lines() -> None:
    buffer = LineBuffer(20_000)
    buffer.append(numbered(1, 20_000))
    ticks = iter(range(10**9))
    looking = asyncio.create_task(find(buffer, compiled("line 19999$"), 0, 1, lambda: float(next(ticks))))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not looking.done(), "it lets go before it is through"
    buffer.append(numbered(20_001, 26_000))
    found = await asyncio.wait_for(looking, 20)
    assert found is not None
    assert buffer.lines(found[0] - buffer.dropped(), found[0] - buffer.dropped() + 1)[0].text == "line 19999"


@pytest.mark.parametrize(
    ("pattern", "text", "matches"), [("abc", "ABC", True), ("Abc", "abc", False), ("a(", "a(", True)]
)
def test_small_letters_match_both_cases(pattern: str, text: str, matches: bool) -> None:
    assert bool(compiled(pattern).search(text)) is matches
    assert isinstance(compiled(pattern), re.Pattern)
