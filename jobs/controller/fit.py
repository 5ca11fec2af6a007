"""Whether a gang could ever be placed on the nodes that there are. Pure.

Ray itself never says: a gang that waits and one that can never start look the same there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from jobs.model import Launch

GPU, CPU, MEMORY = "GPU", "CPU", "memory"


@dataclass(frozen=True, slots=True)
class NodeSize:
    """What one node has in all, whether it is free or not."""

    name: str
    resources: Mapping[str, float]
    labels: Mapping[str, str] = field(default_factory=dict[str, str])


def lack(node: NodeSize, launch: Launch) -> str:
    """What keeps one process group of the gang off this node for good; empty if nothing."""
    for key, wanted in launch.node_labels.items():
        has = node.labels.get(key)
        if has != wanted:
            return f"its label {key} is {has}, not {wanted}" if has else f"it has no label {key}"
    for resource, wanted, unit in (
        (GPU, launch.gpus_per_node, 1.0),
        (CPU, launch.cpus_per_node, 1.0),
        (MEMORY, float(launch.memory_bytes_per_node), 1e9),
    ):
        has = node.resources.get(resource, 0.0)
        if wanted > has + 1e-9:
            what = f"{has / unit:g} GB of memory" if resource == MEMORY else _some(has, resource)
            return f"it has {what}, not {wanted / unit:g}"
    return ""


def _some(count: float, what: str) -> str:
    return f"{count:g} {what}" if count == 1 else f"{count:g} {what}s"


def never_fits(launch: Launch, nodes: Sequence[NodeSize]) -> str:
    """Why the gang can never be placed on these nodes, one process group on each; empty if it can."""
    lacks = {node.name: lack(node, launch) for node in nodes}
    able = [name for name, why in lacks.items() if not why]
    if len(able) >= launch.nodes:
        return ""
    wanted = "1 node" if launch.nodes == 1 else f"{launch.nodes} nodes"
    each = f"{_some(launch.gpus_per_node, GPU)} and {_some(launch.cpus_per_node, CPU)} each"
    unable = [f"{name}: {why}" for name, why in lacks.items() if why]
    shown = "; ".join(unable[:3]) + (f"; and {len(unable) - 3} more" if len(unable) > 3 else "")
    return f"it needs {wanted} with {each}, and of the cluster's {len(nodes)} only {len(able)} can ever hold that" + (
        f" ({shown})" if shown else ""
    )
