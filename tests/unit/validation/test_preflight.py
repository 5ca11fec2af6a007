"""The preflight as a node runs it: told and read as over a pipe, on temporary folders, sockets, simulated GPUs."""

from __future__ import annotations

import io
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from jobs.validation import paths, preflight, reach
from jobs.validation.fleet import judge_preflight
from jobs.validation.measured import Measured, Teller, read
from jobs.validation.plan import CHECKS, FIGURES
from probes.reading import (
    DRIVER_BLOCKED,
    ERROR,
    UNSUPPORTED,
    DeviceFacts,
    Driver,
    Facts,
    Health,
    Missing,
    Process,
    Sample,
)

pytestmark = pytest.mark.timeout(60)
GIB = 1 << 30
OTHER_NODE = "192.0.2.7"
"""An address for documentation, which no machine has (RFC 5737)."""


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No GPUs, none that are simulated, and nothing of this machine's own kernel log."""
    log = tmp_path / "kernel.log"
    log.write_text("")
    monkeypatch.setenv("RAYDECK_KMSG", str(log))
    monkeypatch.delenv("RAYDECK_SIMULATED", raising=False)
    monkeypatch.setattr(paths, "DISK_BYTES", 2 << 20)
    monkeypatch.setattr(paths, "DEEP_DISK_BYTES", 3 << 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "out"
    made.mkdir()
    return made


@pytest.fixture
def simulated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Has this node act out a script from now on."""

    def act(**script: Any) -> None:
        file = tmp_path / "script.json"
        file.write_text(json.dumps({"node": "gpu-1", "gpus": 2, **script}))
        monkeypatch.setenv("RAYDECK_SIMULATED", str(file))

    return act


def request(*checks: str, **more: Any) -> dict[str, Any]:
    made: dict[str, Any] = {
        "node": "gpu-1", "nodes": ["gpu-1", "gpu-2"], "address": "127.0.0.1", "token": "v1", "paths": [], "peers": [],
        "expected": {"gpus": None, "cpus": None, "memory_bytes": None, "labels": {}}, "ray_gpus": None, "runs": None,
        "deep": False, "checks": [f"preflight.{check}" for check in checks],
    }  # fmt: skip
    return {**made, **more}


def told(asked: dict[str, Any]) -> dict[str, Measured]:
    """What the program tells, by check and without its stage's name."""
    out = io.StringIO()
    preflight.run(asked, Teller(out))
    found, unfinished = read(out.getvalue())
    assert unfinished is None
    return {each.check.removeprefix("preflight."): each for each in found}


def one(check: str, **more: Any) -> Measured:
    return told(request(check, **more))[check]


def path(where: Path | str, purpose: str = "output", shared: bool = True) -> dict[str, Any]:
    return {"path": str(where), "purpose": purpose, "shared": shared}


# --- all of it --------------------------------------------------------------------------------------------------------


def test_every_check_is_told_once_in_the_order_asked_for_and_is_right_on_simulated_gpus(
    folder: Path, simulated: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_torch_gpus", lambda: None)
    simulated(driver_version="580.65.06")
    wanted = [check.id.removeprefix("preflight.") for check in CHECKS if check.stage == "preflight"]
    found = told(request(*wanted, ray_gpus=2.0, expected={"gpus": 2}, paths=[path(folder)]))
    # What the other nodes have written is looked for by a program of its own, after all have written.
    assert list(found) == [check for check in wanted if check != "shared"]
    assert {check: each.wrong for check, each in found.items() if each.wrong and check != "health"} == {}
    inventory = found["inventory"].facts
    assert inventory["counts"] == {"the driver": 2, "Ray": 2, "the cluster file": 2}
    assert [gpu["uuid"] for gpu in inventory["gpus"]] == [f"SIM-{uuid}" for uuid in _uuids(inventory)]
    assert inventory["source"] == "simulated"
    assert found["versions"].facts["driver"] == "580.65.06"
    assert {"python", "kernel", "glibc", "nccl_env"} <= set(found["versions"].facts)
    assert set(found["disk"].figures) <= set(FIGURES)


def _uuids(inventory: dict[str, Any]) -> list[str]:
    uuids = [str(gpu["uuid"]).removeprefix("SIM-") for gpu in inventory["gpus"]]
    assert [uuid.partition("-")[2] for uuid in uuids] == ["gpu-1-0", "gpu-1-1"]
    return uuids


def test_only_what_is_asked_for_is_done() -> None:
    assert list(told(request("clock", "nonsense"))) == ["clock"]


def test_a_probe_that_does_not_answer_is_waited_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def hang(disks: list[str]) -> None:
        asked.append(disks)
        raise subprocess.TimeoutExpired("probes", 30.0)

    monkeypatch.setattr(preflight, "Probe", hang)
    found = told(request("inventory", "versions", "clock", "health", "foreign"))
    assert len(asked) == 1
    said = "OSError: the probe did not answer within 30 s"
    assert [each.wrong for each in found.values()] == [said, said, "", said, said]


def test_a_probe_that_breaks_says_its_last_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight.sys, "executable", "/bin/false")
    assert one("inventory").wrong == "OSError: the probe did not start: it said nothing"


# --- what it has ------------------------------------------------------------------------------------------------------


class Says:
    """A probe that says what it is given."""

    def __init__(self, facts: Facts | None = None, sample: Sample | None = None) -> None:
        self.facts, self.sample, self.health = facts or Facts(source="none"), sample or Sample(), Health()


def inventory(probe: Says, monkeypatch: pytest.MonkeyPatch, torch: int | None = None, **more: Any) -> Measured:
    monkeypatch.setattr(preflight, "Probe", lambda disks: probe)
    monkeypatch.setattr(preflight, "_torch_gpus", lambda: torch)
    return one("inventory", **more)


def gpus(count: int) -> Facts:
    return Facts(source="nvml", devices=[DeviceFacts(at, f"GPU-{at}", "H100", 80 * GIB) for at in range(count)])


def test_a_simulated_gpu_less_than_ray_and_the_cluster_file_say_is_wrong_with_every_figure(
    simulated: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_torch_gpus", lambda: None)
    simulated(gpus=3)
    found = one("inventory", ray_gpus=4.0, expected={"gpus": 4})
    assert found.wrong == "the number of its GPUs is not agreed on: the driver 3, Ray 4, the cluster file 4"


def test_what_torch_counts_has_a_say_only_where_it_has_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    assert inventory(Says(gpus(2)), monkeypatch, torch=None, ray_gpus=2.0).right
    found = inventory(Says(gpus(2)), monkeypatch, torch=1, ray_gpus=2.0)
    assert found.wrong == "the number of its GPUs is not agreed on: the driver 2, torch 1, Ray 2"
    assert found.facts["torch_gpus"] == 1


def test_gpus_that_no_driver_tells_of_are_wrong_unless_torch_can_use_them(monkeypatch: pytest.MonkeyPatch) -> None:
    found = inventory(Says(), monkeypatch, ray_gpus=4.0, expected={"gpus": 4})
    assert found.wrong == "it is said to have 4 GPUs, and no driver here tells of any"
    found = inventory(Says(), monkeypatch, torch=4, ray_gpus=4.0)
    assert (found.wrong, found.warned) == ("", "torch uses 4 GPUs, and no driver here tells of any")
    assert inventory(Says(), monkeypatch, ray_gpus=0.0, expected={"gpus": 0}).right


def test_a_driver_that_blocks_is_named_beside_the_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = Says(Facts(source="nvml"), Sample(driver=Driver(DRIVER_BLOCKED, "nvmlInit has not come back", 9.0)))
    found = inventory(blocked, monkeypatch, ray_gpus=8.0)
    assert found.wrong == ("the number of its GPUs is not agreed on: the driver 0, Ray 8 (nvmlInit has not come back)")


def test_a_gpu_that_fell_off_the_bus_is_wrong_though_it_is_counted(
    simulated: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "_torch_gpus", lambda: None)
    simulated(faults={"1": {"kind": "lost"}})
    assert one("inventory", ray_gpus=2.0).wrong == "GPU 1: GPU is lost: it fell off the bus"


@pytest.mark.parametrize(
    ("expected", "wrong"),
    [
        ({"cpus": 64, "memory_bytes": 500 * GIB}, ""),
        ({"cpus": 96}, "it has 64 processors, the cluster file says 96"),
        ({"memory_bytes": 1000 * GIB}, "it has 490 GiB of memory, the cluster file says 1000"),
    ],
)
def test_processors_and_memory_are_compared_where_the_cluster_file_says_them(
    monkeypatch: pytest.MonkeyPatch, expected: dict[str, int], wrong: str
) -> None:
    facts = Facts(source="none", cpu_count=64, memory_total_bytes=490 * GIB)
    assert inventory(Says(facts), monkeypatch, expected=expected).wrong == wrong


def test_settings_of_nccl_are_told_as_one_word_whatever_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "Probe", lambda disks: Says())
    monkeypatch.setenv("RAYDECK_IMAGE", "train:7")
    for name in [name for name in os.environ if name.startswith("NCCL_")]:
        monkeypatch.delenv(name)
    found = one("versions").facts
    assert (found["nccl_env"], found["image"]) == ("none", "train:7")
    assert "driver" not in found
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")  # how much is said makes no difference
    with_one = one("versions").facts["nccl_env"]
    assert with_one != "none"
    monkeypatch.setenv("NCCL_DEBUG", "WARN")
    assert one("versions").facts["nccl_env"] == with_one
    monkeypatch.setenv("NCCL_IB_DISABLE", "0")
    assert one("versions").facts["nccl_env"] not in ("none", with_one)


def test_the_clock_tells_the_time() -> None:
    before = time.time()
    assert before <= one("clock").facts["wall"] <= time.time()


# --- who is there, and how it is --------------------------------------------------------------------------------------


@pytest.fixture
def holder() -> Generator[Callable[..., int]]:
    """Processes that say they hold a simulated GPU, as a rank does."""
    started: list[subprocess.Popen[bytes]] = []

    def hold(run: str, gpu: int) -> int:
        marks = {"RAYDECK_RUN": run, "RAYDECK_NODE": "gpu-1", "RAYDECK_GPU": str(gpu), "RANK": "0", "MINE": "x"}
        started.append(subprocess.Popen(["sleep", "60"], env={**os.environ, **marks}))
        return started[-1].pid

    yield hold
    for process in started:
        process.send_signal(signal.SIGKILL)
        process.wait()


def test_a_real_process_that_holds_a_gpu_is_named_unless_it_may(
    simulated: Callable[..., None], holder: Callable[..., int]
) -> None:
    simulated()
    pid = holder("lm-a1", 1)
    found = one("foreign", runs=[])
    assert found.wrong.startswith(f"held by what is no run: GPU 1: pid {pid}, ")
    assert found.wrong.endswith(", sleep 60, left over from lm-a1")
    assert found.facts["runs"] == ["lm-a1"]
    assert one("foreign", runs=["lm-a1"]).right
    assert one("foreign", runs=[], allowed_pids=[pid]).right


def sample(used: int | None, *processes: Process, **missing: Missing) -> Sample:
    return Sample(
        index=[3], columns={"memory_used_bytes": [used]}, processes=list(processes),
        missing={3: missing} if missing else {},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("shows", "warned"),
    [
        (sample(20 * GIB), "GPU 3: 20480 MiB in use, and no process to be seen"),
        (sample(500 << 20), ""),
        (sample(20 * GIB, Process(device=3, pid=7, run="lm-a1")), ""),
        (sample(20 * GIB, processes=Missing(UNSUPPORTED, "no list")), ""),
        (sample(None, memory_used_bytes=Missing(ERROR, "no figure")), ""),
    ],
)
def test_memory_that_nobody_holds_is_a_warning_where_that_can_be_known(
    monkeypatch: pytest.MonkeyPatch, shows: Sample, warned: str
) -> None:
    monkeypatch.setattr(preflight, "Probe", lambda disks: Says(sample=shows))
    found = one("foreign")
    assert (found.wrong, found.warned) == ("", warned)


def test_a_leak_of_a_simulated_gpu_is_warned_of(simulated: Callable[..., None]) -> None:
    simulated(faults={"0": {"kind": "leak", "bytes": 8 * GIB}})
    assert one("foreign").warned.startswith("GPU 0: 8")


def test_what_is_critical_by_the_rules_of_health_is_wrong_and_the_rest_is_warned_of(
    simulated: Callable[..., None],
) -> None:
    simulated(faults={"1": {"kind": "remap_failed"}})
    found = one("health")
    assert found.wrong
    assert found.evidence[0] == found.wrong
    assert any("gpu-1/1" in line for line in found.evidence)


# --- paths ------------------------------------------------------------------------------------------------------------


def test_two_nodes_see_each_other_on_a_shared_path_and_leave_nothing(folder: Path) -> None:
    both = [request("mounts", paths=[path(folder)], node=node) for node in ("gpu-1", "gpu-2")]
    assert all(told(asked)["mounts"].right for asked in both)
    assert sorted(file.name for file in folder.iterdir()) == [".raydeck-v1-gpu-1", ".raydeck-v1-gpu-2"]
    for asked in both:
        out = io.StringIO()
        paths.seen(asked, Teller(out))
        (seen,) = read(out.getvalue())[0]
        assert (seen.check, seen.wrong, seen.facts["unseen"]) == ("preflight.shared", "", {})
    for asked in both:
        paths.clean(asked, Teller(io.StringIO()))
    assert list(folder.iterdir()) == []


def test_a_node_that_could_not_write_is_named_with_the_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "SEEN_SECONDS", 0.0)
    asked = request("mounts", paths=[path(folder)], nodes=["gpu-1", "gpu-2", "gpu-3"])
    told(asked)
    told({**asked, "node": "gpu-3"})
    out = io.StringIO()
    paths.seen(asked, Teller(out))
    (seen,) = read(out.getvalue())[0]
    assert seen.wrong == f"what was written to is not seen here: {folder} of gpu-2"
    assert seen.facts["unseen"] == {str(folder): ["gpu-2"]}


