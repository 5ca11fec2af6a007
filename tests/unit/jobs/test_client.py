"""The controller's routes as typed calls, against a real server on a Unix socket that answers well and badly."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from console.sources.http import HttpTransport
from jobs.client import ControllerClient
from jobs.errors import Busy, RaydeckError, Refused, Unreachable, Usage
from jobs.load import FileMistakes
from jobs.model import Move, Progress, Run, RunState
from jobs.queueview import Explanation, QueueView
from jobs.wire import (
    ArrangeRequest,
    AuditEntry,
    CheckpointRow,
    ControllerStatus,
    Heartbeat,
    LaunchRequest,
    Mistake,
    QueueChanged,
    ReleaseRow,
    Restarted,
    RestartRequest,
    Rollback,
    RollbackRequest,
    RunChanged,
    Snapshot,
    StopRequest,
    UndoRequest,
)

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

RUN = Run(id="lm-1", workflow="lm", release="lm-r-1", state=RunState.RUNNING, nodes=2, gpus=4, submitted_at=1.0)
STATUS = ControllerStatus(
    version="0.1", code_digest="c", pid=1, user="u", host="h", python="p", started_at=1.0, dashboard="d", ray="ok",
    metadata_store="/m", supervised_by="none", you="alice", role="operator",
)  # fmt: skip
ROLLBACK = Rollback(id="lm-rb-1", workflow="lm", at=1.0, user="u", to_release="lm-r-1", stopped=["lm-1"])


@asynccontextmanager
async def serving(folder: Path, handler: Handler, **limits: Any) -> AsyncGenerator[ControllerClient]:
    """A client whose socket this handler serves."""
    app = web.Application(client_max_size=2**24)
    app.router.add_route("*", "/{rest:.*}", handler)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    path = str(folder / "c.sock")
    await web.UnixSite(runner, path).start()
    transport = HttpTransport.to_socket(path)
    try:
        yield ControllerClient(transport, **limits)
    finally:
        await transport.close()
        await runner.cleanup()


def replying(*answers: Any, status: int = 200) -> tuple[Handler, list[tuple[str, str, bytes]]]:
    """A handler that gives these bodies one after the other, and the list of what it was asked."""
    asked: list[tuple[str, str, bytes]] = []
    left = list(answers)

    async def handler(request: web.Request) -> web.StreamResponse:
        asked.append((request.method, request.path_qs, await request.read()))
        answer = left.pop(0)
        body = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        return web.Response(body=body, status=status)

    return handler, asked


async def test_each_read_has_its_route(tmp_path: Path) -> None:
    progress = Progress(step=3, loss=0.5)
    release = ReleaseRow(id="r", workflow="lm", created_at=1.0, user="u", config={}, code_digest="c", runs=2)
    entry = AuditEntry(seq=1, at=1.0, user="u", action="stop", target="lm-1", allowed=True, reason="", hash="h")
    move = Move(at=1.0, after=RunState.QUEUED, actor="u")
    explanation = Explanation(run="lm-1", state=RunState.QUEUED, sentence="it waits")
    checkpoint = CheckpointRow(step=40, path="/c", complete=True)
    queue = QueueView(at=1.0, waiting_total=3)
    run = RUN.model_dump(mode="json")
    handler, asked = replying(
        STATUS.model_dump(mode="json"),
        {"runs": [run]},
        {"runs": [run]},
        {**run, "a_field_from_tomorrow": 1},
        {"points": [progress.model_dump(mode="json")]},
        {"moves": [move.model_dump(mode="json")]},
        explanation.model_dump(mode="json"),
        {"checkpoints": [checkpoint.model_dump(mode="json")]},
        queue.model_dump(mode="json"),
        {"releases": [release.model_dump(mode="json")]},
        {"rollbacks": [ROLLBACK.model_dump(mode="json")]},
        {"entries": [entry.model_dump(mode="json")]},
    )
    async with serving(tmp_path, handler) as client:
        assert await client.status() == STATUS
        assert await client.runs(7) == [RUN]
        assert await client.runs(sweep="lm-s") == [RUN]
        assert await client.run("lm-1") == RUN
        assert await client.series("lm-1", 5) == [progress]
        assert await client.moves("lm-1") == [move]
        assert await client.explain("lm-1") == explanation
        assert await client.checkpoints("lm-1") == [checkpoint]
        assert await client.queue(20, 10) == queue
        assert await client.releases("lm") == [release]
        assert await client.rollbacks() == [ROLLBACK]
        assert await client.audit(3) == [entry]
    assert [(method, path) for method, path, _ in asked] == [
        ("GET", "/v1/status"),
        ("GET", "/v1/runs?limit=7"),
        ("GET", "/v1/runs?limit=200&sweep=lm-s"),
        ("GET", "/v1/runs/lm-1"),
        ("GET", "/v1/runs/lm-1/series?points=5"),
        ("GET", "/v1/runs/lm-1/moves"),
        ("GET", "/v1/runs/lm-1/explain"),
        ("GET", "/v1/runs/lm-1/checkpoints"),
        ("GET", "/v1/queue?offset=20&limit=10"),
        ("GET", "/v1/releases?workflow=lm"),
        ("GET", "/v1/rollbacks"),
        ("GET", "/v1/audit?limit=3"),
    ]


async def test_each_write_has_its_route(tmp_path: Path) -> None:
    run = RUN.model_dump(mode="json")
    restarted = Restarted(run=RUN, from_step=40)
    rollback = ROLLBACK.model_dump(mode="json")
    handler, asked = replying(
        b"", {"runs": [run, run]}, run, restarted.model_dump(mode="json"), run, rollback, rollback, status=201
    )
    launch = LaunchRequest(request_id="request-1", workflow_text="workflow: {}")
    stop = StopRequest(request_id="request-2", reason="enough", now=True)
    restart = RestartRequest(request_id="request-3", from_step=40)
    arrange = ArrangeRequest(request_id="request-4", place="before", other="lm-2")
    back = RollbackRequest(request_id="request-5", to="lm-r-1")
    undo = UndoRequest(request_id="request-6", reason="worse still")
    async with serving(tmp_path, handler) as client:
        assert await client.put_package("d1gest", b"\0zip") is True
        assert await client.launch(launch) == [RUN, RUN]
        assert await client.stop("lm-1", stop) == RUN
        assert await client.restart("lm-1", restart) == restarted
        assert await client.arrange("lm-1", arrange) == RUN
        assert await client.rollback("lm", back) == ROLLBACK
        assert await client.undo("lm-rb-1", undo) == ROLLBACK
    assert asked[0] == ("PUT", "/v1/packages/d1gest", b"\0zip")
    assert [(method, path) for method, path, _ in asked[1:]] == [
        ("POST", "/v1/runs"),
        ("POST", "/v1/runs/lm-1/stop"),
        ("POST", "/v1/runs/lm-1/restart"),
        ("POST", "/v1/runs/lm-1/arrange"),
        ("POST", "/v1/workflows/lm/rollback"),
        ("POST", "/v1/rollbacks/lm-rb-1/undo"),
    ]
    sent = (launch, stop, restart, arrange, back, undo)
    for request, (_, _, body) in zip(sent, asked[1:], strict=True):
        assert type(request).model_validate_json(body) == request


async def test_a_package_that_is_known(tmp_path: Path) -> None:
    handler, _ = replying({})
    async with serving(tmp_path, handler) as client:
        assert await client.put_package("d", b"x") is False


async def test_ids_cannot_reach_another_route(tmp_path: Path) -> None:
    handler, asked = replying({"error": {"sentence": "there is no such run"}}, status=404)
    async with serving(tmp_path, handler) as client:
        with pytest.raises(Refused, match="no such run"):
            await client.run("../audit?limit=1")
    assert asked[0][1].startswith("/v1/runs/..%2Faudit%3F")


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, Usage), (403, Refused), (404, Refused), (409, Refused), (423, Busy), (500, Refused), (503, Unreachable)],
)
async def test_a_refusal_keeps_its_words(tmp_path: Path, status: int, kind: type[RaydeckError]) -> None:
    handler, _ = replying({"error": {"sentence": "you may not", "hint": "ask an admin"}}, status=status)
    async with serving(tmp_path, handler) as client:
        with pytest.raises(RaydeckError) as caught:
            await client.status()
    assert type(caught.value) is kind
    assert (caught.value.sentence, caught.value.hint) == ("you may not", "ask an admin")


async def test_mistakes_in_a_file_come_back_with_their_places(tmp_path: Path) -> None:
    mistakes = [
        Mistake(file="w.yaml", line=9, column=1, message="late"),
        Mistake(file="w.yaml", line=2, column=3, message="early", suggestion="better"),
    ]
    told = {"sentence": "2 mistakes", "mistakes": [mistake.model_dump() for mistake in mistakes]}
    handler, _ = replying({"error": told}, status=400)
    async with serving(tmp_path, handler) as client:
        with pytest.raises(FileMistakes) as caught:
            await client.launch(LaunchRequest(request_id="request-1", workflow_text="x"))
    assert [mistake.line for mistake in caught.value.mistakes] == [2, 9]
    assert "w.yaml:2:3: early (did you mean better?), and 1 more" in str(caught.value)


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b'{"pid": "x"}', b"\xff", b"[" * 100_000])
@pytest.mark.parametrize("status", [200, 500])
async def test_another_language(tmp_path: Path, body: bytes, status: int) -> None:
    handler, _ = replying(body, status=status)
    async with serving(tmp_path, handler) as client:
        with pytest.raises(Unreachable, match="does not speak this version's language"):
            await client.status()


async def test_no_controller(tmp_path: Path) -> None:
    transport = HttpTransport.to_socket(str(tmp_path / "none.sock"))
    client = ControllerClient(transport)
    with pytest.raises(Unreachable, match=r"no controller answers at .*none\.sock"):
        await client.status()
    with pytest.raises(Unreachable, match=r"no controller answers at .*none\.sock"):
        await anext(client.events())
    await transport.close()


async def test_a_controller_that_does_not_answer(tmp_path: Path) -> None:
    over = asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        await over.wait()
        return web.Response()

    async with serving(tmp_path, wait, call_seconds=0.2, silence_seconds=0.2) as client:
        with pytest.raises(
            Unreachable, match=r"did not answer within 0\.2 s\. What was asked for may still have happened"
        ):
            await client.status()
        with pytest.raises(Unreachable, match="silent"):
            await anext(client.events())
        over.set()


def streaming(*pieces: bytes, then: asyncio.Event | None = None) -> Handler:
    """A handler that sends these pieces, and then ends, or waits for the event."""

    async def handler(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        for piece in pieces:
            await answer.write(piece)
            await asyncio.sleep(0.01)
        if then is not None:
            await then.wait()
        return answer

    return handler


async def test_events_come_whole_however_they_are_cut(tmp_path: Path) -> None:
    events = [
        Snapshot(status=STATUS, runs=[RUN, RUN]),
        RunChanged(run=RUN.model_copy(update={"reason": "ünïcode\n"})),
        QueueChanged(queue=QueueView(at=1.0, waiting_total=10_000)),
        Heartbeat(at=1.0, ray="ok"),
    ]
    wire = b"".join(event.model_dump_json().encode() + b"\n" for event in events)
    pieces = [wire[start : start + 97] for start in range(0, len(wire), 97)]
    async with serving(tmp_path, streaming(*pieces, b"\n")) as client:
        assert [event async for event in client.events()] == events


async def test_a_stream_that_falls_silent(tmp_path: Path) -> None:
    over = asyncio.Event()
    beat = Heartbeat(at=1.0, ray="ok")
    async with serving(
        tmp_path, streaming(beat.model_dump_json().encode() + b"\n", then=over), silence_seconds=0.2
    ) as client:
        events = client.events()
        assert await anext(events) == beat
        with pytest.raises(Unreachable, match=r"silent for 0\.2 s"):
            await anext(events)
        over.set()


async def test_a_stream_of_something_else(tmp_path: Path) -> None:
    async with serving(tmp_path, streaming(b'{"event": "nonsense"}\n')) as client:
        with pytest.raises(Unreachable, match="does not speak"):
            await anext(client.events())


async def test_a_stream_without_lines_is_cut_off(tmp_path: Path) -> None:
    async with serving(tmp_path, streaming(*[b" " * 2**17] * 40), line_bytes=2**18) as client:
        with pytest.raises(Unreachable, match="it was not read"):
            await anext(client.events())


async def test_a_stream_that_is_refused(tmp_path: Path) -> None:
    handler, _ = replying({"error": {"sentence": "you may not look"}}, status=403)
    async with serving(tmp_path, handler) as client:
        with pytest.raises(Refused, match="you may not look"):
            await anext(client.events())


async def test_a_stream_that_breaks_off(tmp_path: Path) -> None:
    async def break_off(request: web.Request) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await answer.write(Heartbeat(at=1.0, ray="ok").model_dump_json().encode() + b"\n")
        assert request.transport is not None
        request.transport.abort()
        return answer

    async with serving(tmp_path, break_off) as client:
        with pytest.raises(Unreachable, match="no controller answers"):
            assert [event async for event in client.events()] == []
