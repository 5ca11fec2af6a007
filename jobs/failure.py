"""What kind of failure ended an attempt, told from exit codes and log lines; whether another one makes sense. Pure.

A gang fails all at once: one rank dies, the others lose it. What they say then is a consequence, and comes last here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from jobs.model import Failure, Outcome

MAX_LINE = 600
"""Of a line in characters: what is searched, and kept as evidence."""
_MAX_REGION = 80
"""Lines at a log's end that are the error, where no traceback tells where it begins."""
_NEAR = 10
"""Lines from one error to the traceback of the next one, at most, if that is to be its consequence."""

_BEGINS = re.compile(r"Traceback \(most recent call last\)|terminate called|Fatal Python error|\*\*\* \w+ received")
_CHAINED = re.compile(
    r"During handling of the above exception|The above exception was the direct cause|Original Traceback"
)
_SPEAKER = re.compile(r"^\s*(?:\[rank ?\d+\]:?\s?|\([\w.:<>-]+[^()]{0,120}\bpid=\d+[^()]{0,60}\)\s?)+")
"""Who says it: torch's ``[rank1]: ``, Ray's ``(Worker pid=12, ip=10.0.0.1) ``."""
_ERROR = re.compile(r"^((?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Exit)(?:\(\w+\))?(?::.*)?)$")
_OF_THE_DEVICE = re.compile(r"CUDA|NCCL|cu(?:DNN|BLAS)|HIP error|c10::|collective|gloo", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Told:
    """The kind of a failure, and what tells it."""

    failure: Failure
    evidence: str = ""
    """A line of what was given, at most `MAX_LINE` of it; empty where it follows from the exit code alone."""


@dataclass(frozen=True, slots=True)
class _Row:
    failure: Failure
    pattern: re.Pattern[str]
    where: Literal["anywhere", "error"]
    """``anywhere`` in the log's end: nobody prints that in passing. ``error``: only in the error that ended it."""


def _row(failure: Failure, pattern: str, where: Literal["anywhere", "error"] = "error", flags: int = 0) -> _Row:
    return _Row(failure, re.compile(pattern, flags), where)


_ROWS: tuple[_Row, ...] = (
    # NVIDIA's XID catalogue: 13, 31, 43, 68, 69, 137 are the program's own as a rule ("restart app"); 45, 63, 92, 93,
    # 121, 154 to 157, 160, 161 are notes or follow another one; all others are the GPU, its link or its driver.
    _row(
        Failure.DRIVER,
        r"NVRM: Xid \([^)]*\): (?!(?:13|31|43|45|63|68|69|92|93|121|137|15[4567]|16[01])\b)\d+",
        "anywhere",
    ),
    # Kernel and NVML texts of a GPU that is gone; NVSwitch errors of the fabric (SXid).
    _row(
        Failure.DRIVER,
        r"fallen off the bus|GPU is lost|Unable to determine the device handle for GPU|SXid \(PCI:\S+\): \d+"
        r"|detected NVSwitch (?:non-)?fatal error",
        "anywhere",
    ),
    # CUDA's cudaErrorECCUncorrectable and cudaErrorNvlinkUncorrectable, NVRM's double-bit line.
    _row(Failure.DRIVER, r"[Uu]ncorrectable (?:NVLink |ECC )*error|ECC uncorrectable|Double Bit ECC", "anywhere"),
    # mm/oom_kill.c; the agent's own note on the kernel's counters has the same words.
    _row(
        Failure.OUT_OF_MEMORY,
        r"Out of memory: Killed process|Memory cgroup out of memory|oom-kill:constraint=|invoked oom-killer"
        r"|out-of-memory killer ended",
        "anywhere",
    ),
    # Ray's memory monitor (memory_monitor.cc, worker_killing_policy.cc).
    _row(
        Failure.OUT_OF_MEMORY,
        r"ray\.exceptions\.OutOfMemoryError|was killed due to the node running low on memory|OUT_OF_MEMORY"
        r"|Workers \(tasks / actors\) killed due to memory pressure",
    ),
    # torch's caching allocator, cuBLAS, NCCL.
    _row(
        Failure.OUT_OF_MEMORY,
        r"CUDA out of memory|CUDA error: out of memory|HIP out of memory|OutOfMemoryError|CUBLAS_STATUS_ALLOC_FAILED"
        r"|NCCL WARN (?:Cuda|CUDA) failure .*out of memory",
    ),
    # torch's shared memory: DataLoader's SIGBUS handler, NCCL's segments in /dev/shm.
    _row(
        Failure.OUT_OF_MEMORY,
        r"Unexpected bus error encountered in worker|insufficient shared memory|unable to allocate shared memory"
        r"|NCCL WARN Error while creating shared memory segment|/dev/shm is full",
    ),
    # torch's DataLoader about a worker that was killed; host allocators.
    _row(
        Failure.OUT_OF_MEMORY,
        r"DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed|^MemoryError\b"
        r"|DefaultCPUAllocator: .*(?:can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory"
        r"|numpy\S*\._ArrayMemoryError",
    ),
    # CUDA errors that the program makes: c10/cuda; torch's own check of collectives; gloo on sizes that differ.
    _row(
        Failure.APPLICATION,
        r"device-side assert triggered|an illegal memory access was encountered|misaligned address"
        r"|unspecified launch failure|Detected mismatch between collectives on ranks"
        r"|Is there a distributed collective mismatch",
    ),
    # The program's own XIDs (see above).
    _row(Failure.APPLICATION, r"NVRM: Xid \([^)]*\): (?:13|31|43|68|69|137)\b"),
    # nvidia-smi, NVML and CUDA on a driver that is not there, not loaded, or does not match.
    _row(
        Failure.DRIVER,
        r"NVIDIA-SMI has failed|Driver/library version mismatch|NVML Shared Library Not Found|Driver Not Loaded"
        r"|Failed to initialize NVML|CUDA driver version is insufficient|forward compatibility was attempted"
        r"|no kernel image is available for execution|no CUDA-capable device is detected|Found no NVIDIA driver"
        r"|CUDA-capable device\(s\) is/are busy or unavailable|CUDA unknown error|CUDA error: unknown error"
        r"|The NVIDIA driver on your system is too old|NCCL version mismatch|CUDA_ERROR_SYSTEM_NOT_READY"
        r"|system not yet initialized|undefined symbol: \w*(?:nccl|cu[A-Z]|nvml)\w*",
    ),
    # errno texts of full disks and quotas; Ray's spilling.
    _row(
        Failure.DATA,
        r"No space left on device|ENOSPC|Disk quota exceeded|EDQUOT|ray\.exceptions\.OutOfDiskError|over 95% full",
    ),
    # errno texts and kernel lines of storage that hangs or went away.
    _row(
        Failure.DATA,
        r"Stale (?:NFS )?file handle|ESTALE|nfs: server \S+ not responding|Transport endpoint is not connected"
        r"|Input/output error|\[Errno 5\]|Remounting filesystem read-only|Read-only file system"
        r"|Remote I/O error|cannot be read on this node",
    ),
    # Python's, object stores' and Hugging Face's words for what may not be read.
    _row(
        Failure.DATA,
        r"PermissionError|Permission denied|\[Errno 13\]|AccessDenied|SignatureDoesNotMatch|ExpiredToken"
        r"|InvalidAccessKeyId|403 (?:Client Error: )?Forbidden|GatedRepoError",
    ),
    # Python's FileNotFoundError with an absolute path (one below the script's own folder is a mistake in it); stores.
    _row(
        Failure.DATA,
        r"FileNotFoundError: (?:\[Errno 2\] No such file or directory: )?['\"]?/|DatasetNotFoundError"
        r"|NoSuchKey|NoSuchBucket|EmptyDatasetError|DataFilesNotFoundError",
    ),
    # torch's and pickle's words for a file that is cut or damaged; remote stores that do not answer.
    _row(
        Failure.DATA,
        r"PytorchStreamReader failed|failed finding central directory|invalid load key|UnpicklingError"
        r"|SafetensorError|Max retries exceeded with url|EndpointConnectionError|ReadTimeoutError",
    ),
    # Ray's errors of a node that is gone.
    _row(
        Failure.NODE_LOST,
        r"NodeDiedError|LocalRayletDiedError|the node it was running on is dead or unavailable"
        r"|missed too many heartbeats|missing too many heartbeats|its node has died|node was terminated",
    ),
    # torch's ProcessGroupNCCL.cpp watchdog and heartbeat monitor.
    _row(
        Failure.COMMUNICATION,
        r"Watchdog caught collective operation timeout|ProcessGroupNCCL's watchdog got stuck"
        r"|Some NCCL operations have failed or timed out|Received a dump signal due to a collective timeout",
        "anywhere",
    ),
    # gloo's unbound_buffer.cc, torch's monitored barrier and stores (TCPStore, rendezvous).
    _row(
        Failure.COMMUNICATION,
        r"Timed out waiting \d+ms for (?:send|recv) operation|failed to pass monitoredBarrier|DistStoreError"
        r"|Timed out after \d+ seconds waiting for clients|Connect timeout \[|connectFullMesh failed"
        r"|RendezvousTimeoutError|Socket Timeout",
    ),
    # NCCL's InfiniBand transport and its choice of an interface.
    _row(
        Failure.COMMUNICATION,
        r"NET/IB\w* ?: ?Got (?:async event|completion from peer)|no socket interface found|Unable to find address for:"
        r"|NCCL_SOCKET_IFNAME|ncclSystemError|ncclInternalError|unhandled (?:system|cuda) error, NCCL",
    ),
    # Ports and routes between the nodes.
    _row(
        Failure.COMMUNICATION,
        r"EADDRINUSE|[Aa]ddress already in use|No route to host|Network is unreachable|Name or service not known"
        r"|Temporary failure in name resolution|Connection timed out",
    ),
    # What is said when *another* one went away: gloo's pair.cc, NCCL's ncclRemoteError, sockets. Never a cause.
    _row(
        Failure.COMMUNICATION,
        r"connection (?:reset|closed|refused|aborted)(?: by (?:remote )?peer)?|broken pipe|remote process exited"
        r"|ncclRemoteError|DistBackendError|DistNetworkError|socket closed|aborted by"
        r"|communicator was aborted|Connection was likely closed",
        flags=re.IGNORECASE,
    ),
)
"""In the order of their weight: the first row that matches decides, whatever others would say."""

_CONSEQUENCE = _ROWS[-1].pattern


def classify(exit_code: int | None, log: str = "", notes: Sequence[str] = ()) -> Told:
    """The kind of the failure of the process that failed first.

    ``exit_code`` is negative for a signal, None for one that is not known. ``log`` is the end of its output, ``notes``
    what else was seen on its node (the kernel's lines, full file systems). Any text is fine.
    """
    number = signal_of(exit_code)
    lines = [line.strip()[:MAX_LINE] for line in re.split(r"[\r\n]+", log) if line.strip()]
    by_log = _told(lines)
    noted = on_node(notes)
    if noted is not None:
        if noted.failure is Failure.DRIVER and (by_log is None or _may_come_from_the_device(by_log)):
            return noted
        killed = number in (signal.SIGKILL, signal.SIGBUS) or exit_code is None
        if noted.failure is Failure.OUT_OF_MEMORY and killed:
            return noted
    if by_log is not None:
        return by_log
    if number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGILL, signal.SIGFPE):
        return Told(Failure.APPLICATION)
    if number is not None or exit_code is None:
        # SIGKILL may be the kernel's for want of memory, SIGBUS a full /dev/shm, SIGTERM anybody's: nothing tells.
        return Told(Failure.UNKNOWN)
    return Told(Failure.APPLICATION)


