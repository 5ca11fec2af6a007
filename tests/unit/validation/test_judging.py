"""What nodes, GPUs and ranks measured, judged: by itself, beside the others, and who broke it off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from jobs.validation import judgegpus, judgeranks
from jobs.validation.fleet import common_versions, judge_data, judge_preflight
from jobs.validation.judgegpus import GpuRan
from jobs.validation.judgeranks import RankRan
from jobs.validation.measured import Measured
from jobs.validationview import CheckResult

NODES = ("gpu-1", "gpu-2", "gpu-3")


def words(result: CheckResult) -> list[str]:
    return [each.words for each in result.culprits]


# --- preflight --------------------------------------------------------------------------------------------------------


def preflight(check: str, **facts: dict[str, Any]) -> dict[str, CheckResult]:
    """The verdicts of a check, by node. ``facts``: by the node's name with an underscore."""
    told = {name.replace("_", "-"): [Measured(check, facts=each)] for name, each in facts.items()}
    return {each.node: each for each in judge_preflight([check], told, {}, {})}


def test_the_node_that_was_left_out_of_an_update_is_named_with_what_most_have() -> None:
    found = preflight(
        "preflight.versions",
        gpu_1={"torch": "2.13.0", "kernel": "6.1"},
        gpu_2={"torch": "2.11.0", "kernel": "6.1"},
        gpu_3={"torch": "2.13.0", "kernel": "6.8"},
    )
    assert {node: each.verdict for node, each in found.items()} == {"gpu-1": "pass", "gpu-2": "fail", "gpu-3": "warn"}
    assert found["gpu-2"].sentence == "torch 2.11.0, most have 2.13.0"
    assert words(found["gpu-2"]) == ["gpu-2 (torch)"]


def test_without_a_majority_nobody_fails() -> None:
    found = preflight("preflight.versions", gpu_1={"ray": "2.60"}, gpu_2={"ray": "2.52"})
    assert {each.verdict for each in found.values()} == {"warn"}
    told = {"a": [Measured("preflight.versions", facts={"ray": "1", "torch": "2"})]}
    assert common_versions(told) == {"ray": "1", "torch": "2"}


def test_a_clock_is_judged_by_what_is_sure_of_it() -> None:
    told = {node: [Measured("preflight.clock")] for node in NODES}
    offsets = {"gpu-1": (2.2, 0.1), "gpu-2": (-0.7, 0.05), "gpu-3": (0.6, 0.3)}
    found = {each.node: each for each in judge_preflight(["preflight.clock"], told, offsets, {})}
    assert [found[node].verdict for node in NODES] == ["fail", "warn", "pass"]
    assert found["gpu-1"].sentence == "2.2 s ahead of the head"
    assert found["gpu-3"].sentence == "600 ms ahead of the head, give or take 300 ms"


def test_one_gpu_on_two_nodes_fails_both() -> None:
    gpu = {"name": "H100", "uuid": "GPU-1"}
    found = preflight("preflight.inventory", gpu_1={"gpus": [gpu]}, gpu_2={"gpus": [gpu]}, gpu_3={"gpus": []})
    assert [each.verdict for each in found.values()] == ["fail", "fail", "pass"]


def silent(node: str, *others: str) -> list[Measured]:
    wrong = "no answer" if others else ""
    return [Measured("preflight.ports", wrong=wrong, facts={"silent": {other: [6379] for other in others}})]


def test_a_filter_between_two_nodes_is_that_link_and_one_around_a_node_is_that_node() -> None:
    told = {"gpu-1": silent("gpu-1", "gpu-2"), "gpu-2": silent("gpu-2"), "gpu-3": silent("gpu-3")}
    found = {each.node: each for each in judge_preflight(["preflight.ports"], told, {}, {})}
    assert words(found["gpu-1"]) == ["the link gpu-1 ↔ gpu-2 (port 6379)"]
    told = {"gpu-1": silent("gpu-1", "gpu-2"), "gpu-2": silent("gpu-2"), "gpu-3": silent("gpu-3", "gpu-2")}
    found = {each.node: each for each in judge_preflight(["preflight.ports"], told, {}, {})}
    assert words(found["gpu-1"]) == words(found["gpu-3"]) == ["gpu-2 (port 6379)"]


