"""Commands that look: nodes, gpus, runs, logs, audit, releases, check, contexts."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from console.cli import output
from console.cli.keys import ask_on_terminal
from console.render.cells import safe
from console.render.documents import gpu_document, job_document, node_document, run_document
from console.render.redact import redact
from console.settings import Context, Settings, demo_contexts
from console.sources.runlog import RunLog
from console.sources.session import Session
from jobs.errors import Refused, Unreachable

SETTLE_SECONDS = 8.0
"""How long an answer may wait for nodes that do not answer; they are then shown as they are."""
CONTROLLER_SECONDS = 10.0
WATCH_SECONDS = 1.0


@asynccontextmanager
async def opened(context: Context, **what: bool) -> AsyncGenerator[Session]:
    """A session that reads what is asked for, and is closed however the command ends."""
    session = Session(context, ask=ask_on_terminal())
    try:
        session.start(**what)
        yield session
    finally:
        await session.close()


def _settled(session: Session) -> bool:
    """Everything has answered, or said why it does not."""
    ray = session.fleet.ray.state != "unknown"
    controller = session.work.controller.state not in ("unknown", "connecting")
    return (
        ray
        and controller
        and all(
            (node.sample is not None and node.facts is not None)
            or node.ssh.state in ("refused", "waiting", "lost", "none")
            or (node.ssh.state == "up" and node.ssh.reason)
            for node in session.fleet.nodes.values()
        )
    )


async def _fleet(context: Context, rows: Callable[[Session], list[dict[str, Any]]], columns: Sequence[str], empty: str,
                 as_json: bool, watch: bool) -> int:  # fmt: skip
    async with opened(context) as session:
        await session.until(lambda: _settled(session), SETTLE_SECONDS)
        while True:
            found = rows(session)
            if as_json and watch:
                for row in found:
                    output.line(row)
            elif as_json:
                output.document(found)
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


async def nodes(context: Context, as_json: bool, watch: bool) -> int:
    """Every node."""

    def rows(session: Session) -> list[dict[str, Any]]:
        now = session.now()
        return [node_document(node, session.work, now) for node in session.fleet.nodes.values()]

    columns = (
        "name",
        "role",
        "ssh",
        "ray",
        "driver",
        "gpu_count",
        "gpus_busy",
        "runs",
        "sample_age_seconds",
        "ssh_reason",
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


async def with_controller(session: Session) -> None:
    """Wait for the controller's first word. Raises `Unreachable` with the reason."""
    work = session.work
    await session.until(lambda: work.controller.state not in ("unknown", "connecting"), CONTROLLER_SECONDS)
    if work.controller.state != "ok":
        head = session.head
        reason = work.controller.reason or f"the head {head.host.name} does not answer: {head.status.reason}"
        hint = "Start it with: raydeck controller start" if work.controller.state == "absent" else ""
        raise Unreachable(f"no controller: {reason}", hint)


async def runs(context: Context, as_json: bool, watch: bool) -> int:
    """Every run, and Ray's own jobs."""
    columns = ("id", "state", "workflow", "gpus", "step", "loss", "throughput", "checkpoint_step", "user", "reason")
    async with opened(context, probes=False) as session:
        await with_controller(session)
        await session.until(lambda: session.fleet.ray.state != "unknown", SETTLE_SECONDS)
        while True:
            jobs = [session.work.job(key) for key in session.work.keys]
            rows = [job_document(job) for job in jobs]
            if as_json and watch:
                for row in rows:
                    output.line(row)
            elif as_json:
                output.document(rows)
            else:
                output.table(rows, columns, "no run yet; `raydeck launch lm` launches a sample")
            if not watch:
                return output.DONE
            await asyncio.sleep(WATCH_SECONDS)


async def show(context: Context, run: str, as_json: bool) -> int:
    """One run."""
    async with opened(context, probes=False, ray=False) as session:
        await with_controller(session)
        document = run_document(await (await session.controller()).run(run))
    if as_json:
        output.document(document)
        return output.DONE
    ranks = document.pop("ranks")
    for name, value in document.items():
        output.say(f"{name:<16} {'-' if value is None else safe(str(value))}")
    output.table(ranks, ("rank", "node_address", "gpu", "pid", "exit_code"), "no rank has started")
    return output.DONE


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
            raise Refused(f"there is no run {name!r}", f"Known are: {', '.join(list(session.work.runs)[:8]) or 'none'}")
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
                output.note(f"raydeck: {name} {run.state.value}{f': {safe(run.reason)}' if run.reason else ''}")
            return
        await asyncio.wait({reading}, timeout=0.5)
    await reading


async def audit(context: Context, limit: int, verify: bool, as_json: bool) -> int:
    """What was asked for; or whether anybody has changed what stands there."""
    async with opened(context, probes=False, ray=False) as session:
        await with_controller(session)
        client = await session.controller()
        if verify:
            broken = await client.audit_broken()
            if as_json:
                output.document({"whole": not broken, "broken": broken or None})
            else:
                output.say(broken or "the audit log is whole: every entry carries the hash of the one before")
            return output.FAILED if broken else output.DONE
        entries = [entry.model_dump() for entry in await client.audit(limit)]
    if as_json:
        output.document(entries)
    else:
        for entry in entries:
            entry["at"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at"]))
        output.table(
            entries, ("seq", "at", "user", "action", "target", "allowed", "reason"), "nothing was asked for yet"
        )
    return output.DONE


async def releases(context: Context, workflow: str, as_json: bool) -> int:
    """What was launched."""
    async with opened(context, probes=False, ray=False) as session:
        await with_controller(session)
        found = [release.model_dump() for release in await (await session.controller()).releases(workflow)]
    if as_json:
        output.document(found)
    else:
        for release in found:
            release["created_at"] = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(release["created_at"]))
        output.table(found, ("id", "workflow", "created_at", "user", "code_digest"), "no release yet")
    return output.DONE


def check(file: str, overlay: str, as_json: bool) -> int:
    """A file, with every mistake in it."""
    from console.dispatch import workflow_path
    from jobs.load import check as check_file
    from jobs.load import load_workflow

    path: Path = workflow_path(file)
    try:
        text = path.read_bytes()
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from error
    found = load_workflow(text, str(path), overlay) if overlay else check_file(text, str(path))
    if as_json:
        output.document(
            {"file": str(path), "kind": type(found).__name__.lower(), "resolved": found.model_dump(mode="json")}
        )
    else:
        output.say(f"{file}: a {type(found).__name__.lower()} file without mistakes")
    return output.DONE


def contexts(settings: Settings, as_json: bool) -> int:
    """What --context can name."""
    rows = [{"name": name, "kind": "settings", "file": str(path)} for name, path in settings.contexts.items()]
    rows += [{"name": name, "kind": "demo", "file": str(path)} for name, path in demo_contexts().items()]
    if as_json:
        output.document(rows)
    else:
        output.table(rows, ("name", "kind", "file"), "none; try `raydeck demo`, or --context cluster.yaml")
    return output.DONE
