"""The Ray job of an attempt: its entrypoint, its environment and its marks. Pure."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass

from jobs.controller.judge import SAVE_MARGIN_SECONDS
from jobs.controller.record import Record


@dataclass(frozen=True, slots=True)
class Submission:
    """What Ray is given."""

    job_id: str
    package: str
    """The digest of the archive that becomes the working directory."""
    entrypoint: str
    """A line for Ray's shell."""
    environment: dict[str, str]
    """Ray shows it to everybody: no secret stands in it."""
    metadata: dict[str, str]


def marks(run: str, attempt: int) -> dict[str, str]:
    """What tells our job from any other with its id."""
    return {"raydeck_run": run, "raydeck_attempt": str(attempt)}


def submission(record: Record) -> Submission:
    """The job of the record's newest attempt."""
    run, attempt = record.run, record.run.attempt
    assert attempt is not None
    wait = math.ceil(record.launch.stop_grace_seconds + SAVE_MARGIN_SECONDS)
    environment = {
        "RAYDECK_LAUNCH": record.launch.model_dump_json(),
        # `python` on a job's PATH may have no ray; the controller runs with the one that has.
        "RAYDECK_PYTHON": sys.executable,
        # Ray reads it as a whole number; its own 3 s are too short to save a checkpoint.
        "RAY_JOB_STOP_WAIT_TIME_S": str(wait),
    }
    # The script's own environment is in the launch, with its secrets still unresolved.
    module = "jobs.gang.driver" if record.launch.kind == "train" else "jobs.gang.entry"
    entrypoint = f'exec "${{RAYDECK_PYTHON:-python3}}" -m {module}'
    metadata = {**marks(run.id, attempt.number), "raydeck_user": run.user, "raydeck_workflow": run.workflow}
    return Submission(attempt.job_id, record.package, entrypoint, environment, metadata)
