"""What Ray's dashboard says, as typed values, read from JSON that may lack anything.

Every field may be missing or null in some version or moment of Ray: then it is None or empty here, never a made-up
figure. Times are seconds since 1970 by the head's clock. All texts are data from the cluster.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import Any

OLDEST = (2, 40)
"""The oldest Ray that is supported; below it routes and fields were not compared."""
NEXT_MAJOR = 3

_USAGE = re.compile(
    r"([0-9.]+)/([0-9.]+) (\S+)(?: \(([0-9.]+) used of ([0-9.]+) reserved in placement groups\))?", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class RayVersion:
    """Which Ray answers, and what it can do."""

    ray_version: str
    """Such as ``2.60.0``; empty if it does not say."""
    session: str = ""
    """Changes whenever the head is started anew."""

    @property
    def numbers(self) -> tuple[int, int] | None:
        """Major and minor, or None for a version that is not written so."""
        found = re.match(r"(\d{1,6})\.(\d{1,6})", self.ray_version)
        return (int(found[1]), int(found[2])) if found else None

    @property
    def supported(self) -> bool:
        """Whether raydeck knows this Ray."""
        numbers = self.numbers
        return numbers is not None and numbers >= OLDEST and numbers[0] < NEXT_MAJOR

    @property
    def label_selectors(self) -> bool:
        """Placement groups can be kept off nodes by label; before, by node affinity only."""
        numbers = self.numbers
        return numbers is not None and numbers >= (2, 49)

    @property
    def token_authentication(self) -> bool:
        """It can ask for a token."""
        numbers = self.numbers
        return numbers is not None and numbers >= (2, 52)


@dataclass(frozen=True, slots=True)
class RayNode:
    """A node as Ray knows it."""

    node_id: str
    node_ip: str = ""
    node_name: str = ""
    is_head: bool = False
    state: str = ""
    """``ALIVE`` or ``DEAD``; empty if Ray does not say."""
    state_message: str = ""
    """Why it is dead."""
    resources_total: dict[str, float] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    started_at: float | None = None
    ended_at: float | None = None

    @property
    def alive(self) -> bool:
        """Ray thinks so; a cut link takes it a minute to notice."""
        return self.state == "ALIVE"

    @property
    def gpus(self) -> float | None:
        """How many accelerators Ray may give out here; None if it names no resources at all."""
        return self.resources_total.get("GPU", 0.0) if self.resources_total else None


@dataclass(frozen=True, slots=True)
class Raylet:
    """Ray's process on a node."""

    address: str
    port: int
    session_dir: str = ""
    """Where this session's files are, on that node."""


Usage = dict[str, dict[str, tuple[float, float]]]
"""Node id to ``CPU`` and ``GPU`` to how much is held and how much there is. What a placement group reserves is held."""


@dataclass(frozen=True, slots=True)
class RayJob:
    """A job of Ray's, submitted or a plain driver."""

    submission_id: str
    """Empty for a driver that was not submitted."""
    job_id: str = ""
    status: str = ""
    """``PENDING``, ``RUNNING``, ``STOPPED``, ``SUCCEEDED``, ``FAILED``; empty if Ray does not say."""
    entrypoint: str = ""
    message: str = ""
    """Ray's own words, which may be many lines."""
    error_type: str = ""
    metadata: dict[str, str] = field(default_factory=dict)
    started_at: float | None = None
    ended_at: float | None = None
    driver_node_id: str = ""
    driver_exit_code: int | None = None

    @property
    def key(self) -> str:
        """What tells it from every other job."""
        return self.submission_id or self.job_id

    @property
    def ended(self) -> bool:
        """Nothing more will come of it."""
        return self.status in ("STOPPED", "SUCCEEDED", "FAILED")

    @property
    def reason(self) -> str:
        """The message in one line: of a traceback, the line that says what happened."""
        return one_line(self.message)


@dataclass(frozen=True, slots=True)
class Bundle:
    """One part of a placement group."""

    resources: dict[str, float]
    node_id: str = ""
    """Where it lies; empty while it is not placed."""


@dataclass(frozen=True, slots=True)
class PlacementGroup:
    """Resources that are held together."""

    group_id: str
    name: str = ""
    state: str = ""
    """``PENDING``, ``PREPARED``, ``CREATED``, ``REMOVED`` or ``RESCHEDULING``."""
    scheduling_state: str = ""
    is_detached: bool | None = None
    bundles: list[Bundle] = field(default_factory=list)


def one_line(body: str, limit: int = 300) -> str:
    """What a text from Ray says in one line: the last line of a traceback that names the error, else the first line.

    Control characters are left out.
    """
    lines = ["".join(sign if sign.isprintable() else " " for sign in line).strip() for line in body.splitlines()]
    lines = [line for line in lines if line and line != "."]
    if not lines:
        return ""
    chosen = lines[0]
    if any("Traceback (most recent call last)" in line for line in lines):
        named = [
            line for line in lines if re.match(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|Interrupt|Timeout)\b", line)
        ]
        chosen = named[-1] if named else lines[-1]
        # Before a whole sentence the name of the error's class says nothing more.
        chosen = re.sub(r"^[A-Za-z_][\w.]*:\s+(?=\S+ \S)", "", chosen)
    return chosen if len(chosen) <= limit else f"{chosen[: limit - 1]}…"


