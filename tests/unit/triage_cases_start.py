"""Cases: devices that are not there, jobs that do not start, nodes that do not join."""

from __future__ import annotations

from dataclasses import replace

from jobs.model import Failure, Held, RunState
from jobs.nodeview import Hold
from jobs.queueview import Blocker, Explanation, NodeNote, QueueView
from jobs.raymodel import RayJob
from jobs.triage.evidence import (
    Evidence,
    FileEvidence,
    Truth,
    lines,
)
from jobs.wire import CheckpointRow, ControllerStatus
from probes.reading import Driver
from tests.unit.triage_case import case, health_of, of_run
from tests.unit.triage_made import (
    FAILED_AT,
    NOW,
    device_health,
    evidence,
    failed,
    fleet,
    gang,
    lost_device,
    rank,
    traceback,
    xid,
)

# --- device not visible -----------------------------------------------------------------------------------------------


@case("device not visible", "K01", "gpu-2")
def no_driver() -> Evidence:
    made = fleet()
    made.nodes["gpu-2"].driver = Truth("none", "NVML Shared Library Not Found", NOW - 600)
    made.nodes["gpu-2"].facts = None
    made.nodes["gpu-2"].sample = None
    return made


@case("device not visible", "K01", "gpu-2/1")
def fewer_than_the_inventory() -> Evidence:
    made = fleet()
    facts = made.nodes["gpu-2"].facts
    assert facts is not None
    facts.devices = facts.devices[:1]
    made.nodes["gpu-2"].ray_gpus_total = None
    return made


@case("device not visible", "K01", "gpu-1")
def not_mapped_into_the_container() -> Evidence:
    made = fleet()
    made.nodes["gpu-1"].ray_gpus_total = 1.0
    return made


@case("device not visible", "K20", "gpu-2/1")
def lost_by_its_figures() -> Evidence:
    made = fleet()
    lost_device(made.nodes["gpu-2"], 1)
    return made


@case("device not visible", "K20", "gpu-2/1")
def lost_by_its_xid() -> Evidence:
    made = fleet()
    made.nodes["gpu-2"].events = [xid(45, at=NOW - 50), xid(79, at=NOW - 60)]
    return made


@case("device not visible", "K02", "gpu-2")
def driver_of_another_version_than_its_library() -> Evidence:
    made = fleet()
    made.nodes["gpu-2"].driver = Truth("error", "NVML: Driver/library version mismatch", NOW - 600)
    return made


@case("device not visible", "K02", "gpu-3")
def one_node_with_another_driver() -> Evidence:
    made = fleet()
    made.nodes["gpu-3"] = replace(made.nodes["gpu-1"], name="gpu-3", versions={"torch": "2.13", "nccl": "2.19"})
    return made


@case("device not visible", "driver_blocked", "gpu-2")
def driver_that_does_not_answer() -> Evidence:
    made = fleet()
    made.nodes["gpu-2"].driver = Truth("blocked", "nvmlDeviceGetUtilizationRates has not come back", NOW - 40)
    sample = made.nodes["gpu-2"].sample
    assert sample is not None
    sample.driver = Driver("blocked", "nvmlDeviceGetUtilizationRates", 40.0)
    return made


@case("device not visible", "K22", "gpu-2/0")
def fabric_that_is_not_ready() -> Evidence:
    made = fleet()
    health_of(made, "gpu-2").devices[0] = device_health(0, fabric_healthy=0)
    return made


@case("device not visible", "K01", "rank 2 (gpu-2, GPU 0)")
def permission_on_the_device() -> Evidence:
    return failed(gang(2, traceback("RuntimeError: Failed to initialize NVML: Insufficient Permissions")))


# --- job cannot start -------------------------------------------------------------------------------------------------


def waiting(*blockers: Blocker, **changes: object) -> Evidence:
    made = evidence(RunState.QUEUED)
    own = of_run(made)
    own.explanation = Explanation(
        run="run-1", state=RunState.QUEUED, sentence="it waits", blocked_by=list(blockers),
        nodes=[NodeNote(node="gpu-1", usable=False, sentence="2 of 2 GPUs are held by run-9")],
    )  # fmt: skip
    own.run = own.run.model_copy(update=changes)
    return made


@case("job cannot start", "K28", "run run-1")
def no_room() -> Evidence:
    return waiting(Blocker(kind="resources", sentence="it needs 4 GPUs on 2 nodes; 1 node has 2 free"))


@case("job cannot start", "K28", "gpu-2")
def its_only_node_is_cordoned() -> Evidence:
    made = waiting(Blocker(kind="cordon", sentence="gpu-2 is cordoned by bob", names=["gpu-2"]))
    made.nodes["gpu-2"].holds = [Hold(id="h", node="gpu-2", user="bob", at=NOW)]
    return made


