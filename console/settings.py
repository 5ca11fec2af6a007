"""Settings and contexts: which clusters this operator reaches, and how. Reading them changes nothing on disk.

Order, strongest first: command line, environment (``RAYDECK_CONTEXT``, ``RAYDECK_THEME``, ``RAYDECK_READ_ONLY``), the
settings file, the defaults below. Unknown keys are refused.

Plain dataclasses, so that the first paint waits neither for pydantic nor for YAML: those come when a file is read.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from jobs.errors import Refused, Usage

if TYPE_CHECKING:
    from probes.health.rule import Thresholds

DEFAULT_DASHBOARD = "http://127.0.0.1:8265"
FORBID: Any = {"extra": "forbid"}

Read = TypeVar("Read")


@dataclass
class SshOptions:
    """How a node is reached. What is not said here comes from the operator's own ssh config."""

    __pydantic_config__: ClassVar[Any] = FORBID
    user: str | None = None
    port: int | None = None
    identity_files: list[Path] = field(default_factory=list[Path])
    jump: str | None = None
    """A jump host, as ``ProxyJump`` has it."""
    known_hosts: Path | None = None
    config: Path | None = None
    """An ssh config file to use in place of ``~/.ssh/config``."""


@dataclass
class NodeEntry:
    """One machine of a cluster."""

    __pydantic_config__: ClassVar[Any] = FORBID
    name: str
    """How it is called on screen; also Ray's label ``raydeck.io/node`` where the cluster sets one."""
    address: str
    """What ssh connects to: a host alias of the ssh config, a name, or an address."""
    role: str = "worker"
    """``head`` or ``worker``."""
    accelerators: int | None = None
    """How many it should have, where the cluster file says so."""
    ray_start: str = ""
    """What starts Ray on it, for its own shell; may hold ``{head}``, ``{host}`` and ``{accelerators}``, which are
    filled in when the file is read. Empty: Ray cannot be started there from here."""
    ray_stop: str = ""
    """What ends Ray on it; empty: ``ray stop``."""
    ssh: SshOptions = field(default_factory=SshOptions)


@dataclass
class Context:
    """How this operator reaches one cluster."""

    __pydantic_config__: ClassVar[Any] = FORBID
    name: str
    nodes: list[NodeEntry] = field(default_factory=list[NodeEntry])
    cluster_file: Path | None = None
    """A cluster file; its hosts are added to ``nodes``, and it may change the rules of health."""
    ssh: SshOptions = field(default_factory=SshOptions)
    dashboard: str = DEFAULT_DASHBOARD
    """Ray's dashboard as the head sees it, or as this machine does if ``dashboard_through_ssh`` is false."""
    dashboard_through_ssh: bool = True
    metadata_store: str = "~/.raydeck"
    """The controller's folder on the head."""
    python: str | None = None
    """The Python on the head that has ray; found by itself if not set."""
    disks: list[str] = field(default_factory=list[str])
    """Paths whose free space is watched on every node."""
    simulated: bool = False
    """The accelerators of this cluster are made up."""

    @property
    def head(self) -> NodeEntry | None:
        """The machine that Ray's head and the controller are on."""
        return next((node for node in self.nodes if node.role == "head"), self.nodes[0] if self.nodes else None)

    def to_json(self) -> dict[str, Any]:
        """What `context_from_json` reads."""
        return json.loads(json.dumps(asdict(self), default=str))


@dataclass
class Settings:
    """The settings file."""

    __pydantic_config__: ClassVar[Any] = FORBID
    current_context: str | None = None
    contexts: dict[str, Path] = field(default_factory=dict[str, Path])
    """Context name to its file, relative to the settings file."""
    theme: str | None = None
    """``raydeck-dark``, ``raydeck-light``, … ; chosen from the terminal if not set."""
    ascii: bool | None = None
    """Only ASCII on screen; chosen from the locale if not set."""
    read_only: bool = False
    """Keys and commands that change anything are off."""
    keys: dict[str, str] = field(default_factory=dict[str, str])
    """Action name to key. No key may take the place of one that changes something."""


def settings_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where settings live."""
    if environ.get("RAYDECK_CONFIG_DIR"):
        return Path(environ["RAYDECK_CONFIG_DIR"])
    import platformdirs

    return Path(platformdirs.user_config_dir("raydeck"))


def runtime_folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where running demos leave their contexts: private to this user, gone with a reboot."""
    base = environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    return Path(base) / f"raydeck-{os.getuid()}"


def _validated(model: type[Read], raw: Any, path: Path) -> Read:
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(model).validate_python(raw)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the file"
        raise Refused(f"{path}: {where}: {first['msg']}") from error


def context_from_json(raw: Any, path: Path) -> Context:
    """A context that `Context.to_json` wrote."""
    return _validated(Context, raw, path)


def _read(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text("utf-8")) or {}
    except FileNotFoundError as error:
        raise Refused(f"{path} does not exist") from error
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    except yaml.YAMLError as error:
        raise Refused(f"{path} is not YAML: {' '.join(str(error).split())}") from error


def load_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """The settings file, or the defaults where there is none."""
    path = settings_folder(environ) / "settings.yaml"
    settings = _validated(Settings, _read(path), path) if path.exists() else Settings()
    if environ.get("RAYDECK_THEME"):
        settings.theme = environ["RAYDECK_THEME"]
    if environ.get("RAYDECK_READ_ONLY", "") not in ("", "0"):
        settings.read_only = True
    return settings


def _alive(pid: int) -> bool:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, 0)
        return True
    return False


