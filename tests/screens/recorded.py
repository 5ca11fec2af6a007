"""The frozen cluster with ten minutes recorded on its head: two workers, a run that fails, a GPU that is lost."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jobs.alertview import Alert, AlertsView
from jobs.errors import Unreachable
from jobs.model import RunState
from jobs.recordview import RecordingIndex
from jobs.recordwriter import Writer
from jobs.transport import MAX_ANSWER_BYTES, Response
from tests.screens.answers import WALL, FrozenClient
from tests.screens.frozen import FrozenSession, _facts, _run, _sample, session

BEGUN = WALL - 600.0
FAILED_AT = WALL - 300.0
LOST_AT = WALL - 120.0
RUN = "then-k3f9qz"


def record(folder: Path) -> Writer:
    """Ten minutes up to `WALL`, a sample each second: a run fails at its middle, two minutes before its end a GPU."""
    writer = Writer(folder, lanes_per_second=1e9, flush_seconds=5.0)
    for name, gpus in (("head", 0), ("worker-1", 4), ("worker-2", 4)):
        writer.take_facts(name, _facts(name, gpus), BEGUN)
        for what in ("ssh", "ray"):
            writer.take_state(name, "ssh" if what == "ssh" else "ray", "up" if what == "ssh" else "alive", "", BEGUN)
    for second in range(600):
        at = BEGUN + second
        busy = 2 if at < FAILED_AT else 0
        writer.take_sample("worker-1", _sample(4, busy, second, lost=at >= LOST_AT), at)
        writer.take_sample("worker-2", _sample(4, busy, second), at)
        if at < FAILED_AT:
            writer.take_view("runs", [_run(RUN, RunState.RUNNING).model_dump(mode="json")], at)
        elif at == FAILED_AT:
            failed = _run(RUN, RunState.FAILED, reason="rank 1 exited 1: loss is not a number", exit_code=1)
            writer.take_view("runs", [failed.model_dump(mode="json")], at)
        if at == LOST_AT:
            lost = Alert(
                id="alert-1", rule="gpu.lost", level="critical", title="worker-1/3: does not answer any more", since=at,
                entities=["worker-1/3"], nodes=["worker-1"],
            )  # fmt: skip
            writer.take_view("alerts", AlertsView(alerts=[lost]).model_dump(mode="json"), at)
        writer.tick(at)
    writer.flush()
    return writer


@dataclass
class _Streamed:
    status: int
    content: list[bytes]

    async def chunks(self) -> AsyncIterator[bytes]:
        for piece in self.content:
            yield piece


class Head:
    """The controller's answers about a recording, as its own routes give them."""

    where = "the controller"

    def __init__(self, writer: Writer) -> None:
        self.writer = writer
        self.asked: list[str] = []
        self.gone = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        json: Any = None,
        content: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        timeout: float,
        limit: int = MAX_ANSWER_BYTES,
    ) -> Response:
        self.asked.append(path)
        if self.gone:
            raise ConnectionError("nobody answers")
        assert path == "/v1/recording/index", path
        index = RecordingIndex(segments=self.writer.index(), now=WALL)
        return Response(200, index.model_dump_json().encode())

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float,
    ) -> AsyncGenerator[_Streamed]:
        self.asked.append(path)
        if self.gone:
            raise ConnectionError("nobody answers")
        assert params is not None
        since, until = float(params["since"]), float(params["until"])
        assert since <= until, "the controller refuses that"
        wanted = [each for each in self.writer.index() if each.since <= until and each.until >= since]
        yield _Streamed(200, [self.writer.path(each.seq).read_bytes() for each in wanted])


def recorded(folder: Path) -> tuple[FrozenSession, Head]:
    """The cluster as it is now, and the head that has its recording."""
    made = session()
    head = Head(record(folder))
    client = FrozenClient(dict(made.work.runs))
    client._transport = head
    made.client = client
    return made, head


def unreachable(made: FrozenSession) -> None:
    """Have the controller be gone."""

    async def nobody() -> FrozenClient:
        raise Unreachable("the controller does not answer")

    made.controller = nobody
