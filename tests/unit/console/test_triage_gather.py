"""What a triage gathers: in order, within its limit, by the head's clock, and a sentence for what is missing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from console.settings import NodeEntry
from console.state.fleet import Node
from console.triage import gather as gathering
from console.triage.asked import AT_ONCE, Answer, Answers, Nodes, Task
from console.triage.gather import gather
from console.triage.judge import judge
from console.triage.looking import look_at
from console.triage.nodes import Machine, ways
from console.triage.places import excerpt
from console.triage.recorded import times_lost
from console.triage.runs import Ranked, of_attempt, share_out, stands_still, take_look
from console.triage.serving import serve_evidence
from console.triage.targets import target_of
from jobs.errors import Refused, Unreachable
from jobs.looks import Collective, Frame, Look, RankLook, Thread
from jobs.model import Attempt, Progress, RunState
from jobs.recordview import Mark
from jobs.triage.evidence import Evidence, RankEvidence, Target
from jobs.triage.findings import STEP_NAMES, StepName
from jobs.triage.report import triage
from jobs.triage.stacks import doing
from jobs.wire import ReleaseRow
from probes.reading import Event
from tests.screens.answers import WALL, releases
from tests.screens.frozen import NOW, session
from tests.screens.triaged import FAILED, Said, answering, failed
from tests.unit.console.desk import a_run


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[Said]:
    with monkeypatch.context() as patched:
        yield answering(patched)


# --- what is asked about ----------------------------------------------------------------------------------------------


async def test_a_name_is_a_run_a_node_a_gpu_or_the_fleet() -> None:
    made = failed(session())
    assert target_of(made, "") == target_of(made, "fleet") == Target()
    assert target_of(made, FAILED) == Target("run", FAILED)
    assert target_of(made, "worker-1") == Target("node", "worker-1")
    assert target_of(made, "worker-1/3") == Target("gpu", "worker-1/3")
    assert target_of(made, "long-ago-a1") == Target("run", "long-ago-a1")
    for name in ("worker-1/4", "worker-1/x", "head/0"):
        with pytest.raises(Refused, match="has no GPU"):
            target_of(made, name)


def test_an_earlier_attempt_is_looked_at_as_it_was() -> None:
    first = Attempt(number=1, job_id="j1", state=RunState.FAILED, reason="rank 1 exited 1", ended_at=5.0)
    run = a_run(state=RunState.RUNNING, attempts=[first, Attempt(number=2, job_id="j2", state=RunState.RUNNING)])
    assert of_attempt(run, None) is run
    assert of_attempt(run, 2) is run
    old = of_attempt(run, 1)
    assert (old.state, old.reason, old.attempts) == (RunState.FAILED, "rank 1 exited 1", [first])


# --- gather -----------------------------------------------------------------------------------------------------------


async def test_the_steps_are_told_in_their_order_each_with_what_it_rests_on(said: Said) -> None:
    told: list[tuple[StepName, bool]] = []
    evidence = await gather(
        failed(session()), Target("run", FAILED), lambda step, words, found: told.append((step, found is not None))
    )
    assert told == [(step, done) for step in STEP_NAMES for done in (False, True)]
    assert [(rank.rank, rank.node, rank.exit_code) for rank in evidence.ranks] == [
        (0, "worker-1", 1), (1, "worker-1", 1), (2, "worker-2", 1), (3, "worker-2", -15),
    ]  # fmt: skip
    assert evidence.ranks[1].log[-1].number == 23
    assert evidence.ranks[1].log[-1].wall == evidence.ranks[1].ended_at == pytest.approx(WALL - 300.003)
    assert evidence.ranks[3].ended_at is None, "it was asked to end: that it wrote last then says nothing"
    assert evidence.run is not None
    assert evidence.run.last_good_release == "lm-r-91b3d0"
    assert evidence.run.baseline_throughput == 18_010.0
    assert "training.learning_rate" in {change.path for change in evidence.run.differences}
    assert {(each.source, each.node, each.result) for each in evidence.ports} == {
        ("worker-1", "head", "open"), ("worker-2", "head", "open"), ("worker-1", "worker-2", "open"),
        ("worker-2", "worker-1", "open"),
    }  # fmt: skip
    assert {(each.node, each.purpose) for each in evidence.files} == {
        ("worker-1", "output"), ("worker-1", "log"), ("worker-2", "output"), ("worker-2", "log"),
    }  # fmt: skip
    assert evidence.unread == ["Ray: no SSH connection to head: nothing is reached in a frozen cluster"]
    assert sorted(name for name, _ in said.asked) == ["worker-1"] * 3 + ["worker-2"] * 3


async def test_where_its_data_lies_is_looked_at_too(said: Said, monkeypatch: pytest.MonkeyPatch) -> None:
    made = failed(session())
    rows = [row.model_copy(update={"config": {"storage": {"data_root": "/data/text/../code"}}}) for row in releases()]

    async def slowly(workflow: str = "") -> list[ReleaseRow]:
        await asyncio.sleep(0.05)
        return rows

    monkeypatch.setattr(made.client, "releases", slowly)
    evidence = await gather(made, Target("run", FAILED))
    assert {each.path for each in evidence.files if each.purpose == "data"} == {"/data/code"}


async def test_a_nodes_clock_is_taken_out_of_all_that_it_says(said: Said) -> None:
    made = failed(session())
    made.work.clock_offset_seconds = 2.0
    made.fleet.take_clock("worker-1", 5.0, 1.0)
    made.fleet.nodes["worker-1"].events.append(Event("xid", "Xid 79", WALL - 100))
    evidence = await gather(made, Target("run", FAILED))
    node = evidence.nodes["worker-1"]
    assert node.clock_offset_seconds == 3.0
    assert node.events[0].wall == WALL - 103
    assert node.kernel[0].wall == WALL - 4003
    assert evidence.ranks[1].log[-1].wall == WALL - 303
    assert evidence.ranks[1].log[0].wall == pytest.approx(WALL - 280 - 3.0)
    assert evidence.ranks[2].log[-1].wall == pytest.approx(WALL - 299.6 + 2.0 - 0.003)


async def test_a_node_that_takes_no_connection_is_no_node_that_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A console that was opened just now is still connecting: what becomes of that is what the triage says."""
    answered = answering(monkeypatch)
    ask = answered.ask

    async def cut(nodes: Nodes, name: str, tasks: Sequence[Task], seconds: float) -> Answers:
        if name == "worker-2":
            raise Unreachable("no SSH connection to worker-2 within 8 s")
        return await ask(nodes, name, tasks, seconds)

    monkeypatch.setattr(answered, "ask", cut)
    made = session()
    for name in ("worker-1", "worker-2"):
        made.fleet.ssh_state(name, "connecting", "", NOW - 1)
    evidence = await gather(made, Target())
    assert evidence.nodes["worker-1"].ssh.state == "up"
    assert evidence.nodes["worker-2"].ssh.state == "silent"
    told = triage(evidence)
    assert told.headline.startswith("Probably worker-2: the node does not answer over SSH")


