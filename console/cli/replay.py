"""`raydeck replay`: the fleet as it was, from the head's recording or from a file; and a recording kept as a file."""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from console.cli.shape import Call, carry_out, json_option
from jobs.errors import Refused, Usage

if TYPE_CHECKING:
    from console.settings import Context
    from console.state.replay import Timeline

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?")
_SPAN = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s?)?")
AROUND_SECONDS = 5.0
DAY_SECONDS = 86_400.0


@click.command()
@json_option
@click.argument("file", required=False, type=click.Path(path_type=Path))
@click.option("--at", metavar="HH:MM[:SS]", default="", help="The moment, by this machine's time zone.")
@click.option("--ago", metavar="SPAN", default="", help="So long ago: 90, 12m, 1h5m (of a file: before its end).")
@click.option("--save", type=click.Path(path_type=Path), help="Keep the head's whole recording as this .rdrec file.")
@click.pass_obj
def replay(call: Call, file: Path | None, at: str, ago: str, save: Path | None, as_json: bool) -> int:
    """The fleet as it was: `--at 03:12`, `--ago 12m`; or open a recording FILE in the console, without a cluster.

    FILE is a .rdrec file, or a bundle of triage with one in it. What `--save` keeps is as it was recorded: nothing is
    redacted.
    """
    if at and ago:
        raise Usage("--at and --ago are two ways to say one thing", "Say one of them")
    if save is not None:
        if file is not None or at or ago:
            raise Usage("--save keeps the whole recording", "Say it alone")
        return carry_out(_save(call.context(), save))
    moment = Moment(at, ago)
    if file is None:
        if not (at or ago):
            raise Usage("say when", "--at 03:12, or --ago 12m; in the console , goes back in time")
        return carry_out(_of_head(call.context(), moment, as_json))
    if at or ago or as_json:
        return _of_file(file, moment, as_json)
    return _open(call, file)


@dataclass(frozen=True, slots=True)
class Moment:
    """When, as a person says it; nothing said is the end. Raises `Usage` for what is neither a time nor a span."""

    at: str
    ago: str

    def __post_init__(self) -> None:
        if self.at and clock_of(self.at) is None:
            raise Usage(f"{self.at!r} is no time of day", "03:12 or 03:12:10")
        if self.ago and seconds_of(self.ago) is None:
            raise Usage(f"{self.ago!r} is no span of time", "90, 45s, 12m, 1h5m")

    def wall(self, now: float) -> float:
        """Seconds since 1970. A time of day is the newest one that is not after ``now``."""
        if self.ago:
            return now - (seconds_of(self.ago) or 0.0)
        clock = clock_of(self.at) if self.at else None
        if clock is None:
            return now
        day = time.localtime(now)
        found = time.mktime((day.tm_year, day.tm_mon, day.tm_mday, *clock, 0, 0, -1))
        if found > now:
            day = time.localtime(now - DAY_SECONDS)
            found = time.mktime((day.tm_year, day.tm_mon, day.tm_mday, *clock, 0, 0, -1))
        return found


def clock_of(text: str) -> tuple[int, int, int] | None:
    """``03:12:10`` as hours, minutes and seconds; None for what is no time of day."""
    found = _CLOCK.fullmatch(text.strip())
    if found is None:
        return None
    hours, minutes, seconds = int(found[1]), int(found[2]), int(found[3] or 0)
    return (hours, minutes, seconds) if hours < 24 and minutes < 60 and seconds < 60 else None


def seconds_of(text: str) -> float | None:
    """``1h5m`` in seconds; None for what is no span of time."""
    found = _SPAN.fullmatch(text.strip())
    if found is None or not any(found.groups()):
        return None
    hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return 3600.0 * hours + 60.0 * minutes + seconds


# --- carried out ------------------------------------------------------------------------------------------------------