def unseen(**by_node: tuple[str, ...]) -> dict[str, CheckResult]:
    """Who does not see what whom has written to ``/out``."""
    told = {
        name.replace("_", "-"): [
            Measured("preflight.shared", wrong="not seen" if others else "", facts={"unseen": {"/out": list(others)}})
        ]
        for name, others in by_node.items()
    }
    return {each.node: each for each in judge_preflight(["preflight.shared"], told, {}, {})}


def test_a_shared_path_that_is_another_one_on_one_node_is_that_nodes_fault_alone() -> None:
    found = unseen(gpu_1=("gpu-2",), gpu_2=("gpu-1", "gpu-3"), gpu_3=("gpu-2",))
    assert [each.verdict for each in found.values()] == ["pass", "fail", "pass"]
    assert found["gpu-2"].sentence == "/out is not what the other nodes have there"
    assert found["gpu-1"].sentence == "seen of all but gpu-2"
    # It could not write, and so nobody sees anything of it; what the others wrote it does see.
    found = unseen(gpu_1=("gpu-2",), gpu_2=(), gpu_3=("gpu-2",))
    assert [each.verdict for each in found.values()] == ["pass", "fail", "pass"]
    # Of two nodes either may be the odd one.
    assert {each.verdict for each in unseen(gpu_1=("gpu-2",), gpu_2=("gpu-1",)).values()} == {"fail"}


def test_what_told_nothing_is_unknown_and_what_was_skipped_is_not_green() -> None:
    told = {"gpu-1": [Measured("preflight.mounts", skipped="no paths")], "gpu-2": list[Measured]()}
    found = judge_preflight(["preflight.mounts"], told, {}, {"gpu-2": "it hung at preflight.mounts"})
    assert [(each.verdict, each.sentence) for each in found] == [
        ("skipped", "no paths"), ("unknown", "it hung at preflight.mounts"),
    ]  # fmt: skip


# --- one GPU ----------------------------------------------------------------------------------------------------------


def gpus(check: str, *measured: Measured | None, **more: Any) -> list[CheckResult]:
    made = [
        GpuRan("gpu-1", at, "H100", [] if each is None else [replace(each, gpu=at)], **more)
        for at, each in enumerate(measured)
    ]
    return judgegpus.judge([check], made, stand_in=False)


def test_a_result_that_only_one_gpu_of_its_kind_has_is_silent_corruption() -> None:
    good = Measured("gpu.gemm_exact", facts={"digest": "aa", "libs": "H100"})
    odd = Measured("gpu.gemm_exact", facts={"digest": "bb", "libs": "H100"})
    other = Measured("gpu.gemm_exact", facts={"digest": "cc", "libs": "A100"})
    found = gpus("gpu.gemm_exact", good, odd, good, other)
    assert [each.verdict for each in found] == ["pass", "fail", "pass", "pass"]
    assert words(found[1]) == ["gpu-1/1"]


def test_a_gpu_that_is_slower_than_its_like_fails_and_one_alone_has_no_reference() -> None:
    rates = [Measured("gpu.gemm", figures={"gemm": [rate]}) for rate in (700.0, 710.0, 400.0, 690.0)]
    assert [each.verdict for each in gpus("gpu.gemm", *rates)] == ["pass", "pass", "fail", "pass"]
    (alone,) = gpus("gpu.gemm", rates[2])
    assert (alone.verdict, alone.criterion) == ("pass", "no reference")


def test_a_gpu_that_hung_failed_and_what_came_after_is_unknown() -> None:
    (hung,) = gpus("gpu.gemm", None, unfinished="gpu.gemm", exit_code=None, tail="File x, line 3")
    assert (hung.verdict, hung.sentence, words(hung)) == ("fail", "it hung, and was ended", ["gpu-1/0"])
    (killed,) = gpus("gpu.gemm", None, unfinished="gpu.gemm", exit_code=-9)
    assert killed.sentence == "its process ended with signal 9"
    (after,) = gpus("gpu.train", None, unfinished="gpu.gemm", exit_code=None)
    assert after.verdict == "unknown"
    (lost,) = gpus("gpu.train", None, lost="Ray declared it dead")
    assert (lost.verdict, lost.sentence) == ("unknown", "gpu-1 was lost: Ray declared it dead")


