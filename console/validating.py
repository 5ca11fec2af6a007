"""A validation from the console's side: what it will do and to whom, its launch, its report. Knows no screen."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from console.dispatch import new_request_id
from console.preview import Preview
from console.render.prose import listed, some
from console.sources.session import Session
from console.triage.targets import cluster_of
from jobs.client import ControllerClient
from jobs.errors import Refused
from jobs.model import Run
from jobs.spec import Cluster
from jobs.validationpage import page
from jobs.validationreport import markdown
from jobs.validations import WORKFLOW, workflow_text
from jobs.validationview import PROFILES, STAGE_TITLES, STAGES, Ask, PathAsked, Profile, Purpose, Report, StageName
from jobs.wire import LaunchRequest

TAKES: dict[Profile, str] = {
    "prolog": "half a minute", "quick": "3 minutes", "standard": "15 minutes", "full": "an hour",
}  # fmt: skip
"""At the most, on GPUs; with CPUs in their place less."""


def ask_for(
    session: Session,
    profile: str,
    stages: Sequence[str] = (),
    nodes: Sequence[str] = (),
    *,
    keep_going: bool = False,
    wait_seconds: float = 20.0,
) -> Ask:
    """What is to be validated, with what this context knows of the nodes. Raises `Refused` for nodes it has not."""
    fleet = session.fleet.nodes
    if unknown := [name for name in nodes if name not in fleet]:
        raise Refused(f"there is no node {', '.join(unknown)} in context {session.context.name}")
    chosen = [fleet[name] for name in nodes] or list(fleet.values())
    cluster = cluster_of(session)
    return Ask(
        profile=next(each for each in PROFILES if each == profile),
        nodes=list(nodes),
        stages=[each for each in STAGES if each in stages],
        keep_going=keep_going,
        wait_seconds=wait_seconds,
        expected_gpus={node.name: node.expected_gpus for node in chosen if node.expected_gpus is not None},
        paths=_paths(cluster),
        floors=cluster.observability.validation.floors if cluster is not None else {},
        runs=sorted(run.id for run in session.work.runs.values() if not run.state.ended),
    )


def _paths(cluster: Cluster | None) -> list[PathAsked]:
    """The paths that the cluster file says runs use."""
    if cluster is None:
        return []
    storage = cluster.storage
    named: dict[Purpose, str] = {
        "dataset": storage.dataset_path, "model": storage.model_path, "output": storage.output_path,
        "log": storage.log_path, "cache": storage.cache_path,
    }  # fmt: skip
    return [PathAsked(path=path, purpose=purpose, shared=purpose != "cache") for purpose, path in named.items() if path]


def preview(session: Session, ask: Ask) -> Preview:
    """What a validation does, and to whom."""
    fleet = session.fleet.nodes
    chosen = [fleet[name] for name in ask.nodes] or [node for node in fleet.values() if node.gpu_indexes]
    gpus = sum(len(node.gpu_indexes) for node in chosen)
    stages = [STAGE_TITLES[stage] for stage in ask.stages or ("preflight", "gpu", "node", "cluster")]
    busy = sorted({run.id for run in session.work.runs.values() if run.gpus and not run.state.ended and run.started_at})
    lines = [
        f"{', '.join(stages)}: {some(len(chosen), 'node')}, {some(gpus, 'GPU')}, up to {TAKES[ask.profile]}.",
        "It takes the GPUs of each node for as long as it needs them, and gives them back. It changes nothing else.",
    ]
    if busy:
        wait = f"{ask.wait_seconds:.0f} s"
        lines.append(f"Runs hold GPUs ({listed(busy)}): their nodes are skipped if that is so for {wait}.")
    return Preview(f"Validate {some(len(chosen), 'node')}", tuple(lines))


async def launch(client: ControllerClient, ask: Ask, *, dry_run: bool = False) -> Run:
    """Have the controller launch it."""
    request = LaunchRequest(
        request_id=new_request_id(), workflow_text=workflow_text(ask), workflow_file="validation.yaml", dry_run=dry_run
    )
    return (await client.launch(request))[0]


async def found(client: ControllerClient, name: str) -> tuple[Run, Report]:
    """A validation and its report; ``last`` is the newest. Raises `Refused` where there is none."""
    if name == "last":
        runs = await validations(client)
        if not runs:
            raise Refused("there was no validation yet", "raydeck validate")
        name = runs[0].id
    return await client.run(name), await client.validation(name)


async def validations(client: ControllerClient) -> list[Run]:
    """All that there were, newest first."""
    return [run for run in await client.runs(1000) if run.workflow == WORKFLOW]


def next_stage(report: Report) -> StageName | None:
    """The stage that it is at."""
    return next((stage.stage for stage in report.stages if stage.state == "running"), None)


def write_pages(report: Report, folder: Path | None = None) -> list[Path]:
    """The report as HTML and as Markdown in a folder (the one that one is in); gives the files."""
    folder = folder or Path.cwd()
    pages = {f"{report.id}.html": page(report), f"{report.id}.md": markdown(report)}
    for name, text in pages.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in pages]
