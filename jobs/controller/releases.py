"""How each release fared: outcome, figures and checkpoint of its runs, and which one a rollback goes to by itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence

from jobs import catalogue
from jobs.controller.files import RunFiles
from jobs.controller.journal import Journal, JournalThread, Standing
from jobs.controller.record import Record
from jobs.controller.runs import Runs
from jobs.controller.schema import newest_checkpoint
from jobs.errors import RaydeckError
from jobs.model import Progress, Run
from jobs.wire import Release, ReleaseRow

LOOKED_AT = 20
"""Of so many of the newest releases the checkpoints are looked at on the storage; of the others the journal tells."""
LOOK_SECONDS = 1.0
KEPT_SECONDS = 30.0
"""How long what was seen on the storage is good enough for a list."""


class Releases:
    """The releases of one cluster."""

    def __init__(self, runs: Runs, journal: JournalThread, files: RunFiles) -> None:
        self._runs = runs
        self._journal = journal
        self._files = files
        self._seen: dict[str, tuple[float, int | None]] = {}
        """By run: when its checkpoints were looked at, and the newest complete one's step."""

    async def rows(self, workflow: str, limit: int) -> list[ReleaseRow]:
        """The newest releases, of one workflow or of all, newest first."""
        releases = await self._journal(Journal.releases, workflow, limit)
        standings = {each.release: each for each in await self._journal(Journal.standings, workflow)}
        wanted = {standings[each.id].newest for each in releases if each.id in standings}
        newest: dict[str, Record] = {}
        going: dict[str, list[str]] = {}
        running: dict[str, Run] = {}
        for record in self._runs.active():  # ten thousand may wait: they are gone through once
            run = record.run
            if workflow and run.workflow != workflow:
                continue
            going.setdefault(run.release, []).append(run.id)
            before = running.get(run.workflow)
            if before is None or run.submitted_at >= before.submitted_at:
                running[run.workflow] = run
            if run.id in wanted:
                newest[run.id] = record
        newest.update(await self._journal(Journal.some, sorted(wanted - newest.keys())))
        good = last_good(standings.values(), {name: run.release for name, run in running.items()})
        rows: list[ReleaseRow] = []
        for release in releases:
            standing = standings.get(release.id)
            last = newest.get(standing.newest) if standing is not None else None
            is_good = good.get(release.workflow) == release.id
            rows.append(_row(release, standing, last, going.get(release.id, []), is_good))
        return await self._with_storage(rows)

    async def _with_storage(self, rows: list[ReleaseRow]) -> list[ReleaseRow]:
        """The rows with what the storage says of their checkpoints, where it says it in time."""
        # What runs tells each second what it has.
        ended = [row for row in rows if row.checkpoint_run and row.checkpoint_run not in row.active]
        runs = {row.checkpoint_run for row in ended[:LOOKED_AT]}
        now = time.monotonic()
        self._seen = {run: seen for run, seen in self._seen.items() if now - seen[0] < KEPT_SECONDS}
        missing = [asyncio.ensure_future(self._look(run)) for run in runs if run not in self._seen]
        if missing:
            _, late = await asyncio.wait(missing, timeout=LOOK_SECONDS)
            for task in late:
                task.cancel()
        told: list[ReleaseRow] = []
        for row in rows:
            if row.checkpoint_run in runs and row.checkpoint_run in self._seen:
                step = self._seen[row.checkpoint_run][1]
                run = "" if step is None else row.checkpoint_run
                row = row.model_copy(update={"checkpoint_step": step, "checkpoint_run": run})
            told.append(row)
        return told

    async def _look(self, run: str) -> None:
        try:
            directory = (await self._runs.find(run)).run.run_directory
            found = await self._files.apart(f"{directory}#newest", lambda: catalogue.newest(directory), LOOK_SECONDS)
        except RaydeckError:
            return  # what the journal told stands
        self._seen[run] = (time.monotonic(), found.step if found is not None else None)


def last_good(standings: Iterable[Standing], running: Mapping[str, str]) -> Mapping[str, str]:
    """By workflow: the release that a rollback goes to by itself; where there is none before, the newest good one.

    ``running`` has the release of each workflow's newest run that has not ended.
    """
    by_workflow: dict[str, list[Standing]] = {}
    for standing in standings:
        by_workflow.setdefault(standing.workflow, []).append(standing)
    found: dict[str, str] = {}
    for workflow, each in by_workflow.items():
        chosen = good_before(each, running.get(workflow, ""))
        good = [standing for standing in each if standing.succeeded]
        if chosen or good:
            found[workflow] = chosen or max(good, key=lambda standing: standing.place).release
    return found


def good_before(standings: Sequence[Standing], running: str = "") -> str:
    """The newest release of a workflow before the one that runs of which a run succeeded; empty if there is none.

    ``running`` is the release of its newest run that has not ended; without one the release that ran last counts.
    """
    name = running or (max(standings, key=lambda each: each.newest_at).release if standings else "")
    now = next((each for each in standings if each.release == name), None)
    if now is None:
        return ""
    # One that was made earlier stays an earlier one, also where somebody launched it once more since.
    earlier = [each for each in standings if each.place < now.place or each.created_at < now.created_at]
    good = [each for each in earlier if each.succeeded and each.release != name]
    return max(good, key=lambda each: each.place).release if good else ""


def _row(
    release: Release, standing: Standing | None, newest: Record | None, active: list[str], is_good: bool
) -> ReleaseRow:
    row = ReleaseRow(**dict(release), active=active, last_good=is_good)
    if standing is None or newest is None:
        return row
    run = newest.run
    progress, saved = _progress(run), newest_checkpoint(run)
    ran_on = next((each.status.environment for each in reversed(run.attempts) if each.status is not None), {})
    outcome = run.attempt.outcome if run.attempt is not None else None
    step = progress.step if progress is not None else (outcome.last_step if outcome is not None else None)
    return row.model_copy(
        update={
            "runs": standing.runs,
            "last_run": run.id,
            "outcome": run.state.value,
            "reason": run.reason,
            "last_step": step,
            "loss": progress.loss if progress is not None else None,
            "throughput": progress.throughput if progress is not None else None,
            "throughput_unit": progress.throughput_unit if progress is not None else "",
            # What runs now tells of its checkpoints each second, and that is not written down.
            "checkpoint_step": standing.checkpoint if saved is None else saved,
            "checkpoint_run": (standing.saved or "") if saved is None else run.id,
            # What its ranks ran on goes before what the head has.
            "environment": {**release.environment, **ran_on},
        }
    )


def _progress(run: Run) -> Progress | None:
    """The last that an attempt reported."""
    for attempt in reversed(run.attempts):
        if attempt.status is not None and attempt.status.progress is not None:
            return attempt.status.progress
    return None