async def test_a_node_that_never_answers_costs_no_more_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = answering(monkeypatch)
    ask = answered.ask

    async def hangs(nodes: Nodes, name: str, tasks: Sequence[Task], seconds: float) -> Answers:
        if name == "worker-2":
            await asyncio.Event().wait()
        return await ask(nodes, name, tasks, seconds)

    monkeypatch.setattr(answered, "ask", hangs)
    began = time.monotonic()
    evidence = await gather(failed(session()), Target("run", FAILED), limit=0.6)
    assert time.monotonic() - began < 4.0
    assert evidence.nodes["worker-2"].unread == ["it could not be asked over SSH: there was no time left for it"]
    assert "there was no time left for it" in evidence.ranks[2].unread[0]
    assert asyncio.all_tasks() == {asyncio.current_task()}, "nothing that was begun goes on"


async def test_a_node_that_is_lost_is_not_asked(said: Said) -> None:
    made = session(trouble=True)
    made.fleet.ssh_state("worker-2", "lost", "nothing heard for 6 s", NOW)
    evidence = await gather(made, Target("node", "worker-2"))
    assert said.asked == []
    assert evidence.nodes["worker-2"].unread == ["it could not be asked over SSH: nothing heard for 6 s"]
    assert evidence.nodes["worker-2"].ssh.since == WALL
    assert [run.id for run in evidence.runs] == ["lm-k3f9qz", "failing-a2b3c4", "lm-w0q7x2"]


