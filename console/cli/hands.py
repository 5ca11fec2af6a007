"""Commands that lay hands on a node over SSH: rejoin, processes. Same previews and deeds as the screens."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from console.cli import output
from console.cli.keys import confirm
from console.cli.opened import opened, with_controller, you
from console.cli.places import entry_of, placed
from console.hands import rejoin as joining
from console.hands import sweep as sweeping
from console.hands.runs import living_attempt
from console.hands.sweep import GpuProcess
from console.render.cells import age, bytes_text, safe
from console.render.prose import listed
from console.settings import Context, NodeEntry
from console.sources.session import Session
from jobs.errors import Refused, Unreachable
from jobs.model import Run
from probes.reading import Missing

SAMPLE_SECONDS = 10.0
CONTROLLER_SECONDS = 5.0


async def rejoin(context: Context, *, name: str, reason: str, dry_run: bool, sure: bool, as_json: bool) -> int:
    """Start Ray on a node again, wait until it is back, open it for new work."""
    entry = entry_of(context, name)
    steps: list[str] = []

    def tell(sentence: str) -> None:
        steps.append(sentence)
        output.note(safe(sentence))

    async with placed(context) as (session, client):
        node = session.fleet.nodes[entry.name]
        preview = joining.preview(entry, session.work.nodes.of(node), you(session))
        reason = await confirm(preview, sure or dry_run, reason)
        sentence = "nothing was done" if dry_run else await joining.rejoin(session, client, entry, reason, tell)
    if as_json:
        output.document({"node": entry.name, "dry_run": dry_run, "outcome": sentence, "steps": steps})
    else:
        output.say(safe(sentence))
    return output.DONE


@asynccontextmanager
async def _watched(context: Context, entry: NodeEntry) -> AsyncGenerator[tuple[Session, list[GpuProcess]]]:
    """A session that looks at this node alone, and the processes that hold its GPUs. Raises `Unreachable`."""
    head = context.head
    nodes = [entry] if head is None or head.name == entry.name else [head, entry]
    async with opened(replace(context, nodes=nodes)) as session:
        node = session.fleet.nodes[entry.name]
        ended = ("refused", "waiting", "lost")

        def told() -> bool:
            return (
                node.sample is not None or node.ssh.state in ended or bool(node.ssh.state == "up" and node.ssh.reason)
            )

        await session.until(told, SAMPLE_SECONDS)
        if node.sample is None:
            raise Unreachable(f"what runs on {entry.name} is not known: {node.missing_because}")
        for index, reasons in node.sample.missing.items():
            why: Missing | None = reasons.get("processes") or reasons.get("*")
            if why is not None:
                output.note(safe(f"! GPU {index}: who holds it is not known: {why.reason}"))
        await session.until(lambda: session.work.controller.state not in ("unknown", "connecting"), CONTROLLER_SECONDS)
        yield session, sweeping.held_by(node)


async def _runs(session: Session, processes: Sequence[GpuProcess]) -> dict[str, Run]:
    """The runs of these processes, as far as the controller answers and knows them."""
    found = dict(session.work.runs)
    if session.work.controller.state != "ok":
        return found
    client = await session.controller()
    for name in {process.run for process in processes if process.run} - found.keys():
        try:
            found[name] = await client.run(name)
        except Refused:
            continue  # not this cluster's, or forgotten: what it says of it is that nothing is known
    return found


async def processes(
    context: Context, *, name: str, pids: tuple[int, ...], every: bool, kill: bool, even_living: bool, reason: str,
    dry_run: bool, sure: bool, as_json: bool,
) -> int:  # fmt: skip
    """List the processes that hold a node's GPUs, or end some of them."""
    entry = entry_of(context, name)
    async with _watched(context, entry) as (session, there):
        runs = await _runs(session, there)
        if not pids and not every:
            _list(there, runs, entry, as_json)
            left = sweeping.left_over(there, runs)
            if left and not as_json:
                output.note(
                    f"End what is left over or of no run ({len(left)}) with: raydeck processes {entry.name} --all"
                )
            return output.DONE
        chosen = sweeping.left_over(there, runs) if every else _named(there, runs, entry, pids, even_living)
        if not chosen:
            if as_json:
                output.document([])
            else:
                output.say(f"{entry.name}: no process is left over")
            return output.DONE
        await with_controller(session)
        preview = sweeping.preview(entry, chosen, runs, kill=kill)
        reason = await confirm(preview, sure or dry_run, reason)
        if dry_run:
            _list(chosen, runs, entry, as_json)
            return output.DONE
        client = await session.controller()
        ended = await sweeping.end(
            session, client, entry, chosen, reason, kill=kill, even_living=even_living, tell=output.note
        )
    if as_json:
        output.document([{"pid": each.pid, "result": each.result, "detail": each.detail} for each in ended])
    else:
        for each in ended:
            output.say(safe(each.sentence))
    return output.DONE if all(each.well for each in ended) else output.FAILED


def _named(
    processes: Sequence[GpuProcess], runs: dict[str, Run], entry: NodeEntry, pids: Sequence[int], even_living: bool
) -> list[GpuProcess]:
    """The processes of these pids. Raises `Refused` for one that is not there, or that belongs to a run that lives."""
    by_pid = {process.pid: process for process in processes}
    unknown = [str(pid) for pid in pids if pid not in by_pid]
    if unknown:
        raise Refused(f"no GPU of {entry.name} is held by {listed(unknown)}", f"See: raydeck processes {entry.name}")
    chosen = [by_pid[pid] for pid in dict.fromkeys(pids)]
    for process in chosen:
        if not even_living and sweeping.lives(process, runs) is not False:
            raise Refused(
                f"process {process.pid} is {sweeping.belongs(process, runs)}",
                f"Stop the run: raydeck stop {process.run}; or say --even-living",
            )
    return chosen


def _list(processes: Sequence[GpuProcess], runs: dict[str, Run], entry: NodeEntry, as_json: bool) -> None:
    if as_json:
        output.document([process_document(process, runs) for process in processes])
        return
    rows: list[dict[str, Any]] = [
        {
            "pid": process.pid,
            "user": process.user,
            "age": None if process.age_seconds is None else age(process.age_seconds),
            "gpus": ",".join(str(index) for index in process.gpus),
            "memory": None if process.memory_used_bytes is None else bytes_text(process.memory_used_bytes),
            "belongs": sweeping.belongs(process, runs),
            "command": process.command,
        }
        for process in processes
    ]
    columns = ("pid", "user", "age", "gpus", "memory", "belongs", "command")
    output.table(rows, columns, f"no process holds a GPU of {entry.name}")


def process_document(process: GpuProcess, runs: dict[str, Run]) -> dict[str, Any]:
    """One process: ``pid, user, command, age_seconds, gpus, memory_used_bytes, run, attempt, run_lives`` …"""
    run = runs.get(process.run)
    return {
        "pid": process.pid,
        "started_ticks": process.started or None,
        "user": process.user,
        "command": process.command,
        "age_seconds": process.age_seconds,
        "gpus": list(process.gpus),
        "memory_used_bytes": process.memory_used_bytes,
        "run": process.run or None,
        "attempt": process.attempt,
        "run_lives": sweeping.lives(process, runs) if process.run else None,
        "run_attempt": living_attempt(run) if run is not None else None,
    }
