"""What a probe says: the lines it prints and the values they carry.

Standard library only and Python 3.8, because this file runs on bare nodes; the console decodes with the same file.

A reading is a plain value, or it is missing with a reason. It is never a made-up 0. Three kinds of missing exist:
``unsupported`` (this device or driver cannot tell), ``error`` (it should, and failed) and ``stale`` (it did, some time
ago). A missing reading is ``None`` where the value would stand, and its kind and reason stand in ``missing``.

One JSON object a line. ``kind`` is one of

``facts``   what seldom changes; the first line, then every ``FACTS_EVERY_SECONDS`` and whenever something changed
``sample``  the figures of one second; devices in columns: a column of eight numbers costs a quarter of eight objects
``pong``    the answer to ``ping ID`` on stdin: the node's clock, for measuring its offset inside a round trip
``fault``   the probe itself cannot go on; the last line
"""

import json
from dataclasses import dataclass, field
from typing import Any, Dict, List, NamedTuple, Optional, Tuple, Union, get_type_hints

WIRE_VERSION = 1
FACTS_EVERY_SECONDS = 60.0

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


Line = Union[Facts, Sample, Pong, Fault]


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
        if kind == "pong":
            return Pong(str(raw["id"]), float(raw["wall"]))
        if kind == "fault":
            return Fault(str(raw["reason"]))
    except WireError:
        raise
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise WireError("not a line of the probe: {}".format(error)) from error
    raise WireError("unknown kind {!r}".format(kind))
