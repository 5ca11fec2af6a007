"""Where cases for the rows of the troubleshooting tables are written down: what is broken, the cause, the culprit."""

from __future__ import annotations

from collections.abc import Callable

from jobs.triage.evidence import Evidence, RunEvidence
from jobs.triage.patterns import ROWS
from probes.reading import Health

Case = Callable[[], Evidence]
CASES: dict[str, tuple[str, Case, str, str]] = {}
"""Name to: the row, what makes it, the finding's id, the culprit in words."""


def case(row: str, cause: str, who: str) -> Callable[[Case], Case]:
    """The function below makes evidence that has to end in this finding. ``who`` as ``path:/x`` means its path."""
    assert row in ROWS

    def add(make: Case) -> Case:
        assert make.__name__ not in CASES
        CASES[make.__name__] = (row, make, cause, who)
        return make

    return add


def health_of(made: Evidence, name: str) -> Health:
    """A node's health, to be changed."""
    found = made.nodes[name].health
    assert found is not None
    return found


def of_run(made: Evidence) -> RunEvidence:
    """The run's evidence, to be changed."""
    assert made.run is not None
    return made.run
