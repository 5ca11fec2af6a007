"""Real servers on loopback for notices to go to, a clock that is set by hand, and alerts to tell of."""

from __future__ import annotations

import asyncio
import base64
import datetime
import ipaddress
import json
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from jobs.alertview import Acknowledged, Alert, AlertsView, Delivery
from jobs.controller.notify.notifier import Notifier
from jobs.load import load_cluster
from jobs.spec import Cluster

PATIENCE_SECONDS = 10.0
ONE = "{{sinks: [{{name: hook, kind: webhook, url: '{}'}}]{}}}"
"""One webhook; its address, and more keys of `alerting`, are to be filled in."""


def cluster(alerting: str, more: str = "") -> Cluster:
    """A cluster file with this below ``alerting``, as YAML in one line or more."""
    return load_cluster(
        f"cluster:\n  name: lab\n  control_nodes: [{{host: h}}]\n  alerting: {alerting}\n{more}", "c.yaml"
    )


def alert(name: str = "a1", level: Any = "critical", **changes: Any) -> Alert:
    given: dict[str, Any] = {
        "id": name, "rule": "gpu.lost", "level": level, "title": f"gpu-1/3 is lost ({name})", "entities": ["gpu-1/3"],
        "nodes": ["gpu-1"], "since": 1_700_000_000.0, "cause": "The GPU fell off the bus", "action": "Drain gpu-1",
    }  # fmt: skip
    return Alert.model_validate({**given, **changes})


def acknowledged(one: Alert) -> Alert:
    return one.model_copy(update={"acknowledged": Acknowledged(user="kim", at=1.0)})


class Clock:
    """Wall time that stands still until it is moved."""

    def __init__(self, at: float = 1_700_000_100.0) -> None:
        self.at = at

    def __call__(self) -> float:
        return self.at


async def until(true: Callable[[], bool], what: str = "it") -> None:
    """Waits until it is so. Fails after a while."""
    end = time.monotonic() + PATIENCE_SECONDS
    while not true():
        assert time.monotonic() < end, f"{what} did not come about"
        await asyncio.sleep(0.005)


def tell(notifier: Notifier, clock: Clock, *alerts: Alert, seconds: float = 0.0) -> None:
    """Time passes, second by second, while these fire."""
    view = AlertsView(alerts=list(alerts))
    notifier.take(view)
    end = clock.at + seconds
    while clock.at < end:
        clock.at = min(clock.at + 1.0, end)
        notifier.take(view)


class Controller:
    """A notifier, its clock, and what would be kept of it."""

    def __init__(self, alerting: str, clock: Clock | None = None, saved: Any = None, more: str = "", **environ: str):
        self.clock = clock or Clock()
        self.changes = 0
        self.notifier = Notifier(cluster(alerting, more), self.clock, self._changed, environ)
        self.notifier.load(saved)

    def _changed(self) -> None:
        self.changes += 1

    def tell(self, *alerts: Alert, seconds: float = 0.0) -> None:
        tell(self.notifier, self.clock, *alerts, seconds=seconds)

    def saved(self) -> Any:
        """As it comes back from where it was kept."""
        return json.loads(json.dumps(self.notifier.dump()))

    def of(self, name: str = "a1") -> Delivery | None:
        return next(iter(self.notifier.deliveries(name)), None)

    def said(self, name: str = "a1") -> str:
        delivery = self.of(name)
        return delivery.detail if delivery else ""


@dataclass
class Got:
    """One request that came."""

    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: dict[str, Any]


Answer = Callable[[Got], Awaitable[web.Response]]


@dataclass
class Receiver:
    """A server that takes what is posted to it, and answers as it was told to."""

    port: int = 0
    scheme: str = "http"
    got: list[Got] = field(default_factory=list)
    answers: list[web.Response | Answer] = field(default_factory=list)
    """For the next requests, in order; then ``always``."""
    always: Callable[[], web.Response] = lambda: web.json_response({"ok": True})

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook/SECRETPATH"

    def kinds(self) -> list[str]:
        return [each.body["kind"] for each in self.got]