def test_a_token_is_taken_away_at_once_where_nobody_else_looks_for_it(folder: Path) -> None:
    assert one("mounts", paths=[path(folder, shared=False), path(folder, "dataset")]).right
    assert list(folder.iterdir()) == []


def full(free: int, inodes: int = 50) -> Callable[[object], SimpleNamespace]:
    """A file system of a hundred blocks and inodes with so many free."""
    figures = SimpleNamespace(
        f_blocks=100, f_bavail=free, f_frsize=4096, f_files=100, f_favail=inodes, f_bfree=free, f_flag=0
    )
    return lambda path: figures


@pytest.mark.parametrize(
    ("free", "inodes", "wrong", "warned"),
    [
        (50, 50, "", ""),
        (8, 50, "", "{} (output) has 8.0% of its room free"),
        (4, 50, "{} (output) is full: 4.0% of its room and 50.0% of its inodes are free", ""),
        (50, 2, "{} (output) is full: 50.0% of its room and 2.0% of its inodes are free", ""),
    ],
)
def test_a_path_without_room_is_warned_of_and_then_wrong(
    folder: Path, monkeypatch: pytest.MonkeyPatch, free: int, inodes: int, wrong: str, warned: str
) -> None:
    monkeypatch.setattr(paths.os, "statvfs", full(free, inodes))
    found = one("mounts", paths=[path(folder)])
    assert (found.wrong, found.warned) == (wrong.format(folder), warned.format(folder))


