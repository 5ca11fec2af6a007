"""What a probe says: the lines it prints and the values they carry.

Standard library only and Python 3.8, because this file runs on bare nodes; the console decodes with the same file.

A reading is a plain value, or it is missing with a reason. It is never a made-up 0. Three kinds of missing exist:
``unsupported`` (this device or driver cannot tell), ``error`` (it should, and failed) and ``stale`` (it did, some time
ago). A missing reading is ``None`` where the value would stand, and its kind and reason stand in ``missing``.

One JSON object a line. ``kind`` is one of

``facts``   what seldom changes; the first line, then every ``FACTS_EVERY_SECONDS`` and whenever something changed
``sample``  the figures of one second; devices in columns: a column of eight numbers costs a quarter of eight objects
``health``  what only health rules ask for, every ``HEALTH_EVERY_SECONDS`` and at once when the kernel or the driver
            told of something; a probe says it when it was started with ``--health``
``pong``    the answer to ``ping ID`` on stdin: the node's clock, for measuring its offset inside a round trip
``fault``   the probe itself cannot go on; the last line
"""

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union, get_type_hints

WIRE_VERSION = 1
FACTS_EVERY_SECONDS = 60.0
HEALTH_EVERY_SECONDS = 10.0

UNSUPPORTED = "unsupported"
ERROR = "error"
STALE = "stale"


class Missing(NamedTuple):
    """Why a reading is not there."""

    kind: str
    """``unsupported``, ``error`` or ``stale``."""
    reason: str
    """One sentence fragment for the screen, such as ``NVML: Not Supported``."""


Number = Union[int, float]
Reading = Union[Number, str, Missing]

DRIVER_OK = "ok"
DRIVER_NONE = "none"
"""No accelerator driver on this machine: the host alone is read."""
DRIVER_BLOCKED = "blocked"
"""A call into the driver has not come back within its deadline."""
DRIVER_ERROR = "error"

SAMPLE_COLUMNS = (
    "utilization_percent",
    "memory_utilization_percent",
    "memory_used_bytes",
    "power_watts",
    "temperature_celsius",
    "sm_clock_mhz",
    "memory_clock_mhz",
    "throttle_reasons",
)
"""What is read of each accelerator every second. ``throttle_reasons`` is NVML's bit mask."""

FACT_FIELDS = (
    "uuid",
    "name",
    "memory_total_bytes",
    "power_limit_watts",
    "ecc_corrected_count",
    "ecc_uncorrected_count",
    "pcie_generation",
    "pcie_width",
    "mig_mode",
)
"""What is read of each accelerator once a minute."""


@dataclass
class Driver:
    """Does the accelerators' driver answer?"""

    state: str = DRIVER_NONE
    """One of ``ok``, ``none``, ``blocked``, ``error``."""
    reason: str = ""
    """What went wrong, or which call blocks, in words."""
    seconds: float = 0.0
    """For how long it has been so (``blocked``, ``error``)."""


@dataclass
class DeviceFacts:
    """One accelerator, as far as it seldom changes. ``None`` stands where ``missing`` has the reason."""

    index: int
    uuid: Optional[str] = None
    name: Optional[str] = None
    memory_total_bytes: Optional[int] = None
    power_limit_watts: Optional[float] = None
    ecc_corrected_count: Optional[int] = None
    ecc_uncorrected_count: Optional[int] = None
    pcie_generation: Optional[int] = None
    pcie_width: Optional[int] = None
    mig_mode: Optional[str] = None
    """``off``, ``on``, or ``on after reset`` / ``off after reset`` while a change is pending."""
    missing: Dict[str, Missing] = field(default_factory=dict)
    """Field to why it is not there. ``*`` stands for all but ``uuid`` and ``name`` (a lost GPU)."""
    notes: Dict[str, str] = field(default_factory=dict)
    """Field or sample column to how its figure was come by, where it is not the device's own (unified memory)."""


@dataclass
class Facts:
    """What a node is."""

    hostname: str = ""
    machine_id: str = ""
    kernel: str = ""
    python: str = ""
    source: str = "none"
    """Where the accelerators are read from: ``nvml``, ``amd``, ``simulated`` or ``none``."""
    driver_version: str = ""
    library_version: str = ""
    """NVML's version; empty for other sources."""
    cuda_version: str = ""
    cpu_count: int = 0
    memory_total_bytes: int = 0
    boot_wall: float = 0.0
    """When the machine started, by its own clock, seconds since 1970."""
    devices: List[DeviceFacts] = field(default_factory=list)


