"""What lines of logs mean, as a table: what is said, who says it, what is behind it, what to do. Data only.

The wording was taken from the tools' own sources and from logs; ``source`` says whose words they are. Where two rows
fit one line both are found: an XID 79 is an XID and a lost GPU.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from jobs.triage.findings import StepName

INFRASTRUCTURE: StepName = "infrastructure"
RESOURCES: StepName = "resources"
NETWORK: StepName = "network and storage"
SCHEDULING: StepName = "scheduling and configuration"
CODE: StepName = "code and model"

ROWS = (
    "device not visible", "job cannot start", "node cannot join", "job hangs", "out of memory", "slow training",
    "logs missing", "fails without a message", "time-outs across nodes", "results not reproducible",
    "output folder full", "permission refused", "service not reachable", "latency high",
)  # fmt: skip
"""The rows of the troubleshooting tables that every rule answers one of."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line."""

    id: str
    level: Literal["critical", "warning", "info"]
    step: StepName
    title: str
    words: tuple[str, ...]
    """In lower case: a line that has none of them is none of these. Most lines are done with by that."""
    regex: re.Pattern[str]
    cause: str
    action: str
    key: str = ""
    secondary: bool = False
    """It tells of somebody else's end or lateness: never the cause while there is another one."""
    row: str = ""
    source: str = ""
    weight: int = 50


def _p(expression: str, flags: int = 0) -> re.Pattern[str]:
    return re.compile(expression, flags)