# --- ranks ------------------------------------------------------------------------------------------------------------

ASKED = ("cluster.join", "cluster.pairs", "cluster.straggler")


def rank(node: str, *results: Measured, **more: Any) -> RankRan:
    return RankRan(node, 0, results, **more)


def done(check: str = "cluster.join", **more: Any) -> Measured:
    return Measured(check, **more)


RESET = "RuntimeError: Connection reset by peer"


def test_a_rank_that_died_is_to_blame_and_what_the_others_say_is_not() -> None:
    judged = judgeranks.judge(
        "cluster", ASKED,
        [
            rank("gpu-1", done(), done("cluster.pairs", wrong=RESET, broken=True)),
            rank("gpu-2", done(), unfinished="cluster.pairs", exit_code=-9),
            rank("gpu-3", done(), done("cluster.pairs", wrong=RESET, broken=True)),
        ],
        True, {},
    )  # fmt: skip
    assert [each.verdict for each in judged.checks] == ["pass", "fail"]
    assert judged.checks[1].sentence == "rank 1 on gpu-2 was ended by signal 9 at “links”"
    assert (judged.to_blame, judged.unreached) == (["gpu-2"], ["cluster.straggler"])


def test_a_rank_that_hung_is_named_also_when_it_ended_itself() -> None:
    barrier = "RuntimeError: [Rank 0]: Ranks 2 failed to pass monitoredBarrier in 6000 ms"
    others = [
        rank("gpu-1", done(), done("cluster.pairs", wrong=barrier, broken=True)),
        rank("gpu-2", done(), done("cluster.pairs", wrong=RESET, broken=True)),
    ]
    for how in ({"exit_code": None}, {"exit_code": 1, "tail": "Timeout (0:00:25)!\nThread 0x7"}):
        ranks = [*others, rank("gpu-3", done(), unfinished="cluster.pairs", **how)]
        judged = judgeranks.judge("cluster", ASKED, ranks, True, {})
        assert judged.checks[-1].sentence == "rank 2 on gpu-3 hung at “links”"
        assert judged.to_blame == ["gpu-3"]


def test_a_rank_that_never_came_is_named_by_the_barrier() -> None:
    barrier = "[Rank 0]: Rank 1 failed to pass monitoredBarrier in 6000 ms"
    ranks = [
        rank("gpu-1", done(), done("cluster.pairs", wrong=barrier, broken=True)),
        rank("gpu-2", done(), done("cluster.pairs", wrong=RESET, broken=True)),
    ]
    assert judgeranks.judge("cluster", ASKED, ranks, True, {}).to_blame == ["gpu-2"]


def test_a_lost_node_explains_all_the_rest_and_a_riddle_blames_nobody() -> None:
    broken = done("cluster.pairs", wrong=RESET, broken=True)
    ranks = [rank("gpu-1", done(), broken), rank("gpu-2", lost="Ray declared it dead")]
    found = judgeranks.judge("cluster", ("cluster.pairs",), ranks, True, {})
    assert (found.to_blame, found.checks[0].verdict) == (["gpu-2"], "fail")
    ranks = [rank(node, done(), broken) for node in NODES]
    found = judgeranks.judge("cluster", ("cluster.pairs",), ranks, True, {})
    assert (found.to_blame, found.checks[0].verdict) == ([], "fail")


def pairs(slow: str = "", rate: float = 1.0) -> list[RankRan]:
    def of(node: str, other: str) -> float:
        return rate if slow in (node, other) else 1.0

    return [
        rank(node, done("cluster.pairs", facts={"edges": {other: of(node, other) for other in NODES if other != node}}))
        for node in NODES
    ]


