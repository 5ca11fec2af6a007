"""What a workflow file and a cluster file may say: every field, its meaning and its default, in one place.

Unknown keys are refused. `jobs.load` reads the files and says where in them a mistake stands; nothing here does I/O.
"""

from __future__ import annotations

import posixpath
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field

from jobs.alertspec import Alerting
from jobs.errors import Refused
from jobs.section import Section
from jobs.validationview import FigureName
from jobs.values import (
    AbsolutePath,
    Address,
    Command,
    Count,
    CountOrNone,
    EnvValue,
    Folder,
    Host,
    Label,
    Login,
    Name,
    NetworkText,
    Pool,
    Ports,
    Priority,
    QueueName,
    Seconds,
    ShippedFolder,
    Text,
    VariableName,
    Written,
)

OVERLAYS = ("dev", "test", "prod")

Place = tuple[str | int, ...]
"""The keys and indexes that lead to a value in a file."""


class Resources(Section):
    """What each run of the workflow holds while it runs."""

    nodes: Count = 1
    accelerators_per_node: CountOrNone = 0
    cpu_cores_per_node: CountOrNone = 1
    memory_gb_per_node: Annotated[float, Field(ge=0, le=1_000_000)] = 0.0
    """0 asks for none in particular."""

    @property
    def accelerators(self) -> int:
        """In all, over all nodes."""
        return self.nodes * self.accelerators_per_node


class Training(Section):
    """How the training goes; the whole section is handed to the script as JSON in ``RAYDECK_CONFIG``."""

    processes_per_node: Count | None = None
    """Ranks on each node; by default one for each accelerator, or one."""
    batch_size: Count | None = None
    checkpoint_interval_steps: CountOrNone = 0
    """Steps between two checkpoints; 0 leaves it to the script."""
    max_retry: Annotated[int, Field(ge=0, le=1000)] = 0
    """How many more attempts a failed run gets."""
    epochs: Count | None = None
    learning_rate: Annotated[float, Field(gt=0, le=1e6)] | None = None
    parallel: Text = ""
    """How the model is spread, such as ``ddp`` or ``fsdp``; the script reads it."""
    parameters: dict[str, Any] = Field(default_factory=dict)
    """Anything else for the script."""


class Storage(Section):
    """Where a run reads and writes, on storage that all its nodes mount."""

    data_root: Folder = ""
    """A relative one lies under the cluster's ``dataset_path``."""
    output_root: Folder = ""
    """A relative one lies under the cluster's ``output_path``; a run writes to ``<output_root>/<workflow>/<run>``."""


class RunObservability(Section):
    """How much a run tells of itself."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    metrics_interval_seconds: Annotated[float, Field(gt=0, le=86400)] = 30.0


class Data(Section):
    """Which data the run trains on."""

    version: Written = ""
    """Part of the release: the same code on other data is another release."""
    manifest: Folder = ""
    """A file of sizes and digests under ``data_root``."""


class Checkpoints(Section):
    """Which complete checkpoints are kept."""

    keep_last: Count | None = None
    """The newest so many; all of them if not given."""
    keep_every: Count | None = None
    """And beside those every so many steps."""


class Sweep(Section):
    """Many runs from one launch: one for each point of a grid."""

    parameters: dict[str, Annotated[list[Any], Field(min_length=1, max_length=1000)]] = Field(min_length=1)
    """Path below ``training`` to its values: ``learning_rate``, or ``parameters.width``. Their product is the grid."""
    parallel: Count | None = None
    """How many of its runs may hold something at once; as many as the queue lets if not given."""
    goal: Literal["minimize", "maximize"] = "minimize"
    """What makes one run better than another: the last loss that it reported."""


class Workflow(Section):
    """A workflow file, below its key ``workflow``."""

    name: Name
    kind: Literal["train", "ray"] = "train"
    """``train`` is run by torchrun on each node; ``ray`` is any Ray entrypoint."""
    entrypoint: Command = Field(default_factory=list)
    """``train``: the script and its arguments; ``ray``: the command. A command line, or a list."""
    train_script: Text = ""
    """``train`` without an entrypoint: the script; ``train.py`` if this is not given either."""
    code: ShippedFolder = "."
    """The folder that is shipped, relative to the file."""
    image: Text = ""
    """The container image that the run's processes start in; empty uses the nodes as they are."""
    env: dict[VariableName, EnvValue] = Field(default_factory=dict)
    """Environment variables; secrets only as ``${env:NAME}`` or ``${file:PATH}``, resolved on the node."""
    queue: QueueName | None = None
    """Where the run waits; the cluster's default queue if not given."""
    priority: Priority | None = None
    """``low``, ``normal``, ``high``, or a number; a higher one goes first. Its queue's if not given."""
    pool: Pool = Field(default_factory=dict)
    """Labels that each node must carry; a bare word stands for the label ``pool``."""
    max_duration: Seconds | None = None
    """A run whose attempts have together run for so long saves and is stopped."""
    start_timeout: Seconds = 600.0
    """How long the gang may take to be placed and started."""
    silence_timeout: Seconds | None = None
    """A run that reports no new step for so long counts as hung: its attempt is ended, and tried again."""
    retry_backoff: Seconds = 10.0
    """How long the first retry waits; each further one twice as long, up to 10 minutes."""
    stop_grace: Seconds = 30.0
    """How long the gang may take to save and leave after it was asked to."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    resources: Resources = Resources()
    training: Training = Training()
    storage: Storage = Storage()
    observability: RunObservability = RunObservability()
    data: Data = Data()
    checkpoints: Checkpoints = Checkpoints()
    sweep: Sweep | None = None

    @property
    def script(self) -> list[str]:
        """The entrypoint and its arguments, relative to the code folder."""
        return list(self.entrypoint) or [self.train_script or "train.py"]

    @property
    def processes_per_node(self) -> int:
        """Ranks on each node, with the default worked out."""
        return self.training.processes_per_node or max(1, self.resources.accelerators_per_node)


NOT_BUILT = {name: f"{name} is not supported by this version" for name in ("serve", "image")}
"""Keys of a workflow that have a meaning, and none yet in this version."""


class ControlNode(Section):
    """A machine that runs the cluster's head or its services."""

    host: Host
    role: Text = "scheduler"
    metadata_store: AbsolutePath = ""
    """Where the controller keeps its journal and its socket, outside Ray's session folder."""


