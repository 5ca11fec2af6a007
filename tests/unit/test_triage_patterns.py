"""Every pattern knows its lines, no harmless line is taken for an error, and each row of the tables has its rule."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jobs.triage.evidence import lines
from jobs.triage.patterns import BY_ID, PATTERNS, ROWS, Pattern
from jobs.triage.scan import MAX_LINE, best, hits, known, shown

SAMPLES: list[tuple[str, str]] = [
    ("K01", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."),
    ("K01", "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU"),
    ("K01", "Failed to initialize NVML: Insufficient Permissions"),
    ("K01", "RuntimeError: No CUDA GPUs are available"),
    ("K02", "Failed to initialize NVML: Driver/library version mismatch"),
    ("K02", "CUDA driver version is insufficient for CUDA runtime version"),
    ("K02", "ImportError: libtorch_cuda.so: undefined symbol: ncclCommRegister"),
    ("K03", "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity"),
    ("K03", "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ("K04", "Out of memory: Killed process 4711 (python) total-vm:123kB, anon-rss:99kB"),
    ("K04", "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory."),
    ("K04", "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed."),
    ("K05", "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory"),
    ("K05", "NCCL WARN Error while creating shared memory segment /dev/shm/nccl-abc (size 9637888)"),
    (
        "K06",
        "[Rank 3] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=64088, OpType=ALLREDUCE, "
        "NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds before timing out.",
    ),
    ("K07", "unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete"),
    ("K07", "RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms"),
    ("K08", "pair.cc:553] Connection closed by peer [127.0.0.1]:4749."),
    ("K08", "misc/socket.cc: NCCL WARN socketProgress: Connection closed by remote peer worker-2<41234>"),
    ("K09", "torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 3/4 clients joined."),
    ("K09", "DistStoreError: wait timeout after 8000ms, keys: /default_pg/0//cpu//0/0"),
    ("K10", "The server socket has failed to listen on any local network address. EADDRINUSE"),
    ("K10", "OSError: [Errno 98] Address already in use"),
    ("K11", "RuntimeError: connect() failed: No route to host"),
    ("K11", "socket.gaierror: [Errno -2] Name or service not known"),
    ("K11", "ConnectionRefusedError: [Errno 111] Connection refused"),
    ("K12", "NCCL WARN Bootstrap : no socket interface found"),
    ("K12", "RuntimeError: Unable to find address for: eth7"),
    ("K13", "NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4791> with status=12 opcode=0 len=0 vendor err 129"),
    ("K14", "gpu-1:99:99 [0] NCCL INFO NET/IB : No device found."),
    ("K14", "gpu-1:99:99 [0] NCCL INFO Using network Socket"),
    ("K15", "mlx5_core 0000:c1:00.0 ib0: Link down"),
    ("K15", "ib0: Lost carrier"),
    (
        "K16",
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective: X, but Rank 1",
    ),
    ("K16", "500 vs 252. Received data size doesn't match expected size. Is there a distributed collective mismatch"),
    ("K17", "RuntimeError: CUDA error: device-side assert triggered"),
    ("K17", "Loss.cu:242: block: [0,0,0], thread: [5,0,0] Assertion `t >= 0 && t < n_classes` failed."),
    ("K18", "RuntimeError: CUDA error: an illegal memory access was encountered"),
    ("K19", "RuntimeError: CUDA error: uncorrectable ECC error encountered"),
    ("K20", "NVRM: GPU at PCI:0000:1b:00: GPU has fallen off the bus."),
    ("K20", "Unable to determine the device handle for GPU0000:1B:00.0: Unknown Error"),
    ("K21", "NVRM: Xid (PCI:0000:1b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ("K21", "NVRM: Xid (0000:03:00): 62, 0cb5(50a8) 00000000"),
    ("K22", "RuntimeError: CUDA error: system not yet initialized"),
    ("K22", "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 24007, Fatal, Link 46"),
    ("K23", "OSError: [Errno 28] No space left on device: '/output/x'"),
    ("K23", "OSError: [Errno 122] Disk quota exceeded"),
    ("K24", "nfs: server storage-1 not responding, still trying"),
    ("K24", "OSError: [Errno 116] Stale file handle"),
    ("K24", "INFO: task python:4711 blocked for more than 120 seconds."),
    ("K25", "PermissionError: [Errno 13] Permission denied: '/data/corpus'"),
    ("K25", "botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling the GetObject operation"),
    ("K26", "ray.exceptions.NodeDiedError: Task failed because the node it was running on is dead or unavailable."),
    ("K26", "marked dead because the detector has missed too many heartbeats from it"),
    ("K27", "ray.exceptions.WorkerCrashedError: The worker died unexpectedly while executing this task."),
    ("K27", "RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly"),
    ("K28", "Warning: The following resource request cannot be scheduled right now: {'GPU': 8.0}"),
    ("K29", "ModuleNotFoundError: No module named 'flash_attn'"),
    ("K29", "ImportError: libcudnn.so.9: cannot open shared object file: No such file or directory"),
    ("K29", "ray.exceptions.RuntimeEnvSetupError: Failed to set up runtime environment."),
    ("K30", "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
    ("K30", "x509: certificate has expired or is not yet valid"),
    ("K31", "RuntimeError: Version mismatch: The cluster was started with:"),
    ("K32", "step 100 loss: nan grad_norm: inf"),
    ("K32", "ValueError: loss is nan at step 10"),
    ("K33", "RuntimeError: Error(s) in loading state_dict for Net:"),
    ("K33", "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory"),
    ("K34", "OSError: [Errno 24] Too many open files"),
    ("K34", "RuntimeError: can't start new thread"),
    ("K35", "FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus/train-00001.bin'"),
]

HARMLESS = [
    "step 413 loss 2.1034 tokens_per_second 12345",
    "loss: 0.0123 nanoseconds: 17",
    "Loading checkpoint shards: 100%|██████████| 4/4",
    "NCCL INFO Channel 00/16 : 0 1 2 3",
    "saving checkpoint 500 to /output/run-1/checkpoint-500",
    "epoch 3: info about inference batches, nanogpt small",
    "Using device cuda:0, memory 141 GB",
    "all ranks ready, 8/8 healthy",
]


@pytest.mark.parametrize(("pattern", "line"), SAMPLES)
def test_a_line_is_known(pattern: str, line: str) -> None:
    assert pattern in [each.id for each in known(line)]


@pytest.mark.parametrize("line", HARMLESS)
def test_a_harmless_line_is_not(line: str) -> None:
    assert known(line) == []


def test_every_pattern_has_a_sample_and_words() -> None:
    assert {pattern for pattern, _ in SAMPLES} == set(BY_ID)
    for pattern in PATTERNS:
        assert pattern.title
        assert pattern.cause.endswith(".")
        assert pattern.action.endswith(".")
        assert pattern.row in ROWS
        assert pattern.source


def test_most_lines_are_known_by_one_pattern_only() -> None:
    several = [(pattern, [each.id for each in known(line)]) for pattern, line in SAMPLES if len(known(line)) > 1]
    # An XID 79 is a lost GPU; a missing symbol is an import that failed; a dead node's task crashed, and the like.
    assert len(several) < len(SAMPLES) / 6, several


def test_a_cause_goes_before_a_consequence_in_one_line() -> None:
    found = best("CUDA out of memory, then Connection reset by peer")
    assert found is not None
    assert found.id == "K03"


def test_hits_have_place_and_time() -> None:
    log = lines("all well\nOSError: [Errno 28] No space left on device\n", wall=12.5, first=100)
    (hit,) = hits(log, "rank-3.log", "gpu-2", 3)
    assert (hit.item.place, hit.item.wall, hit.rank, hit.node) == ("rank-3.log:101 on gpu-2", 12.5, 3, "gpu-2")


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.id)
@given(st.data())
@settings(max_examples=60)
def test_every_line_that_fits_has_one_of_the_words(pattern: Pattern, data: st.DataObject) -> None:
    line = data.draw(st.from_regex(pattern.regex, alphabet=st.characters(max_codepoint=126)))
    assert any(word in line.lower() for word in pattern.words)


@given(st.text(max_size=2000))
def test_any_text_is_read(text: str) -> None:
    known(text)
    assert len(shown(text)) <= 300
    assert "\n" not in shown(text)


@pytest.mark.parametrize(
    "text", ["Connection " * 400, "NVRM: Xid (" + "0" * 5000, "Ranks 1, " + "2, " * 3000, "'" * 5000 + "loss = " * 900]
)
def test_a_long_line_costs_little(text: str) -> None:
    began = time.process_time()
    known(text)
    assert time.process_time() - began < 0.05
    assert len(text) > MAX_LINE
