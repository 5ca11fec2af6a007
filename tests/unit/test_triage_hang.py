"""A run that stands still: the rank that is behind is named, with what tells it; nobody is where nothing tells."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.model import RunState
from jobs.triage import stacks
from jobs.triage.evidence import RankEvidence, Truth, lines
from jobs.triage.report import triage
from probes.reading import Mount
from tests.unit.triage_made import NOW, column, course, device_health, evidence, hung, ranks, run, xid

ALL_REDUCE = """Thread 1001 (active): "MainThread"
    wait (torch/distributed/distributed_c10d.py:320)
    all_reduce (torch/distributed/distributed_c10d.py:2806)
    step (train.py:88)
    <module> (train.py:120)
Thread 1002 (idle): "pin_memory"
    poll (select.py:10)
"""
LOADING = """Thread 1001 (idle): "MainThread"
    read (io.py:77)
    __getitem__ (dataset.py:31)
    _next_data (torch/utils/data/dataloader.py:789)
    step (train.py:81)
    <module> (train.py:120)
"""
SAVING = """Thread 1001 (active): "MainThread"
    _save (torch/serialization.py:965)
    save (checkpoint.py:40)
    <module> (train.py:131)
"""
ELSEWHERE = """Thread 1001 (active): "MainThread"
    evaluate (train.py:55)
    <module> (train.py:121)
