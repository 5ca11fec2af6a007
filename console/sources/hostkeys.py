"""Which host keys are trusted: read once, asked for one at a time, never accepted in silence.

An unknown key is a question to a person; a key that differs from the one on file is a refusal with both fingerprints.
The SSH library reads the files (`asyncssh.SSHKnownHosts`); this file owns the answer and the one line that is added.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncssh


@dataclass(frozen=True, slots=True)
class HostKeyQuestion:
    """A host whose key is on no list. The person compares the fingerprint, and says yes or no."""

    name: str
    """What the operator calls the node."""
    address: str
    """The host name or address that is connected to."""
    port: int
    algorithm: str
    """Such as ``ssh-ed25519``."""
    fingerprint: str
    """``SHA256:…``, as ``ssh-keygen -l`` prints it."""
    other_fingerprints: tuple[str, ...]
    """Keys of other types that are on file for this host: a reason to look twice. Empty for a new host."""
    path: str | None
    """The known_hosts file that a yes adds a line to; ``None``: it holds for this session only."""

    @property
    def sentence(self) -> str:
        """The question in words, without a question mark's worth of doubt about what is asked."""
        text = (
            f"{self.name} ({self.address}:{self.port}) shows an unknown host key, {self.algorithm} {self.fingerprint}"
        )
        if self.other_fingerprints:
            text += f"; on file are keys of another type: {', '.join(self.other_fingerprints)}"
        return text


AskHostKey = Callable[[HostKeyQuestion], Awaitable[bool]]


@dataclass(frozen=True, slots=True)
class Offered:
    """A host key that was not trusted, and what is on file instead."""

    host: str
    """The name it is filed under: `HostKeyAlias`, or the host name."""
    port: int
    filed_with_port: bool
    key: asyncssh.SSHKey
    same_type: tuple[str, ...]
    """Fingerprints on file of the same type: not empty means that the key has changed."""
    other_types: tuple[str, ...]
    revoked: bool
    """A file says that this key must never be trusted."""

    @property
    def trusted(self) -> bool:
        """It has been accepted since the handshake began."""
        return not self.revoked and self.fingerprint in self.same_type

    @property
    def fingerprint(self) -> str:
        return self.key.get_fingerprint()

    @property
    def algorithm(self) -> str:
        return self.key.get_algorithm()


class HostKeys:
    """The known_hosts files of this session, each parsed once, and the questions about new keys.

    ``ask`` is awaited for one host at a time; without it (no terminal, no console) every unknown key is refused.
    """

    def __init__(self, ask: AskHostKey | None = None) -> None:
        self._ask = ask
        self._files: dict[tuple[str, ...], asyncssh.SSHKnownHosts] = {}
        self._one_at_a_time = asyncio.Lock()
        self._answers: dict[tuple[str, int, str], bool] = {}
        self.unsaved: dict[str, str] = {}
        """Node name to the sentence that says why its accepted key could not be written down."""

    def trusted(self, files: Sequence[str]) -> asyncssh.SSHKnownHosts:
        """The keys of these files, in the SSH library's own form. A line that cannot be read is passed over."""
        wanted = tuple(files)
        if wanted not in self._files:
            self._files[wanted] = _read(wanted)
        return self._files[wanted]

    def judge(self, files: Sequence[str], host: str, port: int, key: asyncssh.SSHKey, *, with_port: bool) -> Offered:
        """What is on file for the host that offers this untrusted key."""
        filed = _filed(host, port, with_port)
        keys, _, revoked, *_ = self.trusted(files).match(filed, "", None)
        same = tuple(known.get_fingerprint() for known in keys if known.get_algorithm() == key.get_algorithm())
        other = tuple(
            f"{known.get_algorithm()} {known.get_fingerprint()}"
            for known in keys
            if known.get_algorithm() != key.get_algorithm()
        )
        return Offered(host, port, with_port, key, same, other, key in revoked)

    async def accept(self, new_keys: str | None, name: str, offered: Offered) -> bool:
        """Ask about an unknown key, and file it in ``new_keys`` after a yes. Once; a no holds until `forget`."""
        identity = (offered.host, offered.port, offered.fingerprint)
        async with self._one_at_a_time:
            if identity not in self._answers:
                question = HostKeyQuestion(
                    name=name,
                    address=offered.host,
                    port=offered.port,
                    algorithm=offered.algorithm,
                    fingerprint=offered.fingerprint,
                    other_fingerprints=offered.other_types,
                    path=new_keys,
                )
                self._answers[identity] = self._ask is not None and await self._ask(question)
                if self._answers[identity]:
                    await self._file(new_keys, name, offered)
            return self._answers[identity]

    @property
    def can_ask(self) -> bool:
        """Whether there is a person to ask."""
        return self._ask is not None

    def forget(self, host: str, port: int) -> None:
        """Let a key that was declined be asked about again."""
        for identity in [known for known in self._answers if known[:2] == (host, port)]:
            if not self._answers[identity]:
                del self._answers[identity]

    async def _file(self, new_keys: str | None, name: str, offered: Offered) -> None:
        public = offered.key.export_public_key("openssh").decode().split()
        line = f"{_filed(offered.host, offered.port, offered.filed_with_port)} {public[0]} {public[1]}"
        for known in self._files.values():
            known.load(line)
        if new_keys is None:
            return
        try:
            await asyncio.to_thread(_append, Path(new_keys), line)
        except OSError as error:
            self.unsaved[name] = f"its host key is accepted for this session only, since {new_keys}: {error.strerror}"


def _filed(host: str, port: int, with_port: bool) -> str:
    return f"[{host}]:{port}" if with_port and port != 22 else host


def _read(files: Sequence[str]) -> asyncssh.SSHKnownHosts:
    import asyncssh

    known = asyncssh.import_known_hosts("")
    for name in files:
        path = Path(name)
        if not path.is_file():
            continue
        for line in path.read_text(errors="replace").splitlines():
            try:
                known.load(line)
            except ValueError:
                continue
    return known


def _append(path: Path, line: str) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        ends_well = size == 0 or os.pread(descriptor, 1, size - 1) == b"\n"
        os.write(descriptor, f"{'' if ends_well else chr(10)}{line}\n".encode())
    finally:
        os.close(descriptor)
