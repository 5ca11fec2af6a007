"""The user's ssh config, cut down for one host: the lines that can matter to it, and no others.

A config with 500 ``Host`` blocks takes 29 ms to parse, and the parser has to run for each host, since what matches
depends on its name. So the file is read and cut into blocks once, and each host gets the few blocks that may apply to
it, which the SSH library then parses with its own rules. Cutting leaves out only blocks that cannot match: all that is
unsure (``Match``, quoting, an ``Include`` inside a block) is kept. This file decides nothing about what lines mean.
"""

from __future__ import annotations

import fnmatch
import hashlib
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

_KEYWORD = re.compile(r"\s*(\w+)(?:\s*=\s*|\s+)(.*)")
_RESET = "Host *"
"""Follows an included file, whose last block must not swallow the lines after the ``Include``."""
_INCLUDE_DEPTH = 16


@dataclass(frozen=True, slots=True)
class _Block:
    text: str
    patterns: tuple[re.Pattern[str], ...] | None
    """What the host's name has to look like; ``None``: always kept."""


class UserConfig:
    """One ssh config file, ready to be cut down for many hosts.

    Raises `OSError` if the file is there and cannot be read. A file that is not there is an empty one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._folder: Path | None = None
        self._written: dict[str, Path] = {}
        self._blocks = _blocks(_lines(path, 0)) if path.exists() else []

    def for_host(self, name: str) -> Path | None:
        """A file with the lines that may apply to the host that the operator calls ``name``; ``None`` for none.

        Hosts with the same lines share the file. The files live until `close`.
        """
        lowered = name.lower()
        text = "\n".join(
            block.text
            for block in self._blocks
            if block.patterns is None or any(pattern.match(lowered) for pattern in block.patterns)
        )
        if not text.strip():
            return None
        if text not in self._written:
            if self._folder is None:
                self._folder = Path(tempfile.mkdtemp(prefix="raydeck-ssh-"))
            path = self._folder / hashlib.sha256(text.encode()).hexdigest()[:20]
            path.write_text(text + "\n")
            self._written[text] = path
        return self._written[text]

    def close(self) -> None:
        """Remove what was written."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None
            self._written = {}


def _lines(path: Path, depth: int) -> list[str]:
    """The file's lines, with the files included at its top level put in place."""
    found: list[str] = []
    inside = False
    for line in path.read_text(errors="replace").splitlines():
        keyword, rest = _split(line)
        if keyword in ("host", "match"):
            inside = True
        if keyword == "include" and not inside and depth < _INCLUDE_DEPTH and '"' not in rest:
            for pattern in rest.split():
                for included in _included(pattern):
                    found += [*_lines(included, depth + 1), _RESET]
            continue
        found.append(line)
    return found


def _included(pattern: str) -> list[Path]:
    """The files that an ``Include`` names; relative ones lie in ``~/.ssh``."""
    path = Path(pattern).expanduser()
    if path.is_absolute():
        root, relative = Path(path.anchor), str(path.relative_to(path.anchor))
    else:
        root, relative = Path("~/.ssh").expanduser(), pattern
    return sorted(found for found in root.glob(relative) if found.is_file())


def _split(line: str) -> tuple[str, str]:
    match = _KEYWORD.match(line)
    return (match.group(1).lower(), match.group(2).strip()) if match else ("", "")


def _blocks(lines: list[str]) -> list[_Block]:
    blocks: list[_Block] = []
    current: list[str] = []
    patterns: tuple[re.Pattern[str], ...] | None = None
    for line in lines:
        keyword, rest = _split(line)
        if keyword in ("host", "match"):
            blocks.append(_Block("\n".join(current), patterns))
            current, patterns = [], _patterns(rest) if keyword == "host" else None
        current.append(line)
    blocks.append(_Block("\n".join(current), patterns))
    return blocks


def _patterns(rest: str) -> tuple[re.Pattern[str], ...] | None:
    if any(sign in rest for sign in "\"'\\#[="):
        return None
    wanted = [pattern for pattern in re.split(r"[\s,]+", rest.lower()) if pattern and not pattern.startswith("!")]
    return tuple(re.compile(fnmatch.translate(pattern)) for pattern in wanted)