@dataclass
class Process:
    """A process that holds memory on an accelerator."""

    device: int
    pid: int
    user: str = ""
    command: str = ""
    memory_used_bytes: Optional[int] = None
    run: str = ""
    """The raydeck run that this process belongs to, from its environment; empty if none."""
    attempt: int = 0
    rank: Optional[int] = None
    started: int = 0
    """Clock ticks between the machine's start and the process's: with the pid it names a process for good. 0 where the
    node does not show the process."""
    age_seconds: Optional[float] = None


@dataclass
class Disk:
    """One path that the cluster file names."""

    path: str
    used_bytes: Optional[int] = None
    total_bytes: Optional[int] = None
    reason: str = ""
    """Why there is no figure: not mounted, not answering for 12 s, permission denied."""


@dataclass
class Host:
    """The machine itself. ``None`` where the kernel does not tell."""

    cpu_percent: Optional[float] = None
    load_1m: Optional[float] = None
    memory_used_bytes: Optional[int] = None
    memory_total_bytes: Optional[int] = None
    network_receive_bytes_per_second: Optional[float] = None
    network_send_bytes_per_second: Optional[float] = None
    disks: List[Disk] = field(default_factory=list)


@dataclass
class Sample:
    """One second of one node."""

    seq: int = 0
    wall: float = 0.0
    """The node's own clock, seconds since 1970. Never subtract it from another machine's."""
    cost_ms: float = 0.0
    """CPU time that this sample took, in milliseconds."""
    driver: Driver = field(default_factory=Driver)
    devices_age_seconds: float = 0.0
    """How old the devices' figures are: above 0 while the driver blocks and the last ones are repeated."""
    index: List[int] = field(default_factory=list)
    columns: Dict[str, List[Optional[Number]]] = field(default_factory=dict)
    """Column name (``SAMPLE_COLUMNS``) to one value for each entry of ``index``."""
    missing: Dict[int, Dict[str, Missing]] = field(default_factory=dict)
    """Device index to column name to reason. The column ``*`` stands for all of them (a lost GPU), and ``processes``
    for the list of its processes."""
    processes: List[Process] = field(default_factory=list)
    host: Host = field(default_factory=Host)

    def reading(self, device: int, column: str) -> Reading:
        """One figure of the device with this index: its value, or why there is none."""
        reasons = self.missing.get(device, {})
        found = reasons.get(column) or reasons.get("*")
        if found is not None:
            return found
        try:
            value = self.columns[column][self.index.index(device)]
        except (KeyError, ValueError, IndexError):
            return Missing(ERROR, "not in the sample")
        return Missing(ERROR, "no reason given") if value is None else value


DEVICE_HEALTH_FIELDS = (
    "ecc_volatile_corrected_count",
    "ecc_volatile_uncorrected_count",
    "remapped_corrected_count",
    "remapped_uncorrected_count",
    "remap_pending",
    "remap_failed",
    "retired_pages_pending",
    "recovery_action",
    "slowdown_celsius",
    "memory_temperature_celsius",
    "memory_slowdown_celsius",
    "pcie_generation",
    "pcie_generation_max",
    "pcie_width",
    "pcie_width_max",
    "pcie_replay_count",
    "nvlinks_active",
    "nvlinks_total",
    "nvlink_error_count",
    "fabric_healthy",
    "persistence",
)
"""What health rules ask of each accelerator. Yes and no are 1 and 0; ``recovery_action`` is NVML's number (0 none,
1 GPU reset, 2 node reboot, 3 drain P2P, 4 drain and reset). PCIe is how it stands now: an idle link is slow."""


@dataclass
class DeviceHealth:
    """One accelerator, as health rules see it."""

    index: int
    uuid: str = ""
    pci: str = ""
    """Its address on the bus, lower case, ``0000:1b:00``: kernel lines name it so."""
    figures: Dict[str, Optional[Number]] = field(default_factory=dict)
    """By the names in ``DEVICE_HEALTH_FIELDS``."""
    missing: Dict[str, Missing] = field(default_factory=dict)
    """Field to why it is not there; ``*`` stands for all."""


