"""How fast services answer: from a node's metrics, as Ray 2.60 writes them, to what a triage knows."""

from __future__ import annotations

import asyncio
import bisect
import http.server
import math
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from console.triage import services
from console.triage.asked import Answer, Answers, Task
from console.triage.latency import ENOUGH, NAMES, Figures, pace, quantile, total
from console.triage.nodes import Machine
from console.triage.services import time_services
from console.triage.serving import Timed, serve_evidence
from jobs.errors import Unreachable
from jobs.triage.evidence import NodeEvidence
from probes.reading import Process, Sample
from tests.unit.console.test_triage_remote import run, value

BOUNDS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, math.inf)
_REST = 'otel_scope_name="ray._private.telemetry",otel_scope_version=""'


def lines(times: list[float], replica: str = "", application: str = "chat") -> list[str]:
    """What a node tells after it answered so fast: a replica's histogram, or (without one) that of its entry."""
    name = NAMES[1] if replica else NAMES[0]
    part = f'deployment="llm",replica="{replica}"' if replica else 'method="GET",status_code="200"'
    found: list[str] = []
    for bound in BOUNDS:
        le = "+Inf" if math.isinf(bound) else f"{bound}"
        count = float(sum(time <= bound for time in times))
        labels = f'Component="core_worker",application="{application}",{part},le="{le}",route="/a{{b}}",{_REST}'
        found.append(f"{name}{{{labels}}} {count}")
    return found


def figures(*parts: list[str]) -> Figures:
    found = Figures()
    for part in parts:
        found.take(part)
    return found


def test_nodes_are_summed_and_each_replica_is_told_apart() -> None:
    queued = f'{NAMES[2]}{{application="chat",deployment="llm",{_REST}}} 3.0'
    found = figures(lines([30.0] * 10), lines([80.0] * 5), lines([30.0] * 4, "r1"), lines([80.0] * 6, "r2"), [queued])
    assert total(found.requests["chat"]) == 15.0
    assert found.requests["chat"][50.0] == 10.0
    assert total(found.replicas["chat", "r1"]) == 4.0
    assert total(found.replicas["chat", "r2"]) == 6.0
    assert found.queued == {"chat": 3.0}


def test_what_is_called_from_within_ray_alone_is_timed_by_its_replicas() -> None:
    found = figures(lines([30.0] * 4, "r1"), lines([80.0] * 6, "r2"))
    assert total(found.of("chat")) == 10.0
    assert found.of("chat")[50.0] == 4.0
    assert found.of("other") == {}


@pytest.mark.parametrize(
    "line",
    [
        "",
        "ray_serve_http_request_latency_ms_bucket 3",
        'ray_serve_http_request_latency_ms_bucket{application="a",le="x"} 3',
        'ray_serve_http_request_latency_ms_bucket{application="a",le="1"} many',
        'ray_serve_http_request_latency_ms_bucket{application="a",le="1"} NaN',
        'ray_serve_http_request_latency_ms_bucket{application="a",le="1"} -4',
        'ray_serve_other{application="a",le="1"} 3',
    ],
)
def test_a_line_that_is_not_as_ray_writes_it_is_passed_over(line: str) -> None:
    assert figures([line]) == Figures()


@given(st.lists(st.floats(0.01, 999.0), min_size=1, max_size=300), st.sampled_from([0.5, 0.95, 1.0]))
def test_a_quantile_lies_in_the_bucket_of_the_true_one(times: list[float], share: float) -> None:
    found = quantile(figures(lines(times)).requests["chat"], share)
    true = sorted(times)[math.ceil(len(times) * share) - 1]
    at = bisect.bisect_left(BOUNDS, true)
    assert ([0.0, *BOUNDS][at]) <= found <= BOUNDS[at]


def test_what_lies_above_the_last_bound_is_told_as_that_one() -> None:
    assert quantile(figures(lines([90_000.0] * 30)).requests["chat"], 0.95) == 1000.0
    with pytest.raises(ValueError, match="no answers"):
        quantile({1.0: 0.0}, 0.95)


def test_the_time_between_two_readings_counts_where_enough_was_answered_in_it() -> None:
    slow, quick = [900.0] * 100, [8.0] * ENOUGH
    before, now = figures(lines(slow)).of("chat"), figures(lines(slow + quick)).of("chat")
    lately = pace(now, before, 11.0)
    assert lately is not None
    assert lately.p95_milliseconds < 10.0
    assert (lately.answers, lately.seconds) == (ENOUGH, 11.0)
    ever = pace(now, now, 11.0)
    assert ever is not None
    assert ever.p95_milliseconds > 500.0
    assert (ever.answers, ever.seconds) == (120, None)
    assert pace(figures(lines(quick[1:])).of("chat"), None, 0.0) is None
    # Begun anew in between: its counts fell.
    again = pace(figures(lines(quick * 2)).of("chat"), before, 11.0)
    assert again is not None
    assert again.seconds is None


# --- asked of nodes ---------------------------------------------------------------------------------------------------

RAW: dict[str, Any] = {
    "proxies": {"n1": {"status": "HEALTHY"}, "n9": {"status": "HEALTHY"}},
    "applications": {
        "chat": {"status": "RUNNING", "deployments": {"llm": {"replicas": [
            {"replica_id": "r1", "state": "RUNNING", "node_id": "n1", "pid": 11},
            {"replica_id": "r2", "state": "RUNNING", "node_id": "n2", "pid": 22}]}}},
        "quick": {"status": "RUNNING", "deployments": {}},
    },
}  # fmt: skip
NAMED = {"n1": "gpu-1", "n2": "gpu-2", "n9": "gpu-9"}


