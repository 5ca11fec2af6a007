"""The routes over a real Unix socket: what is taken, what is refused and in which words, and the event stream."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import socket
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest

from console.sources.http import HttpTransport
from jobs.controller import events, server
from jobs.controller.access import Caller, Role
from jobs.controller.journal import Journal
from jobs.controller.packages import PACKAGE_LIMIT_BYTES
from jobs.errors import Refused, Unreachable, Usage
from jobs.load import FileMistakes
from jobs.model import RunState
from jobs.spec import Roles
from jobs.wire import ArrangeRequest, Heartbeat, RestartRequest, RunChanged, Snapshot
from tests.unit.jobs.controller_harness import Harness, controller, short_folder, stop_request
from tests.unit.jobs.ray_stand_in import RayStandIn


@pytest.fixture
async def desk() -> AsyncGenerator[Harness]:
    """A controller that takes in and does nothing yet."""
    async with short_folder() as store, RayStandIn().serving() as ray, controller(ray, store, ticks=False) as harness:
        yield harness


async def raw(desk: Harness, method: str, path: str, body: bytes = b"", **headers: str) -> tuple[int, dict[str, Any]]:
    transport = HttpTransport.to_socket(str(desk.store / "controller.sock"))
    try:
        answer = await transport.request(method, path, content=body, headers=headers, timeout=5)
    finally:
        await transport.close()
    return answer.status, json.loads(answer.body)


async def test_it_says_who_it_is_and_who_asks(desk: Harness) -> None:
    status = await desk.client.status()
    assert status.pid == os.getpid()
    assert status.code_digest == "source"
    assert status.metadata_store == str(desk.store)
    assert status.role == "admin"
    assert status.ray.startswith("no answer for")
    await desk.service.engine.look()
    status = await desk.client.status()
    assert (status.ray, status.ray_version) == ("ok", "2.60.0")


async def test_a_launch_is_written_before_it_is_answered(desk: Harness) -> None:
    request = desk.request(priority="high")
    run = await desk.launch(request)
    assert run.id.startswith("lm-")
    assert (run.state, run.priority, run.queue, run.gpus) == (RunState.QUEUED, "high", "default", 1)
    assert run.run_directory == f"{desk.store}/output/lm/{run.id}"
    release = json.loads((Path(run.run_directory) / "release.json").read_text())
    assert release["id"] == run.release
    assert (await desk.client.releases("lm"))[0].id == run.release
    assert [entry.action for entry in await desk.client.audit()] == ["launch"]
    assert (await desk.launch(request)).id == run.id
    assert len(await desk.client.runs()) == 1
    assert len(await desk.client.audit()) == 1


async def test_many_of_the_same_at_once_are_one(desk: Harness) -> None:
    request = desk.request()
    runs = await asyncio.gather(*(desk.launch(request) for _ in range(6)))
    assert len({run.id for run in runs}) == 1
    assert len(list((desk.store / "output" / "lm").iterdir())) == 1


async def test_a_request_id_with_another_content_makes_no_sense(desk: Harness) -> None:
    request = desk.request()
    await desk.launch(request)
    with pytest.raises(Usage, match="used for something else"):
        await desk.launch(request.model_copy(update={"priority": "low"}))


async def test_a_dry_run_keeps_nothing(desk: Harness) -> None:
    run = await desk.launch(desk.request(dry_run=True))
    assert "dry run" in run.reason
    assert await desk.client.runs() == []
    assert await desk.client.audit() == []
    assert not (desk.store / "output").exists()


async def test_a_bad_file_is_refused_with_the_place_of_each_mistake(desk: Harness) -> None:
    text = "workflow:\n  name: lm\n  resorces: {}\n  training:\n    batch_size: many\n"
    with pytest.raises(FileMistakes) as caught:
        await desk.launch(desk.request(text, workflow_file="lm.yaml"))
    places = [(mistake.file, mistake.line, mistake.column) for mistake in caught.value.mistakes]
    assert places == [("lm.yaml", 3, 3), ("lm.yaml", 5, 17)]
    assert caught.value.mistakes[0].suggestion == "resources"
    [refused] = await desk.client.audit()
    assert (refused.action, refused.allowed) == ("launch", False)
    assert "lm.yaml:3:3" in refused.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "resources: {nodes: 3, accelerators_per_node: 4}",
            "of the cluster's 2 only 1 can ever hold that (head: it has 0",
        ),
        ("resources: {accelerators_per_node: 8}", "it has 4 GPUs, not 8"),
        ("resources: {memory_gb_per_node: 512}", "it has 64 GB of memory, not 512"),
        ("pool: fast", "it has no label pool"),
        ("queue: nowhere", "there is no queue nowhere"),
        ("storage: {output_root: /proc/nothing}", "cannot be made on the head"),
    ],
)
async def test_what_can_never_start_is_refused_with_the_reason(desk: Harness, text: str, words: str) -> None:
    with pytest.raises(Refused) as caught:
        await desk.launch(desk.request(f"workflow:\n  name: lm\n  {text}\n"))
    assert words in str(caught.value)
    assert await desk.client.runs() == []


async def test_with_a_silent_ray_nothing_is_refused_for_its_size(desk: Harness) -> None:
    desk.ray.down = True
    text = "workflow:\n  name: lm\n  resources: {nodes: 300}\n"
    assert (await desk.launch(desk.request(text))).nodes == 300


async def test_code_that_was_not_sent_is_refused(desk: Harness) -> None:
    with pytest.raises(Refused, match="was not sent"):
        await desk.launch(desk.request(package="ab" * 32))
    with pytest.raises(Usage, match="is not a package's digest"):
        await desk.launch(desk.request(package="../../etc/passwd"))


async def test_a_package_is_taken_once_and_checked(desk: Harness) -> None:
    content = b"PK" * 300_000
    digest = hashlib.sha256(content).hexdigest()
    assert await desk.client.put_package(digest, content) is True
    assert await desk.client.put_package(digest, content) is False
    with pytest.raises(Refused, match="does not have the digest"):
        await desk.client.put_package("ab" * 32, content)
    with pytest.raises(Usage):
        await desk.client.put_package("..%2Fx", content)
    assert [path.name for path in (desk.store / "packages").iterdir() if path.name.startswith("incoming")] == []


async def test_a_package_that_is_too_large_is_not_read(desk: Harness) -> None:
    reader, writer = await asyncio.open_unix_connection(str(desk.store / "controller.sock"))
    size = PACKAGE_LIMIT_BYTES + 1
    writer.write(f"PUT /v1/packages/{'ab' * 32} HTTP/1.1\r\nHost: x\r\nContent-Length: {size}\r\n\r\n".encode())
    line = await asyncio.wait_for(reader.readline(), 5)
    assert b"409" in line
    writer.close()
    await writer.wait_closed()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/v1/runs/none", b"", 404, "there is no run none"),
        ("GET", "/v1/nothing", b"", 404, "Not Found"),
        ("DELETE", "/v1/runs", b"", 405, "Method Not Allowed"),
        ("GET", "/v1/runs?limit=0", b"", 400, "limit must be a number from 1"),
        ("GET", "/v1/runs?limit=%C2%B2", b"", 400, "limit must be a number from 1"),
        ("POST", "/v1/runs", b"nonsense", 400, "is not JSON"),
        ("POST", "/v1/runs", b'{"request_id": "x"}', 400, "request_id"),
        ("POST", "/v1/runs/none/stop", b'{"request_id": "request-1"}', 404, "there is no run none"),
        ("POST", "/v1/runs/none/restart", b'{"request_id": "request-1"}', 404, "there is no run none"),
        ("POST", "/v1/runs/none/restart", b'{"request_id": "request-1", "from_step": -1}', 400, "from_step"),
        ("POST", "/v1/runs/none/arrange", b'{"request_id": "request-1", "place": "top"}', 400, "place"),
        ("POST", "/v1/runs/none/arrange", b'{"request_id": "request-1", "hold": true}', 404, "there is no run none"),
        ("GET", "/v1/runs/none/moves", b"", 404, "there is no run none"),
        ("GET", "/v1/runs/none/explain", b"", 404, "there is no run none"),
        ("GET", "/v1/runs/none/checkpoints", b"", 404, "there is no run none"),
        ("GET", "/v1/queue?offset=-1", b"", 400, "offset must be a number from 0"),
        ("GET", "/v1/queue?limit=0", b"", 400, "limit must be a number from 1"),
    ],
)
async def test_what_makes_no_sense_is_said(
    desk: Harness, method: str, path: str, body: bytes, status: int, words: str
) -> None:
    got, answer = await raw(desk, method, path, body)
    assert got == status
    assert words in answer["error"]["sentence"]


async def test_a_body_that_is_too_large_is_refused(desk: Harness) -> None:
    got, answer = await raw(desk, "POST", "/v1/runs", b" " * (server.BODY_LIMIT_BYTES + 1))
    assert got == 413
    assert "Too Large" in answer["error"]["sentence"]


@pytest.mark.parametrize(
    ("path", "body", "action", "target"),
    [
        ("/v1/runs", {"workflow_text": "x"}, "launch", ""),
        ("/v1/runs/none/stop", {}, "stop", "none"),
        ("/v1/runs/none/stop", {"now": True}, "stop now", "none"),
        ("/v1/runs/none/restart", {}, "restart", "none"),
        ("/v1/runs/none/arrange", {"hold": True}, "hold", "none"),
        ("/v1/runs/none/arrange", {"hold": False}, "release", "none"),
        ("/v1/runs/none/arrange", {"priority": "high"}, "priority", "none"),
        ("/v1/runs/none/arrange", {"place": "first"}, "move", "none"),
        ("/v1/workflows/none/rollback", {}, "rollback", "none"),
        ("/v1/rollbacks/none/undo", {}, "undo", "none"),
    ],
)
async def test_each_refusal_is_in_the_audit_under_its_name(
    desk: Harness, path: str, body: dict[str, Any], action: str, target: str
) -> None:
    status, answer = await raw(desk, "POST", path, json.dumps({"request_id": "request-1", **body}).encode())
    assert status in (400, 404, 409)
    (entry,) = await desk.client.audit()
    assert (entry.action, entry.target, entry.allowed) == (action, target, False)
    assert answer["error"]["sentence"] in entry.reason


async def test_who_may_not_look_may_not_write_unseen(desk: Harness) -> None:
    desk.service.access._roles = Roles(viewers=["somebody-else"])
    desk.service.access._own_uid = -1
    desk.service.access._known[os.getuid()] = (time.monotonic(), Caller(1000, "mallory", Role.NOBODY))
    for path in ("/v1/runs", "/v1/runs/lm-1/stop"):
        status, _ = await raw(desk, "POST", path, b"{}")
        assert status == 403
    assert (await raw(desk, "GET", "/v1/runs"))[0] == 403
    entries = await desk.service.journal(Journal.entries, 10)
    assert [(entry.user, entry.action, entry.allowed) for entry in entries] == [
        ("mallory", "stop", False),
        ("mallory", "launch", False),
    ]


async def test_a_run_waits_is_arranged_and_explained(desk: Harness) -> None:
    run = await desk.launch()
    held = await desk.client.arrange(run.id, ArrangeRequest(request_id="request-1", hold=True, reason="data missing"))
    assert held.held is not None
    (row,) = (await desk.client.queue()).waiting
    assert (row.run, row.kind) == (run.id, "hold")
    assert (await desk.client.explain(run.id)).blocked_by[0].kind == "hold"
    await desk.client.arrange(run.id, ArrangeRequest(request_id="request-2", hold=False))
    plan = await desk.client.restart(run.id, RestartRequest(request_id="request-3", dry_run=True))
    assert (plan.run.id, plan.from_step) == (run.id, None)
    assert [move.after for move in await desk.client.moves(run.id)] == [RunState.QUEUED]
    assert await desk.client.checkpoints(run.id) == []
    assert [entry.action for entry in await desk.client.audit()] == ["release", "hold", "launch"]


async def test_the_audit_can_be_verified(desk: Harness) -> None:
    run = await desk.launch(desk.request())
    await desk.client.stop(run.id, stop_request(reason="enough"))
    _, answer = await raw(desk, "GET", "/v1/audit?verify=1&limit=1")
    assert answer["broken"] == ""
    assert [(entry["seq"], entry["action"], entry["reason"]) for entry in answer["entries"]] == [(2, "stop", "enough")]


async def test_the_course_of_a_run_is_thinned(desk: Harness) -> None:
    run = await desk.launch(desk.request())
    assert await desk.client.series(run.id) == []
    rows = [json.dumps({"step": step, "loss": 1.0, "wall": float(step)}) for step in range(1000)]
    (desk.attempt(run) / "progress.jsonl").write_text("\n".join(rows) + '\n{"step": 1000, "lo')
    points = await desk.client.series(run.id, points=50)
    assert len(points) == 50
    assert (points[0].step, points[-1].step) == (0, 999)


async def test_the_stream_tells_all_and_then_each_change(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "HEARTBEAT_SECONDS", 0.1)
    first = await desk.launch(desk.request())
    stream = desk.client.events()
    snapshot = await anext(stream)
    assert isinstance(snapshot, Snapshot)
    assert [run.id for run in snapshot.runs] == [first.id]
    assert isinstance(await anext(stream), Heartbeat)
    second = await desk.launch(desk.request())
    seen = await anext(stream)
    while isinstance(seen, Heartbeat):
        seen = await anext(stream)
    assert isinstance(seen, RunChanged)
    assert seen.run.id == second.id
    desk.service.hub.close()
    assert [event async for event in stream if not isinstance(event, Heartbeat)] == []
    assert len(desk.service.hub) == 0


async def test_a_slow_listener_is_dropped_and_slows_nobody(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LISTENER_SECONDS", 0.2)
    run = await desk.launch(desk.request())
    big = (await desk.client.run(run.id)).model_copy(update={"reason": "x" * 200_000})
    slow = socket.socket(socket.AF_UNIX)
    slow.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(slow, str(desk.store / "controller.sock"))
    await loop.sock_sendall(slow, b"GET /v1/events HTTP/1.1\r\nHost: x\r\n\r\n")
    quick = desk.client.events()
    assert isinstance(await anext(quick), Snapshot)
    deadline = loop.time() + 10
    while len(desk.service.hub) < 2:
        await asyncio.sleep(0.01)
        assert loop.time() < deadline
    while len(desk.service.hub) > 1:
        desk.service.hub.publish(big)
        event = await asyncio.wait_for(anext(quick), 2)
        assert isinstance(event, RunChanged | Heartbeat)
        assert loop.time() < deadline, "the slow listener is still there"
    slow.close()


async def test_too_many_listeners_are_refused(desk: Harness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "LISTENERS_AT_MOST", 1)
    stream = desk.client.events()
    await anext(stream)
    with pytest.raises(Refused, match="listen already"):
        await anext(desk.client.events())


async def test_a_journal_that_cannot_be_written_refuses_and_loses_nothing(desk: Harness) -> None:
    await desk.launch(desk.request())
    database = desk.service.journal._journal._db
    database.execute("PRAGMA query_only=ON")
    with pytest.raises(Unreachable, match="cannot be written"):
        await desk.launch(desk.request())
    (warning,) = (await desk.client.status()).warnings
    assert "cannot be written" in warning
    database.execute("PRAGMA query_only=OFF")
    assert len(await desk.client.runs()) == 1
    await desk.launch(desk.request())
    assert len(await desk.client.runs()) == 2
    assert (await desk.client.status()).warnings == []