async def _of_head(context: Context, moment: Moment, as_json: bool) -> int:
    from console.cli.opened import controlled
    from console.sources.replay import HeadRecording
    from console.state.replay import Timeline
    from jobs.recordcalls import RecordCalls

    async with controlled(context) as (session, client):
        source = HeadRecording(RecordCalls.beside(client))
        await source.refresh()
        now = source.index.now or session.head_wall()
        at, (start, end) = moment.wall(now), source.span
        _within(at, start, end)
        timeline = Timeline(session.fleet.nodes.values())
        timeline.take(await source.fetch(at - AROUND_SECONDS, at))
        timeline.seek(at)
        return _print(timeline, as_json, now)


def _of_file(file: Path, moment: Moment, as_json: bool) -> int:
    from console.sources.replay import read_recording
    from console.state.replay import Timeline

    timeline = Timeline()
    timeline.take(read_recording(file))
    start, end = timeline.span
    at = moment.wall(end)
    _within(at, start, end)
    timeline.seek(at)
    return _print(timeline, as_json, None)


def _within(at: float, start: float, end: float) -> None:
    """Refuse a moment of which nothing is recorded; what is not written yet is a few seconds at most."""
    from console.render.prose import moment as words

    if at < start or at > end + 60:
        raise Refused(
            f"nothing is recorded of {words(at, end)}", f"The recording goes from {words(start, end)} to "
            f"{words(end, end)}"
        )  # fmt: skip


def _print(timeline: Timeline, as_json: bool, now: float | None) -> int:
    from console.cli import output
    from console.render.cells import age, safe
    from console.render.documents import gpu_document, node_document, run_document
    from console.render.prose import moment as words
    from console.state.alerts import attention

    fleet, work, at = timeline.fleet, timeline.work, timeline.at
    nodes = [node_document(node, work, at) for node in fleet.nodes.values()]
    lines = attention(fleet, work, at, at)
    runs = [run_document(run) for run in work.runs.values() if not run.state.ended]
    marks = [mark for mark in timeline.marks if at - 600 <= mark.at <= at]
    if as_json:
        gpus = [gpu_document(node, index, work, at) for node in fleet.nodes.values() for index in node.gpu_indexes]
        output.document(
            {
                "at": at,
                "from": timeline.span[0],
                "until": timeline.span[1],
                "nodes": nodes,
                "gpus": gpus,
                "runs": runs,
                "alerts": [alert.model_dump() for alert in work.alerts.view.alerts] if work.alerts.view else [],
                "attention": [{"level": line.level, "text": line.text} for line in lines],
                "marks": [mark.model_dump() for mark in marks],
            }
        )
        return output.DONE
    ago = f", {age(now - at)} ago" if now is not None else ""
    output.say(f"as it was at {words(at, at if now is None else now)}{ago}")
    for line in lines:
        output.say(safe(f"{line.level}: {line.text}"))
    columns = ("name", "role", "ray", "driver", "state", "gpu_count", "gpus_busy", "runs", "sample_age_seconds")
    output.table(nodes, columns, "no node is recorded")
    for run in runs:
        reason = f": {run['reason']}" if run["reason"] else ""
        output.say(safe(f"{run['id']}: {run['state']}{reason}" + (f", step {run['step']}" if run["step"] else "")))
    for mark in marks:
        output.say(safe(f"{words(mark.at, at)}  {mark.text}"))
    return output.DONE


async def _save(context: Context, path: Path) -> int:
    import os

    from console.cli import output
    from console.cli.opened import controlled
    from console.sources.replay import HeadRecording
    from jobs.recordcalls import RecordCalls

    async with controlled(context) as (_, client):
        calls = RecordCalls.beside(client)
        source = HeadRecording(calls)
        await source.refresh()
        start, end = source.span
        pieces = [piece async for piece in calls.recording(start, end)]
        size = sum(map(len, pieces))
        try:
            with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.writelines(pieces)
        except FileExistsError:
            raise Refused(f"{path} exists already") from None
        except OSError as error:
            raise Refused(f"{path} cannot be written: {error.strerror}") from error
    output.say(f"{path}: {(end - start) / 60:.0f} minutes, {size / 1e6:.1f} MB")
    return output.DONE


def _open(call: Call, file: Path) -> int:
    from console.cli.main import open_console
    from console.sources.replay import recorded_context

    return open_console(call.settings, partial(recorded_context, file))  # read behind the first frame