def read_only(*given: Any, **more: Any) -> Any:
    """An `open` for a file system that may not be written: a test that runs as root may write anything else."""
    raise OSError(30, "Read-only file system")


def test_each_bad_path_is_the_detail_of_whom_to_blame(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths, "open", read_only, raising=False)
    gone = folder / "gone"
    found = one("mounts", paths=[path(folder), path(folder, "dataset"), path(gone, "model"), path(folder, "log")])
    assert found.wrong == "; ".join(
        [
            f"{folder} (output) cannot be written: Read-only file system", f"{gone} (model) is not there",
            f"{folder} (log) cannot be written: Read-only file system",
        ]
    )  # fmt: skip
    (judged,) = judge_preflight(["preflight.mounts"], {"gpu-1": [found]}, {}, {})
    assert [(each.kind, each.nodes, each.detail) for each in judged.culprits] == [
        ("node", ["gpu-1"], f"{folder}, {gone}")
    ]


def test_speeds_of_the_disk_are_of_output_and_cache_alone(folder: Path) -> None:
    found = one("disk", paths=[path(folder), path(folder, "cache"), path(folder, "log")], deep=True)
    assert {name: len(samples) for name, samples in found.figures.items()} == {"disk_write": 2, "disk_read": 2}
    assert min(value for samples in found.figures.values() for value in samples) > 0
    assert list(folder.iterdir()) == []
    found = one("disk", paths=[path(folder, "dataset")])
    assert found.skipped == "the cluster file names neither an output nor a cache path"


