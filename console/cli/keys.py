"""Questions on a terminal: an unknown host key, a change that wants a yes."""

from __future__ import annotations

import asyncio
import sys

from console.cli import output
from console.preview import Preview
from console.render.cells import safe
from console.sources.hostkeys import AskHostKey, HostKeyQuestion
from jobs.errors import Refused


def _terminal() -> bool:
    return sys.stdin.isatty() and sys.stderr.isatty()


def _ask(prompt: str) -> str:
    sys.stderr.write(prompt)
    sys.stderr.flush()
    return sys.stdin.readline().strip()


def ask_on_terminal() -> AskHostKey | None:
    """Asks about an unknown host key; none where there is no terminal, and the key is then refused."""
    if not _terminal():
        return None

    async def ask(question: HostKeyQuestion) -> bool:
        output.note(safe(question.sentence))
        return (await asyncio.to_thread(_ask, "Store it and go on? Type yes: ")) == "yes"

    return ask


async def confirm(preview: Preview, sure: bool, reason: str = "") -> str:
    """Show what a change does; go on if that is wanted. Gives the reason, which is asked for where none was named.

    Raises `Refused` where the person does not want it.
    """
    output.note(safe(preview.title))
    for line in (*preview.lines, *(f"! {line}" for line in preview.warnings)):
        output.note(f"  {safe(line)}")
    if sure:
        return reason
    if preview.wants_reason and not reason:
        reason = await asyncio.to_thread(_ask, "Reason, for the audit log: ")
    wanted = "y" if preview.ask == "y" else preview.expected
    answer = await asyncio.to_thread(_ask, f"Type {wanted} to go on: ")
    if answer != wanted:
        raise Refused("nothing was changed")
    return reason
