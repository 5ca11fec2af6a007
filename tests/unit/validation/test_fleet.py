"""The preflight judged: each node by itself, and beside the others."""

from __future__ import annotations

from typing import Any

import pytest

from jobs.validation.fleet import MUST_AGREE, SHOULD_AGREE, common_versions, judge_preflight
from jobs.validation.measured import Measured
from jobs.validationview import CheckResult

A, B, C = "gpu-1", "gpu-2", "gpu-3"


def judged(check: str, *measured: Measured | None, **more: Any) -> list[CheckResult]:
    """The verdicts on nodes that told this, in order; None for one that told nothing of it."""
    told = {node: [each] if each else list[Measured]() for node, each in zip((A, B, C), measured, strict=False)}
    return judge_preflight([check], told, more.get("offsets", {}), more.get("troubles", {}))


def facts(check: str, *each: dict[str, Any], **more: Any) -> list[CheckResult]:
    return judged(check, *[Measured(check, facts=one) for one in each], **more)


def verdicts(results: list[CheckResult]) -> list[str]:
    return [result.verdict for result in results]


def blamed(result: CheckResult) -> list[tuple[str, list[str], str]]:
    return [(each.kind, each.nodes, each.detail) for each in result.culprits]


# --- each by itself ---------------------------------------------------------------------------------------------------


def test_what_a_node_told_is_its_verdict() -> None:
    check = "preflight.limits"
    right, wrong, warned = judged(
        check,
        Measured(check, seconds=0.5),
        Measured(check, wrong="/dev/nvidia0 may not be used", warned="few files", evidence=["a"]),
        Measured(check, warned="few files"),
    )
    assert (right.verdict, right.title, right.stage, right.seconds) == (
        "pass", "limits and permissions", "preflight", 0.5,
    )  # fmt: skip
    assert (wrong.verdict, wrong.sentence, wrong.evidence) == (
        "fail", "/dev/nvidia0 may not be used", ["a", "few files"],
    )  # fmt: skip
    assert blamed(wrong) == [("node", [B], "limits and permissions")]
    assert (warned.verdict, warned.sentence, warned.culprits) == ("warn", "few files", [])


def test_what_was_skipped_is_not_green_and_what_told_nothing_is_unknown() -> None:
    check = "preflight.versions"
    skipped, silent, broke = judged(
        check, Measured(check, skipped="not here", facts={"ray": "1"}), None, None, troubles={C: "it hung at names"}
    )
    assert [(each.verdict, each.sentence) for each in (skipped, silent, broke)] == [
        ("skipped", "not here"), ("unknown", "it told nothing"), ("unknown", "it hung at names"),
    ]  # fmt: skip


def test_there_is_one_verdict_for_each_node_and_check_that_was_wanted() -> None:
    told = {A: [Measured("preflight.names"), Measured("preflight.limits")], B: [Measured("preflight.names")]}
    found = judge_preflight(["preflight.limits", "preflight.names"], told, {}, {})
    assert [(each.check, each.node, each.verdict) for each in found] == [
        ("preflight.limits", A, "pass"), ("preflight.limits", B, "unknown"),
        ("preflight.names", A, "pass"), ("preflight.names", B, "pass"),
    ]  # fmt: skip


# --- versions ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*MUST_AGREE, *SHOULD_AGREE])
def test_the_node_of_another_version_than_most_is_named(name: str) -> None:
    found = facts("preflight.versions", {name: "2"}, {name: "1"}, {name: "2"})
    assert verdicts(found) == ["pass", "fail" if name in MUST_AGREE else "warn", "pass"]
    assert found[1].sentence == f"{name} 1, most have 2"
    assert blamed(found[1]) == ([("node", [B], name)] if name in MUST_AGREE else [])


def test_without_a_majority_everybody_is_warned() -> None:
    found = facts("preflight.versions", {"torch": "2.5"}, {"torch": "2.6"})
    assert verdicts(found) == ["warn", "warn"]
    assert found[0].sentence == "torch 2.5, and no version has a majority"


