"""The programs of checks as they run on a node: in processes of their own, with real torch, on the CPU."""

from __future__ import annotations

import hashlib
import io
import os
import socket
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from jobs.validation import apart, data, onegpu, paths, preflight, reach
from jobs.validation.judgeranks import Judged, RankRan, judge
from jobs.validation.measured import Measured, Skip, Teller, read
from jobs.validation.member import Member, Ran
from jobs.validation.plan import CHECKS, FIGURES, checks_of
from probes.reading import Process, Sample

pytestmark = pytest.mark.timeout(120)


# --- one GPU ----------------------------------------------------------------------------------------------------------


def one_gpu(*checks: str, gpus: tuple[int, ...] = (0,), fault: str = "") -> list[Measured]:
    out = io.StringIO()
    request = {"device": "cpu", "gpus": list(gpus), "checks": list(checks), "seconds": 0.05, "fault": fault}
    onegpu.run(request, Teller(out))
    return read(out.getvalue())[0]


def test_every_check_of_one_gpu_is_right_on_a_cpu_and_tells_its_figures() -> None:
    wanted = [check.id for check in checks_of("full", "gpu")]
    assert set(wanted) == set(onegpu.CHECKS)
    told = one_gpu(*wanted)
    assert [(each.check, each.wrong) for each in told] == [(check, "") for check in wanted]
    figures = {name: samples for each in told for name, samples in each.figures.items()}
    assert set(figures) == {"context", "gemm", "memory_bandwidth", "h2d", "d2h", "train_steps"}
    assert set(figures) <= set(FIGURES)
    assert min(value for samples in figures.values() for value in samples) > 0


def test_a_product_with_one_wrong_element_is_found_and_placed() -> None:
    good, bad = one_gpu("gpu.gemm_exact", gpus=(0, 1), fault="gemm:1")
    assert (good.wrong, good.gpu) == ("", 0)
    assert bad.wrong.startswith("a product is wrong without any error, in 1 of ")
    assert good.facts["digest"] != bad.facts["digest"]
    assert good.facts["libs"] == bad.facts["libs"]


def test_a_bit_of_memory_that_does_not_hold_is_found() -> None:
    (bad,) = one_gpu("gpu.memory_pattern", fault="memory:0")
    assert "1 words, the first at byte 0x28, bits 0000000000000004" in bad.wrong


def test_a_loss_that_does_not_fall_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onegpu.training, "alone", lambda steps, device: [2.3] * steps)
    (told,) = one_gpu("gpu.train")
    assert told.wrong == "the loss does not fall: 2.300 at first, 2.300 after 30 steps"


# --- preflight --------------------------------------------------------------------------------------------------------


def request(tmp_path: Path, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "node": "gpu-1", "nodes": ["gpu-1", "gpu-2"], "expected": {"gpus": None}, "ray_gpus": 0.0, "token": "t1",
        "paths": [{"path": str(tmp_path), "purpose": "output", "shared": True}], "peers": [], "address": "127.0.0.1",
        "checks": [check.id for check in CHECKS if check.stage == "preflight"],
    }  # fmt: skip
    return {**made, **more}


def test_the_whole_preflight_of_a_machine_without_gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYDECK_SIMULATED", raising=False)
    out = io.StringIO()
    preflight.run(request(tmp_path), Teller(out))
    told = {each.check: each for each in read(out.getvalue())[0]}
    assert {check: each.wrong for check, each in told.items() if each.wrong} == {}
    assert told["preflight.ports"].skipped == "there is no other node"
    assert told["preflight.versions"].facts["torch"].startswith("2.")
    assert told["preflight.disk"].figures["disk_write"][0] > 0
    assert set(told) == {check.id for check in CHECKS if check.stage == "preflight"} - {"preflight.shared"}


def test_counts_that_differ_are_told_with_who_says_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYDECK_SIMULATED", raising=False)
    out = io.StringIO()
    asked = request(tmp_path, checks=["preflight.inventory"], expected={"gpus": 8}, ray_gpus=4.0)
    preflight.run(asked, Teller(out))
    assert read(out.getvalue())[0][0].wrong == "the number of its GPUs is not agreed on: Ray 4, the cluster file 8"