class WorkerNode(Section):
    """A machine that runs work."""

    host: Host
    accelerators: CountOrNone = 0
    cpu: CountOrNone | None = None
    memory_gb: Annotated[float, Field(ge=0, le=1_000_000)] | None = None
    labels: dict[str, Label] = Field(default_factory=dict)
    ray_start: Text = ""
    """What starts Ray on it, as its own shell reads it; empty: `RayCommands.start`."""


class RayCommands(Section):
    """How Ray is started and ended on a worker, over SSH: what `rejoin` and `retire --stop-ray` run there.

    In ``start``, ``{head}``, ``{host}`` and ``{accelerators}`` stand for the names and the figure of this file, quoted.
    """

    start: Text = ""
    """Such as ``ray start --address={head}:6379 --num-gpus={accelerators}``; empty: Ray cannot be started from here."""
    stop: Text = "ray stop"


class Network(Section):
    """What the nodes need of the network."""

    internal_network: NetworkText | None = None
    """The network in which the nodes talk to each other, such as ``10.0.0.0/24``."""
    required_ports: list[Ports] = Field(default_factory=list)
    """Ports, or ranges ``a-b``, that nodes must reach on each other."""
    tls_enabled: bool = False


class Paths(Section):
    """Where things lie on the nodes."""

    dataset_path: AbsolutePath = ""
    model_path: AbsolutePath = ""
    output_path: AbsolutePath = ""
    log_path: AbsolutePath = ""
    cache_path: AbsolutePath = ""


class Queue(Section):
    """Where runs wait, and what they may hold together."""

    name: QueueName
    max_accelerators: CountOrNone | None = None
    """The most accelerators that the queue's runs hold at once; no quota if not given."""
    priority: Priority = "normal"
    """What a run of this queue has that names no priority itself."""


class Limits(Section):
    """What keeps a flood of runs from hurting the cluster."""

    max_active_runs: Count = 100
    """Each active run has a driver process on the head."""
    max_queued_runs: Count = 10_000
    max_accelerators_per_user: CountOrNone | None = None
    """The most that one user's runs hold at once; no quota if not given."""
    max_active_runs_per_user: Count | None = None


class Scheduler(Section):
    """The queues of the cluster."""

    default_queue: QueueName = "default"
    """It need not be among ``queues``: then it is a queue without a quota."""
    queues: list[Queue] = Field(default_factory=list)
    limits: Limits = Limits()
    user_quotas: dict[Login, CountOrNone] = Field(default_factory=dict)
    """Accelerators that these users may hold at once, instead of ``limits.max_accelerators_per_user``."""
    ageing: Seconds = 12 * 3600.0
    """A run that has waited so long counts a level (100) higher, twice as long two: nothing starves."""
    backfill: bool = True
    """Whether a run may pass one that waits for room, where it cannot delay it."""
    preemption: bool = False
    """Whether a run may have others of lower priority save and go back to the queue."""

    def queue(self, name: str | None) -> Queue | None:
        """The queue of this name (none: the default queue), or None where there is no such queue."""
        wanted = name or self.default_queue
        for queue in self.queues:
            if queue.name == wanted:
                return queue
        return Queue(name=wanted) if wanted == self.default_queue else None