"""


def with_rank_3(**changes: object) -> list[RankEvidence]:
    made = ranks()
    made[3] = replace(made[3], **changes)
    return made


def all_with(**changes: object) -> list[RankEvidence]:
    return [replace(each, **changes) for each in ranks()]


def test_a_stopped_rank_in_one_sentence() -> None:
    told = triage(hung(with_rank_3(last_step=412, process_state="T")))
    assert told.headline == (
        "Rank 3 (gpu-2, GPU 1) is behind: last step 412, the others 413; its process is stopped (state T)"
    )
    found = told.findings[0]
    assert found.confidence == "certain"
    assert any("26% of their power" in item.text for item in found.evidence)
    assert found.consequences[0].place == "3 ranks"


@pytest.mark.parametrize(
    ("changes", "words", "confidence"),
    [
        ({"exit_code": 0}, "has ended with exit code 0", "certain"),
        ({"process_state": "gone"}, "its process is gone", "certain"),
        ({"process_state": "t"}, "stopped (state t)", "certain"),
        ({"process_state": "D", "wchan": "nfs_wait"}, "state D in nfs_wait", "likely"),
        ({"process_state": "D", "last_step": 412}, "waits inside the kernel", "certain"),
        ({"last_step": 400}, "last step 400, the others 413", "likely"),
        ({"collective_seq": 811}, "collective 811, the others 812", "likely"),
        ({"collective_seq": 811, "last_step": 412}, "collective 811, the others 812", "certain"),
    ],
)
def test_what_tells_who_is_behind(changes: dict[str, object], words: str, confidence: str) -> None:
    made = [replace(each, collective_seq=812, collective="all_reduce") for each in ranks()]
    made[3] = replace(made[3], **changes)
    found = triage(hung(made)).findings[0]
    assert (found.id, found.culprit.rank, found.culprit.node, found.culprit.gpu) == ("S01", 3, "gpu-2", 1)
    assert words in found.title
    assert found.confidence == confidence


def test_the_odd_stack_out() -> None:
    made = all_with(stack=ALL_REDUCE)
    made[3] = replace(made[3], stack=ELSEWHERE)
    found = triage(hung(made)).findings[0]
    assert found.culprit.rank == 3
    assert "evaluate (train.py)" in found.title
    assert any("wait (distributed/distributed_c10d.py)" in item.text for item in found.evidence)


def test_the_one_that_waits_for_its_data() -> None:
    made = all_with(stack=ALL_REDUCE)
    made[1] = replace(made[1], stack=LOADING, last_step=412)
    found = triage(hung(made)).findings[0]
    assert (found.culprit.rank, found.step, found.confidence) == (1, "network and storage", "certain")
    assert "waits for data" in found.cause


def test_the_mount_behind_the_one_that_waits() -> None:
    made = hung(with_rank_3(process_state="D", wchan="nfs_wait", last_step=412))
    health = made.nodes["gpu-2"].health
    assert health is not None
    health.mounts[0] = Mount("/data", "nfs4", hangs_seconds=290.0)
    found = triage(made).findings[0]
    assert (found.id, found.culprit.node, found.culprit.path) == ("K24", "gpu-2", "/data")
    assert any("rank 3 (gpu-2, GPU 1) is behind" in item.text for item in found.consequences)


def test_the_gpu_behind_the_one_that_waits() -> None:
    made = hung(with_rank_3(last_step=412))
    made.nodes["gpu-2"].events = [xid(119, at=NOW - 302)]
    found = triage(made).findings[0]
    assert (found.id, found.culprit.words, found.confidence) == ("K21", "gpu-2/1", "certain")


def test_a_fault_before_the_hang_is_not_its_reason() -> None:
    made = hung(with_rank_3(last_step=412))
    made.nodes["gpu-2"].events = [xid(119, at=NOW - 4000)]
    told = triage(made)
    assert told.findings[0].id == "S01"
    assert "K21" in [finding.id for finding in told.findings]


def test_the_driver_behind_the_one_that_waits() -> None:
    made = hung(with_rank_3(last_step=412))
    made.nodes["gpu-2"].driver = Truth("blocked", "a call has not come back", NOW - 290)
    found = triage(made).findings[0]
    assert (found.id, found.culprit.node) == ("driver_blocked", "gpu-2")


def test_a_lost_node_behind_a_hang() -> None:
    made = hung(ranks())
    made.nodes["gpu-2"].ssh = Truth("lost", "no answer", NOW - 295)
    found = triage(made).findings[0]
    assert (found.id, found.culprit.node, found.confidence) == ("K26", "gpu-2", "likely")
    assert any("are behind" in item.text for item in found.consequences)


def test_both_ranks_of_a_node_are_told_as_the_node() -> None:
    made = ranks()
    for number in (2, 3):
        made[number] = replace(made[number], last_step=412)
    found = triage(hung(made)).findings[0]
    assert found.culprit.words == "gpu-2"
    assert found.title.startswith("ranks 2 and 3 are behind")


def test_all_in_one_collective_is_the_network() -> None:
    found = triage(hung(all_with(collective_seq=812, stack=ALL_REDUCE))).findings[0]
    assert (found.id, found.step) == ("S01", "network and storage")
    assert "collective 812" in found.title


def test_all_loading_data_is_the_storage() -> None:
    made = hung(all_with(stack=LOADING))
    for each in made.nodes.values():
        column(each, "utilization_percent", [0, 0])
    found = triage(made).findings[0]
    assert (found.id, found.culprit.path) == ("S07", "/data/corpus")


def test_all_saving_is_the_storage_of_the_output() -> None:
    found = triage(hung(all_with(stack=SAVING))).findings[0]
    assert found.culprit.path == "/output"


def test_all_inside_the_kernel() -> None:
    found = triage(hung(all_with(process_state="D", wchan="nfs_wait"))).findings[0]
    assert found.title == "all ranks wait inside the kernel"


def test_all_on_their_cpus() -> None:
    made = hung(all_with(cpu_percent=100.0))
    for each in made.nodes.values():
        column(each, "utilization_percent", [0, 0])
    found = triage(made).findings[0]
    assert found.step == "resources"


def test_nobody_is_named_where_nothing_tells() -> None:
    told = triage(hung(ranks()))
    found = told.findings[0]
    assert found.culprit.rank is None
    assert found.culprit.node == ""
    assert "which one is not known" in found.cause
    assert "py-spy" in found.action
    assert told.headline == "Probably run run-1 has not reported a step for 300 s, its GPUs spin"


def test_long_steps_are_no_hang() -> None:
    made = evidence()
    assert made.run is not None
    made.run.course = [
        point.model_copy(update={"wall": NOW - 200 - 400 * at}) for at, point in enumerate(reversed(course()))
    ][::-1]
    assert not [finding for finding in triage(made).findings if finding.id == "S01"]


def test_ranks_that_differ_while_it_goes_on_are_none() -> None:
    told = triage(evidence(ranks=with_rank_3(last_step=412, process_state="D")))
    assert told.findings == []


def test_a_run_that_does_not_run_does_not_hang() -> None:
    for state in (RunState.SUCCEEDED, RunState.QUEUED):
        made = hung(ranks())
        assert made.run is not None
        made.run.run = run(state)
        assert not [finding for finding in triage(made).findings if finding.id == "S01"]


def test_a_known_line_of_a_hung_rank_is_told() -> None:
    made = ranks()
    made[2].log = lines("nfs: server storage-1 not responding, still trying", wall=NOW - 299)
    told = triage(hung(made))
    assert told.findings[0].id == "K24"
    assert told.findings[0].culprit.rank == 2


def test_links_that_are_down_explain_a_collective_that_does_not_end() -> None:
    made = hung(all_with(collective_seq=812))
    health = made.nodes["gpu-1"].health
    assert health is not None
    health.devices[0] = device_health(0, nvlinks_active=16)
    found = triage(made).findings[0]
    assert (found.id, found.culprit.words) == ("nvlink", "gpu-1/0")


# --- stacks -----------------------------------------------------------------------------------------------------------


def test_stacks_are_read() -> None:
    assert stacks.frames(ALL_REDUCE)[0] == "wait (torch/distributed/distributed_c10d.py)"
    assert len(stacks.frames(ALL_REDUCE)) == 4
    assert [stacks.doing(text) for text in (ALL_REDUCE, LOADING, SAVING, ELSEWHERE, "")] == [
        "collective", "data", "saving", "other", ""
    ]  # fmt: skip


def test_the_main_thread_is_read_wherever_it_stands() -> None:
    text = 'Thread 7 "pin_memory"\n    poll (select.py:1)\nThread MainThread "MainThread"\n    step (train.py:8)\n'
    assert stacks.frames(text) == ["step (train.py)"]


def test_equal_stacks_are_one_group() -> None:
    found = stacks.groups({0: ALL_REDUCE, 1: ALL_REDUCE.replace(":88", ":89"), 2: ELSEWHERE, 3: ""})
    assert [ranks for _, ranks in found] == [[0, 1], [2]]


@given(st.text(max_size=500))
def test_any_stack_is_read(text: str) -> None:
    stacks.frames(text)
    stacks.doing(text)
    stacks.groups({0: text, 1: ALL_REDUCE})


@given(
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 3), st.text(max_size=60)), max_size=20),
)
def test_noise_in_logs_never_moves_a_stopped_rank(stopped: int, noise: list[tuple[int, str]]) -> None:
    made = ranks()
    made[stopped] = replace(made[stopped], last_step=412, process_state="T")
    for number, text in noise:
        made[number].log += lines(text, wall=NOW - 1.0)
    found = triage(hung(made)).findings[0]
    assert (found.id, found.culprit.rank) == ("S01", stopped)
