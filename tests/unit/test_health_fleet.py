"""A GPU beside its peers, a node beside the others like it."""

from __future__ import annotations

import pytest

from probes.health.fleet import majority, peers
from probes.health.gpus import LOAD, USUAL_WATTS, WATTS
from probes.health.rule import Entity, Missing, Seen


def node(name: str, driver: str, kernel: str = "6.1", accelerator: str = "H100") -> Seen:
    details = {"node_driver_version": driver, "node_kernel": kernel, "node_accelerator": accelerator}
    return Seen(Entity("node", name, name), details=details, calm=True)


def gpu(index: int, load: float | None, watts: float | None, usual: float = 600.0) -> Seen:
    beside = {name: value for name, value in ((LOAD, load), (WATTS, watts), (USUAL_WATTS, usual)) if value is not None}
    return Seen(Entity("gpu", f"n/{index}", "n", "run-1"), beside=beside, calm=True)


@pytest.mark.parametrize(
    ("versions", "odd"),
    [
        (["580", "580", "535"], [2]),
        (["580", "580", "580", "535"], [3]),
        (["580", "535"], []),  # nobody knows which of two is right
        (["580", "580", "535", "535"], []),
        (["580", "580", "535", "550"], []),  # half is no majority
        (["580", "580", "580", "535", "550"], [3, 4]),
        (["", "", "535"], []),  # no votes
        (["580", "580", ""], []),
    ],
)
def test_the_few_that_differ_are_odd(versions: list[str], odd: list[int]) -> None:
    seen = [node(f"gpu-{index}", version) for index, version in enumerate(versions)]
    majority(seen)
    assert [index for index, each in enumerate(seen) if each.measures["node_driver_minority"]] == odd
    # The engine passes by what is calm: what is odd must be looked at.
    assert [index for index, each in enumerate(seen) if not each.calm] == odd


def test_only_nodes_with_the_same_gpus_vote_together() -> None:
    seen = [node("a", "580"), node("b", "580"), node("c", "535", accelerator="A100"), node("d", "580", "5.15")]
    majority(seen)
    assert [each.measures["node_driver_minority"] for each in seen] == [0, 0, 0, 0]
    assert seen[3].measures["node_kernel_minority"] == 1
    assert seen[3].details["node_kernel_minority"] == "5.15 here, 6.1 on 2 of 3 nodes"


def test_a_gpu_that_does_less_than_its_peers_is_looked_at() -> None:
    seen = [gpu(0, 98, 590), gpu(1, 97, 600), gpu(2, 99, 610), gpu(3, 50, 580)]
    peers(seen)
    assert seen[3].measures["gpu_peer_share"] == pytest.approx(50 / 98)
    assert seen[3].measures["gpu_peers_busy"] == 1
    assert seen[3].details["gpu_peer_share"] == "50 % and 580 W; the others 98 % and 600 W"
    assert [each.calm for each in seen] == [True, True, True, False]


def test_nobody_is_compared_with_too_few_or_with_those_that_pause() -> None:
    few = [gpu(0, 98, 590), gpu(1, 50, 600), gpu(2, 99, 610)]
    peers(few)
    assert all(isinstance(each.measures["gpu_peer_share"], Missing) for each in few)
    pausing = [gpu(index, 98 if index else 10, 590) for index in range(6)]
    peers(pausing, pausing={"run-1"})
    assert [each.measures["gpu_peers_busy"] for each in pausing] == [0] * 6
    unknown = [gpu(0, None, None), *(gpu(index, 98, 590) for index in range(1, 6))]
    peers(unknown)
    assert isinstance(unknown[0].measures["gpu_peer_share"], Missing)
    assert unknown[1].measures["gpu_peer_share"] == 1.0


def test_peers_that_wait_are_no_measure() -> None:
    """All draw a third of what they usually do: a checkpoint is written, and one rank is alone at work."""
    seen = [gpu(index, 98, 200) for index in range(5)] + [gpu(5, 10, 100)]
    peers(seen)
    assert [each.measures["gpu_peers_busy"] for each in seen] == [0] * 6
