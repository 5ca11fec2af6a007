"""Starts, asks and stops the controller on the head, and puts backups of its journal back, over SSH."""

from __future__ import annotations

import json
from typing import Any

from console.sources.session import Session
from jobs.errors import Refused, Unreachable
from jobs.package import controller_archive
from jobs.starter import Options, start_argv_and_input

LIMIT_SECONDS = 60.0


async def _carry_out(
    session: Session, command: str, archive: tuple[str, bytes] | None, backup: str = ""
) -> dict[str, Any]:
    context = session.context
    cluster_text = context.cluster_file.read_text("utf-8") if context.cluster_file else ""
    options = Options(
        store=await session.store_path(),
        dashboard=context.dashboard,
        python=context.python or "",
        cluster_text=cluster_text,
        backup=backup,
    )
    argv, body = start_argv_and_input(command, options, archive)
    done = await session.head.run_command(argv, input=body, timeout=LIMIT_SECONDS)
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        answer = json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        said = (done.stderr or " ".join(lines)).strip().splitlines()
        raise Unreachable(
            f"{session.head.host.name} did not {command} the controller (exit {done.exit_status})",
            said[-1] if said else "It printed nothing; is there a python3?",
        ) from error
    if answer["event"] == "failed":
        raise Refused(answer.get("reason") or f"the controller did not {command}", answer.get("hint", ""))
    return answer


async def start_controller(session: Session, *, restart: bool) -> dict[str, Any]:
    """Start the controller, or find it running. ``restart`` puts this version in the place of another one."""
    return await _carry_out(session, "restart" if restart else "start", controller_archive())


async def controller_status(session: Session) -> dict[str, Any]:
    """Whether a controller runs, and which."""
    return await _carry_out(session, "status", None)


async def stop_controller(session: Session) -> dict[str, Any]:
    """Stop the controller. Runs go on."""
    return await _carry_out(session, "stop", None)


async def controller_backups(session: Session) -> list[dict[str, Any]]:
    """The backups of the journal on the head, the newest first: ``path``, ``at`` and ``size_bytes`` of each."""
    return (await _carry_out(session, "backups", controller_archive()))["details"]["backups"]


async def restore_controller(session: Session, backup: str) -> dict[str, Any]:
    """Put a backup (a file on the head; empty: the newest whole one) in the place of the journal, which nobody uses.

    Gives ``backup``, ``until``, ``runs_active``, ``moved`` and ``skipped``, as `jobs.starter.restore` says.
    """
    return (await _carry_out(session, "restore", controller_archive(), backup))["details"]
