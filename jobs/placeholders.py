"""The names in braces that a command of the cluster file may hold, and what takes their place. Pure.

``{head}``, ``{host}`` and ``{accelerators}``; ``{{word}}`` is ``{word}`` as it stands. Braces around anything but one
word are the shell's or JSON's own, and left alone.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping

from jobs.wording import nearest

NAMES = ("head", "host", "accelerators")

_WORD = r"([A-Za-z_][A-Za-z0-9_]*)"
_BRACES = re.compile(rf"\{{\{{{_WORD}\}}\}}|\{{{_WORD}\}}")


def faults(command: str) -> Iterator[tuple[str, str]]:
    """What is wrong with a command: a sentence to be read after its name, and what may have been meant."""
    for found in _BRACES.finditer(command):
        word = found[2]
        if word is not None and word not in NAMES:
            near = nearest(word, NAMES)
            known = ", ".join(f"{{{name}}}" for name in NAMES)
            yield (
                f"has a {{{word}}} that stands for nothing; there are {known} (and {{{{{word}}}}} for the word itself)",
                f"{{{near}}}" if near else "",
            )


def filled(command: str, values: Mapping[str, str | int | None]) -> str:
    """The command with each name replaced by its value, quoted for a shell.

    Raises `KeyError` with the name for one that has no value.
    """

    def value(found: re.Match[str]) -> str:
        if found[1] is not None:
            return f"{{{found[1]}}}"
        known = values.get(found[2])
        if known is None:
            raise KeyError(found[2])
        return shlex.quote(str(known))

    return _BRACES.sub(value, command)