def text(raw: Any, name: str) -> str:
    """A field that is text, or empty."""
    value = mapping(raw).get(name)
    return value if isinstance(value, str) else ""


def number(value: Any) -> float | None:
    """A finite number, also where Ray writes it as text; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        found = float(value)
    except (ValueError, OverflowError):
        return None
    return found if math.isfinite(found) else None


def mapping(value: Any) -> dict[str, Any]:
    """A mapping, or an empty one."""
    return value if isinstance(value, dict) else {}


def rows(value: Any) -> list[dict[str, Any]]:
    """The mappings in a list; an empty list for anything else."""
    return [row for row in value if isinstance(row, dict)] if isinstance(value, list) else []


def amounts(value: Any) -> dict[str, float]:
    """Names to finite numbers."""
    found = ((name, number(amount)) for name, amount in mapping(value).items())
    return {name: amount for name, amount in found if amount is not None}


def texts(value: Any) -> dict[str, str]:
    """Names to texts."""
    return {name: content for name, content in mapping(value).items() if isinstance(content, str)}


def _seconds(milliseconds: Any) -> float | None:
    """Ray writes 0 for a time that has not come."""
    found = number(milliseconds)
    return found / 1000 if found else None


def node(raw: dict[str, Any]) -> RayNode:
    """A row of the state API's nodes."""
    return RayNode(
        node_id=text(raw, "node_id"),
        node_ip=text(raw, "node_ip"),
        node_name=text(raw, "node_name"),
        is_head=raw.get("is_head_node") is True,
        state=text(raw, "state"),
        state_message=text(raw, "state_message"),
        resources_total=amounts(raw.get("resources_total")),
        labels=texts(raw.get("labels")),
        started_at=_seconds(raw.get("start_time_ms")),
        ended_at=_seconds(raw.get("end_time_ms")),
    )


def raylet(raw: dict[str, Any]) -> Raylet | None:
    """From the details of a node, as the dashboard's node page has them."""
    told = mapping(raw.get("raylet"))
    address, port = text(told, "nodeManagerAddress"), number(told.get("nodeManagerPort"))
    return Raylet(address, int(port), text(told, "sessionDir")) if address and port else None


def job(raw: dict[str, Any]) -> RayJob:
    """A job as the Jobs API gives it."""
    code = number(raw.get("driver_exit_code"))
    return RayJob(
        submission_id=text(raw, "submission_id"),
        job_id=text(raw, "job_id"),
        status=text(raw, "status"),
        entrypoint=text(raw, "entrypoint"),
        message=text(raw, "message"),
        error_type=text(raw, "error_type"),
        metadata=texts(raw.get("metadata")),
        started_at=_seconds(raw.get("start_time")),
        ended_at=_seconds(raw.get("end_time")),
        driver_node_id=text(raw, "driver_node_id"),
        driver_exit_code=None if code is None else int(code),
    )


def placement_group(raw: dict[str, Any]) -> PlacementGroup:
    """A row of the state API's placement groups, with its details."""
    detached = raw.get("is_detached")
    return PlacementGroup(
        group_id=text(raw, "placement_group_id"),
        name=text(raw, "name"),
        state=text(raw, "state"),
        scheduling_state=text(raw.get("stats"), "scheduling_state"),
        is_detached=detached if isinstance(detached, bool) else None,
        bundles=[
            Bundle(amounts(bundle.get("unit_resources")), text(bundle, "node_id"))
            for bundle in rows(raw.get("bundles"))
        ],
    )


def usage_from_status(raw: Any) -> Usage | None:
    """Each node's usage from the autoscaler's report; None where the report has none (no monitor on the head).

    Names of resources are mangled there, except ``CPU`` and ``GPU``: only those two are read.
    """
    report = mapping(mapping(mapping(mapping(raw).get("data")).get("clusterStatus")).get("loadMetricsReport"))
    usage: Usage = {}
    for node_id, entry in mapping(report.get("usageByNode")).items():
        usage[node_id] = {}
        for name in ("CPU", "GPU"):
            pair = mapping(entry).get(name)
            held, total = (number(part) for part in pair) if isinstance(pair, list) and len(pair) == 2 else (None, None)
            if held is not None and total is not None:
                usage[node_id][name] = (held, total)
    return usage or None


def usage_from_summary(raw: Any) -> Usage:
    """The same from the dashboard's own node page, whose texts are meant for people."""
    usage: Usage = {}
    for node_id, lines in texts(mapping(mapping(raw).get("data")).get("nodeLogicalResources")).items():
        usage[node_id] = {}
        for match in _USAGE.finditer(lines):
            used, total, used_in_groups, reserved = (number(part) for part in match.group(1, 2, 4, 5))
            if match[3] in ("CPU", "GPU") and used is not None and total is not None:
                # What is used inside a placement group is in `used` as well: count what the group reserves once.
                usage[node_id][match[3]] = (used - (used_in_groups or 0.0) + (reserved or 0.0), total)
    return usage