@dataclass
class Mount:
    """One file system that matters: a path of the cluster file, ``/``, ``/tmp``, ``/dev/shm``."""

    path: str
    kind: str = ""
    """``ext4``, ``nfs4`` and so on; empty if it is not known."""
    total_bytes: Optional[int] = None
    free_bytes: Optional[int] = None
    """What may still be written by somebody who is not root."""
    inodes_total: Optional[int] = None
    inodes_free: Optional[int] = None
    read_only: bool = False
    hangs_seconds: float = 0.0
    """For how long it has not answered; 0 while it does."""
    reason: str = ""
    """Why there is no figure."""


@dataclass
class Stuck:
    """A process that waits inside the kernel and cannot be ended (state D)."""

    pid: int
    command: str = ""
    user: str = ""
    where: str = ""
    """The kernel function that it waits in, if it may be known."""
    seconds: float = 0.0
    """For how long it has been seen so."""
    run: str = ""


@dataclass
class Port:
    """One InfiniBand or RoCE port, or one network interface that carries the node's traffic."""

    name: str
    """``mlx5_0/1``, ``eth0``."""
    up: bool = True
    link_downed_count: Optional[int] = None
    error_count: Optional[int] = None
    rate_gigabits: Optional[float] = None


@dataclass
class Event:
    """Something that the kernel or the driver told, once."""

    kind: str
    """``xid``, ``sxid``, ``gpu_lost``, ``oom``, ``link``, ``hung_task``, ``storage``, ``machine_check``."""
    text: str
    """The line as it was told, at most 400 characters."""
    wall: float = 0.0
    """When, by the node's own clock, seconds since 1970."""
    source: str = "kernel"
    """``kernel`` (its log) or ``nvml`` (the driver's event set)."""
    device: Optional[int] = None
    """The accelerator, where one is named and known."""
    code: Optional[int] = None
    """The XID's number."""
    pid: Optional[int] = None
    process: str = ""
    run: str = ""
    """The run that the process belonged to, where that could still be found out."""


@dataclass
class Health:
    """What only health rules ask for."""

    wall: float = 0.0
    devices: List[DeviceHealth] = field(default_factory=list)
    mounts: List[Mount] = field(default_factory=list)
    stuck: List[Stuck] = field(default_factory=list)
    ports: List[Port] = field(default_factory=list)
    events: List[Event] = field(default_factory=list)
    """New since the line before."""
    memory_pressure_percent: Optional[float] = None
    """Share of the last 10 s in which something waited for memory (PSI, ``some``)."""
    io_pressure_percent: Optional[float] = None
    memory_available_bytes: Optional[int] = None
    clock_synchronised: Optional[bool] = None
    """Whether the kernel says that its clock is held by NTP (adjtimex)."""
    oom_kills: Optional[int] = None
    """Processes ended by the kernel for want of memory since it started."""
    blind: Dict[str, Missing] = field(default_factory=dict)
    """What cannot be watched here, and why: ``xid`` (neither the kernel's log nor NVML events), ``kernel_log``,
    ``nvml_events``, ``ports``, ``pressure``."""


@dataclass
class Pong:
    """The answer to a ping."""

    id: str
    wall: float
    """The node's clock when it answered."""


@dataclass
class Fault:
    """The probe cannot go on."""

    reason: str


Line = Union[Facts, Sample, Health, Pong, Fault]


class WireError(ValueError):
    """A line that is not ours, or from another version."""


def _plain(value: Any) -> Any:
    return value.__dict__


def encode(line: Line) -> str:
    """One line of NDJSON, without the newline."""
    body: Dict[str, Any] = {"v": WIRE_VERSION, "kind": type(line).__name__.lower()}
    body.update(line.__dict__)
    return json.dumps(body, default=_plain, separators=(",", ":"), ensure_ascii=True)


def _missing(raw: Dict[str, Any]) -> Dict[str, Missing]:
    return {name: Missing(str(kind), str(reason)) for name, (kind, reason) in raw.items()}


_ALLOWED: Dict[Any, Dict[str, Tuple[Any, ...]]] = {}
_EXACT = {int: (int,), float: (int, float), str: (str,), type(None): (type(None),)}
_NUMBERS = (int, float, type(None))
_LARGEST = 1e18
"""Beyond every figure that a device can have, and far from what breaks arithmetic."""


