"""Which runs hold something on which node. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from jobs.controller.nodes.identity import Known
from jobs.controller.record import Record
from jobs.model import Run


def on_nodes(nodes: Iterable[Known], records: Iterable[Record]) -> dict[str, tuple[Run, ...]]:
    """By node name: the runs that hold something there, whatever Ray calls the node now."""
    holding = [record for record in records if not record.run.state.waiting and not record.run.state.ended]
    places = {record.id: _places(record) for record in holding}
    runs = [record.run for record in holding]
    return {known.name: _runs_on(known.name, known.node_id, runs, places) for known in nodes}


def _places(record: Record) -> list[str]:
    """Ray's ids of the nodes that a run's newest attempt is on."""
    attempt = record.run.attempt
    ranks = attempt.status.ranks if attempt is not None and attempt.status is not None else []
    return [*record.launch.node_ids, *(rank.node_id for rank in ranks)]


def _runs_on(name: str, node_id: str, runs: Iterable[Run], places: Mapping[str, list[str]]) -> tuple[Run, ...]:
    """The runs that hold something on a node. ``places``: where each of them is, by Ray's ids."""
    return tuple(
        run
        for run in runs
        if (node_id and node_id in places.get(run.id, ()))
        or (run.attempt is not None and run.attempt.ended_at is None and name in run.attempt.nodes)
    )
