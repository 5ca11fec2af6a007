"""Cases: runs that fail or are slow."""

from __future__ import annotations

from dataclasses import replace

from jobs.model import Failure, Move, RunState
from jobs.triage.evidence import (
    Evidence,
    FileEvidence,
    PortEvidence,
    Truth,
    lines,
)
from probes.reading import Event, Mount, Port, Process
from tests.unit.triage_case import case, health_of, of_run
from tests.unit.triage_made import (
    FAILED_AT,
    GIB,
    NOW,
    RESET,
    WATCHDOG,
    column,
    device_health,
    evidence,
    failed,
    fleet,
    gang,
    rank,
    ranks,
    run,
    slow,
    traceback,
    xid,
)

# --- out of memory ----------------------------------------------------------------------------------------------------


@case("out of memory", "K03", "rank 2 (gpu-2, GPU 0)")
def gpu_memory() -> Evidence:
    return failed(gang(2, traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")))


@case("out of memory", "foreign", "gpu-2/0")
def gpu_memory_that_somebody_else_holds() -> Evidence:
    made = failed(gang(2, traceback("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB")))
    sample = made.nodes["gpu-2"].sample
    assert sample is not None
    sample.processes.append(Process(0, 777, "bob", "python notebook.py", 70 * GIB))
    return made


@case("out of memory", "S04", "gpu-2/1")
def gpu_memory_that_nobody_holds() -> Evidence:
    made = fleet()
    sample = made.nodes["gpu-2"].sample
    assert sample is not None
    sample.processes = sample.processes[:1]
    return made


@case("out of memory", "K04", "rank 3 (gpu-2, GPU 1)")
def host_memory() -> Evidence:
    made = failed(gang(3, "step 413 loss 2.1", code=-9))
    made.nodes["gpu-2"].events = [
        Event("oom", "Out of memory: Killed process 1001 (python) total-vm:9kB", FAILED_AT - 0.2, pid=1001)
    ]
    return made


@case("out of memory", "K04", "rank 1 (gpu-1, GPU 1)")
def worker_of_a_data_loader() -> Evidence:
    return failed(gang(1, traceback("RuntimeError: DataLoader worker (pid 99) is killed by signal: Killed.")))


@case("out of memory", "K05", "rank 2 (gpu-2, GPU 0)")
def shared_memory() -> Evidence:
    made = failed(gang(2, "step 413", code=-7))
    health_of(made, "gpu-2").mounts[2] = Mount("/dev/shm", "tmpfs", 64 << 20, 0, 1000, 900)
    return made


@case("out of memory", "K04", "gpu-2")
def host_memory_that_is_nearly_used_up() -> Evidence:
    made = fleet()
    health_of(made, "gpu-2").memory_available_bytes = 10 * GIB
    return made


# --- time-outs across nodes -------------------------------------------------------------------------------------------


def timed_out() -> Evidence:
    return failed([rank(n, WATCHDOG, exit_code=-6, ended_at=FAILED_AT + n / 10) for n in range(4)])


@case("time-outs across nodes", "K15", "gpu-2:mlx5_0/1")
def link_that_is_down() -> Evidence:
    made = timed_out()
    health_of(made, "gpu-2").ports[0] = Port("mlx5_0/1", False, 3, 0, None)
    return made


@case("time-outs across nodes", "K11", "gpu-2")
def port_between_nodes() -> Evidence:
    made = timed_out()
    made.ports = [
        PortEvidence("gpu-1", "gpu-2", 29500, "no answer", "rank 0"),
        PortEvidence("gpu-2", "gpu-1", 29500, "open", "rank 0"),
    ]
    return made


@case("time-outs across nodes", "K12", "rank 2 (gpu-2, GPU 0)")
def interface_that_is_not_there() -> Evidence:
    return failed(gang(2, traceback("RuntimeError: Unable to find address for: eth7")))


@case("time-outs across nodes", "K19", "gpu-2/1")
def gpu_that_broke_before_the_time_out() -> Evidence:
    made = timed_out()
    of_run(made).course = [point.model_copy(update={"wall": point.wall - 600}) for point in of_run(made).course]
    made.nodes["gpu-2"].events = [xid(48, at=FAILED_AT - 605)]
    return made


@case("time-outs across nodes", "K26", "gpu-2")
def node_that_went_away() -> Evidence:
    made = failed([rank(n, traceback(RESET), exit_code=1, ended_at=FAILED_AT) for n in range(2)] + [rank(2), rank(3)])
    made.nodes["gpu-2"].ssh = Truth("lost", "no answer", FAILED_AT - 1)
    made.nodes["gpu-2"].ray = Truth("dead", "missed health checks", FAILED_AT + 30)
    return made


@case("time-outs across nodes", "K26", "gpu-1, gpu-2 and gpu-3")
def switch_that_took_three_nodes() -> Evidence:
    made = fleet()
    for at, name in enumerate(("gpu-1", "gpu-2", "gpu-3")):
        made.nodes[name] = replace(
            made.nodes["gpu-1"],
            name=name,
            ssh=Truth("lost", "no answer", NOW - 60 + at),
            ray=Truth("dead", "", NOW - 5),
        )
    return made


# --- fails without a message ------------------------------------------------------------------------------------------


@case("fails without a message", "K27", "rank 1 (gpu-1, GPU 1)")
def killed_without_a_word() -> Evidence:
    return failed(gang(1, "step 413 loss 2.1", code=-9))


@case("fails without a message", "K27", "rank 3 (gpu-2, GPU 1)")
def segmentation_fault() -> Evidence:
    return failed(gang(3, "step 413 loss 2.1", code=-11))


@case("fails without a message", "K19", "gpu-2/1")
def ecc_behind_a_silent_end() -> Evidence:
    made = failed(gang(3, "step 413 loss 2.1", code=-6))
    health_of(made, "gpu-2").devices[1] = device_health(1, ecc_volatile_uncorrected_count=2)
    return made


@case("fails without a message", "K21", "gpu-2/1")
def system_processor_behind_a_cuda_error() -> Evidence:
    made = failed(gang(3, traceback("RuntimeError: CUDA error: unknown error")))
    made.nodes["gpu-2"].events = [xid(119, words="Timeout after 6s of waiting for RPC response from GPU1 GSP!")]
    return made


@case("fails without a message", "K17", "rank 1 (gpu-1, GPU 1)")
def assertion_on_the_gpu() -> Evidence:
    return failed(gang(1, traceback("RuntimeError: CUDA error: device-side assert triggered")))


@case("fails without a message", "K34", "rank 0 (gpu-1, GPU 0)")
def too_many_files() -> Evidence:
    return failed(gang(0, traceback("OSError: [Errno 24] Too many open files")))


@case("fails without a message", "exception", "rank 0 (gpu-1, GPU 0)")
def error_of_the_scripts_own() -> Evidence:
    return failed(gang(0, traceback("ValueError: expected 4 dimensions")))


@case("fails without a message", "time_limit", "run run-1")
def time_that_was_used_up() -> Evidence:
    return failed([], Failure.TIME_LIMIT)


@case("fails without a message", "stopped", "bob")
def stopped_by_somebody() -> Evidence:
    made = evidence(RunState.STOPPED, ranks=[])
    own = of_run(made)
    own.run = run(RunState.STOPPED)
    own.moves = [Move(at=NOW - 9, after=RunState.STOPPING, actor="bob", cause="bob stops it")]
    return made


# --- storage: full, refused, missing ----------------------------------------------------------------------------------


@case("output folder full", "K23", "gpu-2:/output")
def full_mount() -> Evidence:
    made = failed(gang(2, traceback("OSError: [Errno 28] No space left on device: '/output/w/run-1/x.pt'")))
    health_of(made, "gpu-2").mounts[1] = Mount("/output", "nfs4", 1000 * GIB, 0, 1000, 900)
    return made


@case("output folder full", "K23", "rank 2 (gpu-2, GPU 0)")
def full_by_its_log_alone() -> Evidence:
    return failed(gang(2, traceback("OSError: [Errno 28] No space left on device")))


@case("output folder full", "K23", "gpu-1:/output")
def no_inodes() -> Evidence:
    made = fleet()
    health_of(made, "gpu-1").mounts[1] = Mount("/output", "ext4", 1000 * GIB, 500 * GIB, 1_000_000, 0)
    return made


@case("permission refused", "K25", "gpu-2:/output/w/run-1")
def output_that_may_not_be_written() -> Evidence:
    made = failed(gang(2, traceback("PermissionError: [Errno 13] Permission denied: '/output/w/run-1/x.pt'")))
    made.files = [
        FileEvidence(
            "/output/w/run-1", "gpu-2", "output", True, "root", "drwxr-xr-x", "alice", readable=True, writable=False
        )
    ]
    return made


@case("permission refused", "K25", "rank 0 (gpu-1, GPU 0)")
def key_that_has_expired() -> Evidence:
    return failed(gang(0, traceback("botocore.exceptions.ClientError: An error occurred (ExpiredToken) when calling")))


@case("permission refused", "ssh_refused", "gpu-2")
def ssh_key_that_is_refused() -> Evidence:
    made = fleet()
    made.nodes["gpu-2"].ssh = Truth("refused", "the host key has changed", NOW - 60)
    return made


# --- slow training ----------------------------------------------------------------------------------------------------


@case("slow training", "S07", "/data/corpus")
def data_takes_the_time() -> Evidence:
    return slow([replace(each, seconds={"data": 0.6, "compute": 0.4, "collective": 0.1}) for each in ranks()])


@case("slow training", "S02", "gpu-2")
def cpu_takes_the_time() -> Evidence:
    made = slow()
    sample = made.nodes["gpu-2"].sample
    assert sample is not None
    sample.host.cpu_percent = 99.0
    for name in ("gpu-1", "gpu-2"):
        column(made.nodes[name], "utilization_percent", [40, 42])
    return made


@case("slow training", "K14", "gpu-2")
def network_fell_back_to_tcp() -> Evidence:
    gang_of = ranks()
    gang_of[2].log = lines("gpu-2:9:9 [0] NCCL INFO NET/IB : No device found.")
    return slow(gang_of)


@case("slow training", "link_slow", "gpu-2:mlx5_0/1")
def link_that_is_slow() -> Evidence:
    made = slow([replace(each, seconds={"data": 0.01, "compute": 0.4, "collective": 0.6}) for each in ranks()])
    health_of(made, "gpu-2").ports[0] = Port("mlx5_0/1", True, 0, 0, 100.0)
    return made


@case("slow training", "S02", "rank 3 (gpu-2, GPU 1)")
def straggler() -> Evidence:
    return slow(
        [
            replace(
                each,
                seconds={"compute": 0.53 if each.rank == 3 else 0.3, "collective": 0.07 if each.rank == 3 else 0.3},
            )
            for each in ranks()
        ]
    )


@case("slow training", "S02", "run run-1")
def collectives_take_the_time_and_rank_0_a_little_longer() -> Evidence:
    """Four times as long as the others, and nobody waits for that: it is seven thousandths of a step."""
    return slow(
        [replace(each, seconds={"compute": 0.002 if each.rank else 0.009, "collective": 0.9}) for each in ranks()]
    )


@case("slow training", "S05", "gpu-2/1")
def hot_gpu() -> Evidence:
    made = straggler()
    column(made.nodes["gpu-2"], "throttle_reasons", [0, 0x40])
    column(made.nodes["gpu-2"], "sm_clock_mhz", [1900, 900])
    return made


@case("slow training", "S06", "gpu-2/1")
def narrow_pcie() -> Evidence:
    made = straggler()
    health_of(made, "gpu-2").devices[1] = device_health(1, pcie_width=4)
    return made


@case("slow training", "S02", "run run-1")
def slow_and_nobody_knows_why() -> Evidence:
    return slow()


@case("slow training", "S03", "gpu-1/0")
def two_ranks_on_one_gpu() -> Evidence:
    gang_of = ranks()
    gang_of[1] = replace(gang_of[1], gpu=0, gpu_uuid=gang_of[0].gpu_uuid)
    return evidence(ranks=gang_of)
