"""Gangs that hang, on a real Ray: who is behind is told from the status, and a look has the evidence."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from pathlib import Path

import pytest

from jobs import hang
from jobs.hang import Behind, Look, RankLook, Why
from jobs.looks import LOOK_SECONDS
from tests.cluster.conftest import RayOnThisMachine, wait_for
from tests.cluster.test_gang import Gang, launch, parent
from tests.cluster.test_gang import output as output

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(240)]

NAMED_SECONDS = 20.0
BAD_RANK = 2

STEPS = """
import datetime, os, sys, time
import torch
import torch.distributed as dist
import jobs

def wait_for_nothing():
    while True:
        time.sleep(1)

def read_what_never_comes(path):
    with open(os.open(path, os.O_RDWR), "rb") as shard:  # a writer that writes nothing: ourselves
        shard.read(1)

torch.set_num_threads(1)
dist.init_process_group("gloo", timeout=datetime.timedelta(minutes=10))
how = sys.argv[1]
for step in range(1, 1_000_000):
    if step == 20 and dist.get_rank() == 2:
        if how == "sleep":
            wait_for_nothing()
        if how == "read":
            read_what_never_comes(sys.argv[2])
    jobs.report(step=step)
    dist.all_reduce(torch.zeros(1))
    time.sleep(0.02)
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "steps.py").write_text(STEPS)
    return tmp_path


@pytest.fixture
def begin(ray_cluster: RayOnThisMachine, output: Path, code: Path) -> Generator[list[Gang]]:
    """Gangs that a test began: stopped at its end, and gone."""
    begun: list[Gang] = []
    yield begun
    for gang in begun:
        (gang.folder / "stop-now").touch()
    for gang in begun:
        began = time.monotonic()
        assert gang.outcome().verdict == "stopped"
        assert time.monotonic() - began < 15
        gang.gone()


def names(ray_cluster: RayOnThisMachine) -> dict[str, str]:
    return {node["node_id"]: name for name, node in ray_cluster.nodes.items()}


def behind(gang: Gang) -> Behind | None:
    """Who is behind, from what the controller reads each second."""
    status = gang.status()
    return hang.culprit(hang.states_of(status, names(gang.ray))) if status.phase == "running" else None


def steps(gang: Gang) -> list[int]:
    return [rank.step or 0 for rank in gang.status().ranks]


def look(gang: Gang) -> Look:
    """A look at the gang, once it has come back; it may take no longer than it says."""
    asked = hang.ask(gang.folder)
    return wait_for(
        "a look", lambda: done if (done := hang.read_looks(gang.folder, asked)).done else None, LOOK_SECONDS
    )


def of(found: Look, rank: int) -> RankLook:
    return next(each for each in found.ranks if each.rank == rank)


def stack(rank: RankLook) -> list[str]:
    assert rank.threads, rank.stack_problem
    return [frame.function for frame in rank.threads[0].frames if not frame.native]


def start(ray_cluster: RayOnThisMachine, begin: list[Gang], code: Path, output: Path, *script: str) -> Gang:
    wanted = launch(output, "hangs", script=["steps.py", *script], processes_per_node=2, gpus_per_node=2)
    gang = Gang(ray_cluster, code, wanted)
    begin.append(gang)
    gang.until("running")
    wait_for("steps of all ranks", lambda: min(steps(gang), default=0) >= 5)
    return gang


def node_of(gang: Gang, rank: int) -> str:
    return names(gang.ray)[gang.status().ranks[rank].node_id]


