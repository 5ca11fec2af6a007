"""The page of figures: read back by Prometheus' own parser, and served to nobody but this machine."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.alertview import AlertsView, Matcher, Silence
from jobs.controller.prometheus import CONTENT_TYPE, Exposition, Sources, serve
from jobs.errors import Refused
from jobs.model import RunState
from jobs.queueview import QueueUse, QueueView
from tests.unit.notify_harness import acknowledged, alert

_LINE = re.compile(r'([a-z_]+)(?:\{((?:[a-z_]+="(?:[^"\\\n]|\\.)*",?)*)\})? (\S+)')
_LABEL = re.compile(r'([a-z_]+)="((?:[^"\\\n]|\\.)*)"')
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}
Read = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def parsed(text: str) -> Read:
    """Name and labels to the figure. Fails for what is not the text format."""
    assert text.endswith("\n")
    found: Read = {}
    typed: set[str] = set()
    for line in text[:-1].split("\n"):
        if line.startswith("#"):
            _, word, name, _ = line.split(" ", 3)
            assert word in ("HELP", "TYPE")
            if word == "TYPE":
                assert name not in typed
                typed.add(name)
            continue
        match = _LINE.fullmatch(line)
        assert match is not None, line
        assert match[1] in typed
        labels = tuple(
            (name, re.sub(r"\\.", lambda found: _ESCAPES[found[0]], value))
            for name, value in _LABEL.findall(match[2] or "")
        )
        assert (match[1], labels) not in found
        found[match[1], labels] = float(match[3])
    return found


def sources(**changes: Any) -> Sources:
    given: dict[str, Any] = {
        "version": "1.2",
        "started_at": 1_700_000_000.5,
        "alerts": AlertsView,
        "runs": dict,
        "queue": lambda: None,
    }
    return Sources(**{**given, **changes})


@pytest.fixture
def folder() -> Iterator[Path]:
    """Short enough for a socket's name."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


def test_it_tells_of_alerts_runs_queues_and_itself() -> None:
    view = AlertsView(
        alerts=[
            alert("a"), alert("b"), acknowledged(alert("c")), alert("d", "warning", rule="disk.full", silenced_by="s"),
            alert("e", state="cleared"), alert("f", test=True),
        ],
        silences=[Silence(id="s", matcher=Matcher(rule="disk.full"), user="kim", at=1, until=2)],
        watched_nodes=7,
        unwatched={"gpu-9": "no answer"},
    )  # fmt: skip
    queue = QueueView(
        at=1.0,
        queues=[QueueUse(name="default", waiting=3, running=2, used_accelerators=8, waiting_accelerators=24),
                QueueUse(name="small", max_accelerators=4)],
        held_total=1, active_runs=2, accelerators=16, foreign_accelerators=None,
    )  # fmt: skip
    page = Exposition(
        sources(
            alerts=lambda: view,
            runs=lambda: {RunState.RUNNING: 2, RunState.QUEUED: 0},
            queue=lambda: queue,
            passes={"scheduling": lambda: 0.25, "health": lambda: None},
            notices=lambda: {"hook": 4},
        )
    )
    told = parsed(page.text())
    firing = {labels: value for (name, labels), value in told.items() if name == "raydeck_alerts_firing"}
    assert firing == {
        (("level", "critical"), ("rule", "gpu.lost"), ("handling", "open")): 2,
        (("level", "critical"), ("rule", "gpu.lost"), ("handling", "acknowledged")): 1,
        (("level", "warning"), ("rule", "disk.full"), ("handling", "silenced")): 1,
    }
    for name, labels, value in (
        ("raydeck_up", {}, 1),
        ("raydeck_build_info", {"version": "1.2"}, 1),
        ("raydeck_start_time_seconds", {}, 1_700_000_000.5),
        ("raydeck_alerts", {"level": "critical"}, 3),
        ("raydeck_alerts", {"level": "info"}, 0),
        ("raydeck_silences", {}, 1),
        ("raydeck_nodes_watched", {}, 7),
        ("raydeck_nodes_unwatched", {}, 1),
        ("raydeck_runs", {"state": "running"}, 2),
        ("raydeck_runs", {"state": "queued"}, 0),
        ("raydeck_queue_waiting_runs", {"queue": "default"}, 3),
        ("raydeck_queue_waiting_accelerators", {"queue": "default"}, 24),
        ("raydeck_queue_max_accelerators", {"queue": "small"}, 4),
        ("raydeck_accelerators", {}, 16),
        ("raydeck_pass_seconds", {"part": "scheduling"}, 0.25),
        ("raydeck_notices_waiting", {"sink": "hook"}, 4),
    ):
        assert told[name, tuple(labels.items())] == value