@asynccontextmanager
async def receiver(tls: ssl.SSLContext | None = None) -> AsyncGenerator[Receiver]:
    """A `Receiver` on a port of its own."""
    here = Receiver(scheme="https" if tls else "http")

    async def take(request: web.Request) -> web.Response:
        got = Got(request.path, dict(request.query), dict(request.headers), await request.json())
        here.got.append(got)
        if not here.answers:
            return here.always()
        answer = here.answers.pop(0)
        return answer if isinstance(answer, web.Response) else await answer(got)

    app = web.Application()
    app.router.add_post("/{tail:.*}", take)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
    await site.start()
    assert runner.addresses
    here.port = runner.addresses[0][1]
    try:
        yield here
    finally:
        await runner.cleanup()


@dataclass
class Letter:
    """One mail that came."""

    sender: str
    to: list[str]
    text: str


@dataclass
class MailServer:
    """As much of SMTP as a client needs."""

    port: int = 0
    letters: list[Letter] = field(default_factory=list)
    logins: list[str] = field(default_factory=list)
    """User and password of each login, as ``user:password``."""
    codes: dict[str, str] = field(default_factory=dict)
    """Verb to an answer instead of the usual one, once."""
    silent: bool = False
    """It takes connections, and says nothing."""
    connections: int = 0
    left: int = 0
    """Connections that are over."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            if self.silent:
                await reader.read()
                return
            await self._talk(reader, writer)
        except ConnectionError:
            return
        finally:
            self.left += 1
            writer.close()

    async def _talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        def say(line: str) -> None:
            writer.write(f"{line}\r\n".encode())

        say("220 test ESMTP")
        letter = Letter("", [], "")
        while line := (await reader.readline()).decode().rstrip("\r\n"):
            verb = line.split()[0].upper()
            if verb in self.codes:
                say(self.codes.pop(verb))
            elif verb == "EHLO":
                say("250-test")
                say("250-AUTH PLAIN")
                say("250 SMTPUTF8")
            elif verb == "AUTH":
                _, user, password = base64.b64decode(line.split()[2]).decode().split("\0")
                self.logins.append(f"{user}:{password}")
                say("235 fine")
            elif verb == "MAIL":
                letter = Letter(line.partition("<")[2].partition(">")[0], [], "")
                say("250 fine")
            elif verb == "RCPT":
                letter.to.append(line.partition("<")[2].partition(">")[0])
                say("250 fine")
            elif verb == "DATA":
                say("354 go on")
                await writer.drain()
                lines: list[str] = []
                while (text := (await reader.readline()).decode().rstrip("\r\n")) != ".":
                    lines.append(text.removeprefix(".") if text.startswith("..") else text)
                letter.text = "\n".join(lines)
                self.letters.append(letter)
                say("250 taken")
            elif verb == "QUIT":
                say("221 bye")
                return
            else:
                say("250 fine")
            await writer.drain()


@asynccontextmanager
async def mail_server(tls: ssl.SSLContext | None = None, **settings: Any) -> AsyncGenerator[MailServer]:
    """A `MailServer` on a port of its own."""
    here = MailServer(**settings)
    server = await asyncio.start_server(here.serve, "127.0.0.1", 0, ssl=tls)
    here.port = server.sockets[0].getsockname()[1]
    try:
        yield here
    finally:
        server.close()
        await server.wait_closed()
        await until(lambda: here.left == here.connections, "the end of all connections")


def certificate(folder: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    """What a server on 127.0.0.1 shows, and a client's context that trusts it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "test")])
    now = datetime.datetime.now(datetime.timezone.utc)
    day = datetime.timedelta(days=1)
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now - day, now + day)
    builder = builder.add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False
    )
    shown = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    file = folder / "shown.pem"
    file.write_bytes(
        shown
        + key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(file)
    return server, ssl.create_default_context(cadata=shown.decode())
