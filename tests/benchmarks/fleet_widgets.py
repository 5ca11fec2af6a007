"""What the painted widgets cost: CPU, memory and key to paint, through a real pseudo-terminal, as ratios of one run.

``python -m tests.benchmarks.fleet_widgets`` prints the figures. The same file, with a case's name, is the program that
runs inside the pseudo-terminal.
"""

import asyncio
import contextlib
import fcntl
import json
import math
import os
import pty
import re
import select
import statistics
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROWS_SCREEN = (60, 200)
TICK_SECONDS = 1.0
GPUS = 8
CASES: dict[str, tuple[str, int]] = {
    "bare": ("bare", 0),
    "table 1000": ("table", 1000),
    "table 8000": ("table", 8000),
    "table 8000 sorted live": ("sorted", 8000),
    "table 8000 filtered": ("filtered", 8000),
    "heatmap 8000 GPUs": ("heatmap", 1000),
    "table 1000 and heatmap 8000 GPUs": ("fleet", 1000),
    "DataTable 1000": ("datatable", 1000),
    "log 50000 lines/s": ("log", 50_000),
}
BUDGETS = {"table_cpu_percent": 5.0, "key_p99_ms": 50.0, "heatmap_cpu_percent": 4.0}


Row = tuple[str, int, int]
"""Name, number and tick."""


class _Model:
    """Made-up figures of nodes, all of them other ones at each tick."""

    def __init__(self, nodes: int) -> None:
        self.keys = [f"node-{i:05d}" for i in range(nodes)]
        self.number = {key: i for i, key in enumerate(self.keys)}
        self.tick = 0

    def row(self, key: str) -> Row:
        return key, self.number[key], self.tick

    def level(self, node: int, gpu: int) -> float:
        return 50 + 50 * math.sin(node / 9 + gpu / 3 + self.tick / 5)

    def levels(self, key: str) -> Sequence[tuple[float, str]]:
        number = self.number[key]
        return [(self.level(number, gpu), "") for gpu in range(GPUS)]


def _columns(model: _Model) -> list[Any]:
    from console.render.cells import Cell, Column, age, bytes_text, level_style, mini_bars, percent, state_cell

    def load(row: Row) -> float:
        return (row[1] * 37 + row[2] * 11) % 101

    def figure(row: Row) -> Cell:
        return Cell(percent(load(row)), level_style(load(row)))

    columns: list[Column[Row]] = [
        Column("name", "node", 14, lambda row: Cell(row[0]), sort=lambda row: row[0], grow=True),
        Column("state", "state", 10, lambda row: state_cell("alive" if row[1] % 9 else "dead")),
        Column("gpus", "gpus", GPUS, lambda row: mini_bars([model.level(row[1], gpu) for gpu in range(GPUS)])),
        Column("util", "util", 5, figure, "right", sort=load),
        Column("memory", "memory", 7, lambda row: Cell(bytes_text(load(row) * 8e8)), "right", sort=load),
        Column("power", "power", 6, lambda row: Cell(f"{load(row) * 7:.0f}W"), "right"),
        Column("heat", "heat", 5, lambda row: Cell(f"{30 + load(row) / 2:.0f}C"), "right"),
        Column("cpu", "cpu", 5, figure, "right"),
        Column("net", "net", 7, lambda row: Cell(bytes_text(load(row) * 3e6)), "right"),
        Column("age", "age", 7, lambda row: Cell(age(row[1] + row[2])), "right", sort=lambda row: row[1]),
        Column("run", "run", 16, lambda row: Cell(f"llama-{row[1] % 7}")),
        Column("note", "note", 12, lambda row: Cell("", "muted")),
    ]
    return columns