class Holds:
    """A probe that tells of one process on a GPU."""

    def __init__(self, run: str) -> None:
        self.sample = Sample(processes=[Process(device=2, pid=7, user="eve", command="python x.py", run=run)])


@pytest.mark.parametrize(
    ("run", "runs", "wrong"),
    [
        ("", None, "held by what is no run: GPU 2: pid 7, eve, python x.py"),
        ("lm-a1", None, ""),
        ("lm-a1", ["lm-a1"], ""),
        ("lm-a1", [], "held by what is no run: GPU 2: pid 7, eve, python x.py, left over from lm-a1"),
    ],
)
def test_who_holds_a_gpu_must_be_a_run_that_goes_on(run: str, runs: list[str] | None, wrong: str) -> None:
    measured = Measured("preflight.foreign")
    preflight.foreign({"runs": runs}, Holds(run), measured)  # type: ignore[arg-type]
    assert measured.wrong == wrong


def test_what_another_node_has_written_is_looked_for(tmp_path: Path) -> None:
    measured = Measured("preflight.mounts")
    paths.mounts(request(tmp_path), measured)
    assert measured.right
    assert Path(paths.token_path(str(tmp_path), "t1", "gpu-1")).exists()
    Path(paths.token_path(str(tmp_path), "t1", "gpu-2")).write_text("gpu-2")
    seen = Measured("preflight.shared")
    paths.shared(request(tmp_path), seen)
    assert seen.right
    out = io.StringIO()
    paths.clean(request(tmp_path), Teller(out))
    assert [file.name for file in tmp_path.iterdir()] == [".raydeck-t1-gpu-2"]


def test_a_shared_path_that_is_another_disk_on_one_node_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paths, "SEEN_SECONDS", 0.0)
    measured = Measured("preflight.shared")
    paths.shared(request(tmp_path), measured)
    assert measured.wrong == f"what was written to is not seen here: {tmp_path} of gpu-2"


@pytest.mark.parametrize(
    ("purpose", "break_it", "said"),
    [
        ("output", "gone", "is not there"),
        ("dataset", "file", "is no folder"),
        ("output", "read-only", "cannot be written: Read-only file system"),
    ],
)
def test_a_path_that_cannot_be_used_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, purpose: str, break_it: str, said: str
) -> None:
    path = tmp_path / "here"
    if break_it == "file":
        path.write_text("")
    elif break_it == "read-only":
        path.mkdir()

        def refuse(*given: Any, **more: Any) -> Any:
            raise OSError(30, "Read-only file system")

        monkeypatch.setattr(paths, "open", refuse, raising=False)
    measured = Measured("preflight.mounts")
    asked = request(tmp_path, paths=[{"path": str(path), "purpose": purpose, "shared": False}])
    paths.mounts(asked, measured)
    assert measured.wrong == f"{path} ({purpose}) {said}"


def test_a_mount_that_hangs_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    monkeypatch.setattr(paths, "PATH_SECONDS", 0.1)
    monkeypatch.setattr(paths.os, "statvfs", lambda path: free.wait(30))
    measured = Measured("preflight.mounts")
    paths.mounts(request(tmp_path), measured)
    free.set()
    assert measured.wrong.endswith("hangs: no answer within 0 s")


