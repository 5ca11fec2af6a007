"""Commands that look at nodes, logs and files; runs, queues and releases have files of their own."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from console.cli import output
from console.cli.opened import WATCH_SECONDS, opened, sentence_of, with_controller
from console.render.cells import safe
from console.render.documents import gpu_document, node_document
from console.render.redact import redact
from console.settings import Context, Settings, demo_contexts
from console.sources.runlog import RunLog
from console.sources.session import Session
from jobs.errors import Refused

SETTLE_SECONDS = 8.0
"""How long an answer may wait for nodes that do not answer; they are then shown as they are."""


def nodes_settled(session: Session) -> bool:
    """Ray and every node have answered, or said why they do not."""
    return session.fleet.ray.state != "unknown" and all(
        (node.sample is not None and node.facts is not None)
        or node.ssh.state in ("refused", "waiting", "lost", "none")
        or (node.ssh.state == "up" and node.ssh.reason)
        for node in session.fleet.nodes.values()
    )


def settled(session: Session) -> bool:
    """Everything has answered, or said why it does not."""
    return session.work.controller.state not in ("unknown", "connecting") and nodes_settled(session)


async def _fleet(context: Context, rows: Callable[[Session], list[dict[str, Any]]], columns: Sequence[str], empty: str,
                 as_json: bool, watch: bool) -> int:  # fmt: skip
    async with opened(context) as session:
        await session.until(lambda: settled(session), SETTLE_SECONDS)
        while True:
            found = rows(session)
            if as_json:
                output.documents(found, watch)
            else:
                output.table(found, columns, empty)
            if not watch:
                nodes = session.fleet.nodes.values()
                reached = any(node.sample is not None for node in nodes) or session.fleet.ray.state == "ok"
                if not reached:
                    first = next(iter(nodes))
                    output.note(f"raydeck: no node answered; {first.name}: {first.missing_because}")
                return output.DONE if reached else output.UNREACHABLE
            await asyncio.sleep(WATCH_SECONDS)


def _note(row: dict[str, Any]) -> str:
    """Who holds a node and why, what is being done there, and what SSH has to say."""
    verbs = {"cordon": "cordoned", "drain": "drained", "retire": "retired"}
    holds = [
        f"{verbs[hold['kind']]} by {hold['user']}{': ' if hold['reason'] else ''}{hold['reason']}"
        for hold in row["holds"] or ()
    ]
    parts = [*holds, row["held_note"] or "", row["ssh_reason"]]
    if row["ray"] == "dead" and row["ssh"] == "up" and row["state"] not in ("retiring", "retired"):
        parts.append(f"dead for Ray though SSH answers: raydeck rejoin {row['name']}")
    return "; ".join(part for part in parts if part)


async def nodes(context: Context, as_json: bool, watch: bool) -> int:
    """Every node."""

    def rows(session: Session) -> list[dict[str, Any]]:
        now = session.now()
        found = [node_document(node, session.work, now) for node in session.fleet.nodes.values()]
        return found if as_json else [{**row, "note": _note(row)} for row in found]

    columns = (
        "name",
        "role",
        "ssh",
        "ray",
        "driver",
        "state",
        "gpu_count",
        "gpus_busy",
        "runs",
        "sample_age_seconds",
        "note",
    )
    return await _fleet(context, rows, columns, "this context names no node", as_json, watch)


async def gpus(context: Context, as_json: bool, watch: bool) -> int:
    """Every accelerator."""

    def rows(session: Session) -> list[dict[str, Any]]:
        now = session.now()
        return [
            gpu_document(node, index, session.work, now)
            for node in session.fleet.nodes.values()
            for index in node.gpu_indexes
        ]

    columns = (
        "node",
        "index",
        "name",
        "utilization_percent",
        "memory_used_bytes",
        "power_watts",
        "temperature_celsius",
        "run",
        "rank",
    )
    return await _fleet(context, rows, columns, "no accelerator is known", as_json, watch)


async def logs(
    context: Context, name: str, *, follow: bool, rank: int | None, attempt: int | None, grep: str | None, lines: int,
    as_json: bool,
) -> int:  # fmt: skip
    """The log of a run."""
    try:
        wanted = re.compile(grep) if grep else None
    except re.error as error:
        raise Refused(f"--grep: {error}") from error

    def take(texts: Sequence[str], of: int | None) -> None:
        for text in texts:
            if wanted is not None and not wanted.search(text):
                continue
            if as_json:
                output.line({"rank": of, "text": redact(text)})
            else:
                output.say(f"{'' if of is None else f'[rank {of}] '}{safe(redact(text))}")

    async with opened(context, probes=False) as session:
        await with_controller(session)
        if name not in session.work.runs:
            session.work.run_changed(await (await session.controller()).run(name), session.now())
        await session.until(lambda: any(node.ray_node_id for node in session.fleet.nodes.values()), SETTLE_SECONDS)
        log = RunLog(session, name, take, rank=rank, attempt=attempt, tail=lines, follow=follow)
        reading = asyncio.ensure_future(log.run())
        try:
            if follow:
                await _until_ended(session, name, reading)
            else:
                await reading
        finally:
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
    return output.DONE


async def _until_ended(session: Session, name: str, reading: asyncio.Future[None]) -> None:
    """The end of a stream is not the end of a run: ask for the state, then read what was still written."""
    while not reading.done():
        run = session.work.runs.get(name)
        if run is None or run.state.ended:
            await asyncio.wait({reading}, timeout=2.0)
            if run is not None:
                output.note(f"raydeck: {sentence_of(run)}")
            return
        await asyncio.wait({reading}, timeout=0.5)
    await reading


def check(file: str, overlay: str, cluster: str, as_json: bool) -> int:
    """A file, with every mistake in it; a workflow against a cluster file too."""
    from console.dispatch import workflow_path
    from jobs.load import check as check_file
    from jobs.load import check_together, load_workflow

    path = workflow_path(file)
    text = _read(path, file)
    if cluster:
        found = check_together(text, str(path), _read(Path(cluster).expanduser(), cluster), cluster)
        if overlay:
            found = load_workflow(text, str(path), overlay)
    else:
        found = load_workflow(text, str(path), overlay) if overlay else check_file(text, str(path))
    kind = type(found).__name__.lower()
    if as_json:
        output.document({"file": str(path), "kind": kind, "resolved": found.model_dump(mode="json")})
    else:
        output.say(f"{file}: a {kind} file without mistakes{f', and {cluster} can run it' if cluster else ''}")
    return output.DONE


def _read(path: Path, named: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise Refused(f"{named} cannot be read: {error.strerror}") from error


def contexts(settings: Settings, as_json: bool) -> int:
    """What --context can name."""
    rows = [{"name": name, "kind": "settings", "file": str(path)} for name, path in settings.contexts.items()]
    rows += [{"name": name, "kind": "demo", "file": str(path)} for name, path in demo_contexts().items()]
    if as_json:
        output.document(rows)
    else:
        output.table(rows, ("name", "kind", "file"), "none; try `raydeck demo`, or --context cluster.yaml")
    return output.DONE
