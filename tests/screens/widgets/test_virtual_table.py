"""The table: the cursor stays on its key whatever happens around it, and only what is on screen is painted."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from textual.message import Message
from textual.pilot import Pilot

from console.render.cells import Cell, Column, mini_bars, use_ascii
from console.widgets import keyed
from console.widgets.table import GUTTER, VirtualTable, lay_out

Row = tuple[str, int | None]
Until = Callable[[Pilot[Any], Callable[[], bool]], Any]

COLUMNS: tuple[Column[Row], ...] = (
    Column("name", "name", 8, lambda row: Cell(row[0]), sort=lambda row: row[0], grow=True),
    Column(
        "value", "value", 6, lambda row: Cell("-" if row[1] is None else str(row[1]), "ok"), "right", lambda row: row[1]
    ),
    Column("bars", "bars", 8, lambda row: mini_bars([row[1]] * 8), drop=2),
    Column("note", "note", 10, lambda row: Cell("", "muted"), drop=1),
)


EVERY = [column.key for column in COLUMNS]


@dataclass
class Rows:
    """The owner of the rows, and how often each was asked for."""

    rows: dict[str, Row] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)

    @classmethod
    def many(cls, number: int) -> "Rows":
        return cls({f"k{i:04d}": (f"node-{i:04d}", i * 7 % 101) for i in range(number)})

    def row(self, key: str) -> Row:
        self.asked.append(key)
        return self.rows[key]

    def give(self, table: VirtualTable[Row]) -> None:
        table.set_rows(list(self.rows), self.row)


@pytest.fixture
def table() -> VirtualTable[Row]:
    return VirtualTable(COLUMNS, empty="no nodes")


def messages() -> tuple[list[Message], Callable[[Message], None]]:
    """The messages that were handled, each once, though it goes on to the parents."""
    kept: list[Message] = []

    def hook(message: Message) -> None:
        if not any(message is known for known in kept):
            kept.append(message)

    return kept, hook


async def test_only_rows_on_screen_are_asked_for(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows.many(8000)
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        await pilot.pause()
        assert 0 < len(set(rows.asked)) <= 24
        rows.asked.clear()
        table.touch(rows.rows)
        await pilot.pause()
        assert 0 < len(set(rows.asked)) <= 24
        rows.asked.clear()
        table.touch(["k0003", "k7000"])
        await pilot.pause()
        assert set(rows.asked) == {"k0003"}


async def test_scrolling_by_a_line_paints_one_row_anew(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows.many(1000)
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        await pilot.press("pagedown")
        rows.asked.clear()
        await pilot.press("j")
        assert len(set(rows.asked)) <= 3
        assert table.cursor_key == "k0024"


async def test_keys_move_the_cursor_and_say_so(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows.many(100)
    kept, hook = messages()
    async with deck(table).run_test(size=(80, 24), message_hook=hook) as pilot:
        rows.give(table)
        await pilot.pause()
        seen: list[str | None] = []
        for key in ("j", "down", "k", "G", "g", "end", "home", "ctrl+d", "ctrl+u", "pagedown", "pageup"):
            await pilot.press(key)
            seen.append(table.cursor_key)
        assert seen == [
            *("k0001", "k0002", "k0001", "k0099", "k0000", "k0099", "k0000", "k0011", "k0000", "k0023", "k0000")
        ]
        await pilot.press("enter")
        await pilot.pause()
        opened = [message for message in kept if isinstance(message, VirtualTable.Opened)]
        assert [message.key for message in opened] == ["k0000"]
        highlighted = [message.key for message in kept if isinstance(message, VirtualTable.Highlighted)]
        assert highlighted[0] == "k0000"
        assert "k0099" in highlighted


async def test_the_cursor_stays_on_its_key_and_line_when_rows_come_above(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows.many(200)
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        assert table.move_to("k0100")
        await pilot.pause()
        line = next(y for y, text in enumerate(pilot.app.lines()) if "node-0100" in text)
        rows.rows = {**{f"a{i}": (f"new-{i}", 1) for i in range(50)}, **rows.rows}
        rows.give(table)
        await pilot.pause()
        assert table.cursor_key == "k0100"
        assert "node-0100" in pilot.app.lines()[line]


async def test_until_it_is_moved_the_cursor_stays_on_the_first_row(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows({"m": ("m", 1)})
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        rows.rows = {"a": ("a", 1), **rows.rows}
        rows.give(table)
        await pilot.pause()
        assert table.cursor_key == "a"


async def test_when_its_key_is_gone_the_cursor_goes_to_the_neighbour(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows.many(50)
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        table.move_to("k0010")
        del rows.rows["k0010"]
        rows.give(table)
        await pilot.pause()
        assert table.cursor_key == "k0011"
        assert not table.move_to("k0010")


async def test_marks_stay_with_their_keys_and_go_with_them(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows.many(50)
    kept, hook = messages()
    async with deck(table).run_test(size=(80, 24), message_hook=hook) as pilot:
        rows.give(table)
        await pilot.pause()
        await pilot.press("space", "space")
        assert table.marked == {"k0000", "k0001"}
        assert table.cursor_key == "k0002"
        assert sum("●" in line for line in pilot.app.lines()) == 2
        del rows.rows["k0000"]
        rows.give(table)
        await pilot.pause()
        assert table.marked == {"k0001"}
        last = [message for message in kept if isinstance(message, VirtualTable.Marked)][-1]
        assert last.keys == {"k0001"}
        table.set_filter("node-004")
        table.mark_all()
        assert len(table.marked) == 11
        table.clear_marks()
        assert not table.marked


async def test_sorting_keeps_the_key_and_shows_an_arrow(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows({"a": ("a", 3), "b": ("b", None), "c": ("c", 1), "d": ("d", 2)})
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        table.move_to("c")
        table.sort_by("value")
        await pilot.pause()
        assert list(table.view) == ["c", "d", "a", "b"]
        assert "▲value" in pilot.app.lines()[0]
        table.reverse_sort()
        await pilot.pause()
        assert list(table.view) == ["a", "d", "c", "b"], "what has no value comes last either way"
        assert "▼value" in pilot.app.lines()[0]
        assert table.cursor_key == "c"
        table.next_sort()
        assert table.sort_key is None
        table.next_sort()
        assert (table.sort_key, table.sort_reverse) == ("name", False)
        table.previous_sort()
        assert list(table.view) == ["a", "b", "c", "d"]


async def test_a_live_column_is_sorted_again_by_itself(deck: Any, table: VirtualTable[Row], until: Until) -> None:
    rows = Rows({key: (key, i) for i, key in enumerate("abcd")})
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        table.sort_by("value", True)
        table.move_to("a")
        for value in (10, 20):
            rows.rows["a"] = ("a", value)
            rows.rows["b"] = ("b", 15)
            table.touch({"a", "b"})
            order = ["b", "a", "d", "c"] if value == 10 else ["a", "b", "d", "c"]
            await until(pilot, lambda order=order: list(table.view) == order)
            assert table.cursor_key == "a"


async def test_filter_finds_painted_text_of_any_column(deck: Any, table: VirtualTable[Row], until: Until) -> None:
    rows = Rows({"a": ("Alpha", 12), "b": ("beta", 99), "c": ("gamma", 12)})
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        table.set_filter("ALPHA")
        assert list(table.view) == ["a"]
        table.set_filter("12")
        assert list(table.view) == ["a", "c"]
        assert (table.visible_count, table.total_count) == (2, 3)
        table.set_filter("!12")
        assert list(table.view) == ["b"]
        rows.rows["a"] = ("Alpha", 13)
        table.touch(["a"])
        await until(pilot, lambda: list(table.view) == ["a", "b"])
        table.set_filter("nothing has this")
        await pilot.pause()
        assert "no match for nothing has this in 3 rows" in "\n".join(pilot.app.lines())
        assert table.cursor_key is None
        table.set_filter("")
        assert list(table.view) == ["a", "b", "c"]


async def test_a_big_filter_lets_keys_through(
    deck: Any, table: VirtualTable[Row], until: Until, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "SLICE_SECONDS", 0.0005)  # a quick machine would be done before any key comes
    rows = Rows.many(8000)
    kept, hook = messages()
    async with deck(table).run_test(size=(80, 24), message_hook=hook) as pilot:
        rows.give(table)
        await pilot.pause()
        table.set_filter("node-01")
        assert table.visible_count == 8000, "the old rows stand until the new ones are known"
        await pilot.press("j")
        await until(pilot, lambda: table.visible_count == 100)
        facts = [message for message in kept if isinstance(message, VirtualTable.Highlighted | VirtualTable.Arranged)]
        moved = next(i for i, fact in enumerate(facts) if getattr(fact, "key", "") == "k0001")
        done = next(i for i, fact in enumerate(facts) if getattr(fact, "visible", 0) == 100)
        assert moved < done, "the key was served while the filter worked"
        assert table.cursor_key == "k0100", "what the filter hides cannot stay under the cursor"
        table.set_filter("node-012")
        assert table.visible_count == 10, "known text is searched at once"
        await pilot.pause()
        last = [message for message in kept if isinstance(message, VirtualTable.Arranged)][-1]
        assert (last.visible, last.total) == (10, 8000)


async def test_a_newer_filter_overtakes_an_older_one(deck: Any, table: VirtualTable[Row], until: Until) -> None:
    rows = Rows.many(8000)
    async with deck(table).run_test(size=(80, 24)) as pilot:
        rows.give(table)
        table.set_filter("node-01")
        table.set_filter("node-7999")
        await until(pilot, lambda: table.visible_count < 8000)
        assert list(table.view) == ["k7999"]


async def test_empty_loading_and_failed_are_three_things(deck: Any, table: VirtualTable[Row]) -> None:
    async with deck(table).run_test(size=(80, 12)) as pilot:
        app = pilot.app
        assert "no nodes" in "\n".join(app.lines())
        table.message = "asking the head"
        await pilot.pause()
        assert "asking the head" in "\n".join(app.lines())
        assert "no nodes" not in "\n".join(app.lines())
        Rows.many(30).give(table)
        table.message, table.message_style = "the head does not answer for 12 s", "bad"
        await pilot.press("G")
        await pilot.pause()
        assert "node-0029" in app.lines()[-2]
        assert "the head does not answer" in app.lines()[-1]
        table.message = ""
        await pilot.pause()
        assert "node-0029" in app.lines()[-1]


async def test_a_row_that_went_since_is_shown_as_gone(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows.many(3)
    async with deck(table).run_test(size=(80, 12)) as pilot:
        rows.give(table)
        del rows.rows["k0001"]
        table.touch(["k0001"])
        table.sort_by("value")
        await pilot.pause()
        assert any("k0001 is gone" in line for line in pilot.app.lines())


async def test_rows_may_be_given_before_the_table_is_shown(deck: Any, table: VirtualTable[Row]) -> None:
    Rows.many(3).give(table)
    async with deck(table).run_test(size=(80, 12)) as pilot:
        assert "node-0002" in "\n".join(pilot.app.lines())
        assert table.cursor_key == "k0000"


async def test_text_of_the_cluster_cannot_leave_its_cell(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows({"a": ("\x1b[2J\x1b]0;x\x07\n数数数数数数数", 1), "b": ("ok", 2)})
    async with deck(table).run_test(size=(40, 6)) as pilot:
        rows.give(table)
        await pilot.pause()
        lines = pilot.app.lines()
        assert "\x1b" not in "".join(lines)
        assert lines[1].startswith("▸ ␛[2J␛]0;x…")
        assert [line.rstrip()[-1:] for line in lines[1:3]] != ["", ""]


async def test_nothing_but_ascii_without_utf8(deck: Any, table: VirtualTable[Row]) -> None:
    use_ascii(True)
    try:
        rows = Rows({"a": ("数", 1), "b": ("ok", 99)})
        async with deck(table).run_test(size=(60, 6)) as pilot:
            rows.give(table)
            table.sort_by("value", True)
            table.mark_all()
            await pilot.pause()
            assert "".join(pilot.app.lines()).isascii()
    finally:
        use_ascii(False)


async def test_a_click_moves_and_a_heading_sorts(deck: Any, table: VirtualTable[Row]) -> None:
    rows = Rows.many(20)
    kept, hook = messages()
    async with deck(table).run_test(size=(80, 24), message_hook=hook) as pilot:
        rows.give(table)
        await pilot.pause()
        await pilot.click(table, offset=(5, 4))
        assert table.cursor_key == "k0003"
        await pilot.click(table, offset=(5, 6), times=2)
        await pilot.pause()
        assert [message.key for message in kept if isinstance(message, VirtualTable.Opened)] == ["k0005"]
        await pilot.click(table, offset=(3, 0))
        assert (table.sort_key, table.sort_reverse) == ("name", False)
        await pilot.click(table, offset=(3, 0))
        assert (table.sort_key, table.sort_reverse) == ("name", True)


async def test_colours_follow_theme_and_focus(deck: Any, table: VirtualTable[Row]) -> None:
    other: VirtualTable[Row] = VirtualTable(COLUMNS)
    async with deck(table, other, css="VirtualTable { height: 5; }").run_test(size=(80, 12)) as pilot:
        Rows.many(3).give(table)
        table.focus()
        await pilot.pause()
        dark, focused = table.palette.style("ok"), table.palette.style("", "cursor")
        other.focus()
        await pilot.pause()
        assert table.palette.style("", "cursor") != focused
        pilot.app.theme = "raydeck-light"
        await pilot.pause()
        assert table.palette.style("ok") != dark
        background = table.palette.blank.bgcolor
        assert background is not None
        assert background.name == "#eeeeee"


@pytest.mark.parametrize("width", [20, 32, 40, 80, 200])
def test_columns_are_left_out_by_their_number_and_fill_the_width(width: int) -> None:
    shown = lay_out(COLUMNS, width)
    keys = [column.key for column, _ in shown]
    assert keys == {20: ["name", "value"], 32: ["name", "value", "note"]}.get(width, EVERY)
    total = GUTTER + sum(wide for _, wide in shown) + len(shown) - 1
    assert total == width
    assert all(wide >= column.width for column, wide in shown)


# Against a naive model

NAMES = [f"{letter}{digit}" for letter in "abc" for digit in "0123"]
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("rows"), st.lists(st.sampled_from(NAMES), unique=True, max_size=12)),
        st.tuples(st.just("change"), st.dictionaries(st.sampled_from(NAMES), st.one_of(st.none(), st.integers(0, 5)))),
        st.tuples(st.just("filter"), st.sampled_from(["", "a", "!a", "0", "zz", "B"])),
        st.tuples(st.just("sort"), st.tuples(st.sampled_from([None, "name", "value"]), st.booleans())),
        st.tuples(st.just("move"), st.sampled_from(NAMES)),
        st.tuples(st.just("step"), st.sampled_from([-20, -1, 1, 20])),
        st.tuples(st.just("mark"), st.none()),
    ),
    max_size=15,
)


class Naive:
    """The same table, thought of in the plainest way."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.rows: dict[str, Row] = {}
        self.filter = ""
        self.sort: str | None = None
        self.reverse = False
        self.view: list[str] = []
        self.cursor: str | None = None
        self.chosen = False
        self.marked: set[str] = set()

    def arrange(self) -> None:
        old = self.view.index(self.cursor) if self.cursor is not None else 0
        needle = self.filter.lstrip("!").lower()
        texts = {key: " ".join(self.texts(key)).lower() for key in self.keys}
        view = [key for key in self.keys if not needle or (needle in texts[key]) != self.filter.startswith("!")]
        if self.sort == "name":
            view.sort(key=lambda key: self.rows[key][0], reverse=self.reverse)
        if self.sort == "value":
            known = [key for key in view if self.rows[key][1] is not None]
            known.sort(key=lambda key: self.rows[key][1] or 0, reverse=self.reverse)
            view = known + [key for key in view if key not in known]
        self.view = view
        if not view:
            self.cursor = None
        elif not self.chosen:
            self.cursor = view[0]
        elif self.cursor not in view:
            self.cursor = view[0] if self.cursor in self.keys else view[min(old, len(view) - 1)]

    def texts(self, key: str) -> list[str]:
        row = self.rows[key]
        return [*(span.text for column in COLUMNS for span in _spans(column.cell(row)))]


