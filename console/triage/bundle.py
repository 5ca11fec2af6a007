"""One archive to hand on: findings, timeline, states, samples, logs, configuration, versions; without secrets.

What looks like a secret is painted over before anything is packed. The archive never grows beyond its limit: logs are
cut to their ends, what has no room is left out, and the manifest says so. An existing file is never written over.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import io
import json
import os
import re
import tarfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from console.sources.session import Session
from console.triage.judge import Judged
from console.triage.paper import paint, paint_lines, plain
from console.triage.places import logs
from console.triage.recorded import marks_of, samples_lately
from console.triage.timeline import timeline, utc
from jobs.errors import RaydeckError, Refused, Unreachable
from jobs.model import Move
from jobs.recordview import Mark
from jobs.triage.evidence import Evidence, LogLine
from jobs.triage.report import as_json, markdown
from jobs.within import within

LIMIT_BYTES = 50 * 1000 * 1000
ASK_SECONDS = 10.0
AUDIT_ENTRIES = 500
ALERTS = 500
RUNS_AT_MOST = 20
NODES_AT_MOST = 32
RECORDED_SECONDS = 900.0
"""So much of what the head recorded goes into it."""
SAMPLE_SECONDS = 600
BLOCK = 512
FORMAT = 1

T = TypeVar("T")


@dataclass(slots=True)
class Part:
    """One file of the archive."""

    name: str
    text: str
    log: bool = False
    """It may be cut to its end."""


@dataclass(frozen=True, slots=True)
class Made:
    """A bundle that was written."""

    path: Path
    files: int
    size_bytes: int
    left_out: list[str]
    """What had no room, or could not be had; a sentence each."""


@dataclass(slots=True)
class _Asked:
    """What only the bundle needs."""

    moves: dict[str, Sequence[Move]] = field(default_factory=dict[str, Sequence[Move]])
    alerts: list[Any] = field(default_factory=list[Any])
    audit: list[Any] = field(default_factory=list[Any])
    marks: list[Mark] = field(default_factory=list[Mark])
    samples: list[Any] = field(default_factory=list[Any])
    missing: list[str] = field(default_factory=list[str])


def base_name(judged: Judged) -> str:
    """``raydeck-triage-lm-k3f9qz-20260528-202640``: what is asked about, and when."""
    target = judged.evidence.target
    what = re.sub(r"[^A-Za-z0-9._-]+", "-", target.name).strip("-.")[:60] or "fleet"
    return f"raydeck-triage-{what}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime(judged.evidence.now))}"


def free_path(folder: Path, judged: Judged) -> Path:
    """A file in this folder that is not there yet."""
    name = base_name(judged)
    for at in range(1, 1000):
        path = folder / f"{name}{f'-{at}' if at > 1 else ''}.tar.gz"
        if not path.exists():
            return path
    raise Refused(f"{folder} has a thousand bundles of this moment already")


async def write_bundle(session: Session, judged: Judged, path: Path, limit_bytes: int = LIMIT_BYTES) -> Made:
    """Pack it all. Raises `Refused` for a file that exists or a folder that may not be written to."""
    if await asyncio.to_thread(path.exists):
        raise Refused(f"{path} exists already", "Name another file, or remove it first")
    asked = await _ask(session, judged.evidence)
    # The stores go on changing, so what is taken from them is taken here; the rest is a matter for a thread.
    parts = [*_parts(judged, asked), *_from_session(session)]
    return await asyncio.to_thread(_pack, judged, parts, asked.missing, path, limit_bytes)


async def _ask(session: Session, evidence: Evidence) -> _Asked:
    asked = _Asked(alerts=list(evidence.alerts))
    if evidence.run is not None and evidence.run.moves:
        asked.moves[evidence.run.run.id] = evidence.run.moves
    deadline = asyncio.get_running_loop().time() + ASK_SECONDS

    async def had(asking: Awaitable[T], what: str) -> T | None:
        try:
            return await within(asking, max(0.1, deadline - asyncio.get_running_loop().time()))
        except RaydeckError as error:
            asked.missing.append(f"{what}: {error.sentence}")
        except (asyncio.TimeoutError, TimeoutError):
            asked.missing.append(f"{what}: there was no time left for it")
        return None

    client = await had(session.controller(), "the controller")
    if client is None:
        return asked
    asked.audit = await had(client.audit(AUDIT_ENTRIES), "the audit log") or []
    history = await had(client.alert_history(ALERTS), "alerts that are over") or []
    known = {alert.id for alert in asked.alerts}
    asked.alerts += [alert for alert in history if alert.id not in known]
    newest = sorted(evidence.runs, key=lambda run: run.submitted_at, reverse=True)[:RUNS_AT_MOST]
    for run in newest:
        asked.moves[run.id] = await had(client.moves(run.id), f"the course of {run.id}") or []
    asked.marks = await had(marks_of(client), "what the head recorded") or []
    nodes = concerned(evidence)[:NODES_AT_MOST]
    lately = samples_lately(client, nodes, evidence.now - RECORDED_SECONDS, evidence.now)
    asked.samples = await had(lately, "samples that the head recorded") or []
    return asked


def concerned(evidence: Evidence) -> list[str]:
    """The nodes that it is about: those of the run, the one that is asked about, or all."""
    if evidence.target.node:
        return [evidence.target.node]
    of_run = {rank.node for rank in evidence.ranks if rank.node in evidence.nodes}
    return sorted(of_run if evidence.run is not None and of_run else evidence.nodes)


# --- what goes into it ------------------------------------------------------------------------------------------------


def _json(value: Any) -> str:
    return json.dumps(paint(plain(value)), ensure_ascii=False, indent=1, sort_keys=True) + "\n"


def _lines(values: Sequence[Any]) -> str:
    return "".join(json.dumps(paint(plain(value)), ensure_ascii=False, sort_keys=True) + "\n" for value in values)


def _parts(judged: Judged, asked: _Asked) -> Iterator[Part]:
    """What weighs most for whoever reads it first."""
    evidence = judged.evidence
    yield Part("summary.md", paint_lines(markdown(judged.triage)))
    yield Part("triage.json", _json(as_json(judged.triage)))
    happened = timeline(evidence, asked.moves, asked.alerts, asked.audit, asked.marks)
    yield Part("timeline.jsonl", _lines([each.document() for each in happened]))
    yield Part("states.json", _json(_states(evidence)))
    if evidence.run is not None:
        run = evidence.run
        yield Part("config/workflow.json", _json({"release": run.run.release, "config": run.config}))
        changes = {"from": run.last_good_release, "to": run.run.release, "changes": run.differences}
        yield Part("config/differences.json", _json(changes))
        yield Part("course.jsonl", _lines(run.course))
    yield Part("alerts.json", _json(asked.alerts))
    if asked.samples:
        yield Part("samples/recorded.jsonl", _lines(asked.samples), log=True)
    for rank in sorted(evidence.ranks, key=lambda rank: rank.rank):
        if rank.stack:
            yield Part(f"stacks/rank-{rank.rank}.txt", paint_lines(rank.stack))
    for file, node, lines in logs(evidence):
        where = f"{_slug(node)}-" if node else ""
        name = _slug(file.removesuffix(".log").removesuffix(" log"))
        yield Part(f"logs/{where}{name}.log", _log(lines), log=True)


def _slug(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.") or "log"


def _log(lines: Sequence[LogLine]) -> str:
    """Number, time by the head's clock, text; a dash for what is not known."""
    painted = paint_lines("\n".join(line.text.replace("\n", " ") for line in lines)).split("\n")
    return "".join(
        f"{line.number or '-'}\t{utc(line.wall) if line.wall else '-'}\t{text}\n"
        for line, text in zip(lines, painted, strict=False)
    )