def on_node(notes: Sequence[str]) -> Told | None:
    """What the kernel's lines of a node tell: a fault of its hardware, or memory that ran out; None for neither."""
    lines = [line.strip()[:MAX_LINE] for note in notes for line in re.split(r"[\r\n]+", note) if line.strip()]
    for row in _ROWS:
        if row.failure in (Failure.DRIVER, Failure.OUT_OF_MEMORY) and (found := _last(row, lines)):
            return Told(row.failure, found)
    return None


def error_line(text: str) -> str:
    """The last line of a log that names an exception, without who says it; empty if there is none."""
    for line in reversed(re.split(r"[\r\n]+", text)):
        if found := _ERROR.match(_bare(line.strip()[:MAX_LINE])):
            return found.group(1)
    return ""


def is_consequence(line: str) -> bool:
    """Whether a line only says that another process went away, or was late."""
    told = _told([line[:MAX_LINE]])
    return told is not None and told.failure is Failure.COMMUNICATION


def signal_of(exit_code: int | None) -> int | None:
    """The signal that ended a process, also where a shell turned it into 128 + N; None without one."""
    if exit_code is None or 0 <= exit_code <= 128:
        return None
    number = -exit_code if exit_code < 0 else exit_code - 128
    return number if 0 < number < 65 else None