def test_links_are_as_good_as_their_worse_end_and_bad_ones_are_measured_again() -> None:
    good = judgeranks.judge("cluster", ("cluster.pairs",), pairs(), False, {})
    assert (good.checks[0].verdict, good.measure_again) == ("pass", [])
    bad = judgeranks.judge("cluster", ("cluster.pairs",), pairs("gpu-2", 0.1), False, {})
    assert (bad.to_blame, bad.measure_again) == (["gpu-2"], ["cluster.pairs"])
    assert words(bad.checks[0]) == ["gpu-2"]
    # The slow node itself saw full speed: it began its clock late.
    one_sided = pairs("gpu-2", 0.1)
    one_sided[1].results[0].facts["edges"] = {"gpu-1": 1.0, "gpu-3": 1.0}
    assert judgeranks.judge("cluster", ("cluster.pairs",), one_sided, False, {}).to_blame == ["gpu-2"]


def pings(nodes: Sequence[str], lost: int = 0, p99: float = 150.0) -> list[RankRan]:
    """Latency of every link; on those of the last node some packets were lost, or took long."""

    def of(node: str) -> Measured:
        others = [other for other in nodes if other != node]
        bad = nodes[-1]
        return done("cluster.latency", facts={
            "p50": dict.fromkeys(others, 90.0),
            "p99": {other: p99 if bad in (node, other) else 150.0 for other in others},
            "lost": dict.fromkeys(others, lost if node == bad else 0),
        })  # fmt: skip

    return [rank(node, of(node)) for node in nodes]


@pytest.mark.parametrize(
    ("nodes", "lost", "p99", "blamed"),
    [
        (NODES, 0, 150.0, []),
        (NODES, 2, 150.0, []),  # a machine that is busy
        (NODES, 6, 150.0, ["gpu-3"]),  # what TCP mends at once
        (NODES, 0, 210_000.0, ["gpu-3"]),  # what it has to wait for
        (NODES[:2], 6, 150.0, ["the link gpu-1 ↔ gpu-2"]),  # of two nodes nobody knows which
    ],
)
def test_a_link_that_loses_packets_is_named(nodes: Sequence[str], lost: int, p99: float, blamed: list[str]) -> None:
    found = judgeranks.judge("cluster", ("cluster.latency",), pings(nodes, lost, p99), True, {})
    assert (words(found.checks[0]), found.checks[0].verdict) == (blamed, "fail" if blamed else "pass")
    assert found.measure_again == (["cluster.latency"] if blamed else [])


def test_a_wrong_sum_that_one_rank_alone_sees_is_that_ranks() -> None:
    ranks = [rank(node, done("cluster.collectives", wrong="3 elements" if node == "gpu-3" else "")) for node in NODES]
    assert judgeranks.judge("cluster", ("cluster.collectives",), ranks, True, {}).to_blame == ["gpu-3"]


def test_what_was_measured_again_counts_as_its_better_result() -> None:
    first = judgeranks.judge("cluster", ("cluster.pairs",), pairs("gpu-2", 0.1), False, {})
    well = judgeranks.judge("cluster", ("cluster.pairs",), pairs(), False, {})
    better = judgeranks.better(first, well)
    assert ([each.verdict for each in better.checks], better.to_blame) == (["pass"], [])
    assert better.checks[0].again
    still = judgeranks.better(first, judgeranks.judge("cluster", ("cluster.pairs",), pairs("gpu-2", 0.2), False, {}))
    assert ([each.verdict for each in still.checks], still.to_blame) == (["fail"], ["gpu-2"])


def test_a_file_that_is_wrong_everywhere_is_the_files_fault_and_else_the_nodes() -> None:
    def reads(*bad: str) -> list[Measured]:
        facts = {"files": 3, "bytes": 3_000_000, "bad": dict.fromkeys(bad, "differs")}
        return [Measured("cluster.data", wrong="differs" if bad else "", facts=facts)]

    everywhere = judge_data({node: reads("/data/a") for node in NODES})
    assert [words(each) for each in everywhere] == [["/data/a"]] * 3
    assert {each.stage for each in everywhere} == {"cluster"}
    one = judge_data({"gpu-1": reads(), "gpu-2": reads("/data/a"), "gpu-3": reads()})
    assert [each.verdict for each in one] == ["pass", "fail", "pass"]
    assert words(one[1]) == ["gpu-2 (/data/a)"]
    assert one[0].sentence == "3 files, 3 MB, each as it was"
    (alone,) = judge_data({"gpu-1": [Measured("cluster.data", skipped="no list")]})
    assert alone.verdict == "skipped"