def _states(evidence: Evidence) -> dict[str, Any]:
    """Everything that was looked at but the logs, which have files of their own."""
    body: dict[str, Any] = plain(evidence)
    for node in body["nodes"].values():
        del node["kernel"], node["raylet"]
    for rank in body["ranks"]:
        del rank["log"], rank["stack"]
    if body["run"]:
        for name in ("driver_log", "course", "config"):
            del body["run"][name]
    return body


def _from_session(session: Session) -> Iterator[Part]:
    rows: list[dict[str, Any]] = []
    for node in session.fleet.nodes.values():
        for index, rings in sorted(node.history.items()):
            columns = {name: ring.last(SAMPLE_SECONDS) for name, ring in rings.items()}
            rows.append({"node": node.name, "gpu": index, "every_seconds": 1, "oldest_first": columns})
    newest = {node.name: node.sample for node in session.fleet.nodes.values() if node.sample is not None}
    yield Part("samples/newest.json", _json(newest))
    yield Part("samples/history.jsonl", _lines(rows), log=True)
    context = session.context
    if context.cluster_file is not None:
        try:
            text = context.cluster_file.read_text("utf-8", "replace")
        except OSError as error:
            text = f"# {context.cluster_file} cannot be read: {error.strerror}\n"
        yield Part("config/cluster.yaml", paint_lines(text))
    versions = {
        "raydeck": _version(),
        "ray": session.fleet.ray_version or None,
        "controller": session.work.status,
        "nodes": {
            node.name: {"driver": node.facts.driver_version, "cuda": node.facts.cuda_version,
                        "kernel": node.facts.kernel, "python": node.facts.python}
            for node in session.fleet.nodes.values() if node.facts is not None
        },
    }  # fmt: skip
    yield Part("versions.json", _json(versions))