@pytest.fixture
def listening() -> Generator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_without_an_answer_is_told_from_one_that_refuses(
    tmp_path: Path, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        closed = gone.getsockname()[1]
    peer = {"node": "gpu-2", "address": "127.0.0.1", "ports": [listening, closed], "must": [listening]}
    measured = Measured("preflight.ports")
    reach.ports(request(tmp_path, peers=[peer]), measured)
    assert (measured.wrong, measured.facts["tried"]) == ("", 2)
    measured = Measured("preflight.ports")
    reach.ports(request(tmp_path, peers=[{**peer, "must": [closed]}]), measured)
    assert measured.wrong == f"nobody listens at gpu-2:{closed}"

    def filtered(address: tuple[str, int], timeout: float) -> socket.socket:
        raise TimeoutError

    monkeypatch.setattr(reach.socket, "create_connection", filtered)
    measured = Measured("preflight.ports")
    reach.ports(request(tmp_path, peers=[peer]), measured)
    assert measured.wrong == f"no answer from gpu-2 port {listening}, {closed}"
    assert measured.facts["silent"] == {"gpu-2": [listening, closed]}


def test_things_at_once_give_what_came_in_time_and_raise_what_was_raised() -> None:
    free = threading.Event()
    assert apart.at_once([lambda: 1, lambda: free.wait(30)], 0.1) == [1, None]
    free.set()
    with pytest.raises(Skip):
        apart.at_once([lambda: (_ for _ in ()).throw(Skip("no"))], 1.0)


# --- processes --------------------------------------------------------------------------------------------------------


@pytest.fixture
def member() -> Generator[Member]:
    made = Member("here", "127.0.0.1")
    yield made
    made.close()


def group(member: Member, world: int, *checks: str, fault: str = "", stage: str = "cluster") -> list[Ran]:
    _, port = member.hello()
    base = {
        "stage": stage, "checks": [f"{stage}.{check}" for check in checks], "run": "r1", "locals": [0] * world,
        "names": [f"n{rank}" for rank in range(world)], "host": "127.0.0.1", "port": port, "device": "cpu",
        "backend": "gloo", "patience": 3, "join_seconds": 30, "check_seconds": 8, "fault": fault,
    }  # fmt: skip
    return member.run([("ranks", {**base, "rank": rank}, {}) for rank in range(world)], 60)


def judged(ran: list[Ran], *checks: str) -> Judged:
    ranks = [
        RankRan(f"n{at}", 0, each.results, each.unfinished[0] if each.unfinished else "", each.exit_code, each.tail)
        for at, each in enumerate(ran)
    ]
    return judge("cluster", [f"cluster.{check}" for check in checks], ranks, True, {})


ALL = ("join", "pairs", "latency", "collectives", "all_reduce", "straggler", "train", "shards")


def test_three_healthy_ranks_come_through_every_check(member: Member) -> None:
    ran = group(member, 3, *ALL)
    assert [each.exit_code for each in ran] == [0, 0, 0], [each.tail for each in ran]
    found = judged(ran, *ALL)
    assert {each.check: each.sentence for each in found.checks if each.verdict == "fail"} == {}
    assert found.unreached == []
    curve = next(each for each in found.checks if each.check == "cluster.all_reduce").facts["curve"]
    assert set(curve) == {"1024", "1048576", "8388608"}
    assert os.listdir(member._folder) == []


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("die:1:all_reduce", "rank 1 on n1 was ended by signal 9 at “all_reduce”"),
        ("hang:1:all_reduce", "rank 1 on n1 hung at “all_reduce”"),
    ],
)
def test_a_rank_that_dies_or_hangs_is_named_and_no_other(member: Member, fault: str, said: str) -> None:
    checks = ("join", "all_reduce", "shards")
    found = judged(group(member, 3, *checks, fault=fault), *checks)
    assert found.checks[-1].sentence == said
    assert (found.to_blame, found.unreached) == (["n1"], ["cluster.shards"])


def test_a_slow_rank_is_named(member: Member) -> None:
    found = judged(group(member, 3, "straggler", fault="slow:2:60"), "straggler")
    assert (found.to_blame, found.measure_again) == (["n2"], ["cluster.straggler"])


def test_a_program_that_breaks_says_so_and_leaves_nothing(member: Member) -> None:
    (ran,) = member.run([("gpu", {"device": "cpu"}, {})], 60)
    assert ran.exit_code == 1
    assert "KeyError" in ran.tail
    (late,) = member.run([("ranks", {"stage": "x"}, {"PYTHONSTARTUP": ""})], 0.0)
    assert late.hung
    assert os.listdir(member._folder) == []


def test_a_line_that_was_cut_off_is_left_out() -> None:
    out = io.StringIO()
    tell = Teller(out)
    with tell.check("gpu.gemm", 0) as measured:
        measured.figures["gemm"] = [1.0]
    with tell.check("gpu.train", 0):
        raise ValueError("no\nsecond line")
    text = out.getvalue()
    told, unfinished = read(text + '{"begin": "gpu.transfers", "gpu": 0}\n{"done": {"che')
    assert [(each.check, each.wrong, each.broken) for each in told] == [
        ("gpu.gemm", "", False), ("gpu.train", "ValueError: no", True),
    ]  # fmt: skip
    assert told[1].evidence == ["second line"]
    assert unfinished == ("gpu.transfers", 0)


