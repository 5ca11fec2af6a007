"""Of which kind a failure is, by what it left; which failures are the same; whether another attempt makes sense."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.failure import MAX_LINE, classify, error_line, is_consequence, on_node, signature, worth_another
from jobs.model import Failure, Outcome

RESET = "RuntimeError: [../gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:4711: Connection reset by peer"
WATCHDOG = (
    "[rank3]:[E1110 12:00:00.1 ProcessGroupNCCL.cpp:616] [Rank 3] Watchdog caught collective operation timeout: "
    "WorkNCCL(SeqNum=64088, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, Timeout(ms)=600000) ran for 600013 milliseconds"
)
XID_79 = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
XID_31 = "NVRM: Xid (PCI:0000:3b:00): 31, pid=1234, name=python, Ch 00000008, intr 00000000. MMU Fault"
KILLED = "Memory cgroup out of memory: Killed process 4711 (python) total-vm:123kB, anon-rss:99kB"


def traceback(last: str, *before: str) -> str:
    lines = [
        *before,
        "Traceback (most recent call last):",
        '  File "train.py", line 7, in <module>',
        "    step()",
        last,
    ]
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total",
            Failure.OUT_OF_MEMORY,
        ),
        ("torch.cuda.OutOfMemoryError: CUDA out of memory.", Failure.OUT_OF_MEMORY),
        ("RuntimeError: CUDA error: out of memory", Failure.OUT_OF_MEMORY),
        (
            "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
            Failure.OUT_OF_MEMORY,
        ),
        ("MemoryError", Failure.OUT_OF_MEMORY),
        (
            "RuntimeError: [enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory: you tried",
            Failure.OUT_OF_MEMORY,
        ),
        (
            "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
            Failure.OUT_OF_MEMORY,
        ),
        ("RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed.", Failure.OUT_OF_MEMORY),
        ("RuntimeError: DataLoader worker (pid(s) 7, 8) exited unexpectedly", Failure.APPLICATION),
        (
            "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory.",
            Failure.OUT_OF_MEMORY,
        ),
        ("RuntimeError: CUDA error: device-side assert triggered", Failure.APPLICATION),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", Failure.APPLICATION),
        (
            "RuntimeError: Detected mismatch between collectives on ranks. Rank 3 is running collective",
            Failure.APPLICATION,
        ),
        ("ValueError: bad batch", Failure.APPLICATION),
        ("ModuleNotFoundError: No module named 'flash_attn'", Failure.APPLICATION),
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", Failure.DRIVER),
        ("RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution", Failure.DRIVER),
        ("Failed to initialize NVML: Driver/library version mismatch", Failure.DRIVER),
        ("RuntimeError: No CUDA GPUs: CUDA driver version is insufficient for CUDA runtime version", Failure.DRIVER),
        ("RuntimeError: Found no NVIDIA driver on your system.", Failure.DRIVER),
        (XID_79, Failure.DRIVER),
        ("NVRM: Xid (PCI:0000:3b:00): 149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 08", Failure.DRIVER),
        ("NVRM: Xid (0000:03:00): 62, 0cb5(50a8) 00000000", Failure.DRIVER),
        (XID_31, Failure.APPLICATION),
        (WATCHDOG, Failure.COMMUNICATION),
        (
            "RuntimeError: [unbound_buffer.cc:78] Timed out waiting 6000ms for recv operation to complete",
            Failure.COMMUNICATION,
        ),
        ("RuntimeError: [Rank 0]: Ranks 1, 3 failed to pass monitoredBarrier in 3000 ms", Failure.COMMUNICATION),
        (
            "torch.distributed.DistStoreError: Timed out after 9 seconds waiting for clients. 3/4 clients joined.",
            Failure.COMMUNICATION,
        ),
        (
            "torch.distributed.DistNetworkError: The server socket has failed to listen: EADDRINUSE",
            Failure.COMMUNICATION,
        ),
        ("RuntimeError: NCCL error: ncclSystemError: System call failed", Failure.COMMUNICATION),
        (
            "NET/IB : Got completion from peer 10.0.0.7<34567> with status=12 opcode=0 len=0 vendor err 129",
            Failure.COMMUNICATION,
        ),
        (RESET, Failure.COMMUNICATION),
        ("OSError: [Errno 28] No space left on device: '/out/step-5'", Failure.DATA),
        ("OSError: [Errno 122] Disk quota exceeded", Failure.DATA),
        ("OSError: [Errno 116] Stale file handle", Failure.DATA),
        ("OSError: [Errno 116] Stale NFS file handle", Failure.DATA),
        ("OSError: [Errno 5] Input/output error: '/data/shard-7'", Failure.DATA),
        ("OSError: [Errno 107] Transport endpoint is not connected: '/mnt/fuse'", Failure.DATA),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/data/corpus-v3/train.bin'", Failure.DATA),
        ("FileNotFoundError: [Errno 2] No such file or directory: 'settings.json'", Failure.APPLICATION),
        ("PermissionError: [Errno 13] Permission denied: '/data/corpus'", Failure.DATA),
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
            Failure.DATA,
        ),
        ("botocore.exceptions.ClientError: An error occurred (AccessDenied) when calling GetObject", Failure.DATA),
        ("ray.exceptions.NodeDiedError: Task failed due to the node dying.", Failure.NODE_LOST),
        ("The actor is dead because its node has died. Node Id: abc", Failure.NODE_LOST),
    ],
)
def test_a_line_tells_the_kind(line: str, kind: Failure) -> None:
    assert classify(1, line).failure is kind
    told = classify(1, traceback(line, "step 10 loss 2.0", RESET.replace("RuntimeError", "note")))
    assert told.failure is kind
    assert told.evidence == line


@pytest.mark.parametrize(
    ("code", "log", "kind"),
    [
        (-9, "step 4", Failure.UNKNOWN),
        (137, "step 4", Failure.UNKNOWN),
        (-7, "step 4", Failure.UNKNOWN),
        (-15, "", Failure.UNKNOWN),
        (None, "", Failure.UNKNOWN),
        (-11, "", Failure.APPLICATION),
        (139, "", Failure.APPLICATION),
        (-6, "terminate called without an active exception", Failure.APPLICATION),
        (-6, "terminate called after throwing an instance of 'std::bad_alloc'", Failure.OUT_OF_MEMORY),
        (3, "", Failure.APPLICATION),
    ],
)
def test_an_exit_code_alone_tells_little(code: int | None, log: str, kind: Failure) -> None:
    told = classify(code, log)
    assert told.failure is kind
    if kind is not Failure.OUT_OF_MEMORY:
        assert told.evidence == ""


def test_a_kill_is_for_want_of_memory_only_where_the_kernel_says_so() -> None:
    counted = "the kernel's out-of-memory killer ended 1 process on this node since the attempt began (oom_kill)"
    for note in (KILLED, counted):
        told = classify(-9, "step 4", ["usb 1-1: new device", note])
        assert (told.failure, told.evidence) == (Failure.OUT_OF_MEMORY, note)
        # Somebody else's process: this one said what it died of.
        assert classify(1, traceback("ValueError: bad"), [note]).failure is Failure.APPLICATION
    full = "/dev/shm is full: 0 of 67108864 bytes free"
    assert classify(-7, "", [full]).failure is Failure.OUT_OF_MEMORY


def test_hardware_is_behind_what_only_hardware_explains() -> None:
    late = "RuntimeError: NCCL communicator was aborted on rank 3."
    assert classify(1, traceback(late), [XID_79]).failure is Failure.DRIVER
    assert classify(-9, "", [XID_79]).failure is Failure.DRIVER
    assert classify(1, traceback("RuntimeError: CUDA error: unspecified launch failure"), [XID_79]).evidence == XID_79
    assert classify(1, traceback("ValueError: bad batch"), [XID_79]).failure is Failure.APPLICATION
    assert classify(1, traceback("RuntimeError: CUDA error: x"), [XID_31]).failure is Failure.APPLICATION
    assert on_node([XID_31]) is None
    assert on_node(["NVRM: Xid (PCI:0000:3b:00): 45, pid=7, name=python, Ch 00000008"]) is None


def test_the_error_that_ended_it_counts_and_not_one_that_was_survived() -> None:
    log = traceback("torch.OutOfMemoryError: CUDA out of memory.") + "halving the batch\n" + traceback("KeyError: 'x'")
    assert classify(1, log).failure is Failure.APPLICATION
    warning = "PermissionError: [Errno 13] Permission denied: '/root/.cache', goes on without\n"
    assert classify(1, warning + traceback("ValueError: bad")).failure is Failure.APPLICATION


def test_an_error_that_led_to_another_counts() -> None:
    first = traceback("OSError: [Errno 28] No space left on device")
    between = "\nDuring handling of the above exception, another exception occurred:\n\n"
    told = classify(1, first + between + traceback("RuntimeError: could not save"))
    assert (told.failure, told.evidence) == (Failure.DATA, "OSError: [Errno 28] No space left on device")


def test_what_a_peer_left_behind_is_no_cause() -> None:
    log = traceback("RuntimeError: CUDA error: uncorrectable ECC error encountered") + RESET
    assert classify(1, log).failure is Failure.DRIVER
    assert classify(1, WATCHDOG + "\n" + traceback(RESET)).evidence == WATCHDOG
    at_exit = "Exception ignored in: <function _Iterator.__del__>\n" + traceback(
        "ConnectionResetError: [Errno 104] Connection reset by peer"
    )
    told = classify(1, traceback("ValueError: bad batch") + at_exit)
    assert (told.failure, told.evidence) == (Failure.APPLICATION, "ValueError: bad batch")
    long_ago = traceback("ValueError: survived") + "step\n" * 40
    assert classify(1, long_ago + traceback(RESET)).failure is Failure.COMMUNICATION
    assert is_consequence(RESET)
    assert is_consequence("RuntimeError: Timed out waiting 10ms for recv operation to complete")
    assert not is_consequence("ValueError: connection of layers")


def test_who_says_it_does_not_matter() -> None:
    said = "(RayTrainWorker pid=71, ip=10.0.0.3) ValueError: bad batch"
    assert classify(1, said).evidence == said
    assert error_line(f"x\n{said}\n(main pid=1) done") == "ValueError: bad batch"
    assert error_line("[rank1]: torch.distributed.DistStoreError: late\n[rank1]: end").startswith("torch.distributed")
    assert error_line("nothing here") == ""
    assert signature(said) == signature("[rank3]: ValueError: bad batch") == "ValueError: bad batch"


LINES = st.one_of(
    st.text(),
    st.sampled_from(
        [RESET, WATCHDOG, XID_79, XID_31, KILLED, traceback("ValueError: x"), "MemoryError", "\r", "\n" * 3]
    ),
    st.from_regex(r"[A-Z][a-z]+Error: [^\n]{0,40}", fullmatch=True),
)


@given(st.none() | st.integers(-70, 300), st.lists(LINES), st.lists(LINES))
def test_no_text_breaks_it_and_the_evidence_is_a_line_of_it(
    code: int | None, log: Sequence[str], notes: Sequence[str]
) -> None:
    text = "\n".join(log)
    told = classify(code, text, notes)
    if told.evidence:
        lines = [line.strip()[:MAX_LINE] for each in (text, *notes) for line in re.split(r"[\r\n]+", each)]
        assert told.evidence in lines
    assert told.failure not in (Failure.CANCELLED, Failure.TIME_LIMIT, Failure.CHECKPOINT, Failure.START_TIMEOUT)


@given(st.sampled_from([1, -6, -9]), st.lists(LINES, max_size=4))
def test_a_consequence_never_hides_a_cause(code: int, log: Sequence[str]) -> None:
    alone = classify(code, "\n".join([traceback("OSError: [Errno 28] No space left on device"), *log]))
    with_peer = classify(code, "\n".join([traceback("OSError: [Errno 28] No space left on device"), *log, RESET]))
    assert with_peer.failure is alone.failure or not alone.evidence


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("RuntimeError: fails at step 25", "RuntimeError: fails at step 1,047"),
        (RESET, RESET.replace("10.0.0.1", "10.0.12.99").replace("4711", "9")),
        ("IndexError: 0x7f00deadbeef of 3", "IndexError: 0x1 of 4.5e-3"),
        (
            "OSError: /out/lm/lm-a1b2c3/checkpoints/step-00000500/m.pt",
            "OSError: /out/lm/lm-ffffff/checkpoints/step-00000900/m.pt",
        ),
        ("KeyError: 6f1d3c2a-1111-2222-3333-444455556666", "KeyError: aaaaaaaa-1111-2222-3333-444455556667"),
        ("Error: GET https://a.example/x?y=1 failed", "Error: GET https://b.example/z failed"),
        ("ValueError: got [1, 2, 3]", "ValueError: got [4, 5]"),
        ("  ValueError:  x ", "[rank2]: ValueError: x"),
    ],
)
def test_the_same_error_has_the_same_signature(one: str, other: str) -> None:
    assert signature(one) == signature(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ValueError: bad batch", "ValueError: bad label"),
        ("KeyError: 'loss'", "KeyError: 'lr'"),
        ("OSError: /a/b/train.bin", "OSError: /a/b/valid.bin"),
        ("ValueError: x", "TypeError: x"),
    ],
)
def test_another_error_has_another_signature(one: str, other: str) -> None:
    assert signature(one) != signature(other)


@given(st.text() | LINES)
def test_a_signature_is_bounded_and_holds_no_number(line: str) -> None:
    found = signature(line)
    assert len(found) <= 300
    assert not re.search(r"\d", found)


def failed(failure: Failure, *, signature: str = "", last_step: int | None = 30) -> Outcome:
    return Outcome(verdict="failed", failure=failure, signature=signature, last_step=last_step)


@pytest.mark.parametrize(
    ("now", "before", "again"),
    [
        (failed(Failure.APPLICATION, signature="a"), [], True),
        (failed(Failure.APPLICATION, signature="a"), [failed(Failure.APPLICATION, signature="b")], True),
        (failed(Failure.APPLICATION, signature="a"), [failed(Failure.APPLICATION, signature="a")], False),
        (failed(Failure.APPLICATION), [failed(Failure.APPLICATION)], True),
        (failed(Failure.APPLICATION, last_step=None), [], False),
        (failed(Failure.APPLICATION, last_step=0), [], True),
        (failed(Failure.CANCELLED), [], False),
        (failed(Failure.TIME_LIMIT), [], False),
        (failed(Failure.OUT_OF_MEMORY, last_step=None), [], True),
        (failed(Failure.OUT_OF_MEMORY), [failed(Failure.OUT_OF_MEMORY)], False),
        (failed(Failure.OUT_OF_MEMORY), [failed(Failure.NODE_LOST)], True),
        (failed(Failure.DATA, signature="a"), [failed(Failure.DATA, signature="a")], True),
        (Outcome(verdict="failed"), [], True),
    ],
)
def test_another_attempt_is_made_where_it_could_end_otherwise(now: Outcome, before: list[Outcome], again: bool) -> None:
    worth, why = worth_another(now, before)
    assert worth is again
    assert bool(why) is not again


@pytest.mark.parametrize(
    "kind",
    [
        Failure.NODE_LOST,
        Failure.DRIVER,
        Failure.COMMUNICATION,
        Failure.DATA,
        Failure.SILENCE,
        Failure.START_TIMEOUT,
        Failure.UNKNOWN,
        Failure.CHECKPOINT,
    ],
)
def test_what_may_pass_is_always_worth_another(kind: Failure) -> None:
    outcome = failed(kind, signature="same", last_step=None)
    assert worth_another(outcome, [outcome, outcome]) == (True, "")
