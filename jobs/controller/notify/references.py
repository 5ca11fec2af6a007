"""Secrets behind ``${env:NAME}`` and ``${file:PATH}``, looked up on the head at the moment of sending, and not kept.

Errors name the reference, never what it stands for.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from jobs import bounded
from jobs.controller.notify.aside import Aside
from jobs.controller.notify.notice import Failed
from jobs.values import REFERENCE

READ_SECONDS = 5.0
"""A file may lie on a mount that hangs."""
FILE_BYTES = 64 * 1024
HIDDEN = "•••"
SHORTEST_HIDDEN = 4
"""Shorter secrets are not looked for in other words: they would be found everywhere."""


class References:
    """What one sink's references stand for."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._aside = Aside("reading a secret")

    async def resolve(self, *texts: str) -> list[str]:
        """The texts with their references filled in. Raises `Failed`."""
        if not any(REFERENCE.search(text) for text in texts):
            return list(texts)
        return await self._aside.do(lambda: [self._filled(text) for text in texts], READ_SECONDS)

    def _filled(self, text: str) -> str:
        return REFERENCE.sub(lambda found: self._looked_up(found[1], found[2]), text)

    def _looked_up(self, kind: str, what: str) -> str:
        if kind == "env":
            if what not in self._environ:
                raise Failed(f"the controller has no environment variable {what}", again=False)
            return self._environ[what]
        try:
            content = bounded.read(Path(os.path.expanduser(what)), FILE_BYTES).decode()
        except UnicodeDecodeError:
            raise Failed(f"{what} is not text", again=False) from None
        except OSError as error:
            raise Failed(f"{what} cannot be read: {error.strerror}") from None
        except ValueError as error:
            raise Failed(f"{what} cannot be read: {error}", again=False) from None
        return content.strip("\r\n")


def hidden(text: str, secrets: Iterable[str]) -> str:
    """Words of another machine, which may repeat what it was sent, with the secrets painted over."""
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= SHORTEST_HIDDEN:
            text = text.replace(secret, HIDDEN)
    return text