class Promise(Section):
    """What a service's users may count on."""

    p95_milliseconds: Annotated[float, Field(gt=0, le=86_400_000)]
    """95 of 100 answers come within so long; triage says where they do not, and why."""


class Proof(Section):
    """What validations are judged by here."""

    floors: dict[Text, dict[FigureName, Annotated[float, Field(ge=0)]]] = Field(
        default_factory=dict[Text, dict[FigureName, Annotated[float, Field(ge=0)]]]
    )
    """By the GPU's model as NVML names it (``*`` and ``?`` as in a shell; ``CPU`` where none takes part): the least
    that a figure may be (the most, where less is better). It takes the place of the default; 0 takes that away."""


class ClusterObservability(Section):
    """What is watched on the cluster."""

    metrics_enabled: bool = True
    log_collection_enabled: bool = True
    health_check_interval_seconds: Annotated[float, Field(gt=0, le=86400)] = 15.0
    alert_on_failure: bool = True
    """Whether a run that failed is told of through the ways out of ``alerting``; it is shown all the same."""
    services: dict[Text, Promise] = Field(default_factory=dict[str, Promise])
    """By the name of their application in Ray Serve."""
    validation: Proof = Proof()


class Roles(Section):
    """Who may do what: users of the operating system on the head, and ``@group`` for their groups."""

    admins: list[Login] = Field(default_factory=list)
    operators: list[Login] = Field(default_factory=list)
    submitters: list[Login] = Field(default_factory=list)
    viewers: list[Login] = Field(default_factory=list)


class Ssh(Section):
    """How nodes are reached; what is not given comes from the operator's own SSH settings."""

    user: Login | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    identity_file: Text | None = None
    jump: Text | None = None
    """Jump hosts as OpenSSH writes them: ``user@host:port``, several with commas."""
    known_hosts: Text | None = None
    config: Text | None = None
    """An OpenSSH client configuration to read instead of ``~/.ssh/config``."""


class Access(Section):
    """How the cluster is reached from outside."""

    ssh: Ssh = Ssh()
    dashboard: Address = "http://127.0.0.1:8265"
    """Ray's dashboard, as the head itself reaches it."""
    python: Text = "python3"
    """The interpreter on the nodes that has Ray."""
    ray: RayCommands = RayCommands()


class Cluster(Section):
    """A cluster file, below its key ``cluster``."""

    name: QueueName
    control_nodes: Annotated[list[ControlNode], Field(min_length=1)]
    """The first one is the head."""
    worker_nodes: list[WorkerNode] = Field(default_factory=list)
    network: Network = Network()
    storage: Paths = Paths()
    scheduler: Scheduler = Scheduler()
    observability: ClusterObservability = ClusterObservability()
    roles: Roles = Roles()
    access: Access = Access()
    alerting: Alerting = Alerting()

    @property
    def head(self) -> ControlNode:
        """The machine with Ray's head, the dashboard and the controller."""
        return self.control_nodes[0]


class Roots(NamedTuple):
    """A run's folders, absolute."""

    data_root: str
    """Empty where the workflow names none and the cluster has no ``dataset_path``."""
    output_root: str


def resolve_roots(workflow: Workflow, cluster: Cluster | None) -> Roots:
    """The workflow's storage folders, relative ones laid under the cluster's.

    Raises `Refused` where an absolute path cannot be made.
    """
    paths = cluster.storage if cluster else Paths()
    data = _under(paths.dataset_path, workflow.storage.data_root, "data_root", "dataset_path")
    output = _under(paths.output_path, workflow.storage.output_root, "output_root", "output_path")
    if not output:
        raise Refused(
            f"workflow {workflow.name} says nowhere where to write",
            "Give it a storage.output_root, or the cluster file a storage.output_path",
        )
    return Roots(data, output)


def _under(base: str, path: str, field: str, base_field: str) -> str:
    if path and not path.startswith("/") and not base:
        raise Refused(
            f"storage.{field} {path!r} is relative, and the cluster file has no storage.{base_field} to lay it under",
            f"Write an absolute path, or give the cluster file a storage.{base_field}",
        )
    joined = posixpath.join(base, path)
    return posixpath.normpath(joined) if joined else ""