def test_a_stopped_rank_is_named_and_goes_on(
    ray_cluster: RayOnThisMachine, begin: list[Gang], code: Path, output: Path
) -> None:
    gang = start(ray_cluster, begin, code, output, "go")
    healthy = look(gang)
    assert [rank.rank for rank in healthy.ranks] == [0, 1, 2, 3]
    pid = gang.status().ranks[BAD_RANK].pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    try:
        named = wait_for("a name", lambda: behind(gang), NAMED_SECONDS)
        assert named.ranks == (BAD_RANK,)
        assert named.why is Why.STOPPED
        node = node_of(gang, BAD_RANK)
        assert named.sentence.startswith(f"rank 2 ({node}, GPU 0) is behind: ")
        assert named.sentence.endswith("its process is stopped (state T)")
        found = look(gang)
        assert [rank.rank for rank in found.ranks] == [0, 1, 2, 3]
        assert of(found, BAD_RANK).state == "T"
        assert of(found, BAD_RANK).stack_by == "py-spy"
        for rank in (0, 1, 3):
            assert "all_reduce" in stack(of(found, rank))
            assert of(found, rank).collectives[0].pending
            assert of(found, rank).collectives[0].operation == "gloo:all_reduce"
        again = hang.culprit(found.ranks)
        assert again is not None
        assert again.ranks == (BAD_RANK,)
        assert again.nodes == (node,)
        where = max(steps(gang))
    finally:
        os.kill(pid, signal.SIGCONT)
    wait_for("steps that go on", lambda: min(steps(gang)) > where + 5, 20.0)
    assert all(rank.state != "T" for rank in gang.status().ranks)


def test_a_rank_that_sleeps_is_named_and_its_stack_shows_where(
    ray_cluster: RayOnThisMachine, begin: list[Gang], code: Path, output: Path
) -> None:
    gang = start(ray_cluster, begin, code, output, "sleep")
    named = wait_for("a name", lambda: found if (found := behind(gang)) and set(steps(gang)) == {19, 20} else None)
    assert named.sentence == f"rank 2 ({node_of(gang, BAD_RANK)}, GPU 0) is behind: last step 19, the others 20"
    found = look(gang)
    assert "wait_for_nothing" in stack(of(found, BAD_RANK))
    assert {rank.rank: rank.collectives[0].enqueued for rank in found.ranks} == {0: 20, 1: 20, 2: 19, 3: 20}
    again = hang.culprit(found.ranks)
    assert again is not None
    assert again.why is Why.SEQUENCE
    assert again.ranks == (BAD_RANK,)
    assert "last step 19, the others 20" in again.sentence
    assert "it has called 19 collectives of default_pg, the others 20 (gloo:all_reduce)" in again.sentence
    assert "it stands in wait_for_nothing (steps.py:" in again.sentence
    assert all(node.seconds is not None and node.seconds < 10 and not node.problem for node in found.nodes)


def test_a_rank_that_reads_what_never_comes_is_named_with_the_file(
    ray_cluster: RayOnThisMachine, begin: list[Gang], code: Path, output: Path
) -> None:
    shard = output / "shard-3"
    os.mkfifo(shard)
    gang = start(ray_cluster, begin, code, output, "read", str(shard))
    wait_for("a name", lambda: (found := behind(gang)) and found.ranks == (BAD_RANK,), 30.0)
    found = look(gang)
    bad = of(found, BAD_RANK)
    assert "read_what_never_comes" in stack(bad)
    assert bad.call == f"read {shard}"
    again = hang.culprit(found.ranks)
    assert again is not None
    assert again.ranks == (BAD_RANK,)
    assert f"rank 2 is in the system call read {shard}" in again.evidence
    hang.ask(gang.folder)  # a stop does not wait for a look: the fixture ends the gang now


def test_a_node_that_does_not_answer_is_named_and_a_look_says_so(
    ray_cluster: RayOnThisMachine, begin: list[Gang], code: Path, output: Path
) -> None:
    gang = start(ray_cluster, begin, code, output, "go")
    pid = gang.status().ranks[BAD_RANK].pid
    assert pid is not None
    agent = parent(parent(pid))
    os.kill(agent, signal.SIGSTOP)
    try:
        named = wait_for("a name", lambda: behind(gang), NAMED_SECONDS)
        node = node_of(gang, BAD_RANK)
        assert (named.ranks, named.why) == ((2, 3), Why.SILENT)
        assert named.sentence.startswith(f"ranks 2 and 3 ({node}) are behind: their node has not answered for ")
        found = look(gang)
    finally:
        os.kill(agent, signal.SIGCONT)
    assert [(each.index, each.problem) for each in found.nodes] == [
        (0, ""),
        (1, "its agent did not bring a look in time"),
    ]
    assert stack(of(found, 0))
    assert of(found, BAD_RANK).silent_seconds is not None
    assert not of(found, BAD_RANK).threads
    wait_for("its answer", lambda: gang.status().ranks[BAD_RANK].silent_at is None)