PATTERNS: tuple[Pattern, ...] = (
    Pattern(
        "K01", "critical", INFRASTRUCTURE, "the GPU is not visible",
        ("nvidia-smi has failed", "no devices were found", "nvml", "driver not loaded", "cuda-capable",
         "nvidia driver", "no cuda gpus"),
        _p(r"NVIDIA-SMI has failed|No devices were found|NVML Shared Library Not Found|Driver Not Loaded"
           r"|no CUDA-capable device is detected|Found no NVIDIA driver on your system|No CUDA GPUs are available"
           r"|Failed to initialize NVML: (?:Insufficient Permissions|Unknown Error)"),
        "The driver is not loaded, the container has no devices mapped into it, or the account may not open them.",
        "On the node look at nvidia-smi, ls -l /dev/nvidia* and the account's groups; map the devices into the "
        "container or restart it.",
        "s", row="device not visible", source="nvidia-smi, NVML, torch", weight=12,
    ),
    Pattern(
        "K02", "critical", INFRASTRUCTURE, "driver and libraries do not fit together",
        ("version mismatch", "cuda driver version", "forward compatibility", "no kernel image", "too old",
         "undefined symbol"),
        _p(r"Driver/library version mismatch|CUDA driver version is insufficient for CUDA runtime version"
           r"|forward compatibility was attempted on non supported HW|NCCL version mismatch"
           r"|no kernel image is available for execution on the device|NVIDIA driver on your system is too old"
           r"|undefined symbol: \w*(?:nccl|cu[A-Z]|nvml)\w*"),
        "The driver was upgraded without a reboot, or this node runs another image than the others.",
        "Cordon the node, then reboot it or bring it to the image of the others.",
        "C", row="device not visible", source="NVML, CUDA, NCCL", weight=13,
    ),
    Pattern(
        "K03", "warning", RESOURCES, "GPU memory ran out",
        ("outofmemoryerror", "out of memory", "cublas_status_alloc"),
        _p(r"OutOfMemoryError: (?:CUDA|HIP)|CUDA out of memory|HIP out of memory|CUDA error: out of memory"
           r"|CUBLAS_STATUS_ALLOC_FAILED|NCCL WARN (?:Cuda|CUDA) failure .*out of memory"),
        "The batch or the model is too large for this GPU, memory is in pieces, or something else holds part of it.",
        "Take a smaller batch, accumulate gradients, or set PYTORCH_ALLOC_CONF=expandable_segments:True; end what else "
        "holds memory there; then restart.",
        "R", row="out of memory", source="torch's caching allocator, cuBLAS, NCCL", weight=30,
    ),
    Pattern(
        "K04", "critical", RESOURCES, "the host's memory ran out",
        ("killed", "oom-kill", "out-of-memory", "outofmemoryerror", "low on memory", "memory pressure",
         "allocate memory", "memory: ", "defaultcpuallocator", "bad_alloc", "memoryerror"),
        _p(r"Killed process (\d+) \(([^)]*)\)|oom-kill:constraint=|invoked oom-killer|out-of-memory killer ended"
           r"|ray\.exceptions\.OutOfMemoryError|was killed due to the node running low on memory"
           r"|killed due to memory pressure|DataLoader worker \(pid\(?s?\)? [\d, ]+\) is killed by signal: Killed"
           r"|DefaultCPUAllocator: .*(?:can't allocate|not enough) memory|std::bad_alloc|Cannot allocate memory"
           r"|^MemoryError\b"),
        "The kernel or Ray's memory monitor ended a process for want of host memory; the GPU is not to blame.",
        "Take fewer data-loading workers or less prefetching, or ask for more memory per node; then restart.",
        "R", row="out of memory", source="mm/oom_kill.c, Ray's memory monitor, torch", weight=22,
    ),
    Pattern(
        "K05", "warning", RESOURCES, "shared memory (/dev/shm) ran out",
        ("bus error", "shared memory", "/dev/shm"),  # noqa: S108 - a word of a log line
        _p(r"Unexpected bus error encountered in worker|insufficient shared memory|unable to allocate shared memory"
           r"|NCCL WARN Error while creating shared memory segment|/dev/shm is full|No space left on device.*/dev/shm"
           r"|/dev/shm/nccl-\S+.*(?:[Nn]o space|failed)"),
        "The node's /dev/shm is too small for the data loader or for NCCL; a container's default is 64 MB.",
        "Start the container with a larger --shm-size, or take fewer data-loading workers; then restart.",
        "R", row="out of memory", source="torch's DataLoader, NCCL", weight=24,
    ),
    Pattern(
        "K06", "critical", NETWORK, "a collective timed out",
        ("collective operation timeout", "watchdog got stuck", "collective timeout"),
        _p(r"Watchdog caught collective operation timeout(?:: WorkNCCL\(SeqNum=(\d+), OpType=(\w+))?"
           r"|ProcessGroupNCCL's watchdog got stuck|Received a dump signal due to a collective timeout"),
        "One rank came late to a collective, or not at all; the ranks that say so only waited for it.",
        "Find the rank that is behind (its stack, its GPU, its node) and mend that; a longer time-out only hides it.",
        "l", True, row="time-outs across nodes", source="torch ProcessGroupNCCL.cpp", weight=60,
    ),
    Pattern(
        "K07", "critical", NETWORK, "a collective timed out",
        ("timed out waiting", "monitoredbarrier"),
        _p(r"Timed out waiting (\d+)ms for (?:send|recv) operation to complete"
           r"|Ranks? ([\d, ]+) failed to pass monitoredBarrier(?: in \d+ ms)?"
           r"|successfully reached monitoredBarrier, but received errors"),
        "One rank came late to a collective, or not at all; the ranks that say so only waited for it.",
        "Find the rank that is behind (its stack, its GPU, its node) and mend that; a longer time-out only hides it.",
        "l", True, row="time-outs across nodes", source="gloo unbound_buffer.cc, torch monitored_barrier", weight=60,
    ),
    Pattern(
        "K08", "info", NETWORK, "a peer went away",
        ("by peer", "by remote peer", "likely closed", "broken pipe", "ncclremoteerror", "remote process",
         "communicator was", "socket closed"),
        _p(r"Connection (?:closed|reset) by (?:remote )?peer|Connection was likely closed|[Bb]roken pipe"
           r"|ncclRemoteError|remote process exited or there was a network error|communicator was aborted"
           r"|[Ss]ocket closed"),
        "Another rank ended first; this is only how the others saw it.",
        "Look at the rank that ended first.",
        "l", True, row="time-outs across nodes", source="gloo pair.cc, NCCL socket.cc", weight=80,
    ),
    Pattern(
        "K09", "critical", NETWORK, "not all ranks arrived",
        ("clients joined", "diststoreerror", "rendezvoustimeout", "wait timeout"),
        _p(r"(?P<joined>\d+)/(?P<wanted>\d+) clients joined|DistStoreError|RendezvousTimeoutError"
           r"|wait timeout after \d+ms"),
        "A rank was not started, is slow to start, or looks for the others at a wrong address.",
        "See which rank has no log: start it, or look at the way from its node to rank 0.",
        "l", True, row="node cannot join", source="torch TCPStore", weight=58,
    ),
    Pattern(
        "K10", "warning", NETWORK, "the port is taken",
        ("eaddrinuse", "address already"),
        _p(r"EADDRINUSE|[Aa]ddress already in use"),
        "A process of an earlier run is still there, or two jobs were given one port; such jobs may have joined each "
        "other.",
        "End what holds the port (ss -ltnp), or leave the choice of the port to raydeck; then restart.",
        "s", row="job cannot start", source="errno, torch TCPStore", weight=34,
    ),
    Pattern(
        "K11", "critical", NETWORK, "the network does not lead there",
        ("connection refused", "no route", "unreachable", "not known", "name resolution", "connection timed out",
         "connect timeout", "connectfullmesh"),
        _p(r"Connection refused|No route to host|Network is unreachable|Name or service not known"
           r"|Temporary failure in name resolution|Call to connect returned Connection timed out|Connection timed out"
           r"|Connect timeout \[|connectFullMesh failed"),
        "A firewall, a wrong address or name, or a service that does not run.",
        "Refused: start the service. No answer: open the port. No such name: mend the hosts file or DNS.",
        "s", True, row="time-outs across nodes", source="errno, gloo, NCCL", weight=56,
    ),
    Pattern(
        "K12", "critical", NETWORK, "the network interface that was named is not there",
        ("socket interface", "af_inet", "unable to find address", "nccl_socket_ifname"),
        _p(r"no socket interface found|neither AF_INET\(2\) nor AF_INET6\(10\)|Unable to find address for: (\S+)"
           r"|NCCL_SOCKET_IFNAME set (?:by environment )?to (\S+).*(?:not found|no interface)"),
        "NCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME names an interface that this node has not got.",
        "Name the interface per node, or exclude the others (^docker,lo); then restart.",
        "R", row="time-outs across nodes", source="NCCL socket.cc, gloo", weight=33,
    ),
    Pattern(
        "K13", "critical", NETWORK, "InfiniBand gave up on a peer",
        ("net/ib",),
        _p(r"NET/IB\w* ?: ?Got (?:completion from peer (\S+) with status=(\d+)|async event)"),
        "The path, cable or switch to the peer, a setting that differs (GID, PKey, MTU), or a peer that died.",
        "Compare the port counters of both ends; many peers: the node's own adapter, one peer: the cable between.",
        "s", True, row="time-outs across nodes", source="NCCL transport/net_ib.cc", weight=45,
    ),
    Pattern(
        "K14", "warning", NETWORK, "NCCL fell back to TCP",
        ("nccl info", "libibverbs"),
        _p(r"NCCL INFO (?:NET/IB : No device found|Using network Socket)|Failed to open libibverbs\.so"),
        "InfiniBand is not usable for this process: no plugin or library, no /dev/infiniband, or it was switched off.",
        "Install rdma-core and the plugin, map /dev/infiniband, lift the memlock limit; then restart.",
        "R", row="slow training", source="NCCL transport/net_ib.cc", weight=40,
    ),
    Pattern(
        "K15", "warning", NETWORK, "a network link went down",
        ("mlx5_core", "lost carrier", "is down", "pcie slot"),
        _p(r"mlx5_core .*(?:Link down|Port module event.*(?:High Temperature|Bus stuck|cable))"
           r"|\S+: (?:[Ll]ost carrier|NIC Link is Down|[Ll]ink is [Dd]own)|insufficient power on the PCIe slot"),
        "A cable, a transceiver, or the port at the other end.",
        "Reseat or change the cable; drain the node if the link goes down three times an hour.",
        "D", row="time-outs across nodes", source="kernel drivers", weight=16,
    ),
    Pattern(
        "K16", "warning", CODE, "ranks called different collectives",
        ("mismatch", "received data size"),
        _p(r"Detected mismatch between collectives on ranks\. Rank (\d+)|distributed collective mismatch"
           r"|Received data size doesn't match expected size"),
        "Ranks took different branches, or hold different amounts of data.",
        "Mend the script: the same collectives on all ranks (join(), drop_last); TORCH_DISTRIBUTED_DEBUG=DETAIL names "
        "the call.",
        "l", row="job hangs", source="torch, gloo", weight=44,
    ),
    Pattern(
        "K17", "info", CODE, "an assertion on the GPU failed",
        ("assert",),
        _p(r"device-side assert triggered|Assertion `[^`]+` failed"),
        "A label or an index outside its range, in the script or its data; not the hardware.",
        "Look at the first assertion line; rerun with CUDA_LAUNCH_BLOCKING=1.",
        "l", row="fails without a message", source="CUDA, torch", weight=46,
    ),
    Pattern(
        "K18", "warning", CODE, "a kernel touched memory that is not its own",
        ("illegal memory", "misaligned", "launch failure"),
        _p(r"an illegal memory access was encountered|misaligned address|unspecified launch failure"),
        "A mistake in a kernel; the hardware only if it follows one GPU through different jobs.",
        "Run it under compute-sanitizer, and once on another GPU.",
        "l", row="fails without a message", source="CUDA", weight=47,
    ),
    Pattern(
        "K19", "critical", INFRASTRUCTURE, "uncorrectable memory error on the GPU",
        ("uncorrectable", "double bit ecc"),
        _p(r"[Uu]ncorrectable (?:NVLink |ECC )*error|ECC uncorrectable|Double Bit ECC"),
        "The GPU's memory is faulty.",
        "Drain the node, reset the GPU, run diagnostics; send it in if it comes again.",
        "D", row="fails without a message", source="CUDA, kernel driver", weight=8,
    ),
    Pattern(
        "K20", "critical", INFRASTRUCTURE, "the GPU is lost",
        ("fallen off", "gpu is lost", "device handle"),
        _p(r"fallen off the bus|GPU is lost|Unable to determine the device handle for GPU"),
        "The GPU left the bus: PCIe, power or heat.",
        "Drain the node, then power-cycle it; send the GPU in if it comes again.",
        "D", row="device not visible", source="kernel driver, NVML", weight=5,
    ),
    Pattern(
        "K21", "warning", INFRASTRUCTURE, "the driver reported an XID",
        ("xid",),
        _p(r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9a-fA-F:.]+)\): (?P<xid>\d{1,4})"),
        "See the XID's own meaning.",
        "See the XID's own action.",
        "D", row="fails without a message", source="kernel driver", weight=7,
    ),
    Pattern(
        "K22", "critical", INFRASTRUCTURE, "the GPU fabric is not ready",
        ("fabric", "system_not_ready", "not yet initialized", "nvswitch", "sxid"),
        _p(r"fabric ?manager.*(?:not running|fatal|failed)|CUDA_ERROR_SYSTEM_NOT_READY|system not yet initialized"
           r"|detected NVSwitch (?:non-)?fatal error|SXid \(PCI:\S+\): \d+", re.IGNORECASE),
        "The fabric manager is stopped, or of another version than the driver; or a switch failed.",
        "Bring the fabric manager to the driver's version and restart it, or reboot the node.",
        "D", row="device not visible", source="CUDA, fabric manager", weight=9,
    ),
    Pattern(
        "K23", "critical", NETWORK, "the disk is full",
        ("no space", "enospc", "outofdiskerror", "95% full", "quota", "edquot"),
        _p(r"No space left on device|ENOSPC|ray\.exceptions\.OutOfDiskError|over 95% full|Disk quota exceeded|EDQUOT"),
        "The file system or the quota is full; old checkpoints are the usual reason.",
        "Delete checkpoints that are not needed, set checkpoints.keep_last, or enlarge the file system; then restart.",
        "R", row="output folder full", source="errno, Ray", weight=20,
    ),
    Pattern(
        "K24", "critical", NETWORK, "the storage hangs or went away",
        ("file handle", "nfs: server", "transport endpoint", "i/o", "input/output", "read-only", "blocked for"),
        _p(r"Stale (?:NFS )?file handle|nfs: server (\S+) not responding|Transport endpoint is not connected"
           r"|Input/output error|Remounting filesystem read-only|Read-only file system|Remote I/O error"
           r"|blocked for more than \d+ seconds|I/O \d+ .*timeout, reset controller"),
        "The file server, its network, or the disk behind the mount.",
        "Look whether other nodes have it too: then the server, else remount on this node.",
        "s", row="job hangs", source="errno, kernel", weight=18,
    ),
    Pattern(
        "K25", "warning", NETWORK, "permission refused",
        ("permission", "host key", "errno 13", "accessdenied", "signaturedoesnotmatch", "expiredtoken",
         "invalidaccesskeyid", "forbidden", "gatedrepo"),
        _p(r"Permission denied|Host key verification failed|PermissionError|\[Errno 13\]|AccessDenied"
           r"|SignatureDoesNotMatch|ExpiredToken|InvalidAccessKeyId|403 (?:Client Error: )?Forbidden|GatedRepoError"),
        "The account lacks the right, or its key has expired.",
        "Correct the owner, role or key; do not open it to everybody.",
        "s", row="permission refused", source="errno, ssh, object stores", weight=28,
    ),
    Pattern(
        "K26", "critical", INFRASTRUCTURE, "Ray lost a node",
        ("nodedied", "rayletdied", "heartbeats", "dead or unavailable", "node has died", "node was terminated",
         "raylet exited"),
        _p(r"NodeDiedError|LocalRayletDiedError|detector has missed too many heartbeats|missing too many heartbeats"
           r"|the node it was running on is dead or unavailable|its node has died|node was terminated"
           r"|The raylet exited immediately because"),
        "The machine, its network or its raylet went away.",
        "Look at the node over SSH; drain it if it comes again; the run starts anew from its checkpoint.",
        "D", row="job hangs", source="Ray", weight=14,
    ),
    Pattern(
        "K27", "warning", CODE, "a process ended without saying why",
        ("actordied", "workercrashed", "worker exit type", "segmentation fault", "exited unexpectedly"),
        _p(r"ActorDiedError|WorkerCrashedError|Worker exit type: (\w+)|Segmentation fault"
           r"|DataLoader worker \(pid\(?s?\)? [\d, ]+\) exited unexpectedly"),
        "It crashed or was killed from outside.",
        "Look at its last lines and the kernel's log; rerun with NCCL_DEBUG=INFO and PYTHONFAULTHANDLER=1.",
        "l", True, row="fails without a message", source="Ray, torch", weight=70,
    ),
    Pattern(
        "K28", "info", RESOURCES, "there are not enough resources",
        ("cannot be scheduled", "node types", "unschedulable", "insufficient", "placement group", "no place for it"),
        _p(r"cannot be scheduled right now|No available node types can fulfill|TaskUnschedulableError"
           r"|ActorUnschedulableError|Insufficient nvidia\.com/gpu|placement group .*(?:infeasible|pending)"
           r"|no place for it within"),
        "No node has what it asks for, or other work holds it.",
        "Wait, ask for less, or give it a higher priority.",
        "P", row="job cannot start", source="Ray, Kubernetes", weight=35,
    ),
    Pattern(
        "K29", "warning", SCHEDULING, "the image or a dependency is missing",
        ("runtimeenvsetup", "imagepull", "manifest unknown", "modulenotfound", "importerror"),
        _p(r"RuntimeEnvSetupError|ImagePullBackOff|ErrImagePull|manifest unknown"
           r"|ModuleNotFoundError: No module named '?([\w.]+)'?|ImportError: .*"),
        "The environment on that node has not got what the script needs.",
        "Install it on all nodes in one version, or pin the image; then restart.",
        "R", row="job cannot start", source="Python, Ray, container runtimes", weight=32,
    ),
    Pattern(
        "K30", "critical", INFRASTRUCTURE, "a certificate is not accepted",
        ("x509", "certificate", "handshake", "sslv3_alert", "clock skew"),
        _p(r"x509: certificate (?:has expired|is not yet valid|signed by unknown authority)"
           r"|CERTIFICATE_VERIFY_FAILED|certificate verify failed|certificate has expired|Ssl handshake failed"
           r"|SSLV3_ALERT|clock skew"),
        "It has expired, is from somebody unknown, or the clock is wrong.",
        "Compare the clocks first, then renew the certificate.",
        "s", row="node cannot join", source="OpenSSL, Go", weight=26,
    ),
    Pattern(
        "K31", "critical", INFRASTRUCTURE, "Ray or Python differ from the head's",
        ("version mismatch",),
        _p(r"Version mismatch: The cluster was started with|Ray version mismatch|Python version mismatch"),
        "This node has another image than the head.",
        "Bring the node to the head's versions of Ray and Python, then have it rejoin.",
        "s", row="node cannot join", source="Ray", weight=15,
    ),
    Pattern(
        "K32", "warning", CODE, "the loss is not a number",
        ("nan", "inf", "not a number", "finite"),
        _p(r"(?:loss|grad_norm)['\"]?\s*(?:[:=]|is)\s*(?:nan|inf)\b|Found (?:nan|inf) in"
           r"|(?:loss|grad_norm|gradient) (?:is|was|became) (?:not a number|infinite|non-?finite|nan|inf)\b",
           re.IGNORECASE),
        "The learning rate, the precision or the data; silent data corruption if the same batch is fine elsewhere.",
        "Restart from a checkpoint before it, with a lower rate or without that batch; replay the batch on another "
        "GPU.",
        "R", row="results not reproducible", source="training scripts", weight=48,
    ),
    Pattern(
        "K33", "critical", SCHEDULING, "the checkpoint cannot be loaded",
        ("state_dict", "size mismatch", "pytorchstreamreader", "unexpected eof", "invalid load key",
         "checkpointexception", "central directory", "safetensorerror", "unpicklingerror"),
        _p(r"Error\(s\) in loading state_dict|size mismatch for|PytorchStreamReader failed|unexpected EOF"
           r"|invalid load key|CheckpointException|failed finding central directory|SafetensorError|UnpicklingError"),
        "It was cut while it was written, or the model or its parallelism has changed.",
        "Restart from the checkpoint before it.",
        "R", row="job cannot start", source="torch, pickle, safetensors", weight=31,
    ),
    Pattern(
        "K34", "warning", RESOURCES, "open files or threads ran out",
        ("too many open", "emfile", "file-max", "start new thread", "temporarily unavailable"),
        _p(r"Too many open files|EMFILE|VFS: file-max limit|can't start new thread|Resource temporarily unavailable"),
        "The limit of files or processes of the account is too low for this many workers.",
        "Raise nofile and nproc, or use torch's file_system sharing strategy; then restart.",
        "R", row="fails without a message", source="errno, Python", weight=29,
    ),
    Pattern(
        "K35", "warning", NETWORK, "the data is not there",
        ("filenotfounderror", "datasetnotfound", "nosuchkey", "nosuchbucket", "emptydataset", "datafilesnotfound"),
        _p(r"FileNotFoundError: (?:\[Errno 2\] No such file or directory: )?['\"]?(?P<path>/[^'\"\s]*)"
           r"|DatasetNotFoundError|NoSuchKey|NoSuchBucket|EmptyDatasetError|DataFilesNotFoundError"),
        "The path is wrong, or its file system is not mounted on that node.",
        "Compare the path on this node with the others; mount it, or correct data_root; then restart.",
        "R", row="job cannot start", source="Python, object stores", weight=27,
    ),
)  # fmt: skip

BY_ID = {pattern.id: pattern for pattern in PATTERNS}
