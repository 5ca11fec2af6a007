"""Owns the Ray cluster on this machine that the demo and the tests run on: a head and workers with simulated GPUs.

It must never touch another Ray here: own folder, own free ports, and all of them on the loopback address. Ray's node
class is used directly, not `ray.cluster_utils.Cluster`, since that one starts nodes one after the other, takes over the
signal handlers and writes the machine-wide address file. Import this only after `environment.prepare`.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from subprocess import Popen
from typing import Any, cast

import ray
from ray._private.node import Node
from ray._private.parameter import RayParams
from ray._private.services import wait_for_node
from ray._private.utils import write_ray_address
from ray.experimental.internal_kv import _initialize_internal_kv

from jobs.errors import RaydeckError
from jobs.local import environment
from jobs.local.environment import NodeSpec, StartedNode

OBJECT_STORE_BYTES = 80 * 2**20
NODE_LIMIT_SECONDS = 60
SYSTEM_CONFIG: dict[str, Any] = {
    # A killed raylet refuses the connection at once, so three tries a second apart are enough to call it dead; one that
    # is only slow on a busy machine has five seconds for each answer.
    "health_check_initial_delay_ms": 2000,
    "health_check_period_ms": 1000,
    "health_check_timeout_ms": 5000,
    "health_check_failure_threshold": 3,
    # Idle workers started ahead of any need cost a second of CPU and 60 MB each.
    "prestart_worker_first_driver": False,
}

Progress = Callable[[str, float | None], None]
"""Called with a step's name when it starts (None) and when it is done (the seconds it took)."""


class _Head(Node):
    """Ray's head node, with a dashboard that comes up beside the raylet and the workers instead of before them."""

    def __init__(self, params: RayParams, pool: ThreadPoolExecutor, progress: Progress) -> None:
        self._pool = pool
        self._progress = progress
        self.dashboard: Future[None] | None = None
        super().__init__(params, head=True, shutdown_at_exit=False, spawn_reaper=True)

    def start_api_server(self, *, include_dashboard: bool | None, raise_on_failure: bool) -> None:
        # Worker nodes look the dashboard up through this client, and may do so before the dashboard has set it.
        _initialize_internal_kv(self.get_gcs_client())
        start = super().start_api_server

        def work() -> None:
            with _step(self._progress, "ray dashboard"):
                start(include_dashboard=include_dashboard, raise_on_failure=raise_on_failure)

        self.dashboard = self._pool.submit(work)


class LocalCluster:
    """A head and workers as child processes of this one; they die with it."""

    def __init__(self, specs: Sequence[NodeSpec], temp_dir: Path, progress: Progress, dashboard_port: int = 0) -> None:
        self._specs = specs
        self._temp_dir = temp_dir
        self._progress = progress
        self._dashboard_port = dashboard_port or free_port()
        # Ray's processes are tied to the *thread* that started them, so these threads last as long as the cluster.
        self._pool = ThreadPoolExecutor(max_workers=len(specs) + 1, thread_name_prefix="local-ray")
        self._head: _Head | None = None
        self._raylets: dict[str, Popen[bytes]] = {}

    @property
    def dashboard(self) -> str:
        """``host:port`` of the dashboard."""
        return f"{environment.ADDRESS}:{self._dashboard_port}"

    @property
    def gcs(self) -> str:
        """``host:port`` that Ray's own processes meet at."""
        return str(self._head.gcs_address) if self._head else ""

    def start(self) -> list[StartedNode]:
        """Start everything; raises RaydeckError when a part does not come up."""
        head_spec, *worker_specs = self._specs
        try:
            with _step(self._progress, "ray head"):
                params = self._params(head_spec, 0)
                params.update(
                    include_dashboard=True,
                    dashboard_host=environment.ADDRESS,
                    dashboard_port=self._dashboard_port,
                    _system_config=SYSTEM_CONFIG,
                )
                self._head = head = _Head(params, self._pool, self._progress)
                self._write_address(head.gcs_address)
            workers = [
                self._pool.submit(self._start_worker, spec, index, head.gcs_address)
                for index, spec in enumerate(worker_specs, start=1)
            ]
            nodes = [head, *(worker.result(timeout=NODE_LIMIT_SECONDS) for worker in workers)]
            if head.dashboard is not None:
                head.dashboard.result(timeout=NODE_LIMIT_SECONDS)
        except RaydeckError:
            raise
        except Exception as error:
            logs = self._temp_dir / "s"
            raise RaydeckError(f"the local Ray cluster did not start: {error!r}", f"Its logs are in {logs}") from error
        started: list[StartedNode] = []
        for spec, node in zip(self._specs, nodes, strict=True):
            raylet = self._raylets[spec.name] = node.all_processes["raylet"][0].process
            started.append(StartedNode(spec.name, str(node.node_id), str(node.node_ip_address), raylet.pid, spec.gpus))
        return started

    def lost(self) -> list[str]:
        """The names of nodes whose raylet has ended since the last call.

        It has to be called while the cluster runs: a raylet that nobody waits for still has its process id, and its
        workers, which look for that, would live on without it.
        """
        gone = [name for name, raylet in self._raylets.items() if raylet.poll() is not None]
        for name in gone:
            del self._raylets[name]
        return gone

    def _start_worker(self, spec: NodeSpec, index: int, gcs_address: str) -> Node:
        with _step(self._progress, f"ray {spec.name}"):
            params = self._params(spec, index)
            params.update(gcs_address=gcs_address)
            node = Node(params, head=False, shutdown_at_exit=False, spawn_reaper=True)
            wait_for_node(node.gcs_address, str(node.plasma_store_socket_name), NODE_LIMIT_SECONDS)
        return node

    def _write_address(self, gcs_address: str) -> None:
        """Leave the address where the head's job supervisors look for it.

        Without the file they take the first Ray they find on the machine, which need not be this one.
        """
        for folder in (self._temp_dir / "ray", *(self._folder(index) for index in range(len(self._specs)))):
            folder.mkdir(parents=True, exist_ok=True)
            write_ray_address(gcs_address, str(folder))

    def _folder(self, index: int) -> Path:
        return self._temp_dir / "s" / str(index)

    def _params(self, spec: NodeSpec, index: int) -> RayParams:
        return RayParams(
            # A folder for each node: two that start at once would take the same socket and log names, and a node's log
            # listing would show the other nodes' files.
            temp_dir=str(self._folder(index)),
            num_cpus=spec.cpus,
            num_gpus=spec.gpus,
            memory=spec.memory_bytes,
            labels={"raydeck.io/node": spec.name},
            env_vars=spec.environment,
            object_store_memory=OBJECT_STORE_BYTES,
            node_ip_address=environment.ADDRESS,
            node_manager_port=0,
            min_worker_port=0,
            max_worker_port=0,
            dashboard_agent_listen_port=0,
            # Ray's annotation says it is a text; it is a switch.
            include_log_monitor=cast("str", False),
        )


def free_port() -> int:
    """A port of the loopback address that nobody uses now; the kernel picks above Ray's own worker range."""
    with socket.socket() as probe:
        probe.bind((environment.ADDRESS, 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def _step(progress: Progress, name: str) -> Generator[None]:
    began = time.monotonic()
    progress(name, None)
    yield
    progress(name, time.monotonic() - began)


RAY_VERSION: str = ray.__version__