class Asked:
    """Nodes that answer as they are told to, and remember what they were asked."""

    def __init__(self, told: dict[str, list[Any]]) -> None:
        self.told = told
        self.tasks: list[tuple[str, Task]] = []

    async def ask(self, name: str, tasks: list[Task], seconds: float) -> Answers:
        del seconds
        self.tasks.append((name, tasks[0]))
        answer = self.told[name].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Answers(0.0, 0.0, "ops", [answer if isinstance(answer, Answer) else Answer(answer)])


def machine(**raylet: Any) -> Machine:
    return Machine(Answers(0.0, 0.0, "ops", []), 0.0, raylet)


async def timed(
    told: dict[str, list[Any]], promised: dict[str, float], raw: Any = RAW
) -> tuple[Timed, list[str], Asked]:
    nodes, unread = Asked(told), list[str]()
    machines = {"gpu-1": machine(session_dir="/s", metrics_export_port="812"), "gpu-2": machine(session_dir="/s")}
    found = await time_services(raw, NAMED, machines, nodes, promised, unread)  # type: ignore[arg-type]
    return found, unread, nodes


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "PERIOD_SECONDS", 0.0)


@pytest.mark.usefixtures("at_once")
async def test_a_promise_is_judged_by_what_was_answered_lately() -> None:
    first = {"gpu-1": lines([10.0] * 90) + lines([10.0] * 90, "r1"), "gpu-2": lines([10.0] * 90, "r2")}
    then = {
        "gpu-1": lines([10.0] * 90 + [10.0] * 30 + [400.0] * 30) + lines([10.0] * 120, "r1"),
        "gpu-2": lines([10.0] * 90 + [400.0] * 30, "r2"),
    }
    found, unread, nodes = await timed({name: [first[name], then[name]] for name in first}, {"chat": 100.0})
    assert unread == []
    assert {name for name, _ in nodes.tasks} == {"gpu-1", "gpu-2"}
    assert nodes.tasks[0][1].arguments == {"node_id": "n1", "session_dir": "/s", "port": 812, "names": list(NAMES)}
    sample = Sample(index=[0, 1], columns={"utilization_percent": [3, 97]}, processes=[Process(1, 22)])
    serve = serve_evidence(RAW, NAMED, found, {"gpu-2": NodeEvidence("gpu-2", sample=sample)})
    assert serve is not None
    assert (serve.name, serve.limit_milliseconds, serve.answers) == ("chat", 100.0, 60)
    assert serve.answers_seconds is not None
    assert (serve.p95_milliseconds or 0.0) > 200.0
    late = {each.id: (each.p95_milliseconds or 0.0) > 200.0 for each in serve.replicas}
    assert late == {"r1": False, "r2": True}
    assert [each.gpu_percent for each in serve.replicas] == [None, 97.0]


@pytest.mark.usefixtures("at_once")
async def test_the_service_that_breaks_its_promise_most_is_told() -> None:
    told = lines([400.0] * 30) + lines([90.0] * 30, application="quick")
    found, _, _ = await timed({"gpu-1": [told, told], "gpu-2": [[], []]}, {"chat": 500.0, "quick": 20.0})
    serve = serve_evidence(RAW, NAMED, found)
    assert serve is not None
    assert serve.name == "quick"


async def test_without_a_promise_or_replicas_to_compare_one_reading_is_enough() -> None:
    found, unread, nodes = await timed({"gpu-1": [lines([400.0] * 30)], "gpu-2": [Answer(reason="no port")]}, {})
    assert len(nodes.tasks) == 2
    assert found.earlier is None
    assert unread == ["how fast services answer on gpu-2: no port"]
    serve = serve_evidence(RAW, NAMED, found)
    assert serve is not None
    assert (serve.answers, serve.limit_milliseconds) == (30, None)


@pytest.mark.usefixtures("at_once")
async def test_a_node_that_does_not_answer_is_one_sentence() -> None:
    gone = Unreachable("gpu-2: the connection was lost")
    found, unread, _ = await timed({"gpu-1": [[], 7], "gpu-2": [gone, gone]}, {"chat": 500.0})
    assert unread == [
        "how fast services answer on gpu-2: gpu-2: the connection was lost",
        "how fast services answer on gpu-1: it answered what is no list",
    ]
    assert found.now == Figures()


async def test_where_nothing_is_served_nobody_is_asked() -> None:
    found, _, nodes = await timed({}, {"chat": 5.0}, {"applications": {}})
    assert (found.earlier, nodes.tasks) == (None, [])


# --- on a node --------------------------------------------------------------------------------------------------------


class Metrics(http.server.BaseHTTPRequestHandler):
    """Ray's agent of a node, as far as its metrics go."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        others = ["# HELP x", 'ray_tasks{State="RUNNING"} 4.0']
        self.wfile.write("\n".join([*others, *lines([5.0])]).encode())

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Nobody reads it."""


async def test_a_node_finds_the_port_that_its_agent_wrote_down(tmp_path: Path) -> None:
    server = http.server.HTTPServer(("127.0.0.1", 0), Metrics)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        port = server.server_address[1]
        (tmp_path / "metrics_export_port_ab").write_text(str(port))
        asked = {"node_id": "ab", "session_dir": str(tmp_path), "port": 0, "names": list(NAMES)}
        assert await asyncio.to_thread(value, "serving", **asked) == lines([5.0])
        other = {**asked, "node_id": "none", "port": port}
        assert len(await asyncio.to_thread(value, "serving", **other)) == len(BOUNDS)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    told = run([("serving", asked), ("serving", {**asked, "node_id": "none"})])["answers"]
    assert told[0] == {"reason": "Connection refused"}
    assert told[1] == {"reason": "Ray does not say on which port its metrics are"}