def _app(kind: str, size: int) -> Any:
    """The app of one case."""
    from textual.app import App, ComposeResult
    from textual.widgets import DataTable, Static

    from console.theme import THEMES
    from console.widgets.buffer import LineBuffer
    from console.widgets.heatmap import Heatmap
    from console.widgets.log import LogView
    from console.widgets.table import VirtualTable

    model = _Model(size if kind != "log" else 0)
    columns = _columns(model)

    class Bench(App[None]):
        ENABLE_COMMAND_PALETTE = False
        CSS = "VirtualTable, LogView, DataTable { height: 1fr; }"

        def compose(self) -> ComposeResult:
            if kind in ("heatmap", "fleet"):
                yield Heatmap(model.levels, max_lines=48 if kind == "heatmap" else 20)
            if kind in ("table", "sorted", "filtered", "fleet"):
                yield VirtualTable(columns)
            if kind == "datatable":
                yield DataTable[str](cursor_type="row")
            if kind == "log":
                yield LogView(LineBuffer(100_000))
            if kind == "bare":
                yield Static("0")

        def on_mount(self) -> None:
            for theme in THEMES:
                self.register_theme(theme)
            self.theme = "raydeck-dark"
            if found := self.query(VirtualTable):
                table: VirtualTable[Any] = found.first()
                table.set_rows(model.keys, model.row)
                if kind == "sorted":
                    table.sort_by("util", True)
                if kind == "filtered":
                    table.set_filter("node")
                table.focus()
            if maps := self.query(Heatmap):
                maps.first().set_groups([(key, GPUS) for key in model.keys])
            if kind == "datatable":
                data = self.query_one(DataTable[str])
                for column in columns:
                    data.add_column(column.title, key=column.key, width=column.width)
                for key in model.keys:
                    data.add_row(*_texts(columns, model.row(key)), key=key)
                data.focus()
            if kind == "log":
                self.query_one(LogView).focus()
                self.run_worker(self._write(size))
            self.set_interval(TICK_SECONDS, self._tick)

        def _tick(self) -> None:
            model.tick += 1
            changed = set(model.keys)
            for table in self.query(VirtualTable):
                table.touch(changed)
            for heatmap in self.query(Heatmap):
                heatmap.touch(changed)
            if kind == "datatable":
                data = self.query_one(DataTable[str])
                for key in model.keys:
                    for column, text in zip(columns, _texts(columns, model.row(key)), strict=True):
                        data.update_cell(key, column.key, text)
            if kind == "bare":
                self.query_one(Static).update(str(model.tick))

        async def _write(self, lines_a_second: int) -> None:
            view = self.query_one(LogView)
            buffer = view.source
            assert isinstance(buffer, LineBuffer)
            lines = [f"2026-01-01 12:00:00.{i:03d} INFO step={i} loss={9 / (i + 1):.4f} lr=3e-4" for i in range(1000)]
            begun, written = time.perf_counter(), 0
            while True:
                due = int((time.perf_counter() - begun) * lines_a_second)
                while written < due:
                    part = lines[: min(len(lines), due - written)]
                    buffer.append(part, rank=written % 8)
                    written += len(part)
                view.grew()
                await asyncio.sleep(0.02)

    return Bench()


def _texts(columns: Sequence[Any], row: Any) -> list[str]:
    from console.render.cells import spans_of

    return ["".join(span.text for span in spans_of(column.cell(row))) for column in columns]


# The side that measures


@dataclass
class Figures:
    """What one case came to."""

    cpu_percent: float
    """Of one core, while figures change once a second and nobody types."""
    rss_mb: float
    first_paint_ms: float
    keys_ms: list[float]
    output_bytes_per_second: float

    def quantile(self, share: float) -> float | None:
        """This share of the keys was painted within so many milliseconds."""
        if not self.keys_ms:
            return None
        ordered = sorted(self.keys_ms)
        return round(ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)], 1)


class _Terminal:
    """A program in a pseudo-terminal of 200 by 60, and what it has written since it was last asked."""

    def __init__(self, arguments: Sequence[str]) -> None:
        self._fd, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", *ROWS_SCREEN, 0, 0))
        environ = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
        environ["PYTHONPATH"] = str(Path(__file__).resolve().parents[2])
        self._process = subprocess.Popen(
            [sys.executable, __file__, *arguments], stdin=child, stdout=child, stderr=child, env=environ,
            start_new_session=True,
        )  # fmt: skip
        os.close(child)
        self.written = 0

    def read(self, seconds: float) -> bytes:
        """What comes within so many seconds; returns with the first part of it."""
        ready, _, _ = select.select([self._fd], [], [], max(0.0, seconds))
        if not ready:
            return b""
        try:
            data = os.read(self._fd, 1 << 20)
        except OSError:
            return b""
        self.written += len(data)
        return data

    def wait_for(self, found: Callable[[bytes], bool], seconds: float) -> float | None:
        """Read until the end of what came satisfies ``found``; the time it took in seconds, or ``None``.

        ``found`` must be quick: while it looks, nobody reads, and the time it takes would be counted.
        """
        begun = time.perf_counter()
        end = b""
        while (left := begun + seconds - time.perf_counter()) > 0:
            data = self.read(left)
            at = time.perf_counter()
            end = (end + data)[-65_536:]
            if data and found(end):
                return at - begun
        return None

    def drain(self, seconds: float) -> None:
        """Read for so long."""
        self.wait_for(lambda _: False, seconds)

    def press(self, key: str) -> None:
        os.write(self._fd, key.encode())

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def rss_mb(self) -> float:
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+)", status)
        assert found is not None
        return int(found[1]) / 1024

    def close(self) -> None:
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(3)
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(3)
        os.close(self._fd)


_PLAIN = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]|\x1b[=>]")
_CURSOR = "▸".encode()
_BEHIND_CURSOR = 400
"""Bytes after the cursor's sign among which its row's name stands."""