def _allowed(cls: Any) -> Dict[str, Tuple[Any, ...]]:
    """Field to the exact types that JSON may bring for it, found once for each class."""
    found = _ALLOWED.get(cls)
    if found is None:
        found = _ALLOWED[cls] = {}
        for name, hint in get_type_hints(cls).items():
            types: Tuple[Any, ...] = ()
            for part in getattr(hint, "__args__", ()) if getattr(hint, "__origin__", None) is Union else (hint,):
                plain = dict if hasattr(part, "__dataclass_fields__") else getattr(part, "__origin__", part)
                types += _EXACT.get(part, (plain,))
            found[name] = types
    return found


def _known(cls: Any, raw: Dict[str, Any]) -> Dict[str, Any]:
    """The fields of ``raw`` that ``cls`` knows: a newer probe may say more. ``TypeError`` for one of a wrong type.

    A node may be hostile: what is decoded has the types that it says, or it is no line of ours.
    """
    found = {}
    for name, types in _allowed(cls).items():
        if name in raw:
            value = raw[name]
            if type(value) not in types:
                raise TypeError("{} is a {}".format(name, type(value).__name__))
            if type(value) is float and not -_LARGEST < value < _LARGEST:
                raise ValueError("{} is no figure".format(name))
            found[name] = value
    return found


def _figures(values: Any) -> List[Optional[Number]]:
    for value in values:
        if type(value) not in _NUMBERS or (value is not None and not -_LARGEST < value < _LARGEST):
            raise TypeError("{!r} is no figure".format(value))
    return list(values)


def _no_constant(name: str) -> Any:
    raise ValueError("{} is no figure".format(name))


_DECODER = json.JSONDecoder(parse_constant=_no_constant)


def _facts(raw: Dict[str, Any]) -> Facts:
    facts = Facts(**_known(Facts, raw))
    facts.devices = [DeviceFacts(**_known(DeviceFacts, device)) for device in raw.get("devices", [])]
    for device in facts.devices:
        device.missing = _missing(device.missing)  # type: ignore[arg-type]
    return facts


def _sample(raw: Dict[str, Any]) -> Sample:
    sample = Sample(**_known(Sample, raw))
    sample.index = [int(index) for index in sample.index]
    sample.columns = {name: _figures(values) for name, values in sample.columns.items()}
    if any(len(values) != len(sample.index) for values in sample.columns.values()):
        raise ValueError("a column is longer or shorter than the list of devices")
    sample.driver = Driver(**_known(Driver, raw.get("driver", {})))
    sample.missing = {int(index): _missing(reasons) for index, reasons in raw.get("missing", {}).items()}
    sample.processes = [Process(**_known(Process, process)) for process in raw.get("processes", [])]
    host = raw.get("host", {})
    sample.host = Host(**_known(Host, host))
    sample.host.disks = [Disk(**_known(Disk, disk)) for disk in host.get("disks", [])]
    return sample


def _health(raw: Dict[str, Any]) -> Health:
    health = Health(**_known(Health, raw))
    health.devices = [DeviceHealth(**_known(DeviceHealth, each)) for each in raw.get("devices", [])]
    for device in health.devices:
        device.missing = _missing(device.missing)  # type: ignore[arg-type]
        _figures(device.figures.values())
    health.mounts = [Mount(**_known(Mount, each)) for each in raw.get("mounts", [])]
    health.stuck = [Stuck(**_known(Stuck, each)) for each in raw.get("stuck", [])]
    health.ports = [Port(**_known(Port, each)) for each in raw.get("ports", [])]
    health.events = [Event(**_known(Event, each)) for each in raw.get("events", [])]
    health.blind = _missing(health.blind)  # type: ignore[arg-type]
    return health


def decode(text: Union[str, bytes]) -> Line:
    """A line back to what it says. Raises `WireError` for a banner, half a line, or another version."""
    try:
        raw = _DECODER.decode(text if isinstance(text, str) else text.decode("utf-8"))
        if not isinstance(raw, dict):
            raise WireError("not an object")
        if raw.get("v") != WIRE_VERSION:
            raise WireError("wire version {!r}, this side speaks {}".format(raw.get("v"), WIRE_VERSION))
        kind = raw.get("kind")
        if kind == "sample":
            return _sample(raw)
        if kind == "facts":
            return _facts(raw)
        if kind == "health":
            return _health(raw)
        if kind == "pong":
            return Pong(str(raw["id"]), float(raw["wall"]))
        if kind == "fault":
            return Fault(str(raw["reason"]))
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise WireError("not a line of the probe: {}".format(error)) from error
    raise WireError("unknown kind {!r}".format(kind))
