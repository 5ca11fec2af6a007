"""Ray ended and started on a node through a real sshd: what is looked at first, done, waited for, and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from console.hands import rejoin
from console.hands.raystop import stop_ray
from jobs.errors import Refused, Unreachable
from jobs.model import Attempt, RunState
from jobs.nodeview import Hold
from tests.unit.console.desk import a_run
from tests.unit.jobs.ray_stand_in import stand_in_node

from .handlab import RAYLET, SLEEPER, Lab, Start
from .handlab import lab as lab
from .handlab import start as start
from .servers import Sshd

# --- ending Ray -------------------------------------------------------------------------------------------------------


async def stopped(lab: Lab) -> str:
    return await stop_ray(lab.session, lab.client, lab.entry, "fan", lab.told.append)


async def test_where_no_ray_runs_nothing_is_ended(lab: Lab) -> None:
    assert await stopped(lab) == f"no Ray runs on {lab.entry.name}: there is nothing to end"
    assert not lab.answers.asked


async def test_ray_is_ended_and_it_is_looked_at_that_it_is_gone(lab: Lab, start: Start) -> None:
    child = lab.raylet(start, "aa")
    lab.entry.ray_stop = f"kill {child.pid}"
    assert await stopped(lab) == f"Ray on {lab.entry.name} has ended: no raylet is left there"
    assert child.wait(5) == -15
    assert lab.asked("/v1/nodes/permit")[0]["action"] == "ray stop"
    assert lab.told[1] == f"ending Ray on {lab.entry.name} (raylet {child.pid}): kill {child.pid}"


async def test_ray_that_does_not_end_is_an_error_with_the_last_words(lab: Lab, start: Start) -> None:
    child = lab.raylet(start, "aa")
    lab.entry.ray_stop = "echo no permission; exit 1"
    with pytest.raises(Refused, match=f"raylet {child.pid}.*ended with 1: no permission"):
        await stopped(lab)
    assert lab.outcomes[0][0] is False


async def test_ray_under_a_living_run_is_left_as_it_is(lab: Lab, start: Start) -> None:
    lab.raylet(start, "aa")
    lab.answers.given[("GET", "/v1/runs/lm-h1")] = a_run(
        "lm-h1", RunState.RUNNING, attempts=[Attempt(number=1, job_id="j")]
    )
    start(SLEEPER, run="lm-h1", attempt=1)
    with pytest.raises(Refused, match=r"lm-h1.* still ha.*: Ray there was left as it is"):
        await stopped(lab)
    assert not lab.answers.asked


async def test_ray_stop_is_not_run_where_it_would_end_another_node(lab: Lab, start: Start) -> None:
    lab.raylet(start, "aa")
    lab.entry.ray_stop = "ray stop --no-such-option"
    start(RAYLET, lab.process_name, "--node_id=bb", '--labels={"raydeck.io/node": "worker-9"}')
    with pytest.raises(Refused, match=r"shares its machine with 1 other node of Ray \(worker-9\), and ray stop"):
        await stopped(lab)
    assert not lab.answers.asked


async def test_the_head_is_never_ended(lab: Lab) -> None:
    lab.entry.role = "head"
    with pytest.raises(Refused, match="Ray as a whole would end with it"):
        await stopped(lab)


# --- bringing a node back ---------------------------------------------------------------------------------------------


async def joined(lab: Lab) -> str:
    return await rejoin.rejoin(lab.session, lab.client, lab.entry, "fan is in", lab.told.append)


def comes(lab: Lab, node_id: str, gpus: int) -> dict[str, object]:
    """The node as Ray lists it."""
    listed = stand_in_node(lab.entry.name, gpus)
    listed["node_id"] = node_id
    return listed


async def test_a_node_is_started_waited_for_and_opened(lab: Lab, tmp_path: Path) -> None:
    lab.holds(
        Hold(id="1", node=lab.entry.name, user="alice", at=0, reason="fan"),
        Hold(id="2", node=lab.entry.name, user="carol", at=0, kind="retire"),
        Hold(id="3", node=lab.entry.name, user="bob", at=0, reason="disk"),
    )
    lab.ray.nodes = [comes(lab, "old0000000", 4) | {"state": "DEAD"}]
    lab.entry.ray_start = lab.started_by(tmp_path, "new1111111")
    lab.ray.comes = tmp_path / "started", comes(lab, "new1111111", 4)
    said = await joined(lab)
    assert said.startswith(f"{lab.entry.name} is in Ray as new11111 with 4 GPUs after ")
    assert said.endswith(", and stays closed: cordoned by bob: disk")
    assert [body["of"] for body in lab.asked("/v1/nodes/uncordon")] == ["", "carol"]
    assert lab.outcomes == [(True, "Ray has it as new11111 with 4 GPUs")]
    assert lab.told[:2] == [
        f"{lab.entry.name} answers over SSH", f"starting Ray on {lab.entry.name}: {lab.entry.ray_start}"
    ]  # fmt: skip


async def test_where_ray_runs_already_nothing_is_started(lab: Lab, start: Start) -> None:
    lab.raylet(start, "aa11111111")
    lab.ray.nodes = [comes(lab, "aa11111111", 8)]
    said = await joined(lab)
    assert said.endswith(", and takes new work")
    assert lab.told[-1] == f"Ray runs on {lab.entry.name} already, as aa111111: nothing is started"
    assert not lab.answers.asked


async def test_fewer_gpus_than_there_should_be_are_refused_with_both_figures(lab: Lab, start: Start) -> None:
    lab.holds(Hold(id="1", node=lab.entry.name, user="alice", at=0))
    lab.raylet(start, "aa11111111")
    lab.ray.nodes = [comes(lab, "aa11111111", 3)]
    with pytest.raises(Refused, match="is in Ray with 3 GPUs, and should have 4; it stays cordoned"):
        await joined(lab)
    assert not lab.asked("/v1/nodes/uncordon")


async def test_a_start_that_fails_is_told_with_its_last_words(lab: Lab) -> None:
    lab.entry.ray_start = "echo cannot bind port; exit 1"
    with pytest.raises(Refused, match=f"what starts Ray on {lab.entry.name} ended with 1: cannot bind port"):
        await joined(lab)
    assert lab.outcomes == [(False, f"what starts Ray on {lab.entry.name} ended with 1: cannot bind port")]


async def test_a_start_command_that_is_not_found_is_said(lab: Lab) -> None:
    lab.entry.ray_start = "no-such-ray start"
    with pytest.raises(Refused, match=r"ended with 127: .*no-such-ray") as caught:
        await joined(lab)
    assert caught.value.hint == "Your login shell there does not find it: give its whole path"


async def test_a_start_that_hangs_is_bounded(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejoin, "START_SECONDS", 0.3)
    lab.entry.ray_start = "echo connecting; sleep 600"
    with pytest.raises(Refused, match=r"did not end within .* s, and was ended: connecting") as caught:
        await joined(lab)
    assert caught.value.hint == "Does the head answer from there?"


async def test_a_node_that_ray_never_gets_is_said(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rejoin, "RAY_SECONDS", 0.2)
    lab.entry.ray_start = "true"
    with pytest.raises(Refused, match="has not got the node after"):
        await joined(lab)
    assert lab.outcomes[0][0] is False


async def test_half_an_old_ray_is_ended_first(lab: Lab, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a flap Ray counts the node as dead, and its raylet may still be there."""
    monkeypatch.setattr(rejoin, "RAY_SECONDS", 0.0)
    child = lab.raylet(start, "aa11111111")
    lab.ray.nodes = [comes(lab, "aa11111111", 4) | {"state": "DEAD"}]
    lab.entry.ray_stop = f"kill {child.pid}"
    lab.entry.ray_start = "true"
    with pytest.raises(Refused, match="has not got the node"):
        await joined(lab)
    assert child.wait(5) == -15
    assert any("an old Ray is left" in sentence for sentence in lab.told)
    assert str(lab.asked("/v1/nodes/permit")[0]["detail"]) == f"first kill {child.pid}; then true"