def test_few_open_files_and_little_shared_memory_are_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paths.resource, "getrlimit", lambda which: (1024, 1024))
    monkeypatch.setattr(paths.os, "statvfs", full(64))
    found = one("limits")
    assert (found.wrong, found.facts["open_files"]) == ("", 1024)
    assert found.warned.startswith("it may open 1024 files; ")
    assert found.warned.endswith("; shared memory has 0 MiB free; data loaders and NCCL need more")


# --- names and ports --------------------------------------------------------------------------------------------------


@pytest.fixture
def listening() -> Generator[int]:
    with closing(socket.create_server(("127.0.0.1", 0))) as server:
        yield server.getsockname()[1]


@pytest.fixture
def closed() -> Generator[int]:
    """A port at which nobody listens, and that nobody else is given: it is bound, and refuses."""
    with closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


def peer(*ports: int, must: tuple[int, ...] = ()) -> dict[str, Any]:
    return {"node": "gpu-2", "address": "127.0.0.1", "ports": list(ports), "must": list(must)}


def test_a_port_that_refuses_is_wrong_only_where_somebody_must_listen(listening: int, closed: int) -> None:
    found = one("ports", peers=[peer(listening, closed, must=(listening,))])
    assert (found.wrong, found.facts) == ("", {"silent": {}, "tried": 2})
    assert one("ports", peers=[peer(listening, closed, must=(closed,))]).wrong == f"nobody listens at gpu-2:{closed}"
    assert one("ports").skipped == "there is no other node"


