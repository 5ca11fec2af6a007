"""What each field of a file allows and all of them together do not. Pure; `jobs.load` says where it stands."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from jobs import placeholders
from jobs.spec import Cluster, Place, Training, Workflow
from jobs.values import is_plaintext_secret, unreferenced_fault
from jobs.wording import nearest

SWEEP_POINTS_AT_MOST = 1_000
FREE = "parameters"
"""Below it a workflow's author names what the script takes; a sweep may vary anything there."""


class Fault(NamedTuple):
    """One mistake, and what may have been meant."""

    place: Place
    sentence: str
    suggestion: str = ""
    of_key: bool = False
    """It is the key at that place that is wrong, not its value."""


def workflow_contradictions(workflow: Workflow) -> Iterator[tuple[Place, str]]:
    """What each field allows and all of them together do not: the place of the mistake, and a sentence."""
    if workflow.kind == "ray" and not workflow.entrypoint:
        yield ("kind",), "a workflow of kind ray needs an entrypoint"
    if workflow.train_script and workflow.kind == "ray":
        yield ("train_script",), "train_script is for kind train; use entrypoint"
    elif workflow.train_script and workflow.entrypoint:
        yield ("train_script",), "give either entrypoint or train_script, not both"
    if workflow.kind == "train":
        place: Place = ("entrypoint",) if workflow.entrypoint else ("train_script",)
        script = workflow.script[0]
        if re.fullmatch(r"(?:.*/)?(?:python[0-9.]*|torchrun|accelerate|deepspeed)", script):
            yield place, "name the script itself, with its arguments; raydeck starts it with torchrun on each node"
        elif script.startswith(("/", "~")) or ".." in script.split("/"):
            yield place, "the script must lie in the code folder"
    for place, text in _texts(workflow.training.parameters, ("training", "parameters")):
        fault = unreferenced_fault(text)
        if fault:
            yield place, f"{place[-1]} {fault}"


def env_faults(env: Mapping[str, str]) -> Iterator[tuple[Place, str]]:
    """Names and values that a workflow's ``env`` must not have. The sentences never repeat a value."""
    for name, value in env.items():
        if name.upper().startswith("RAYDECK_"):
            yield ("env", name), "names that begin with RAYDECK_ are raydeck's own"
        elif is_plaintext_secret(name, value):
            yield ("env", name), f"{name} looks like a secret in plain text; write ${{env:{name}}} or ${{file:/PATH}}"


def _texts(value: Any, place: Place) -> Iterator[tuple[Place, str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, dict):
        for name, inner in value.items():
            yield from _texts(inner, (*place, name))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from _texts(inner, (*place, index))


def sweep_faults(workflow: Workflow) -> Iterator[Fault]:
    """What is wrong with a sweep: paths that lead nowhere, points that are too many or there twice.

    Whether each value suits its field is asked by `jobs.load`, which has the words for that.
    """
    if workflow.sweep is None:
        return
    grid = workflow.sweep.parameters
    root: Place = ("sweep", "parameters")
    sound = 0
    for path, values in grid.items():
        fault = _path_fault(path, grid, workflow.training.parameters)
        if fault is not None:
            yield Fault((*root, path), fault[0], fault[1], of_key=True)
        sound += fault is None
        for index, value in enumerate(values):
            if any(_same(value, earlier) for earlier in values[:index]):
                yield Fault((*root, path, index), f"the sweep has this value of {path} already")
        for place, text in _texts(values, (*root, path)):
            unresolved = unreferenced_fault(text)
            if unresolved:
                yield Fault(place, f"a value of {path} {unresolved}")
    points = math.prod(len(values) for values in grid.values())
    if sound == len(grid) and points > SWEEP_POINTS_AT_MOST:
        sizes = " × ".join(str(len(values)) for values in grid.values())
        how = f" ({sizes})" if len(grid) > 1 else ""
        yield Fault(
            root, f"the sweep has {points:,} points{how}, and {SWEEP_POINTS_AT_MOST:,} is the most", of_key=True
        )


def _path_fault(path: str, grid: Mapping[str, Any], parameters: Mapping[str, Any]) -> tuple[str, str] | None:
    """What is wrong with a path of a sweep, and what may have been meant; None for one that leads somewhere."""
    head, *rest = path.split(".")
    fields = [name for name in Training.model_fields if name != FREE]
    if head == FREE and rest and all(rest):
        return _way_fault(path, rest, grid, parameters)
    if head in fields and not rest:
        return None
    if head == "training" and rest:
        return f"a sweep's paths begin below training: leave out {head}.", ".".join(rest)
    if head == FREE:
        return f"{path} names none of the script's parameters; write {FREE}.NAME", ""
    near = nearest(path, fields) or f"{FREE}.{rest[-1] if rest and rest[-1] else head}"
    return f"there is no training.{path} to vary; a parameter of the script's own is {FREE}.NAME", near


def _way_fault(
    path: str, rest: list[str], grid: Mapping[str, Any], parameters: Mapping[str, Any]
) -> tuple[str, str] | None:
    """A value where the path needs a mapping, in the file or in another path."""
    place: Any = parameters
    for at, step in enumerate(rest[:-1]):
        if not isinstance(place, Mapping) or step not in place:
            break
        place = place[step]  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(place, Mapping):
            return f"training.{FREE}.{'.'.join(rest[: at + 1])} is a value here, so there is no {path}", ""
    for other in grid:
        if other != FREE and path.startswith(f"{other}."):
            return f"{other} is varied too, and {path} lies inside it", ""
    return None


def _same(one: Any, other: Any) -> bool:
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def cluster_contradictions(cluster: Cluster) -> Iterator[tuple[Place, str]]:
    """The same for a cluster file."""
    seen: set[str] = set()
    for index, node in enumerate(cluster.worker_nodes):
        if node.host in seen:
            yield ("worker_nodes", index, "host"), f"{node.host} is among the worker nodes already"
        seen.add(node.host)
    names: set[str] = set()
    for index, queue in enumerate(cluster.scheduler.queues):
        if queue.name in names:
            yield ("scheduler", "queues", index, "name"), f"there is a queue {queue.name} already"
        names.add(queue.name)


def command_faults(cluster: Cluster) -> Iterator[Fault]:
    """What is wrong with the commands that start and stop Ray: names in braces that stand for nothing."""
    ray = cluster.access.ray
    commands: list[tuple[Place, str]] = [
        (("access", "ray", "start"), ray.start),
        (("access", "ray", "stop"), ray.stop),
        *((("worker_nodes", index, "ray_start"), node.ray_start) for index, node in enumerate(cluster.worker_nodes)),
    ]
    for place, command in commands:
        for sentence, suggestion in placeholders.faults(command):
            yield Fault(place, f"{place[-1]} {sentence}", suggestion)
