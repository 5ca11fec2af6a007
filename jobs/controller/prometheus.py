"""A page of figures for a Prometheus server, in its text format 0.0.4, on a Unix socket or on loopback only.

A figure that is not known is left out; it is never told as 0.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import NamedTuple

from aiohttp import web

from jobs.alertspec import listen_fault
from jobs.alertview import LEVELS, AlertsView
from jobs.errors import Refused
from jobs.model import RunState
from jobs.queueview import QueueView

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CLOSE_SECONDS = 2.0
_ALIVE_SECONDS = 0.5
_Labels = Mapping[str, str]


class Figure(NamedTuple):
    """One figure with its labels."""

    value: float
    labels: _Labels = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the figures come from; each is asked anew for each page, and must not wait."""

    version: str
    started_at: float
    alerts: Callable[[], AlertsView]
    runs: Callable[[], Mapping[RunState, int]]
    """Runs of each state; only the states that are known."""
    queue: Callable[[], QueueView | None]
    passes: Mapping[str, Callable[[], float | None]] = field(default_factory=dict)
    """Name of something that goes round (``scheduling``, ``health``) to the seconds that its last round took."""
    notices: Callable[[], Mapping[str, int]] | None = None
    """Sink to the notices that have not gone out yet."""


class Exposition:
    """The page."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources

    def text(self) -> str:
        """As it is now."""
        lines: list[str] = []
        for name, meaning, figures in self._families():
            told = [f"{name}{_labels(figure.labels)} {_number(figure.value)}" for figure in figures]
            if told:
                lines += [f"# HELP {name} {_help(meaning)}", f"# TYPE {name} gauge", *told]
        return "\n".join(lines) + "\n"

    def _families(self) -> Iterator[tuple[str, str, Iterable[Figure]]]:
        of = self._sources
        yield "raydeck_up", "1 while the controller answers.", [Figure(1)]
        yield "raydeck_build_info", "The controller's version.", [Figure(1, {"version": of.version})]
        yield "raydeck_start_time_seconds", "When the controller started, since 1970.", [Figure(of.started_at)]
        view = of.alerts()
        firing = [alert for alert in view.alerts if alert.state == "firing" and not alert.test]
        levels = Counter(alert.level for alert in firing)
        yield (
            "raydeck_alerts",
            "Alerts that fire, by level.",
            [Figure(levels[level], {"level": level}) for level in LEVELS],
        )
        kinds = Counter(
            (
                alert.level,
                alert.rule,
                "silenced" if alert.silenced_by else "acknowledged" if alert.acknowledged else "open",
            )
            for alert in firing
        )
        yield (
            "raydeck_alerts_firing",
            "Alerts that fire, by level and rule, and what people said to them.",
            [
                Figure(count, {"level": level, "rule": rule, "handling": handling})
                for (level, rule, handling), count in sorted(kinds.items())
            ],
        )
        yield "raydeck_silences", "Silences that have not ended.", [Figure(len(view.silences))]
        yield "raydeck_nodes_watched", "Nodes whose health the controller sees.", [Figure(view.watched_nodes)]
        yield "raydeck_nodes_unwatched", "Nodes whose health it does not see.", [Figure(len(view.unwatched))]
        yield (
            "raydeck_runs",
            "Runs by state.",
            [Figure(count, {"state": state.value}) for state, count in of.runs().items()],
        )
        yield from _of_queue(of.queue())
        took = [(name, ask()) for name, ask in of.passes.items()]
        yield (
            "raydeck_pass_seconds",
            "What the last round of each of the controller's parts took.",
            [Figure(seconds, {"part": name}) for name, seconds in took if seconds is not None],
        )
        if of.notices is not None:
            yield (
                "raydeck_notices_waiting",
                "Notices of alerts that have not gone out yet.",
                [Figure(count, {"sink": sink}) for sink, count in of.notices().items()],
            )


def _of_queue(queue: QueueView | None) -> Iterator[tuple[str, str, Iterable[Figure]]]:
    if queue is None:
        return
    for name, meaning, pick in (
        ("waiting_runs", "Runs that wait in a queue.", lambda use: use.waiting),
        ("running_runs", "Runs of a queue that hold something.", lambda use: use.running),
        ("used_accelerators", "Accelerators that a queue's runs hold.", lambda use: use.used_accelerators),
        ("waiting_accelerators", "Accelerators that its waiting runs ask for.", lambda use: use.waiting_accelerators),
        ("max_accelerators", "The most that its runs may hold.", lambda use: use.max_accelerators),
    ):
        figures = [(use.name, pick(use)) for use in queue.queues]
        yield (
            f"raydeck_queue_{name}",
            meaning,
            [Figure(value, {"queue": queue_name}) for queue_name, value in figures if value is not None],
        )
    for name, meaning, value in (
        ("raydeck_held_runs", "Runs that somebody holds back.", queue.held_total),
        ("raydeck_active_runs", "Runs that hold something.", queue.active_runs),
        ("raydeck_accelerators", "Accelerators on nodes that are alive.", queue.accelerators),
        ("raydeck_accelerators_free", "Accelerators that nobody holds.", queue.free_accelerators),
        ("raydeck_accelerators_foreign", "Accelerators held by work of others.", queue.foreign_accelerators),
    ):
        yield name, meaning, [Figure(value)] if value is not None else []


def _labels(labels: _Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    # A lone surrogate cannot be sent as UTF-8, and a line break of any kind would end the line for some readers.
    value = value.encode("utf-8", "replace").decode()
    return (
        re.sub(r"[\x00-\x09\x0b-\x1f\x7f\x85\u2028\u2029]", "?", value)
        .replace("\\", "\\\\")
        .replace('"', '\\"')
        .replace("\n", "\\n")
    )


def _help(meaning: str) -> str:
    return meaning.replace("\\", "\\\\").replace("\n", "\\n")


def _number(value: float) -> str:
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


class Endpoint:
    """Where the page is served. Close it."""

    def __init__(self, runner: web.AppRunner, listener: socket.socket, path: str) -> None:
        self._runner = runner
        self._path = path
        name = listener.getsockname()
        self.port: int | None = None if path else int(name[1])

    async def close(self) -> None:
        """Answers that were begun may end; then the socket and its name are gone."""
        await self._runner.cleanup()
        if self._path:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path)


async def serve(listen: str, exposition: Exposition) -> Endpoint:
    """Answers ``GET /metrics`` on ``unix:/PATH`` (for this user only) or ``127.0.0.1:PORT``.

    Raises `Refused` for any other place, and for one that is taken.
    """
    fault = listen_fault(listen)
    if fault:
        raise Refused(f"alerting.prometheus.listen {fault}")
    path = listen.removeprefix("unix:") if listen.startswith("unix:") else ""
    listener = _unix(path) if path else _loopback(listen)

    async def page(request: web.Request) -> web.Response:
        return web.Response(body=exposition.text().encode(), headers={"Content-Type": CONTENT_TYPE})

    app = web.Application()
    app.router.add_get("/metrics", page)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=CLOSE_SECONDS)
    await runner.setup()
    try:
        await web.SockSite(runner, listener).start()
    except BaseException:
        await runner.cleanup()
        listener.close()
        raise
    endpoint = Endpoint(runner, listener, path)
    log.info("figures for Prometheus at %s", listen)
    return endpoint


def _unix(path: str) -> socket.socket:
    _make_way(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Before it has a name, which takes this mode over: nobody else gets in, not even for a moment.
        os.fchmod(listener.fileno(), 0o600)
        listener.bind(path)
        listener.listen(16)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise Refused(f"the socket {path} cannot be opened: {error.strerror}") from error
    return listener


def _make_way(path: str) -> None:
    """Takes away the name that a controller which was killed left. Raises `Refused` for anything else."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise Refused(f"the socket {path} cannot be opened: {error.strerror}") from error
    if not stat.S_ISSOCK(found.st_mode):
        raise Refused(f"{path} is there, and is no socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(_ALIVE_SECONDS)
        try:
            client.connect(path)
        except (ConnectionRefusedError, FileNotFoundError):
            pass
        except OSError as error:
            raise Refused(f"the socket {path} is taken: {error.strerror or 'it does not answer'}") from error
        else:
            raise Refused(f"the socket {path} is taken: somebody answers there")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _loopback(listen: str) -> socket.socket:
    host, _, port = listen.rpartition(":")
    host = {"localhost": "127.0.0.1", "[::1]": "::1"}.get(host, host)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, int(port)))
        listener.listen(16)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        raise Refused(f"port {port} of {host} cannot be opened: {error.strerror}") from error
    return listener
