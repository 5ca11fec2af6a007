"""Who is behind, from many shapes of what is known of a gang's ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs import hang
from jobs.errors import Refused, Unreachable
from jobs.hang import Behind, Collective, Frame, Look, NodeLook, RankLook, RankState, Thread, Why
from jobs.model import GangStatus, Rank

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
IN_ALL_REDUCE = [("all_reduce", C10D, 3252), ("main", "/job/train.py", 12)]
IN_READ = [("read_shard", "/job/data.py", 7), ("main", "/job/train.py", 10)]
IN_ITEM = [("item", "/job/train.py", 20)]


def state(rank: int, **fields: Any) -> RankState:
    return RankState.model_validate(
        {"rank": rank, "node": f"gpu-{rank // 2 + 1}", "gpu": str(rank % 2), "state": "S", **fields}
    )


def looked(rank: int, stack: list[tuple[str, str, int]] | None = None, **fields: Any) -> RankLook:
    frames = [Frame(function=function, file=file, line=line) for function, file, line in stack or []]
    threads = [Thread(main=True, frames=frames)] if frames else []
    return RankLook.model_validate({**state(rank).model_dump(), "threads": threads, **fields})


def called(number: int, group: str = "default_pg", **fields: Any) -> Collective:
    given: dict[str, Any] = {"group": group, "about": group, "operation": "nccl:all_reduce", "waiting_seconds": 40.0}
    return Collective.model_validate({**given, "enqueued": number, "pending": True, **fields})


def named(ranks: list[RankLook] | list[RankState]) -> Behind:
    found = hang.culprit(ranks)
    assert found is not None
    return found


def test_the_sentence_has_rank_node_gpu_steps_and_state() -> None:
    ranks = [state(rank, step=413, step_seconds=60.0) for rank in range(4)]
    ranks[3] = state(3, step=412, step_seconds=60.0, state="T")
    found = named(ranks)
    assert found.sentence == (
        "rank 3 (gpu-2, GPU 1) is behind: last step 412, the others 413; its process is stopped (state T)"
    )
    assert (found.ranks, found.nodes, found.why) == ((3,), ("gpu-2",), Why.STOPPED)
    assert "the oldest last step is rank 0's, 60 s ago" in found.evidence


@pytest.mark.parametrize(
    ("fields", "why", "said"),
    [
        ({"state": "T"}, Why.STOPPED, "its process is stopped (state T)"),
        ({"state": "t", "state_seconds": 9.0}, Why.STOPPED, "a debugger holds its process (state t)"),
        ({"state": "Z"}, Why.GONE, "its process is not there any more"),
        ({"exit_code": 0}, Why.GONE, "its process has ended (exit code 0)"),
        ({"exit_code": -9}, Why.GONE, "its process has ended (signal 9)"),
        ({"silent_seconds": 40.0}, Why.SILENT, "its node has not answered for 40 s"),
        ({"silent_seconds": 600.0}, Why.SILENT, "its node has not answered for 10 min"),
        (
            {"state": "D", "state_seconds": 35.0, "wchan": "nfs_wait_bit_killable"},
            Why.STUCK,
            "its process hangs in the kernel in nfs_wait_bit_killable (state D for 35 s)",
        ),
        ({"step": 11, "step_seconds": 60.0}, Why.STEP, "last step 11, the others 12"),
    ],
)
def test_one_rank_is_named_from_the_status_alone(fields: dict[str, Any], why: Why, said: str) -> None:
    ranks = [state(rank, **{"step": 12, "step_seconds": 60.0, **(fields if rank == 1 else {})}) for rank in range(4)]
    found = named(ranks)
    assert (found.ranks, found.why) == ((1,), why)
    assert found.sentence == f"rank 1 (gpu-1, GPU 1) is behind: {said}"


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"state": "D", "state_seconds": 0.5},  # for a moment everybody is
        {"state": "t", "state_seconds": 0.5},  # a look at its stack
        {"silent_seconds": 1.0},
        {"step": None},  # only the others tell steps
        {"step": 3, "step_seconds": 60.0},
    ],
)
def test_nobody_is_named_without_a_reason_or_while_the_gang_moves(fields: dict[str, Any]) -> None:
    ranks = [state(0, step=12, step_seconds=1.0), state(1, **{"step": 12, "step_seconds": 1.0, **fields})]
    assert hang.culprit(ranks) is None


def test_nobody_is_named_where_there_is_nobody_or_all_have_ended() -> None:
    assert hang.culprit([]) is None
    assert hang.culprit([state(0, exit_code=0), state(1, exit_code=1)]) is None
    assert hang.culprit([state(0), state(1)]) is None


def test_a_whole_node_is_one_sentence() -> None:
    ranks = [state(rank, step=5, step_seconds=90.0, node=f"gpu-{rank // 8}") for rank in range(16)]
    ranks[8:] = [rank.model_copy(update={"silent_seconds": 70.0}) for rank in ranks[8:]]
    found = named(ranks)
    assert found.sentence == "ranks 8 to 15 (gpu-1) are behind: their node has not answered for 70 s"
    assert found.nodes == ("gpu-1",)


def test_two_ranks_speak_of_the_other_one() -> None:
    found = named([state(0, step=7, step_seconds=60.0), state(1, step=6, step_seconds=60.0)])
    assert found.sentence == "rank 1 (gpu-1, GPU 1) is behind: last step 6, the other 7"


def test_fewer_collectives_name_it_though_all_told_the_same_step() -> None:
    ranks = [looked(rank, IN_ALL_REDUCE, step=40, step_seconds=60.0, collectives=[called(413)]) for rank in range(4)]
    ranks[2] = looked(2, IN_READ, step=40, step_seconds=60.0, collectives=[called(412, pending=False)])
    found = named(ranks)
    assert (found.ranks, found.why) == ((2,), Why.SEQUENCE)
    assert found.sentence == (
        "rank 2 (gpu-2, GPU 0) is behind: it has called 412 collectives of default_pg, the others 413 "
        "(nccl:all_reduce); it stands in read_shard (data.py:7)"
    )
    assert found.evidence[0] == "ranks 0, 1 and 3 stand in all_reduce, from main (train.py:12)"


def test_who_waits_in_one_group_for_a_rank_that_waits_in_another_is_not_to_blame() -> None:
    # 0 and 1 are one group, 1 and 3 another, 2 and 3 a third: 0 waits for 1, 1 and 2 wait for 3.
    ranks = [
        looked(0, IN_ALL_REDUCE, step=9, step_seconds=60.0, collectives=[called(8, "tp")]),
        looked(1, IN_ALL_REDUCE, step=8, step_seconds=60.0, collectives=[called(7, "tp"), called(5, "dp")]),
        looked(2, IN_ALL_REDUCE, step=9, step_seconds=60.0, collectives=[called(8, "tp-2")]),
        looked(3, IN_READ, step=9, step_seconds=60.0, collectives=[called(7, "tp-2"), called(4, "dp")]),
    ]
    found = named(ranks)
    assert (found.ranks, found.why) == ((3,), Why.SEQUENCE)


def test_ranks_that_wait_for_each_other_are_a_circle() -> None:
    ranks = [
        looked(0, IN_ALL_REDUCE, collectives=[called(8, "a"), called(3, "b")]),
        looked(1, IN_ALL_REDUCE, collectives=[called(7, "a"), called(4, "b")]),
    ]
    found = named(ranks)
    assert (found.ranks, found.why) == ((0, 1), Why.CIRCLE)
    assert found.sentence == "ranks 0 and 1 (gpu-1) wait for each other: rank 0 for rank 1, rank 1 for rank 0"


def test_a_receive_leads_to_the_rank_that_does_not_send() -> None:
    recv = called(0, "pp", operation="nccl:recv 1<-0", peer=0)
    ranks = [
        looked(0, IN_READ, collectives=[called(0, "pp", pending=False)]),
        looked(1, IN_ALL_REDUCE, collectives=[recv]),
    ]
    found = named(ranks)
    assert (found.ranks, found.why) == ((0,), Why.SEQUENCE)
    assert "rank 1 waits for it in nccl:recv 1<-0" in found.sentence


def test_another_operation_at_the_same_number_is_named() -> None:
    ranks = [looked(rank, IN_ALL_REDUCE, collectives=[called(9)]) for rank in range(4)]
    ranks[1] = looked(1, IN_ALL_REDUCE, collectives=[called(9, operation="nccl:broadcast")])
    found = named(ranks)
    assert (found.ranks, found.why) == ((1,), Why.DIFFERENT)
    assert "collective 9 of default_pg is nccl:broadcast there, and nccl:all_reduce on the others" in found.sentence


def test_all_that_wait_equally_point_to_the_network() -> None:
    ranks = [looked(rank, IN_ALL_REDUCE, collectives=[called(413)]) for rank in range(4)]
    found = named(ranks)
    assert (found.ranks, found.why) == ((), Why.EQUAL)
    assert found.sentence == (
        "all 4 ranks wait equally in collective 413 of default_pg (nccl:all_reduce), "
        "none is behind: look at the network between them"
    )
    without = [looked(rank, IN_ALL_REDUCE) for rank in range(4)]
    assert named(without).why is Why.EQUAL
    assert named(without).confidence < found.confidence


def test_a_collective_that_has_just_begun_is_no_reason() -> None:
    ranks = [looked(rank, collectives=[called(9 - rank, waiting_seconds=0.2)]) for rank in range(3)]
    assert hang.culprit(ranks) is None


def test_a_stopped_rank_that_cannot_tell_goes_before_what_the_others_tell() -> None:
    ranks = [looked(rank, IN_ALL_REDUCE, collectives=[called(413)]) for rank in range(4)]
    ranks[0] = looked(0, IN_ALL_REDUCE, state="T", recorder_problem="its process is stopped, and cannot answer")
    found = named(ranks)
    assert (found.ranks, found.why) == ((0,), Why.STOPPED)
    assert "rank 0 told nothing of collectives" in found.evidence


def test_the_odd_stack_out_is_named_where_nothing_else_is_known() -> None:
    ranks = [looked(rank, IN_ALL_REDUCE if rank != 2 else IN_READ) for rank in range(4)]
    assert (named(ranks).ranks, named(ranks).why) == ((2,), Why.STACK)
    waiting = [looked(rank, IN_ITEM if rank != 1 else IN_READ) for rank in range(4)]
    assert named(waiting).ranks == (1,)
    half = [looked(rank, IN_ITEM if rank % 2 else IN_READ) for rank in range(4)]
    assert hang.culprit(half) is None


def test_one_rank_alone_says_where_it_stands() -> None:
    found = named([looked(0, IN_READ, call="read /data/shard-3")])
    assert found.sentence == "rank 0 (gpu-1, GPU 0) does not go on: it stands in read_shard (data.py:7)"
    assert "rank 0 is in the system call read /data/shard-3" in found.evidence


def test_a_thread_that_hangs_in_the_kernel_is_told_with_what_in() -> None:
    ranks = [looked(rank, IN_ITEM) for rank in range(3)]
    ranks[1] = looked(1, IN_ITEM, stuck=["pin_memory in nfs4_wait"])
    assert "of its threads 1 hangs in the kernel (pin_memory in nfs4_wait)" in named(ranks).sentence


def test_identical_stacks_are_one_group_and_native_calls_do_not_part_them() -> None:
    native = Frame(function="c10d::Work::wait", file="libtorch_cpu.so", native=True)
    ranks = [looked(rank, IN_ITEM) for rank in range(3)]
    ranks[0].threads[0].frames.insert(0, native)
    groups = hang.grouped([*ranks, looked(3)])
    assert [(group.ranks, group.collective, group.where) for group in groups] == [
        ((0, 1, 2), True, "item (train.py:20)")
    ]


def test_ages_come_from_the_status_and_names_from_whoever_knows_them() -> None:
    rank = Rank(rank=1, node_id="f00", gpu="3", step=9, step_at=90.0, output_at=99.0, state="D", state_at=60.0)
    status = GangStatus(ranks=[rank, Rank(rank=2, node_id="other", node_address="10.0.0.2")], wall=100.0)
    first, second = hang.states_of(status, {"f00": "gpu-1"})
    assert (first.node, first.step_seconds, first.output_seconds, first.state_seconds) == ("gpu-1", 10.0, 1.0, 40.0)
    assert (second.node, second.step_seconds, second.silent_seconds) == ("10.0.0.2", None, None)


def test_a_look_is_asked_for_and_read_as_far_as_it_is_there(tmp_path: Path) -> None:
    asked = hang.ask(tmp_path)
    assert (tmp_path / "look").read_text() == asked
    assert hang.read_looks(tmp_path, asked) == Look(id=asked)
    folder = tmp_path / "looks" / asked
    folder.mkdir(parents=True)
    (folder / "look.json").write_text(Look(id=asked, asked_at=5.0, expected=11).model_dump_json())
    for rank in (10, 2):
        (folder / f"rank-{rank}.json").write_text(RankLook(rank=rank).model_dump_json())
    (folder / "rank-3.json").write_text('{"rank": 3, "thr')
    (folder / "rank-4.json.partial").write_text("{}")
    (folder / "node-0.json").write_text(NodeLook(node="gpu-1").model_dump_json())
    found = hang.read_looks(tmp_path, asked)
    assert ([rank.rank for rank in found.ranks], found.expected, found.done) == ([2, 10], 11, False)
    assert [node.node for node in found.nodes] == ["gpu-1"]
    with pytest.raises(Refused):
        hang.read_looks(tmp_path, "../../etc")
    with pytest.raises(Unreachable):
        hang.ask(tmp_path / "none")


_COLLECTIVES = st.builds(
    Collective,
    group=st.sampled_from(["a", "b"]),
    enqueued=st.integers(0, 3),
    pending=st.booleans(),
    operation=st.sampled_from(["all_reduce", "recv"]),
    peer=st.none() | st.integers(0, 5),
    waiting_seconds=st.none() | st.floats(0, 100),
)
_SHAPES = st.lists(
    st.builds(
        looked,
        st.just(0),
        st.sampled_from([None, IN_ALL_REDUCE, IN_READ, IN_ITEM]),
        state=st.sampled_from(["", "R", "S", "D", "T", "t", "Z"]),
        state_seconds=st.none() | st.floats(0, 100),
        step=st.none() | st.integers(0, 3),
        step_seconds=st.none() | st.floats(0, 100),
        exit_code=st.none() | st.integers(-15, 2),
        silent_seconds=st.none() | st.floats(0, 100),
        collectives=st.lists(_COLLECTIVES, max_size=2, unique_by=lambda each: each.group),
    ),
    max_size=6,
)


@given(_SHAPES, st.randoms())
def test_whatever_is_known_it_names_ranks_that_are_there_whatever_their_order(shape: list[RankLook], mix: Any) -> None:
    ranks = [rank.model_copy(update={"rank": number}) for number, rank in enumerate(shape)]
    found = hang.culprit(ranks)
    mixed = list(ranks)
    mix.shuffle(mixed)
    assert hang.culprit(mixed) == found
    if found is None:
        return
    assert set(found.ranks) <= {rank.rank for rank in ranks}
    assert found.sentence
    assert 0 < found.confidence <= 1
    stopped = {rank.rank for rank in ranks if rank.state == "T" and rank.exit_code is None}
    if stopped:
        assert stopped <= set(found.ranks)