_TAKEN_OUT: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"\b[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\b"), "<id>"),
    (re.compile(r"\b(?:\d{1,3}\.){3}\d{1,3}(?::\d+)?\b|\[[0-9a-fA-F]*:[0-9a-fA-F:]+\](?::\d+)?"), "<address>"),
    (re.compile(r"\b[a-zA-Z][\w+.-]*://[^\s'\"<>]+"), "<address>"),
    # Of a path its last part stays: the folders before it name the run, the attempt, the user.
    (re.compile(r"(?<![\w<>])[~.]{0,2}/(?:[^\s/'\":,;<>()]+/)*"), "<path>/"),
    (re.compile(r"\b0[xX][0-9a-fA-F]+\b"), "<number>"),
    # A hash or a generated name; the digit tells it from a word.
    (re.compile(r"\b(?=[0-9a-fA-F]*[0-9])[0-9a-fA-F]{6,}\b"), "<id>"),
    (re.compile(r"[-+]?\d+(?:[.,:]\d+)*(?:[eE][-+]?\d+)?"), "<number>"),
    (re.compile(r"\s+"), " "),
    (re.compile(r"<number>(?:[\s,]*<number>)+"), "<number>"),
)
_MAX_SIGNATURE = 300


def signature(line: str) -> str:
    """The error without what differs from one attempt to the next: numbers, addresses, ids, the folders of paths."""
    text = _bare(line[:MAX_LINE])
    for pattern, instead in _TAKEN_OUT:
        text = pattern.sub(instead, text)
    return text.strip()[:_MAX_SIGNATURE]