def _measure(name: str, *, seconds: float, keys: int) -> Figures:
    kind, _ = CASES[name]
    terminal = _Terminal([name])
    try:
        begun = time.perf_counter()
        sign = {"bare": b"0", "log": b"step=", "heatmap": b"idle"}.get(kind, b"node-")
        if terminal.wait_for(lambda end: sign in end, 60) is None:
            raise RuntimeError(f"{name}: nothing was painted within 60 s")
        first = (time.perf_counter() - begun) * 1000
        terminal.drain(2.5)
        cpu, at, written = terminal.cpu_seconds(), time.perf_counter(), terminal.written
        terminal.drain(seconds)
        spent = time.perf_counter() - at
        share = (terminal.cpu_seconds() - cpu) / spent * 100
        volume = (terminal.written - written) / spent
        times: list[float] = []
        if kind in ("table", "sorted", "filtered", "fleet"):
            times = _press_down(terminal, keys)
        elif kind == "log":
            times = _press_follow(terminal, keys)
        return Figures(round(share, 1), round(terminal.rss_mb(), 1), round(first), times, round(volume))
    finally:
        terminal.close()


def _press_down(terminal: _Terminal, keys: int) -> list[float]:
    """Press down and wait until another row than before is painted under the cursor."""
    times: list[float] = []
    row = re.compile(r"\A▸ (node-\d+)")
    last = ""

    def another(end: bytes) -> bool:
        nonlocal last
        at = end.rfind(_CURSOR)
        if at < 0:
            return False
        found = row.match(_PLAIN.sub("", end[at : at + _BEHIND_CURSOR].decode(errors="replace")))
        if found is None or found[1] == last:
            return False
        last = found[1]
        return True

    for i in range(keys):
        terminal.press("j")
        took = terminal.wait_for(another, 3)
        if took is not None and i:  # the first only tells where the cursor is
            times.append(took * 1000)
        terminal.drain(0.02 + 0.013 * (i % 5))
    return times


def _press_follow(terminal: _Terminal, keys: int) -> list[float]:
    """Stop and start following, and wait until the view says so."""
    times: list[float] = []
    for i in range(keys):
        terminal.press("f")
        if i % 2 == 0:  # "paused" is painted when following ends, and by nothing else
            took = terminal.wait_for(lambda end: b"paused" in end, 3)
            if took is not None:
                times.append(took * 1000)
        terminal.drain(0.11)
    return times


def run(*, seconds: float = 6.0, keys: int = 60, cases: Sequence[str] = tuple(CASES)) -> dict[str, Any]:
    """Measure all cases, one after the other.

    Returns:
        ``cases``: name to figures; ``ratios``: against the bare app and `DataTable` of the same run; ``budgets``: name
        to figure, limit and whether it is kept.
    """
    figures = {name: _measure(name, seconds=seconds, keys=keys) for name in cases}
    shown = {
        name: {
            "cpu_percent": case.cpu_percent,
            "rss_mb": case.rss_mb,
            "first_paint_ms": case.first_paint_ms,
            "key_p50_ms": round(statistics.median(case.keys_ms), 1) if case.keys_ms else None,
            "key_p99_ms": case.quantile(0.99),
            "keys": len(case.keys_ms),
            "output_bytes_per_second": case.output_bytes_per_second,
        }
        for name, case in figures.items()
    }
    result: dict[str, Any] = {"cases": shown, "ratios": {}, "budgets": {}}
    if bare := figures.get("bare"):
        for name, case in figures.items():
            result["ratios"][f"{name}: memory against a bare app"] = round(case.rss_mb / bare.rss_mb, 2)
    if data := figures.get("DataTable 1000"):
        for name in ("table 1000", "table 8000"):
            if name in figures:
                ratio = data.cpu_percent / max(0.1, figures[name].cpu_percent)
                result["ratios"][f"CPU of DataTable 1000 against {name}"] = round(ratio, 1)

    def budget(name: str, value: float | None, limit: float) -> None:
        result["budgets"][name] = {"value": value, "limit": limit, "kept": value is not None and value <= limit}

    if table := figures.get("table 8000"):
        budget("table 8000 cpu_percent", table.cpu_percent, BUDGETS["table_cpu_percent"])
        budget("table 8000 key_p99_ms", table.quantile(0.99), BUDGETS["key_p99_ms"])
    if heatmap := figures.get("heatmap 8000 GPUs"):
        budget("heatmap 8000 GPUs cpu_percent", heatmap.cpu_percent, BUDGETS["heatmap_cpu_percent"])
    return result


if __name__ == "__main__":
    if len(sys.argv) > 1 and sys.argv[1] in CASES:
        _app(*CASES[sys.argv[1]]).run()
    else:
        print(json.dumps(run(cases=sys.argv[1:][0].split(",") if len(sys.argv) > 1 else tuple(CASES)), indent=1))