def test_what_is_not_known_is_left_out() -> None:
    told = {name for name, _ in parsed(Exposition(sources(passes={"health": lambda: None})).text())}
    assert told == {
        "raydeck_up", "raydeck_build_info", "raydeck_start_time_seconds", "raydeck_alerts", "raydeck_silences",
        "raydeck_nodes_watched", "raydeck_nodes_unwatched",
    }  # fmt: skip
    queue = QueueView(at=1.0, queues=[QueueUse(name="default")])
    told = {name for name, _ in parsed(Exposition(sources(queue=lambda: queue)).text())}
    assert "raydeck_queue_waiting_runs" in told
    assert not told & {"raydeck_queue_max_accelerators", "raydeck_accelerators", "raydeck_accelerators_free"}


@settings(deadline=None, max_examples=200)
@given(st.text(max_size=60), st.text(max_size=60))
def test_any_name_comes_through_and_none_breaks_the_page(rule: str, queue: str) -> None:
    page = Exposition(
        sources(
            alerts=lambda: AlertsView(alerts=[alert(rule=rule)]),
            queue=lambda: QueueView(at=1.0, queues=[QueueUse(name=queue, waiting=1)]),
        )
    )
    text = page.text()
    told = parsed(text.encode().decode())
    shown = [dict(labels)["rule"] for name, labels in told if name == "raydeck_alerts_firing"]
    assert shown[0].replace("?", "") == "".join(
        sign for sign in rule if sign == "\n" or not re.match(r"[\x00-\x1f\x7f\x85\u2028\u2029?\ud800-\udfff]", sign)
    )
    families = pytest.importorskip("prometheus_client.parser").text_string_to_metric_families(text)
    theirs = {
        sample.labels["rule"]
        for family in families
        for sample in family.samples
        if sample.name == "raydeck_alerts_firing"
    }
    assert theirs == set(shown)


async def _got(session: aiohttp.ClientSession, url: str) -> tuple[int, str, str]:
    async with session.get(url) as answer:
        return answer.status, answer.headers["Content-Type"], await answer.text()


async def test_a_socket_is_for_this_user_only_and_goes_when_it_is_closed(folder: Path) -> None:
    path = folder / "metrics.sock"
    before = os.umask(0)
    try:
        endpoint = await serve(f"unix:{path}", Exposition(sources()))
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
        status, kind, text = await _got(session, "http://raydeck/metrics")
        assert (status, kind) == (200, CONTENT_TYPE)
        assert parsed(text)["raydeck_up", ()] == 1
        assert (await _got(session, "http://raydeck/other"))[0] == 404
    with pytest.raises(Refused, match="is taken: somebody answers there"):
        await serve(f"unix:{path}", Exposition(sources()))
    await endpoint.close()
    assert not path.exists()


async def test_a_name_that_was_left_behind_is_taken_over_and_a_file_is_not(folder: Path) -> None:
    path = folder / "metrics.sock"
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    endpoint = await serve(f"unix:{path}", Exposition(sources()))
    await endpoint.close()
    path.write_text("precious")
    with pytest.raises(Refused, match="is no socket"):
        await serve(f"unix:{path}", Exposition(sources()))
    assert path.read_text() == "precious"
    with pytest.raises(Refused, match="No such file"):
        await serve(f"unix:{folder}/none/metrics.sock", Exposition(sources()))


async def test_loopback_is_served_and_nothing_else(folder: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    endpoint = await serve(f"127.0.0.1:{port}", Exposition(sources()))
    async with aiohttp.ClientSession() as session:
        assert (await _got(session, f"http://127.0.0.1:{port}/metrics"))[0] == 200
    with pytest.raises(Refused, match="cannot be opened: Address already in use"):
        await serve(f"127.0.0.1:{port}", Exposition(sources()))
    await endpoint.close()
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection("127.0.0.1", port)
    for elsewhere in (f"0.0.0.0:{port}", f"10.0.0.1:{port}", f"[::]:{port}", f":{port}", "unix:x", ""):
        with pytest.raises(Refused, match=r"alerting\.prometheus\.listen"):
            await serve(elsewhere, Exposition(sources()))