def demo_contexts(environ: Mapping[str, str] = os.environ) -> dict[str, Path]:
    """The demos that run at this moment, by context name, oldest first."""
    found: list[tuple[float, str, Path]] = []
    for path in runtime_folder(environ).glob("demo*.json"):
        with contextlib.suppress(OSError, ValueError, KeyError):
            body = json.loads(path.read_text("utf-8"))
            if _alive(int(body["pid"])):
                found.append((path.stat().st_mtime, path.stem, path))
    return {name: path for _, name, path in sorted(found)}


def _from_cluster_file(context: Context, path: Path) -> None:
    from jobs.load import load_cluster
    from jobs.placeholders import filled

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error
    cluster = load_cluster(text, str(path))
    known = {node.address: node for node in context.nodes}
    for control in cluster.control_nodes:
        if control.host not in known:
            context.nodes.insert(0, NodeEntry(name=control.host, address=control.host, role="head"))
        if control.metadata_store:
            context.metadata_store = control.metadata_store
    ray = cluster.access.ray
    head = cluster.control_nodes[0].host
    for worker in cluster.worker_nodes:
        node = known.get(worker.host)
        if node is None:
            node = NodeEntry(name=worker.host, address=worker.host, accelerators=worker.accelerators)
            context.nodes.append(node)
        elif node.accelerators is None and "accelerators" in worker.model_fields_set:
            node.accelerators = worker.accelerators
        values = {"head": head, "host": worker.host, "accelerators": worker.accelerators}
        node.ray_start = node.ray_start or filled(worker.ray_start or ray.start, values)
        node.ray_stop = node.ray_stop or filled(ray.stop, values)
    storage = cluster.storage
    paths = (storage.dataset_path, storage.model_path, storage.output_path, storage.log_path, storage.cache_path)
    context.disks += [path for path in paths if path and path not in context.disks]


def thresholds_of(context: Context) -> Thresholds:
    """What the context's cluster file changes in the rules of health. Raises `Refused` where it cannot be read."""
    from jobs.load import load_cluster
    from probes.health.rule import Thresholds

    path = context.cluster_file
    if path is None:
        return Thresholds()
    try:
        return load_cluster(path.read_text("utf-8"), str(path)).alerting.thresholds()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{path} cannot be read: {error}") from error


_Own = tuple[str, NodeEntry, str]
"""A command that the context file itself gives: where it stands, its node, the field."""


def _own_commands(context: Context, path: Path) -> list[_Own]:
    """The commands of the context file itself. Raises `Refused` where a name in braces stands for nothing."""
    from jobs.placeholders import faults

    found: list[_Own] = []
    for index, node in enumerate(context.nodes):
        for name in ("ray_start", "ray_stop"):
            command: str = getattr(node, name)
            where = f"{path}: nodes.{index}.{name}"
            for sentence, suggestion in faults(command):
                raise Refused(f"{where}: {sentence}", f"Did you mean {suggestion}?" if suggestion else "")
            if command:
                found.append((where, node, name))
    return found


def _fill_in(context: Context, commands: list[_Own]) -> None:
    """Put the context's names and figures into its own commands."""
    from jobs.placeholders import filled

    head = context.head.address if context.head is not None else None
    for where, node, name in commands:
        values = {"head": head, "host": node.address, "accelerators": node.accelerators}
        try:
            setattr(node, name, filled(getattr(node, name), values))
        except KeyError as error:
            raise Refused(f"{where}: the node says nothing of its {error.args[0]}") from error


def load_context(path: Path) -> Context:
    """A context file, with the hosts of its cluster file. Raises `Refused` with the file and the field."""
    context = _validated(Context, {"name": path.stem, **_read(path)}, path)
    commands = _own_commands(context, path)
    if context.cluster_file is not None:
        context.cluster_file = path.parent / context.cluster_file
        _from_cluster_file(context, context.cluster_file)
    _fill_in(context, commands)
    if not context.nodes:
        raise Refused(f"{path} names no node", "Give `nodes`, or a `cluster_file` that has some")
    return context


def context_from_cluster_file(path: Path) -> Context:
    """A context for a cluster file alone: ssh by the operator's own config, the dashboard through the head."""
    context = Context(name=path.stem, cluster_file=path)
    _from_cluster_file(context, path)
    if not context.nodes:
        raise Refused(f"{path} names no node", "A cluster file needs `control_nodes` and `worker_nodes`")
    return context


def find_context(name: str | None, settings: Settings, environ: Mapping[str, str] = os.environ) -> Context:
    """The context that a command line means: a name, a file, the environment's, the current one, or a running demo."""
    name = name or environ.get("RAYDECK_CONTEXT") or settings.current_context
    demos = demo_contexts(environ)
    if name is None:
        if len(settings.contexts) == 1:
            name = next(iter(settings.contexts))
        elif not settings.contexts and demos:
            name = list(demos)[-1]
        else:
            raise Usage("no context is chosen", "Say --context NAME, or try `raydeck demo`")
    if name in demos:
        body = json.loads(demos[name].read_text("utf-8"))
        return _validated(Context, body["context"], demos[name])
    if name in settings.contexts:
        return load_context(settings_folder(environ) / settings.contexts[name])
    if name.endswith((".yaml", ".yml")):
        path = Path(name)
        raw = _read(path)
        return context_from_cluster_file(path) if isinstance(raw, dict) and "cluster" in raw else load_context(path)
    known = sorted({*settings.contexts, *demos})
    hint = f"Known are: {', '.join(known)}" if known else "None is known; try `raydeck demo`, or --context cluster.yaml"
    raise Usage(f"there is no context {name!r}", hint)