@pytest.mark.parametrize("error", [TimeoutError(), OSError(113, "No route to host")])
def test_a_port_without_an_answer_is_told_with_both_ends(
    listening: int, monkeypatch: pytest.MonkeyPatch, error: OSError
) -> None:
    real = socket.create_connection

    def filtered(address: tuple[str, int], timeout: float) -> socket.socket:
        assert timeout == 2.0
        if address[1] != listening:
            raise error
        return real(address, timeout)

    monkeypatch.setattr(reach.socket, "create_connection", filtered)
    found = one("ports", peers=[peer(listening, 6379, must=(listening, 6379))])
    assert (found.wrong, found.facts["silent"]) == ("no answer from gpu-2 port 6379", {"gpu-2": [6379]})
    others = {"gpu-2": [Measured("preflight.ports", facts={"silent": {}})]}
    judged = judge_preflight(["preflight.ports"], {"gpu-1": [found], **others}, {}, {})
    assert [[each.words for each in result.culprits] for result in judged] == [
        ["the link gpu-1 ↔ gpu-2 (port 6379)"], [],
    ]  # fmt: skip


def resolves(monkeypatch: pytest.MonkeyPatch, *addresses: str) -> None:
    def answer(host: str, port: object, **more: object) -> list[Any]:
        if not addresses:
            raise socket.gaierror(-2, "Name or service not known")
        return [(None, None, None, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(reach.socket, "gethostname", lambda: "gpu-1")
    monkeypatch.setattr(reach.socket, "getaddrinfo", answer)


def test_a_name_that_means_the_loopback_matters_only_to_nodes_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    resolves(monkeypatch, "127.0.1.1", "::1")
    found = one("names", peers=[peer()])
    assert (found.warned, found.facts["interface"]) == ("", "lo")
    assert found.facts["mtu"] > 1000
    found = one("names", peers=[{**peer(), "address": OTHER_NODE}])
    assert found.warned == "its own name gpu-1 leads to the loopback (127.0.1.1, ::1) and not to 127.0.0.1"
    resolves(monkeypatch)
    assert one("names").warned == "its own name gpu-1 does not resolve"


def test_an_address_that_is_not_ours_and_one_without_a_way_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert one("names", address=OTHER_NODE).wrong == (
        f"no interface here has the address {OTHER_NODE} that Ray knows it by"
    )
    resolves(monkeypatch, OTHER_NODE)

    class NoWay(socket.socket):
        def connect(self, address: Any, /) -> None:
            raise OSError(101, "Network is unreachable")

    monkeypatch.setattr(reach.socket, "socket", NoWay)
    found = one("names", peers=[{**peer(), "address": OTHER_NODE}])
    assert found.wrong == f"no way leads from here to gpu-2 ({OTHER_NODE}): Network is unreachable"
