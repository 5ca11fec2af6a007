"""The controller on the head, from the command line: start, stop, restart, status, and its database's backups."""

from __future__ import annotations

import time
from typing import Any

from console.cli import output
from console.cli.keys import confirm
from console.cli.opened import opened
from console.preview import Preview
from console.render.cells import age, bytes_text, safe
from console.settings import Context
from console.sources.head import (
    controller_backups,
    controller_status,
    restore_controller,
    start_controller,
    stop_controller,
)


async def controller(context: Context, what: str, sure: bool, as_json: bool) -> int:
    """Start, restart, stop the controller, or ask whether one runs."""
    head = context.head
    name = head.name if head else "the head"
    async with opened(context, probes=False, ray=False, controller=False) as session:
        if what == "status":
            answer: dict[str, Any] = await controller_status(session)
        elif what == "stop":
            await confirm(
                Preview(f"Stop the controller on {name}", ("Runs go on; nothing can be changed until it is back.",)),
                sure,
            )
            answer = await stop_controller(session)
        else:
            lines = (f"A process of its own under {context.metadata_store}; it listens on a Unix socket only.",)
            await confirm(Preview(f"{what.capitalize()} the controller on {name}", lines), sure)
            answer = await start_controller(session, restart=what == "restart")
    if as_json:
        output.document(answer)
    else:
        output.say(_sentence(answer))
    if what == "status":
        return output.DONE if answer["event"] == "running" else output.FAILED
    return output.DONE


def _sentence(answer: dict[str, Any]) -> str:
    event = answer["event"]
    if event == "stopped":
        return "no controller runs"
    text = f"the controller {'runs' if event == 'running' else 'has started'}: pid {answer['pid']}, {answer['socket']}"
    offered = answer.get("offered")
    if offered and answer.get("digest") and offered != answer["digest"]:
        text += f"\nit runs other code ({answer['digest'][:12]}) than this raydeck's ({offered[:12]})"
        text += "; to put this one in its place: raydeck controller restart"
    return text


async def backups(context: Context, as_json: bool) -> int:
    """The backups of the controller's journal on the head."""
    async with opened(context, probes=False, ray=False, controller=False) as session:
        found = await controller_backups(session)
    if as_json:
        output.document(found)
        return output.DONE
    rows = [
        {
            "made": _moment(backup["at"]),
            "age": age(max(0.0, time.time() - backup["at"])),
            "size": bytes_text(backup["size_bytes"]),
            "path": backup["path"],
        }
        for backup in found
    ]
    output.table(rows, ("made", "age", "size", "path"), "no backup was made yet: a controller makes one as it works")
    return output.DONE


async def restore(context: Context, source: str, sure: bool, as_json: bool) -> int:
    """Put a backup in the place of the controller's journal."""
    head = context.head
    name = head.name if head else "the head"
    preview = Preview(
        f"Restore the controller's journal on {name}",
        (
            f"From {source or 'the newest backup that is whole'}.",
            f"The journal that is in {context.metadata_store} now is renamed, not deleted.",
            "What happened after the backup is not in it: the next controller adopts the runs that Ray still has.",
        ),
        "name",
        name,
    )
    async with opened(context, probes=False, ray=False, controller=False) as session:
        await confirm(preview, sure)
        answer = await restore_controller(session, source)
    if as_json:
        output.document(answer)
        return output.DONE
    for sentence in answer["skipped"]:
        output.note(f"skipped: {safe(sentence)}")
    until = f", up to {_moment(answer['until'])}" if answer["until"] is not None else ""
    output.say(f"restored from {safe(answer['backup'])}{until}: {answer['runs_active']} active runs")
    for moved in answer["moved"]:
        output.say(f"the file before it is now {safe(moved)}")
    output.say("start it with: raydeck controller start")
    return output.DONE


def _moment(wall: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(wall))