def _spans(cell: Cell | tuple[Cell, ...]) -> tuple[Cell, ...]:
    return (cell,) if isinstance(cell, Cell) else cell


def _apply(table: VirtualTable[Row], naive: Naive, name: str, value: Any) -> None:
    if name == "rows":
        naive.keys = value
        naive.rows = {key: naive.rows.get(key, (f"node {key}", len(key))) for key in value}
        naive.marked &= set(value)
        table.set_rows(value, naive.rows.__getitem__)
    elif name == "change":
        for key, number in value.items():
            if key in naive.rows:
                naive.rows[key] = (naive.rows[key][0], number)
        table.touch(set(value))
        table.set_rows(naive.keys, naive.rows.__getitem__)
    elif name == "filter":
        naive.filter = value
        table.set_filter(value)
    elif name == "sort":
        naive.sort, naive.reverse = value[0], value[1] and value[0] is not None
        table.sort_by(*value)
    elif name == "move":
        if table.move_to(value):
            naive.chosen, naive.cursor = True, value
        assert (value in naive.view) == (table.cursor_key == value)
    elif name == "step":
        table.action_cursor(value)
        if naive.view and naive.cursor is not None:
            naive.chosen = True
            naive.cursor = naive.view[min(max(naive.view.index(naive.cursor) + value, 0), len(naive.view) - 1)]
    elif name == "mark":
        table.toggle_mark()
        if naive.cursor is not None:
            naive.marked ^= {naive.cursor}
    naive.arrange()


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(operations=OPERATIONS)
def test_any_operations_come_to_what_a_naive_table_shows(deck: Any, operations: list[tuple[str, Any]]) -> None:
    async def play() -> None:
        table: VirtualTable[Row] = VirtualTable(COLUMNS)
        naive = Naive()
        async with deck(table).run_test(size=(60, 8)) as pilot:
            for name, value in operations:
                _apply(table, naive, name, value)
                assert list(table.view) == naive.view
                assert table.cursor_key == naive.cursor
                assert table.marked == naive.marked
            await pilot.pause()
            lines = pilot.app.lines()
            if naive.cursor is not None:
                y = naive.view.index(naive.cursor) - table.scroll_offset.y + 1
                sign = "●" if naive.cursor in naive.marked else "▸"
                assert lines[y].startswith(f"{sign} {naive.rows[naive.cursor][0]}")

    asyncio.run(play())