def worth_another(outcome: Outcome, earlier: Sequence[Outcome]) -> tuple[bool, str]:
    """Whether another attempt makes sense after a failed one, and if not the sentence why.

    ``earlier`` are the outcomes of the attempts before, the newest last. How many attempts are allowed is another rule.
    """
    before = earlier[-1] if earlier else None
    match outcome.failure:
        case Failure.CANCELLED:
            return False, "it was cancelled"
        case Failure.TIME_LIMIT:
            return False, "its time is used up"
        case Failure.APPLICATION:
            if before is not None and outcome.signature and before.signature == outcome.signature:
                return False, "not tried again: the attempt before failed in the same way, so it would only repeat"
            if outcome.last_step is None:
                return (
                    False,
                    "not tried again: it failed by itself before its first step, so it would only repeat",
                )
        case Failure.OUT_OF_MEMORY:
            if before is not None and before.failure is Failure.OUT_OF_MEMORY:
                return False, "not tried again: memory ran out in the attempt before, too, so it would only repeat"
        case _:
            pass
    return True, ""


def _bare(line: str) -> str:
    return _SPEAKER.sub("", line)


def _told(lines: Sequence[str]) -> Told | None:
    """The first row that matches; else the exception that ended it, as the program's own; None if nothing speaks."""
    after = None
    for region in _regions(lines):
        told = _of_region(lines, region)
        if told is not None and not _CONSEQUENCE.search(told.evidence):
            return told
        after = after or told
    return after


def _of_region(lines: Sequence[str], region: Sequence[str]) -> Told | None:
    for row in _ROWS[:-1]:
        if found := _last(row, lines if row.where == "anywhere" else region):
            return Told(row.failure, found)
    errors = [line for line in region if _ERROR.match(_bare(line))]
    if errors and not _CONSEQUENCE.search(errors[0]):
        return Told(Failure.APPLICATION, [line for line in errors if not _CONSEQUENCE.search(line)][-1])
    found = _last(_ROWS[-1], region)
    return Told(Failure.COMMUNICATION, found) if found else None


def _last(row: _Row, lines: Iterable[str]) -> str:
    # The last one: what was said before it was survived.
    found = ""
    for line in lines:
        if row.pattern.search(line) or row.pattern.search(_bare(line)):
            found = line
    return found


def _regions(lines: Sequence[str]) -> Iterator[Sequence[str]]:
    """The lines of the error that ended it: from its traceback on, with those that it came from.

    Then those of the one before, if hardly anything stands between: at its end a program fails over what is gone.
    """
    begins = [index for index, line in enumerate(lines) if _BEGINS.search(line)]
    if not begins:
        yield lines[-_MAX_REGION:]
    end = len(lines)
    while begins:
        first = begins.pop()
        while begins and any(_CHAINED.search(line) for line in lines[begins[-1] : first + 1]):
            first = begins.pop()
        yield lines[first:end]
        end = first
        if begins:
            ends = [at for at in range(begins[-1], first) if _ERROR.match(_bare(lines[at]))]
            if not ends or first - ends[0] > _NEAR:
                return


def _may_come_from_the_device(told: Told) -> bool:
    """Whether a fault of the hardware could be what is behind it: an exception of the script's own is not."""
    return told.failure is not Failure.APPLICATION or bool(_OF_THE_DEVICE.search(told.evidence))
