"""A cluster for the command line: a session that has heard a controller, whose answers are given by the test."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from click.testing import CliRunner
from pydantic import BaseModel

from console.cli import opened
from console.cli.main import command_line
from console.settings import Context
from console.state.fleet import FleetStore, Node
from console.state.work import WorkStore
from jobs.client import ControllerClient
from jobs.model import Run, RunState
from jobs.queueview import QueueView
from jobs.transport import MAX_ANSWER_BYTES, Response, StreamedResponse
from jobs.wire import ControllerStatus

WALL = 1_780_000_000.0
Answer = BaseModel | dict[str, Any]
Ask = Callable[[dict[str, Any]], Answer]


def status(you: str = "alice") -> ControllerStatus:
    """A controller that sees this user."""
    return ControllerStatus(
        version="0", code_digest="", pid=1, user="ray", host="head", python="", started_at=0.0, dashboard="", ray="ok",
        metadata_store="", supervised_by="none", you=you, role="operator",
    )  # fmt: skip


def a_run(identity: str = "lm-a1", state: RunState = RunState.QUEUED, **more: Any) -> Run:
    """A run of alice's, on 2 nodes × 2."""
    values: dict[str, Any] = {
        "workflow": "lm", "release": "lm-r-1", "user": "alice", "nodes": 2, "gpus": 4, "queue": "training",
        "submitted_at": WALL - 600, **more,
    }  # fmt: skip
    return Run(id=identity, state=state, **values)


def squeezed(text: str) -> list[str]:
    """The lines of a table, one blank between two words: how wide a column is is not the point."""
    return [" ".join(line.split()) for line in text.splitlines()]


class Answers:
    """What the controller says to each request, and what it was asked for. Everything else is a 404."""

    where = "the test's controller"

    def __init__(self) -> None:
        self.given: dict[tuple[str, str], Answer | Ask] = {}
        self.asked: list[tuple[str, str, dict[str, Any]]] = []
        """Method, path, body of each request that changes something; its id is left out."""
        self.params: list[Mapping[str, str]] = []

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
        """The answer that the test gave for it."""
        del headers, timeout, limit, content
        path = unquote(path)
        body: dict[str, Any] = dict(json or {})
        if method == "POST":
            # What came of a permit goes by the permit's own name.
            assert len(body.pop("request_id", "" if not path.startswith("/v1/permits/") else path)) >= 8
            self.asked.append((method, path, body))
        self.params.append(params or {})
        if method == "PUT" and path.startswith("/v1/packages/"):
            return Response(201, b"{}")
        answer = self.given.get((method, path))
        if answer is None:
            return Response(404, dumped({"error": {"sentence": f"there is no {path}"}}))
        if callable(answer):
            answer = answer({**body, **(params or {})})
        return Response(409 if isinstance(answer, dict) and "error" in answer else 200, dumped(answer))

    def stream(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        silence: float,
    ) -> AbstractAsyncContextManager[StreamedResponse]:
        """No command reads the stream by itself: the session does."""
        raise NotImplementedError


def dumped(answer: Answer) -> bytes:
    """As it travels."""
    return answer.model_dump_json().encode() if isinstance(answer, BaseModel) else json.dumps(
        answer, default=lambda value: value.model_dump(mode="json")
    ).encode()  # fmt: skip


class Desk:
    """A session as commands use it, and the command line before it."""

    def __init__(self, folder: Path) -> None:
        self.answers = Answers()
        self.work = WorkStore()
        self.fleet = FleetStore()
        self.fleet.ray.move("ok", "", 0.0)
        self.snapshot()
        self.head = SimpleNamespace(host=SimpleNamespace(name="head"), status=SimpleNamespace(reason=""))
        self.context = Context(name="lab")
        """What the command was called for; that of `file` as soon as one was."""
        self.file = folder / "lab.yaml"
        self.file.write_text("nodes:\n- {name: head, address: 127.0.0.1, role: head, ssh: {port: 1}}\n")

    def snapshot(self, *runs: Run, you: str = "alice", queue: QueueView | None = None) -> None:
        """What the session has heard."""
        self.work.snapshot(status(you), runs, 0.0, queue)
        self.work.controller_state("ok", "", 0.0)

    def give(self, method: str, path: str, answer: Answer | Ask) -> None:
        """What the controller says to this."""
        self.answers.given[(method, path)] = answer

    def call(self, *words: str, stdin: str | None = None) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        done = CliRunner().invoke(command_line, ["-c", str(self.file), *words], input=stdin)
        assert done.exception is None or isinstance(done.exception, SystemExit), done.exc_info
        return done.exit_code, done.stdout, done.stderr

    def json(self, *words: str) -> Any:
        """The document of a command that ends well."""
        code, out, err = self.call(*words, "--json")
        assert code == 0, (out, err)
        return json.loads(out)

    def nodes(self, *names: str) -> None:
        """A context with a head and these workers, all of them alive for Ray with 4 GPUs each."""
        rows = [f"- {{name: {name}, address: 10.0.1.{at}, accelerators: 4}}\n" for at, name in enumerate(names, 1)]
        self.file.write_text("nodes:\n- {name: head, address: 10.0.0.1, role: head}\n" + "".join(rows))
        for at, name in enumerate(names, 1):
            node = self.fleet.add(Node(name=name, address=f"10.0.1.{at}", expected_gpus=4))
            node.ray_node_id, node.ray_address, node.ray_gpus_total = f"{at:02d}aabbccdd", f"10.0.1.{at}", 4.0
            node.ray.move("alive", "", 0.0)
            node.ssh.move("up", "", 0.0)

    def opened(self, context: Context) -> Desk:
        """As a session that a command makes."""
        self.context = context
        return self

    # --- as commands see it -------------------------------------------------------------------------------------------

    def start(self, **what: bool) -> None:
        """Everything is known already."""

    async def close(self) -> None:
        """Nothing was opened."""

    async def until(self, condition: Callable[[], bool], limit: float) -> bool:
        """What is not known now will not come."""
        return condition()

    async def controller(self) -> ControllerClient:
        """The client that every command uses, on the test's answers."""
        return ControllerClient(self.answers)

    def head_wall(self) -> float:
        """The frozen clock."""
        return WALL

    def now(self) -> float:
        """The frozen clock."""
        return 0.0


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Desk]:
    """A cluster whose controller says what the test gives it; times of day are those of Greenwich."""
    made = Desk(tmp_path)
    with monkeypatch.context() as patched:
        for name in ("RAYDECK_CONFIG_DIR", "XDG_RUNTIME_DIR"):
            patched.setenv(name, str(tmp_path))
        patched.delenv("RAYDECK_CONTEXT", raising=False)
        patched.setenv("TZ", "UTC")
        patched.setattr(opened, "Session", lambda context, ask: made.opened(context))  # pyright: ignore[reportUnknownLambdaType]
        time.tzset()
        yield made
    time.tzset()