def test_of_several_differences_the_worst_is_said_and_the_others_are_evidence() -> None:
    new = {"driver": "580", "nccl": "2.27", "kernel": "6.8"}
    found = facts("preflight.versions", new, {"driver": "535", "nccl": "2.21", "kernel": "5.15"}, new)
    assert (found[1].verdict, found[1].sentence) == ("fail", "driver 535, most have 580")
    assert found[1].evidence == ["nccl 2.21, most have 2.27", "kernel 5.15, most have 6.8"]
    assert blamed(found[1]) == [("node", [B], "driver")]
    assert found[0].evidence == []


def test_a_node_that_does_not_say_a_version_is_not_compared_in_it() -> None:
    assert verdicts(facts("preflight.versions", {"ray": "2"}, {}, {"ray": "2"})) == ["pass"] * 3
    told = {A: [Measured("preflight.versions", facts={"ray": "2"})], B: [Measured("preflight.versions")]}
    assert common_versions(told) == {"ray": "2"}


# --- clocks -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ahead", "uncertain", "verdict", "sentence"),
    [
        (0.001, 0.002, "pass", "1 ms ahead of the head, give or take 2 ms"),
        (-0.4, 0.0, "pass", "400 ms behind the head, give or take 0 ms"),
        (0.5, 0.0, "warn", "0.50 s ahead of the head"),
        (-1.9, 0.1, "warn", "1.90 s behind the head"),
        (2.1, 0.2, "warn", "2.10 s ahead of the head"),
        (-2.0, 0.0, "fail", "2.0 s behind the head"),
        (3.0, 5.0, "pass", "3000 ms ahead of the head, give or take 5000 ms"),
    ],
)
def test_a_clock_is_judged_by_what_is_sure_of_it(ahead: float, uncertain: float, verdict: str, sentence: str) -> None:
    (found,) = facts("preflight.clock", {"wall": 1.0, "ntp": True}, offsets={A: (ahead, uncertain)})
    assert (found.verdict, found.sentence) == (verdict, sentence)
    assert found.facts == {"wall": 1.0, "ntp": True, "ahead_seconds": ahead, "uncertain_seconds": uncertain}
    assert blamed(found) == ([("node", [A], "clock")] if verdict == "fail" else [])


def test_a_clock_that_was_not_compared_is_unknown() -> None:
    check = "preflight.clock"
    found = judged(check, Measured(check), Measured(check, skipped="no"), None, offsets={C: (5.0, 0.0)})
    assert [(each.verdict, each.sentence) for each in found] == [
        ("unknown", "its clock was not compared with the head's"), ("skipped", "no"), ("unknown", "it told nothing"),
    ]  # fmt: skip


# --- GPUs -------------------------------------------------------------------------------------------------------------


def gpu(uuid: str, name: str = "H100") -> dict[str, Any]:
    return {"name": name, "uuid": uuid, "memory_total_bytes": 80 << 30}


def test_like_gpus_pass_and_are_counted() -> None:
    found = facts("preflight.inventory", {"gpus": [gpu("a"), gpu("b")]}, {"gpus": [gpu("c")]}, {"gpus": []})
    assert [(each.verdict, each.sentence) for each in found] == [
        ("pass", "2 × H100"), ("pass", "1 × H100"), ("pass", "all count the same"),
    ]  # fmt: skip


def test_one_uuid_on_two_nodes_fails_both_and_no_third() -> None:
    found = facts("preflight.inventory", {"gpus": [gpu("a")]}, {"gpus": [gpu("b"), gpu("a")]}, {"gpus": [gpu("c")]})
    assert verdicts(found) == ["fail", "fail", "pass"]
    assert found[0].sentence == f"the GPU a is on {A}, {B}: one of them shows another machine's"
    assert blamed(found[1]) == [("node", [B], "inventory")]


def test_gpus_of_another_model_than_most_nodes_have_are_warned_of() -> None:
    found = facts(
        "preflight.inventory", {"gpus": [gpu("a")]}, {"gpus": [gpu("b"), gpu("c", "A100")]}, {"gpus": [gpu("d")]}
    )
    assert verdicts(found) == ["pass", "warn", "pass"]
    assert found[1].sentence == "its GPUs are A100 and H100, most nodes have H100"
    found = facts("preflight.inventory", {"gpus": [gpu("a")]}, {"gpus": [gpu("b", "A100")]}, {"gpus": []})
    assert verdicts(found) == ["warn", "warn", "pass"]
    assert found[0].sentence == "its GPUs are H100, and no model has a majority"


