"""The recording over the controller's socket: the index, the bytes of a span, who is dropped; what goes into it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable

import pytest
from aiohttp import web

from console.sources.http import HttpTransport
from jobs.errors import Unreachable, Usage
from jobs.recordcalls import RecordCalls
from jobs.recording import Segment, segments
from jobs.recordwriter import Writer
from probes.reading import Driver, Facts, Health, Number, Sample, encode
from tests.unit.jobs.controller_harness import Harness, controller, short_folder
from tests.unit.jobs.ray_stand_in import RayStandIn
from tests.unit.recorded import parts, played, sample


async def until(so: Callable[[], object], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not so():
        assert time.monotonic() < deadline, "not in time"
        await asyncio.sleep(0.005)


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.controller.recorder.TICK_SECONDS", 0.02)


@pytest.fixture
async def ray() -> AsyncGenerator[RayStandIn]:
    stand_in = RayStandIn()
    async with stand_in.serving():
        yield stand_in


@pytest.fixture
async def desk(ray: RayStandIn) -> AsyncGenerator[Harness]:
    """A controller in whose folder five minutes were recorded before it began."""
    async with short_folder() as store:
        writer, since = Writer(store / "recorder"), time.time() - 300
        for second in range(0, 290, 2):
            writer.take_sample("gpu-1", sample(second % 100), since + second)
        writer.close()
        async with controller(ray, store, ticks=False) as harness:
            harness.service.recorder.start()
            await until(lambda: harness.service.recorder.index().segments)
            yield harness


async def fetched(calls: RecordCalls, since: float, until: float) -> list[Segment]:
    return segments(b"".join([piece async for piece in calls.recording(since, until)]))


async def test_the_index_and_the_bytes_come_over_the_socket(desk: Harness) -> None:
    calls = RecordCalls.beside(desk.client)
    index = await calls.recording_index()
    assert len(index.segments) == 5
    assert abs(index.now - time.time()) < 5
    assert index.trouble == ""
    wanted = index.segments[1:4]
    found = await fetched(calls, wanted[0].since + 1, wanted[-1].since + 1)
    assert [part.info() for part in found] == [
        each.model_copy(update={"until": part.until}) for each, part in zip(wanted, found, strict=True)
    ]
    everything = await fetched(calls, 0, 1e12)
    assert [part.seq for part in everything] == [1, 2, 3, 4, 5]
    assert RecordCalls.beside(calls) is calls


async def test_what_is_told_just_now_is_in_what_is_sent(desk: Harness) -> None:
    desk.service.recorder.take_sample("gpu-9", sample(42))
    found = await fetched(RecordCalls.beside(desk.client), time.time() - 5, 1e12)
    assert played(found[-1]).nodes["gpu-9"].sampled_at == pytest.approx(time.time(), abs=5)


@pytest.mark.parametrize(("since", "until"), [(float("nan"), 1.0), (-1.0, 1.0), (9.0, 1.0), (0.0, float("inf"))])
async def test_a_span_that_is_none_is_refused(desk: Harness, since: float, until: float) -> None:
    with pytest.raises(Usage, match=r"since|until"):
        await fetched(RecordCalls.beside(desk.client), since, until)


async def test_a_minute_that_goes_while_it_is_sent_is_left_out(desk: Harness) -> None:
    desk.service.recorder.files(0, 1e12)[1].unlink()
    found = await fetched(RecordCalls.beside(desk.client), 0, 1e12)
    assert [part.seq for part in found] == [1, 3, 4, 5]


async def test_more_than_a_recording_can_be_is_not_read(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.recordcalls.RECORDING_LIMIT_BYTES", 1000)
    with pytest.raises(Unreachable, match="sent more than"):
        await fetched(RecordCalls.beside(desk.client), 0, 1e12)


async def test_whoever_takes_nothing_is_dropped(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.controller.recordroutes.LISTENER_SECONDS", 0.1)
    big = desk.service.recorder.files(0, 1e12)[0]
    with big.open("ab") as file:
        file.truncate(64 * 1024 * 1024)
    reader, writer = await asyncio.open_unix_connection(str(desk.store / "controller.sock"), limit=1024)
    writer.write(b"GET /v1/recording HTTP/1.1\r\nHost: controller\r\n\r\n")
    assert (await reader.readline()).startswith(b"HTTP/1.1 200")
    await asyncio.sleep(0.25)  # the time in which nothing is read
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
        await reader.readexactly(70 * 1024 * 1024)
    writer.close()


@pytest.mark.parametrize("how", ["silent", "cut"])
async def test_a_recording_that_stops_on_the_way_is_no_recording(how: str) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        response.content_length = 1000
        await response.prepare(request)
        await response.write(b"half")
        if how == "silent":
            await asyncio.sleep(5)
        assert request.transport is not None
        request.transport.abort()
        return response

    app = web.Application()
    app.router.add_get("/v1/recording", answer)
    async with short_folder() as folder:
        web_runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
        await web_runner.setup()
        await web.UnixSite(web_runner, str(folder / "s")).start()
        transport = HttpTransport.to_socket(str(folder / "s"))
        try:
            with pytest.raises(Unreachable, match="stopped coming for 0.1 s" if how == "silent" else "no controller"):
                await fetched(RecordCalls(transport, silence_seconds=0.1), 0, 1)
        finally:
            await transport.close()
            await web_runner.cleanup()


async def test_what_probes_runs_and_ray_tell_goes_into_it(ray: RayStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jobs.controller.health.tape.CLUSTER_SECONDS", 0.05)
    monkeypatch.setattr("jobs.recordwriter.VIEW_SECONDS", {})
    async with short_folder() as store, controller(ray, store) as desk:
        recorder, fleet = desk.service.recorder, desk.service.health.fleet
        recorder.start()
        await until(lambda: "worker-1" in fleet.nodes, 10)
        node = b"worker-1".hex()
        columns: dict[str, list[Number | None]] = {"utilization_percent": [10.0] * 4}
        for line in (
            Facts(hostname="worker-1", source="nvml"),
            Sample(seq=1, wall=time.time(), driver=Driver("blocked", "it hangs", 60.0), index=[0, 1, 2, 3],
                   columns=columns),
            Health(wall=time.time(), oom_kills=2),
        ):  # fmt: skip
            fleet.line(node, line, encode(line))
        launched = await desk.launch()

        deadline = time.monotonic() + 10
        while True:
            await recorder.fresh()
            player = played(parts(store / "recorder")[-1], time.time() + 60)
            rows = {row["name"]: row for row in player.views.get("cluster", {"nodes": []})["nodes"]}
            if "worker-1" in rows and "queue" in player.views and launched.id in player.runs:
                break
            assert time.monotonic() < deadline, (rows, player.views.keys(), player.runs.keys())
            await asyncio.sleep(0.05)
        worker = player.nodes["worker-1"]
        line, known, health = worker.sample(), worker.facts(), worker.health()
        assert line is not None
        assert line.columns["utilization_percent"] == [10] * 4
        assert worker.states["driver"][:2] == ("blocked", "it hangs")
        assert worker.states["ray"][0] == "alive"
        assert known is not None
        assert known.source == "nvml"
        assert health is not None
        assert health.oom_kills == 2
        assert (rows["worker-1"]["gpus_total"], rows["head"]["role"]) == (4.0, "head")