async def test_of_very_many_nodes_those_that_are_not_well_are_asked(
    said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = session()
    monkeypatch.setattr(gathering, "NODES_AT_MOST", 3)
    for at in range(20):
        made.context.nodes.append(NodeEntry(f"n{at}", f"10.1.0.{at}"))
        node = made.fleet.add(Node(f"n{at}", f"10.1.0.{at}"))
        node.ssh.move("up", "", NOW)
        node.ray.move("dead" if at == 17 else "alive", "", NOW)
    evidence = await gather(made, Target())
    asked = [name for name, tasks in said.asked if "machine" in tasks]
    assert len(asked) == 3
    assert asked[0] == "n17"
    assert "20 of 23 nodes were not asked over SSH: of them only what was known already is told" in evidence.unread


async def test_no_more_than_eight_nodes_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    now: list[str] = []
    most = 0

    async def ask(self: Nodes, name: str, tasks: Sequence[Task], seconds: float) -> Answers:
        nonlocal most
        now.append(name)
        most = max(most, len(now))
        await asyncio.sleep(0)
        now.remove(name)
        return Answers(0.0, 0.0, "", [])

    monkeypatch.setattr(Nodes, "_ask", ask)
    nodes = Nodes(session())
    await asyncio.gather(*(nodes.ask(f"n{at}", [], 1.0) for at in range(40)))
    assert most == AT_ONCE


async def test_without_a_controller_the_rest_is_told(said: Said) -> None:
    made = failed(session())
    made.client.refuses = "nobody is there"
    evidence = await gather(made, Target("run", FAILED))
    assert evidence.ranks[1].log
    assert "its releases: nobody is there" in evidence.unread
    with pytest.raises(Refused, match="nobody is there"):
        await gather(made, Target("run", "long-ago-a1"))


async def test_a_run_that_waits_has_its_explanation(said: Said) -> None:
    evidence = await gather(session(), Target("run", "lm-w3q4x2"))
    assert evidence.run is not None
    assert evidence.run.explanation is not None
    assert evidence.run.explanation.blocked_by[0].kind == "queue_quota"


async def test_judged_names_the_first_and_each_step(said: Said) -> None:
    results: list[tuple[StepName, str]] = []
    found = await judge(
        failed(session()),
        Target("run", FAILED),
        lambda step, words, result: results.append((step, result.state)) if result else None,
    )
    assert [name for name, _ in results] == list(STEP_NAMES)
    assert results[-1] == ("code and model", "bad")
    cause = found.triage.cause
    assert cause is not None
    assert (cause.culprit.node, cause.culprit.rank) == ("worker-1", 1)
    place = excerpt(found.evidence, cause)
    assert place is not None
    assert place.lines[place.at].text.startswith("ValueError")


# --- a look at ranks that stand still ---------------------------------------------------------------------------------


def running(moved: float) -> Any:
    progress = Progress(step=9, wall=moved)
    run = failed(session()).work.runs["lm-k3f9qz"]
    attempt = run.attempts[0]
    assert attempt.status is not None
    status = attempt.status.model_copy(update={"progress": progress})
    return run.model_copy(update={"attempts": [attempt.model_copy(update={"status": status})]})


async def test_a_run_that_told_nothing_for_long_stands_still() -> None:
    assert stands_still(running(WALL - 60), [], WALL)
    assert not stands_still(running(WALL - 5), [], WALL)
    slow = [Progress(step=at, wall=WALL - 300 + 60 * at) for at in range(5)]
    assert not stands_still(running(WALL - 60), slow, WALL), "it reports once a minute"
    assert not stands_still(running(WALL - 60).model_copy(update={"state": RunState.QUEUED}), [], WALL)


def a_look(done: bool = True) -> Look:
    frames = [Frame(function="wait", file="torch/distributed/distributed_c10d.py", line=12), Frame(function="main")]
    return Look(id="x", done=done, expected=1, ranks=[
        RankLook(rank=0, step=7, state="S", threads=[Thread(name="t"), Thread(name="m", main=True, frames=frames)],
                 collectives=[Collective(group="0", enqueued=41, operation="nccl:all_reduce", pending=True),
                              Collective(group="1", enqueued=99, operation="nccl:barrier")]),
        RankLook(rank=1, missing=True, stack_problem="ptrace is not permitted"),
    ])  # fmt: skip


def test_a_look_is_put_to_the_ranks() -> None:
    ranks = [RankEvidence(0), RankEvidence(1, process_state="R")]
    take_look(ranks, a_look())
    take_look(ranks, a_look())
    assert (ranks[0].collective_seq, ranks[0].collective, ranks[0].last_step) == (41, "all_reduce", 7)
    assert doing(ranks[0].stack) == "collective", "the main thread is told first, as py-spy prints it"
    assert ranks[1].process_state == "gone"
    assert ranks[1].unread == ["no stack: ptrace is not permitted"]


class Looking:
    """A controller that has a look taken, or is too old to."""

    def __init__(self, looks: list[Look], refuses: str = "") -> None:
        self.looks, self.refuses = looks, refuses

    async def ask_look(self, run: str) -> str:
        if self.refuses:
            raise Refused(self.refuses)
        return "x"

    async def look(self, run: str, look: str) -> Look:
        return self.looks.pop(0) if len(self.looks) > 1 else self.looks[0]


async def test_the_controller_is_asked_first_until_the_look_is_done(said: Said) -> None:
    made = session()
    ranked = Ranked(made.work.runs["lm-k3f9qz"], {}, {})
    client: Any = Looking([Look(id="x"), a_look()])
    assert await look_at(ranked, client, Nodes(made), [], 5.0) == ""
    assert ranked.ranks[0].stack
    assert said.asked == []


async def test_a_look_that_does_not_come_is_said(said: Said) -> None:
    made = session()
    ranked = Ranked(made.work.runs["lm-k3f9qz"], {}, {})
    client: Any = Looking([Look(id="x")])
    reason = await look_at(ranked, client, Nodes(made), [], 0.2)
    assert reason == "a look at its ranks was asked for and is not complete: nothing came of rank 0, 1, 2, 3"


async def test_a_node_is_asked_where_the_controller_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    made = session()
    files = {"look.json": '{"id": "x", "done": true}', "rank-0.json": a_look().ranks[0].model_dump_json(),
             "rank-1.json": "{", "node-0.json": '{"node": "worker-2", "problem": "py-spy is not there"}'}  # fmt: skip
    asked: list[tuple[str, str]] = []

    async def ask(self: Nodes, name: str, tasks: Sequence[Task], seconds: float) -> Answers:
        asked.append((name, tasks[0].name))
        if name == "worker-1":
            return Answers(0.0, 0.0, "", [Answer(reason="Permission denied")])
        return Answers(0.0, 0.0, "", [Answer("x" if tasks[0].name == "ask_look" else files)])

    monkeypatch.setattr(Nodes, "ask", ask)
    ranked = Ranked(made.work.runs["lm-k3f9qz"], {}, {})
    client: Any = Looking([], refuses="an older controller")
    reason = await look_at(ranked, client, Nodes(made), ["worker-1", "worker-2"], 5.0)
    assert reason == "worker-2: py-spy is not there"
    assert asked == [("worker-1", "ask_look"), ("worker-2", "ask_look"), ("worker-2", "read_look")]
    assert ranked.ranks[0].collective == "all_reduce"
    reason = await look_at(ranked, client, Nodes(made), ["worker-1"], 5.0)
    assert reason == (
        "its ranks could not be asked where they stand: over the controller: an older controller; "
        "over worker-1: Permission denied"
    )


# --- parts ------------------------------------------------------------------------------------------------------------


def test_each_node_tries_the_head_and_those_of_a_run_each_other() -> None:
    raylet = {"gcs_address": "10.0.0.1:6379", "node_ip_address": "10.0.0.2", "node_manager_port": "8076"}
    answers = Answers(0.0, 0.0, "", [])
    machines = {"a": Machine(answers, 0.0, raylet), "b": Machine(answers, 0.0, {}), "c": Machine(answers, 0.0, raylet)}
    found = [(way.source, way.node, way.host, way.port) for way in ways(machines, ["a", "b"], "head")]
    assert found == [("a", "head", "10.0.0.1", 6379), ("b", "head", "10.0.0.1", 6379), ("c", "head", "10.0.0.1", 6379),
                     ("b", "a", "10.0.0.2", 8076)]  # fmt: skip
    assert ways({}, [], "head") == []


def test_how_often_a_node_went_away() -> None:
    marks = [Mark(at=at, kind="node", target=target, text=text) for at, target, text in (
        (1.0, "a", "a: SSH lost: x"), (5.0, "a", "a: SSH lost"), (6.0, "a", "a: SSH up"), (7.0, "b", "b: Ray dead"),
        (8.0, "a", "a: Ray dead: y"))]  # fmt: skip
    assert times_lost(marks, "a", 2.0) == 2
    assert times_lost(marks, "c", 0.0) == 0


def test_the_service_that_fares_worst_is_told() -> None:
    raw = {
        "proxies": {"aa": {"status": "HEALTHY"}, "zz": {"status": "UNHEALTHY"}, "bad": 3},
        "http_options": {"port": 8000},
        "applications": {
            "good": {"status": "RUNNING", "route_prefix": "/good"},
            "chat": {"status": "UNHEALTHY", "message": "it fell", "route_prefix": "/chat", "deployments": {
                "llm": {"target_num_replicas": 2,
                        "replicas": [{"replica_id": "r1", "state": "STARTING", "node_id": "aa"}]},
                "odd": None}},
        },
    }  # fmt: skip
    found = serve_evidence(raw, {"aa": "gpu-1"})
    assert found is not None
    assert (found.name, found.status, found.port, found.target_replicas) == ("chat", "UNHEALTHY", 8000, 2)
    assert found.proxies == {"gpu-1": "HEALTHY", "zz": "UNHEALTHY", "bad": ""}
    assert [(replica.id, replica.node, replica.state) for replica in found.replicas] == [("r1", "gpu-1", "STARTING")]
    assert serve_evidence({}, {}) is None
    assert serve_evidence({"applications": []}, {}) is None


async def test_a_session_without_nodes_has_evidence_too(said: Said) -> None:
    made = session()
    made.fleet.nodes.clear()
    evidence = await gather(made, Target())
    assert isinstance(evidence, Evidence)
    assert evidence.nodes == {}
    said.gone = {"worker-1"}
    with pytest.raises(Refused, match="no node 'gone'"):
        await gather(made, Target("node", "gone"))
    with pytest.raises(Unreachable):
        await said.ask(Nodes(made), "worker-1", [], 1.0)


def test_the_rest_of_a_step_is_what_ranks_wait_for_each_other() -> None:
    ranks = [RankEvidence(0, seconds={"compute": 0.2}), RankEvidence(1, seconds={"compute": 2.5}), RankEvidence(2)]
    course = [Progress(step=10 * at, wall=WALL + 20 * at) for at in range(30)]
    share_out(ranks, course)
    assert [rank.seconds.get("collective") for rank in ranks] == [pytest.approx(1.8), 0.0, None]
    alone = [RankEvidence(0, seconds={"compute": 0.2})]
    share_out(alone, [Progress(step=1, wall=WALL), Progress(step=1, wall=WALL + 5), Progress(step=2)])
    assert "collective" not in alone[0].seconds
