"""What a workflow asks for and a cluster file has not got: queues, quotas, labels, inventory, folders. Pure.

The file is what is judged here, as it was written; what the cluster has at this moment is the controller's to know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from jobs.contradictions import Fault
from jobs.errors import Refused
from jobs.spec import Cluster, Place, WorkerNode, Workflow, resolve_roots
from jobs.wording import nearest


def faults(workflow: Workflow, cluster: Cluster, cluster_file: str) -> Iterator[Fault]:
    """All that keeps this cluster from ever running this workflow, each with its place in the workflow's file."""
    yield from _queue(workflow, cluster, cluster_file)
    yield from _user_quota(workflow, cluster, cluster_file)
    yield from _nodes(workflow, cluster, cluster_file)
    try:
        resolve_roots(workflow, cluster)
    except Refused as error:
        field = "data_root" if "data_root" in error.sentence else "output_root"
        yield Fault(("storage", field), error.sentence)


def _queue(workflow: Workflow, cluster: Cluster, cluster_file: str) -> Iterator[Fault]:
    scheduler, asked = cluster.scheduler, workflow.resources.accelerators
    queue = scheduler.queue(workflow.queue)
    if queue is None:
        names = list(dict.fromkeys([*(each.name for each in scheduler.queues), scheduler.default_queue]))
        wanted = workflow.queue or ""
        there = f"{cluster_file} has {', '.join(names)}"
        yield Fault(("queue",), f"there is no queue {wanted}; {there}", nearest(wanted, names))
    elif queue.max_accelerators is not None and asked > queue.max_accelerators:
        sentence = f"it asks for {_gpus(asked)}, and queue {queue.name} may hold {queue.max_accelerators} at most"
        large = [
            each.name for each in scheduler.queues if each.max_accelerators is None or each.max_accelerators >= asked
        ]
        yield Fault(_asked_at(workflow), sentence + (f"; {', '.join(large)} may hold more" if large else ""))


def _user_quota(workflow: Workflow, cluster: Cluster, cluster_file: str) -> Iterator[Fault]:
    """More than any user may hold. Who will launch it is not known here."""
    scheduler, asked = cluster.scheduler, workflow.resources.accelerators
    common = scheduler.limits.max_accelerators_per_user
    if common is None:
        return
    most = max([common, *scheduler.user_quotas.values()])
    if asked > most:
        yield Fault(
            _asked_at(workflow), f"it asks for {_gpus(asked)}, and in {cluster_file} no user may hold more than {most}"
        )


def _nodes(workflow: Workflow, cluster: Cluster, cluster_file: str) -> Iterator[Fault]:
    """Enough workers of the pool, each with what is asked for. A file that lists no workers tells nothing."""
    workers = cluster.worker_nodes
    if not workers:
        return
    for name, value in workflow.pool.items():
        if not any(worker.labels.get(name) == value for worker in workers):
            values = sorted({worker.labels[name] for worker in workers if name in worker.labels})
            there = f"the workers have {name} {', '.join(values)}" if values else f"none has a label {name}"
            yield Fault(
                ("pool", name), f"no worker in {cluster_file} has the label {name}: {value}; {there}",
                nearest(value, values),
            )  # fmt: skip
            return
    pool = [worker for worker in workers if workflow.pool.items() <= worker.labels.items()]
    of_pool = " with those labels" if workflow.pool else ""
    if not pool:
        yield Fault(("pool",), f"no worker in {cluster_file} has all of these labels")
        return
    fit = pool
    for field, asked, has, unit in _needs(workflow):
        # A worker that does not say how much it has is not held against the workflow.
        fit = [worker for worker in fit if (amount := has(worker)) is None or amount >= asked]
        if not fit:
            most = max((amount for worker in pool if (amount := has(worker)) is not None), default=0)
            yield Fault(
                ("resources", field),
                f"no worker{of_pool} in {cluster_file} has {asked:g} {unit}; the most that one has is {most:g}",
            )
            return
    if len(fit) < workflow.resources.nodes:
        yield Fault(
            ("resources", "nodes"),
            f"it asks for {workflow.resources.nodes} nodes, and {cluster_file} has {len(fit)} worker"
            f"{'s' * (len(fit) != 1)}{f'{of_pool} and' if of_pool else ' with'} enough of everything",
        )


_Has = Callable[[WorkerNode], float | None]


def _needs(workflow: Workflow) -> tuple[tuple[str, float, _Has, str], ...]:
    """What one node has to have: the field that asks for it, how much, how to read it of a worker, its unit."""
    resources = workflow.resources
    return (
        ("accelerators_per_node", resources.accelerators_per_node, lambda worker: worker.accelerators, "accelerators"),
        ("cpu_cores_per_node", resources.cpu_cores_per_node, lambda worker: worker.cpu, "CPU cores"),
        ("memory_gb_per_node", resources.memory_gb_per_node, lambda worker: worker.memory_gb, "GB of memory"),
    )


def _asked_at(workflow: Workflow) -> Place:
    """Where the larger part of what it asks for is written."""
    return ("resources", "nodes" if workflow.resources.nodes > 1 else "accelerators_per_node")


def _gpus(count: int) -> str:
    return f"{count} accelerator{'s' * (count != 1)}"
