"""Cases: results, logs and services; machines asked about by themselves."""

from __future__ import annotations

from dataclasses import replace

from jobs.release import Change
from jobs.triage.evidence import (
    Comparison,
    Evidence,
    FileEvidence,
    Replica,
    ServeEvidence,
    Target,
)
from jobs.wire import CheckpointRow
from probes.reading import Event, Mount, Stuck
from tests.unit.triage_case import case, health_of, of_run
from tests.unit.triage_made import (
    CONFIG,
    NOW,
    device_health,
    evidence,
    fleet,
    ranks,
)

# --- results, logs, services ------------------------------------------------------------------------------------------


@case("results not reproducible", "S08", "run run-1")
def other_seed_and_data() -> Evidence:
    made = evidence()
    of_run(made).comparison = Comparison(
        "run-0", [Change("seed", 1, 7), Change("data.version", "v1", "v2")], 2.0, 2.4, 400
    )
    return made


@case("results not reproducible", "K32", "run run-1")
def loss_that_is_no_number() -> Evidence:
    made = evidence()
    own = of_run(made)
    own.course[-3] = own.course[-3].model_copy(update={"loss": float("nan")})
    own.checkpoints = [CheckpointRow(step=400, path="/c", complete=True)]
    return made


@case("logs missing", "S11", "gpu-1:/output/w/run-1/attempt-1")
def log_folder_that_may_not_be_written() -> Evidence:
    made = evidence()
    of_run(made).output_bytes = 0
    made.files = [
        FileEvidence("/output/w/run-1/attempt-1", "gpu-1", "log", True, "root", "drwxr-xr-x", "alice", True, False)
    ]
    return made


@case("logs missing", "S11", "run run-1")
def log_level_that_is_too_high() -> Evidence:
    made = evidence(ranks=[replace(each, last_output_at=NOW - 900) for each in ranks()])
    of_run(made).config = {**CONFIG, "observability": {"log_level": "error"}}
    return made


def serving(**changes: object) -> Evidence:
    serve = ServeEvidence(
        "chat", "RUNNING", proxies={"gpu-1": "HEALTHY"}, route="/chat", routes=["/chat"], port=8000, port_result="open",
        health_status=200, replicas=[Replica("a", "gpu-1", "RUNNING"), Replica("b", "gpu-2", "RUNNING")],
        target_replicas=2,
    )  # fmt: skip
    return fleet(serve=replace(serve, **changes))


@case("service not reachable", "S09", "gpu-2:chat")
def replicas_that_do_not_run() -> Evidence:
    return serving(replicas=[Replica("b", "gpu-2", "UNHEALTHY", "health check failed 3 times")])


@case("service not reachable", "S09", "gpu-1")
def entry_that_is_not_well() -> Evidence:
    return serving(proxies={"gpu-1": "UNHEALTHY", "gpu-2": "HEALTHY"})


@case("service not reachable", "S09", "port 8000")
def wrong_port() -> Evidence:
    return serving(port_result="refused")


@case("service not reachable", "S09", "/chatt")
def wrong_route() -> Evidence:
    return serving(route="/chatt")


@case("service not reachable", "S09", "gateway")
def gateway_with_a_wrong_target() -> Evidence:
    return serving(gateway_status=503)


@case("latency high", "S10", "chat")
def too_many_requests() -> Evidence:
    return serving(
        p95_milliseconds=900.0, limit_milliseconds=300.0, queued=78.0,
        replicas=[Replica("a", "gpu-1", "RUNNING", "", 900.0, 98.0), Replica("b", "gpu-2", "RUNNING", "", 890.0, 97.0)],
    )  # fmt: skip


@case("latency high", "S10", "gpu-2")
def one_replica_is_late() -> Evidence:
    return serving(
        p95_milliseconds=900.0, limit_milliseconds=300.0,
        replicas=[Replica("a", "gpu-1", "RUNNING", "", 100.0), Replica("b", "gpu-2", "RUNNING", "", 900.0)],
    )  # fmt: skip


@case("latency high", "S10", "gpu-2")
def one_replica_is_late_and_nothing_is_promised() -> Evidence:
    times = {"a": ("gpu-1", 100.0), "b": ("gpu-2", 900.0), "c": ("gpu-1", 120.0)}
    return serving(
        p95_milliseconds=700.0, answers=120, answers_seconds=11.0,
        replicas=[Replica(name, node, "RUNNING", "", late) for name, (node, late) in times.items()],
    )  # fmt: skip


@case("latency high", "S10", "chat")
def the_cpu_work_around_the_model() -> Evidence:
    return serving(
        p95_milliseconds=900.0, limit_milliseconds=300.0,
        replicas=[Replica("a", "gpu-1", "RUNNING", "", 900.0, 3.0), Replica("b", "gpu-2", "RUNNING", "", 890.0, 2.0)],
    )  # fmt: skip


# --- machines, asked about by themselves ------------------------------------------------------------------------------


@case("time-outs across nodes", "S13", "gpu-2")
def node_that_comes_and_goes() -> Evidence:
    made = fleet()
    made.nodes["gpu-2"].times_lost = 4
    return made


@case("slow training", "nvlink", "gpu-2/0")
def nvlinks_that_are_down() -> Evidence:
    made = fleet(target=Target("node", "gpu-2"))
    health_of(made, "gpu-2").devices[0] = device_health(0, nvlinks_active=16)
    return made


@case("fails without a message", "recovery", "gpu-2/1")
def driver_that_asks_for_a_reset() -> Evidence:
    made = fleet(target=Target("gpu", "gpu-2/1"))
    health_of(made, "gpu-2").devices[1] = device_health(1, recovery_action=1)
    return made


@case("fails without a message", "machine_check", "gpu-1")
def machine_check() -> Evidence:
    made = fleet()
    made.nodes["gpu-1"].events = [Event("machine_check", "mce: [Hardware Error]: Machine check events logged", NOW - 5)]
    return made


@case("job hangs", "K24", "gpu-2:/data")
def mount_that_hangs() -> Evidence:
    made = fleet()
    health_of(made, "gpu-2").mounts[0] = Mount("/data", "nfs4", hangs_seconds=80.0)
    return made


@case("job hangs", "K24", "gpu-2")
def processes_inside_the_kernel() -> Evidence:
    made = fleet()
    health_of(made, "gpu-2").stuck = [Stuck(99, "python train.py", "alice", "nfs_wait_bit_killable", 120.0)]
    return made