# --- network ----------------------------------------------------------------------------------------------------------


def test_another_mtu_than_most_have_is_warned_of_and_the_loopback_is_not_compared() -> None:
    jumbo, usual = {"mtu": 9000, "interface": "eth0"}, {"mtu": 1500, "interface": "eth0"}
    found = facts("preflight.names", jumbo, usual, jumbo)
    assert verdicts(found) == ["pass", "warn", "pass"]
    assert found[1].sentence == "its interface takes packets of 1500 bytes, most take 9000"
    found = facts("preflight.names", jumbo, usual)
    assert verdicts(found) == ["warn", "warn"]
    assert found[0].sentence == "its interface takes packets of 9000 bytes, and no size has a majority"
    assert verdicts(facts("preflight.names", jumbo, {"mtu": 65536, "interface": "lo"}, jumbo)) == ["pass"] * 3


def ports(*to: str) -> Measured:
    wrong = f"no answer from {', '.join(to)}" if to else ""
    return Measured("preflight.ports", wrong=wrong, facts={"silent": {node: [6379] for node in to}})


def test_no_answer_blames_the_link_and_both_its_ends_are_named() -> None:
    found = judged("preflight.ports", ports(B), ports(), ports())
    assert verdicts(found) == ["fail", "pass", "pass"]
    assert blamed(found[0]) == [("link", [A, B], "port 6379")]


def test_no_answer_to_anybody_blames_the_node_that_all_ways_have_in_common() -> None:
    found = judged("preflight.ports", ports(C), ports(C), ports())
    assert [blamed(each) for each in found] == [[("node", [C], "port 6379")]] * 2 + [[]]


def test_a_port_at_which_nobody_listens_blames_no_link() -> None:
    check = "preflight.ports"
    (found,) = judged(check, Measured(check, wrong=f"nobody listens at {B}:6379", facts={"silent": {}}))
    assert blamed(found) == [("node", [A], "ports")]


# --- paths ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("bad", "detail"), [(["/my data", "/logs"], "/my data, /logs"), ([], "mounts")])
def test_a_path_that_one_node_misses_is_that_nodes_with_the_path(bad: list[str], detail: str) -> None:
    check = "preflight.mounts"
    missed = Measured(check, wrong="/my data (dataset) is not there", facts={"bad": bad})
    found = judged(check, Measured(check), missed, Measured(check))
    assert verdicts(found) == ["pass", "fail", "pass"]
    assert blamed(found[1]) == [("node", [B], detail)]


def unseen(*writers: str) -> Measured:
    wrong = f"not seen of {', '.join(writers)}" if writers else ""
    return Measured("preflight.shared", wrong=wrong, facts={"unseen": {"/out": list(writers)} if writers else {}})


def test_a_shared_path_that_is_another_one_on_one_node_is_that_nodes_fault_alone() -> None:
    found = judged("preflight.shared", unseen(C), unseen(C), unseen(A, B))
    assert verdicts(found) == ["pass", "pass", "fail"]
    assert blamed(found[2]) == [("node", [C], "/out")]
    assert found[0].sentence == f"seen of all but {C}"


def disk(megabytes: float) -> Measured:
    return Measured("preflight.disk", figures={"disk_write": [megabytes], "disk_read": [900.0]})


def test_a_disk_far_slower_than_its_like_is_warned_of() -> None:
    found = judged("preflight.disk", disk(800.0), disk(20.0), disk(820.0))
    assert verdicts(found) == ["pass", "warn", "pass"]
    assert found[1].sentence.startswith("disk, writing 20 MB/s, the others 810")
    assert [(figure.name, figure.value) for figure in found[0].figures] == [("disk_write", 800.0), ("disk_read", 900.0)]
    # Slower than the others, and fast enough all the same.
    assert verdicts(judged("preflight.disk", disk(800.0), disk(200.0), disk(820.0))) == ["pass"] * 3
