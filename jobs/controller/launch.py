"""From a launch request to a run in the journal: check the file, find the code, see that it fits, write down."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import platform
import time
from pathlib import Path

from jobs import package
from jobs.controller import rundir
from jobs.controller.access import Caller
from jobs.controller.engine import Engine
from jobs.controller.files import RunFiles
from jobs.controller.fit import never_fits
from jobs.controller.journal import Act, Journal, JournalThread
from jobs.controller.packages import Packages
from jobs.controller.record import Record
from jobs.controller.runs import NoSuch, Runs, request_digest
from jobs.errors import Refused, Usage
from jobs.load import load_workflow
from jobs.model import Launch, Run, RunState
from jobs.release import freeze
from jobs.spec import Cluster, ControlNode, Paths, Scheduler, Workflow, resolve_roots
from jobs.values import REFERENCE, priority_text
from jobs.wire import LaunchRequest, Release

ID_LETTERS = 6
_MORE_LETTERS = 4
"""Tried one longer each time that another request's run has the id already."""


class Launcher:
    """Takes launches in."""

    def __init__(
        self,
        store: Path,
        cluster: Cluster | None,
        runs: Runs,
        journal: JournalThread,
        packages: Packages,
        engine: Engine,
        files: RunFiles,
    ) -> None:
        self._cluster = cluster or _without_file(store)
        self._runs = runs
        self._journal = journal
        self._packages = packages
        self._engine = engine
        self._files = files
        self._one = asyncio.Lock()
        """One launch after the other: two of the same must find each other."""

    async def launch(self, request: LaunchRequest, caller: Caller) -> tuple[Run, bool]:
        """The run, and whether it is a new one. Raises `FileMistakes`, `Refused`, `Usage` or `Unreachable`.

        With ``dry_run`` everything is checked and nothing is kept.
        """
        async with self._one:
            return await self._launch(request, caller)

    async def _launch(self, request: LaunchRequest, caller: Caller) -> tuple[Run, bool]:
        digest = request_digest("launch", request.model_dump_json(exclude={"request_id"}))
        if not request.dry_run:
            known = await self._runs.repeated(request.request_id, digest)
            if known is not None:
                return (await self._runs.find(known.run)).run, False
        workflow = await asyncio.to_thread(load_workflow, request.workflow_text, request.workflow_file, request.overlay)
        queue = self._queue(request.queue or workflow.queue)
        priority = _priority(request.priority) if request.priority else workflow.priority
        code = await self._code(request.package)
        release = self._release(workflow, code, caller)
        run_id = await self._run_id(request.request_id, workflow.name)
        launch = self._plan(workflow, run_id)
        await self._check_fit(launch)
        run = Run(
            id=run_id,
            workflow=workflow.name,
            release=release.id,
            state=RunState.QUEUED,
            queue=queue,
            priority=priority,
            user=caller.user,
            nodes=launch.nodes,
            gpus=workflow.resources.accelerators,
            kind=workflow.kind,
            run_directory=launch.run_directory,
            submitted_at=time.time(),
        )
        if request.dry_run:
            await self._files.apart(launch.run_directory, lambda: rundir.check(launch.run_directory))
            return run.model_copy(update={"reason": "a dry run: it would be admitted at once"}), True
        await self._files.apart(launch.run_directory, lambda: rundir.make(launch.run_directory, release))
        entrypoint = list(workflow.entrypoint) if workflow.kind == "ray" else []
        record = Record(run=run, launch=launch, package=code, entrypoint=entrypoint)
        async with self._runs.lock:
            act = Act(caller.user, "launch", run_id, True, f"release {release.id}")
            await self._journal(
                Journal.accept,
                record,
                act,
                run.submitted_at,
                request=request.request_id,
                digest=digest,
                release=release,
            )
            self._runs.keep_new(record)
        return run, True

    def _queue(self, name: str | None) -> str:
        queue = self._cluster.scheduler.queue(name)
        if queue is None:
            there = ", ".join(each.name for each in self._cluster.scheduler.queues) or "none but the default one"
            raise Refused(f"there is no queue {name}", f"The cluster file has {there}")
        return queue.name

    async def _code(self, digest: str) -> str:
        """The digest of a package that is in the store; the samples' if none is named."""
        if digest:
            if not self._packages.has(digest):
                raise Refused(f"the code {digest[:12]} was not sent to this controller", "Send the package first")
            return digest

        def pack_samples() -> str:
            built = package.build(package.sample_folder())
            self._packages.store(built.digest, built.content)
            return built.digest

        return await asyncio.to_thread(pack_samples)

    def _release(self, workflow: Workflow, code: str, caller: Caller) -> Release:
        environment = {"ray": self._engine.version, "python": platform.python_version()}
        return freeze(workflow, code_digest=code, user=caller.user, environment=environment)

    async def _run_id(self, request: str, workflow: str) -> str:
        """The same for the same request, so that a launch that was cut off halfway is taken up and not repeated."""
        letters = base64.b32encode(hashlib.sha256(f"{request}\0{workflow}".encode()).digest()).decode().lower()
        for length in range(ID_LETTERS, ID_LETTERS + _MORE_LETTERS):
            run_id = f"{workflow}-{letters[:length]}"
            try:
                await self._runs.find(run_id)
            except NoSuch:
                return run_id
        raise Refused("no free id was found for this run", "Launch it again, with another request id")

    def _plan(self, workflow: Workflow, run_id: str) -> Launch:
        """All that the driver is told. Raises `Refused` where a folder cannot be made absolute."""
        if workflow.kind == "ray":
            secret = next((name for name, value in workflow.env.items() if REFERENCE.search(value)), None)
            if secret is not None:
                raise Refused(
                    f"env.{secret} refers to a secret, which a workflow of kind ray cannot resolve on its node",
                    "Let the entrypoint read it itself",
                )
        roots = resolve_roots(workflow, self._cluster)
        resources = workflow.resources
        return Launch(
            run=run_id,
            attempt=1,
            workflow=workflow.name,
            script=workflow.script,
            nodes=resources.nodes,
            processes_per_node=workflow.processes_per_node,
            gpus_per_node=float(resources.accelerators_per_node),
            cpus_per_node=float(resources.cpu_cores_per_node),
            memory_bytes_per_node=int(resources.memory_gb_per_node * 1e9),
            run_directory=f"{roots.output_root}/{workflow.name}/{run_id}",
            data_root=roots.data_root,
            config={**workflow.training.model_dump(mode="json"), "seed": workflow.seed},
            environment=dict(workflow.env),
            checkpoint_interval_steps=workflow.training.checkpoint_interval_steps,
            node_labels=dict(workflow.pool),
            start_timeout_seconds=workflow.start_timeout,
            stop_grace_seconds=workflow.stop_grace,
            metrics_interval_seconds=workflow.observability.metrics_interval_seconds,
        )

    async def _check_fit(self, launch: Launch) -> None:
        """Refuse what can never be placed. With Ray silent nothing is known, and nothing is refused."""
        nodes = await self._engine.sizes()
        why = never_fits(launch, nodes) if nodes else ""
        if why:
            raise Refused(f"it could never start: {why}", "Ask for less, or add nodes first")


def _priority(text: str) -> str:
    try:
        return priority_text(text)
    except ValueError as error:
        raise Usage(f"the priority {text!r} {error}") from error


def _without_file(store: Path) -> Cluster:
    """What holds where no cluster file says anything: everything lies below the store."""
    return Cluster(
        name="unnamed",
        control_nodes=[ControlNode(host="localhost")],
        storage=Paths(output_path=str(store / "output"), dataset_path=str(store / "data")),
        scheduler=Scheduler(),
    )