# --- a checkpoint, and data -------------------------------------------------------------------------------------------


def trained(member: Member, check: str, folder: Path, **more: Any) -> list[Ran]:
    _, port = member.hello()
    base = {
        "stage": "cluster", "checks": [f"cluster.{check}"], "run": f"r-{check}", "locals": [0] * 3,
        "names": ["a", "b", "c"],
        "host": "127.0.0.1", "port": port, "device": "cpu", "backend": "gloo", "patience": 5, "join_seconds": 30,
        "check_seconds": 20, "folder": str(folder), **more,
    }  # fmt: skip
    return member.run([("ranks", {**base, "rank": rank}, {}) for rank in range(3)], 60)


def of(ran: list[Ran], check: str) -> list[Measured]:
    return [next(each for each in one.results if each.check == check) for one in ran]


def test_a_training_goes_on_from_its_checkpoint_with_equal_bits_after_a_crash(member: Member, tmp_path: Path) -> None:
    ran = trained(member, "save", tmp_path, crash=True)
    first, second, third = of(ran, "cluster.save")
    assert (first.wrong, second.wrong, third.wrong, first.facts["losses"]) == ("", "", "", third.facts["losses"])
    assert ran[2].exit_code == -9
    assert sorted(each.name for each in (tmp_path / "checkpoints").iterdir())[0] == "step-00000010"
    losses = first.facts["losses"]
    resumed = of(trained(member, "resume", tmp_path, expected=losses), "cluster.resume")
    assert [(each.wrong, each.facts.get("step")) for each in resumed] == [("", 10)] * 3
    other = of(trained(member, "resume", tmp_path, expected=[(1.0).hex(), *losses[1:]]), "cluster.resume")
    assert other[0].wrong.startswith("what goes on from step 10 is another training: at step 10 ")
    assert other[0].wrong.endswith(" and not 1.000000")
    rotten = of(trained(member, "resume", tmp_path, expected=losses, fault="rot:1:byte"), "cluster.resume")
    assert {each.wrong for each in rotten} == {
        "the checkpoint of step 10: rank-1.pt does not have the content that was saved (its SHA-256 differs)"
    }
    assert rotten[0].facts["file"] == str(tmp_path / "checkpoints" / "step-00000010")


def read_data(tmp_path: Path, purpose: str = "dataset") -> Measured:
    out = io.StringIO()
    data.run(request(tmp_path, paths=[{"path": str(tmp_path), "purpose": purpose, "shared": True}]), Teller(out))
    return read(out.getvalue())[0][0]


def test_a_file_that_has_changed_or_is_missing_is_named(tmp_path: Path) -> None:
    assert read_data(tmp_path).skipped == "no dataset path has a list of checksums (SHA256SUMS)"
    lines: list[str] = []
    for name in ("a", "b c", "d"):
        (tmp_path / name).write_text(name * 100)
        lines.append(f"{hashlib.sha256((name * 100).encode()).hexdigest()}  {name}")
    (tmp_path / "SHA256SUMS").write_text("\n".join(lines) + "\n")
    good = read_data(tmp_path)
    assert (good.wrong, good.facts["files"], good.facts["bytes"]) == ("", 3, 500)
    (tmp_path / "a").write_text("b" * 100)
    (tmp_path / "d").unlink()
    bad = read_data(tmp_path)
    assert bad.facts["bad"] == {
        str(tmp_path / "a"): "does not have the content of the list (its SHA-256 differs)",
        str(tmp_path / "d"): "is missing",
    }
    assert bad.wrong.endswith(", and 1 more")


@pytest.mark.parametrize(
    "line", ["abc  a", f"{'0' * 64}", f"{'0' * 64}  ../a", f"{'0' * 64}  /etc/passwd", f"{'x' * 64}  a"]
)
def test_a_list_that_is_none_is_said_with_its_line(tmp_path: Path, line: str) -> None:
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  *fine\n{line}\n")
    assert "line 2 of " in read_data(tmp_path).wrong
