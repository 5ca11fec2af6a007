"""A validation as a run: what is launched for it, and where its report lies. Light: the console asks with it."""

from __future__ import annotations

import json
import posixpath

import yaml

from jobs.errors import Refused
from jobs.validationview import Ask, Report

WORKFLOW = "validation"
"""The workflow of every validation: it is known by this name among the runs."""
REPORT = "report/report.json"
"""Below the run's directory."""
_DRIVER = ["python", "-m", "jobs.validation.driver"]


def workflow_text(ask: Ask) -> str:
    """The workflow file of a validation. It holds nothing itself: its stages take the GPUs that they need."""
    workflow = {
        "name": WORKFLOW,
        "kind": "ray",
        "entrypoint": _DRIVER,
        "resources": {"nodes": 1, "accelerators_per_node": 0, "cpu_cores_per_node": 0},
        "training": {"parameters": json.loads(ask.model_dump_json(exclude_defaults=True)), "max_retry": 0},
    }
    return yaml.safe_dump({"workflow": workflow}, sort_keys=False)


def report_path(run_directory: str) -> str:
    """Where the report of a validation lies."""
    return posixpath.join(run_directory, REPORT)


def read_report(text: str, source: str) -> Report:
    """A report from its file. Raises `Refused` for what is none."""
    try:
        return Report.model_validate_json(text)
    except ValueError as error:
        raise Refused(f"{source} is not a validation's report", str(error).splitlines()[0]) from error