def _version() -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("raydeck")
    except PackageNotFoundError:
        return None


# --- packing ----------------------------------------------------------------------------------------------------------


def _pack(judged: Judged, parts: Sequence[Part], missing: Sequence[str], path: Path, limit_bytes: int) -> Made:
    left_out = list(missing)
    chosen: list[tuple[str, bytes]] = []
    # The manifest comes last into being and has to fit as well: room for a line about each file is kept.
    room = limit_bytes - 4 * BLOCK - sum(len(part.name) + 160 for part in parts)
    for part in sorted(parts, key=lambda part: part.log):
        data = part.text.encode("utf-8")
        most = room - 2 * BLOCK
        if len(data) > most and part.log and most > BLOCK:
            cut = data[-most:]
            data = cut[cut.find(b"\n") + 1 :]
            left_out.append(f"{part.name}: only its last {len(data)} bytes had room")
        elif len(data) > most:
            left_out.append(f"{part.name}: no room for its {len(data)} bytes")
            continue
        room -= BLOCK + -(-len(data) // BLOCK) * BLOCK
        chosen.append((part.name, data))
    chosen.sort()
    chosen.insert(0, ("manifest.json", _manifest(judged, chosen, left_out)))
    data = _archive(base_name(judged), chosen, int(judged.evidence.now))
    _write(path, data)
    return Made(path, len(chosen), len(data), left_out)


def _manifest(judged: Judged, chosen: Sequence[tuple[str, bytes]], left_out: Sequence[str]) -> bytes:
    body = {
        "format": FORMAT,
        "raydeck": _version(),
        "target": plain(judged.evidence.target),
        "at": judged.evidence.now,
        "utc": utc(judged.evidence.now),
        "clock": "the head's; each node's offset is taken off",
        "redacted": "what looks like a token, a key or a password is painted over; look it through all the same",
        "files": [
            {"name": name, "size_bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in chosen
        ],
        "left_out": list(left_out[:200]),
    }
    return (json.dumps(paint(body), ensure_ascii=False, indent=1) + "\n").encode("utf-8")


def _archive(name: str, chosen: Sequence[tuple[str, bytes]], mtime: int) -> bytes:
    """The same bytes for the same content."""
    out = io.BytesIO()
    with (
        gzip.GzipFile("", "wb", fileobj=out, mtime=mtime) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for file, data in chosen:
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size, entry.mtime, entry.mode = len(data), mtime, 0o600
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def _write(path: Path, data: bytes) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise Refused(f"{path} exists already", "Name another file, or remove it first") from None
    except OSError as error:
        raise Refused(f"{path} cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise Unreachable(f"{path} cannot be written: {error.strerror}") from error