async def test_a_node_that_ray_drains_for_good_is_not_taken_for_one_that_runs(lab: Lab, start: Start) -> None:
    child = lab.raylet(start, "aa11111111")
    lab.ray.nodes = [comes(lab, "aa11111111", 4)]
    hold = Hold(id="1", node=lab.entry.name, user="alice", at=0, kind="retire")
    lab.holds(hold, state="retiring", node_id="aa11111111", ray_draining_until=0.0)
    lab.entry.ray_stop, lab.entry.ray_start = f"kill {child.pid}", "exit 9"
    with pytest.raises(Refused, match="ended with 9"):
        await joined(lab)
    assert child.wait(5) == -15


async def test_without_a_start_command_it_is_said_where_to_give_one(lab: Lab) -> None:
    with pytest.raises(Refused, match="nothing says what starts Ray") as caught:
        await joined(lab)
    assert "access.ray.start" in caught.value.hint
    assert not lab.answers.asked


async def test_refused_by_the_controller_ray_is_not_started(lab: Lab, tmp_path: Path) -> None:
    lab.entry.ray_start = f"touch {tmp_path}/done"
    lab.answers.given[("POST", "/v1/nodes/permit")] = {"error": {"sentence": "bob is a viewer"}}
    with pytest.raises(Refused, match="nothing was done"):
        await joined(lab)
    assert not (tmp_path / "done").exists()


async def test_a_node_that_does_not_answer_is_unreachable(lab: Lab, sshd: Sshd) -> None:
    sshd.stop()
    with pytest.raises(Unreachable, match="no SSH connection to"):
        await joined(lab)
    assert not lab.answers.asked