@case("job cannot start", "K28", "bob")
def held_by_somebody() -> Evidence:
    return waiting(Blocker(kind="hold", sentence="bob holds it"), held=Held(user="bob", at=NOW - 9))


@case("job cannot start", "K28", "run run-1")
def over_its_queues_quota() -> Evidence:
    return waiting(Blocker(kind="queue_quota", sentence="queue training holds 16 of 16 GPUs"))


@case("job cannot start", "S12", "run run-1")
def queue_that_stands_still() -> Evidence:
    made = waiting()
    made.queue = QueueView(at=NOW, free_accelerators=8)
    return made


@case("job cannot start", "K29", "rank 1 (gpu-1, GPU 1)")
def missing_dependency() -> Evidence:
    return failed(gang(1, traceback("ModuleNotFoundError: No module named 'flash_attn'")))


@case("job cannot start", "K29", "run run-1")
def missing_image() -> Evidence:
    made = failed([])
    made.job = RayJob("raydeck-run-1-a1", status="FAILED", message="RuntimeEnvSetupError: manifest unknown: train:v9")
    return made


@case("job cannot start", "K10", "rank 0 (gpu-1, GPU 0)")
def taken_port() -> Evidence:
    return failed(gang(0, traceback("torch.distributed.DistNetworkError: address in use, error: EADDRINUSE")))


@case("job cannot start", "K35", "gpu-2:/data/corpus")
def data_that_is_missing_on_one_node() -> Evidence:
    error = "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/train.bin'"
    made = failed(gang(2, traceback(error)))
    made.files = [
        FileEvidence("/data/corpus", "gpu-1", "data", True, readable=True),
        FileEvidence("/data/corpus", "gpu-2", "data", False),
    ]
    return made


@case("job cannot start", "start_timeout", "gpu-2")
def not_started_in_time() -> Evidence:
    made = failed([], Failure.START_TIMEOUT)
    outcome = of_run(made).run.attempts[0].outcome
    assert outcome is not None
    outcome.suspects, outcome.reason = ["gpu-2"], "the agent on gpu-2 did not start within 60 s"
    return made


@case("job cannot start", "K33", "path:/output/w/run-1/checkpoint-400")
def checkpoint_that_was_cut() -> Evidence:
    made = failed([], Failure.CHECKPOINT)
    of_run(made).checkpoints = [
        CheckpointRow(step=400, path="/output/w/run-1/checkpoint-400", complete=False, reason="model.pt is cut")
    ]
    return made


@case("job cannot start", "controller", "")
def controller_that_does_not_run() -> Evidence:
    made = evidence(RunState.QUEUED)
    made.controller_reason = "no controller listens on the head"
    return made


@case("job cannot start", "ray_head", "head-1")
def ray_that_does_not_answer() -> Evidence:
    return fleet(
        controller=ControllerStatus(
            version="1", code_digest="d", pid=1, user="u", host="head-1", python="3", started_at=NOW, dashboard="",
            ray="the dashboard does not answer", metadata_store="/m", supervised_by="none", you="u", role="admin",
        )
    )  # fmt: skip


# --- node cannot join -------------------------------------------------------------------------------------------------


def outside(text: str) -> Evidence:
    made = fleet()
    made.nodes["gpu-2"].ray = Truth("absent", "", NOW - 300)
    made.nodes["gpu-2"].raylet = lines(text)
    return made


@case("node cannot join", "K11", "gpu-2")
def port_that_is_closed() -> Evidence:
    return outside("raylet: failed to connect to GCS at 10.0.0.1:6379: Connection refused")


@case("node cannot join", "clock", "gpu-2")
def clock_that_is_off() -> Evidence:
    made = outside("ssl: x509: certificate is not yet valid")
    made.nodes["gpu-2"].clock_offset_seconds = -7200.0
    return made


@case("node cannot join", "K30", "gpu-2")
def certificate_that_has_expired() -> Evidence:
    return outside("Ssl handshake failed: x509: certificate has expired")


@case("node cannot join", "K31", "gpu-2")
def ray_of_another_version() -> Evidence:
    return outside("RuntimeError: Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.11.7")


@case("node cannot join", "K26", "gpu-2")
def lost_for_ssh_and_ray() -> Evidence:
    made = fleet()
    made.nodes["gpu-2"].ssh = Truth("lost", "no answer for 5 s", NOW - 70)
    made.nodes["gpu-2"].ray = Truth("dead", "missed health checks", NOW - 10)
    return made


@case("node cannot join", "K09", "rank 3 (gpu-2, GPU 1)")
def rank_that_never_came() -> Evidence:
    text = traceback(
        "torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 3/4 clients joined."
    )
    gang_of = [rank(n, text, exit_code=1, ended_at=FAILED_AT, last_step=None) for n in range(3)]
    gang_of.append(rank(3, pid=None, log_bytes=0, last_step=None, last_output_at=None))
    return failed(gang_of)
