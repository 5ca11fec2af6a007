"""Makes what travels to a node, over an SSH channel or through Ray: a first line of Python, and the probe's sources.

The sources are read, never imported, so the console does not load what only a node needs. nvidia-ml-py travels trimmed
to the calls that the probe makes, since compiling all of it takes longer than everything else together.
"""

from __future__ import annotations

import json
import re
import zlib
from functools import lru_cache
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path

from jobs.errors import Refused

MADE = "probe.bundle"
"""Beside the probe's sources in a controller's archive: the finished bundle."""
LENGTH_DIGITS = 8
"""The blob is preceded by its length in so many hexadecimal digits."""

# Any Python parses this, back to 2.7. It has no backslash of its own and no exclamation mark: some login shells touch
# those even in quotes. It reads exactly the blob, since the pings that follow on the same channel are not its own.
_BOOT = """
import os, sys
v = sys.version_info
if v < (3, 8):
    print('{"v":1,"kind":"fault","reason":"python3 is %d.%d.%d, the probe needs 3.8"}' % v[:3])
    sys.exit(3)
import json, zlib
def read(n):
    b = b""
    while len(b) < n:
        c = os.read(0, n - len(b))
        if not c:
            sys.exit("the probe did not arrive")
        b += c
    return b
s = json.loads(zlib.decompress(read(int(read(8), 16))))
n = {"__name__": "probes.shipped"}
exec(compile(s["probes.shipped"], "<raydeck>/probes/shipped.py", "exec"), n)
os._exit(n["run"](s, sys.argv[1:]))
"""

BOOT = f"exec({json.dumps(_BOOT.strip())})"
"""What ``python3 -c`` is given: one line."""


def boot_argv(arguments: list[str]) -> list[str]:
    """The command that runs the probe on a node, for example with ``["stream", "--disk", "/data"]``.

    Send `bundle` to its stdin first; lines after that are the probe's (``ping ID``).
    """
    return ["python3", "-I", "-S", "-u", "-c", BOOT, *arguments]


@lru_cache(maxsize=1)
def bundle() -> bytes:
    """The probe's sources, compressed, behind their length. Made once. Raises `Refused` without nvidia-ml-py.

    A controller has it from the console that sent it: a head need not have nvidia-ml-py.
    """
    made = files("probes").joinpath(MADE)
    if made.is_file():
        return made.read_bytes()
    sources = {"probes": ""}
    for file in files("probes").iterdir():
        if file.name.endswith(".py") and file.name != "__init__.py":
            sources["probes." + file.name[:-3]] = file.read_text(encoding="utf-8")
    sources["dataclasses"] = sources.pop("probes.plain")
    found = find_spec("pynvml")
    if found is None or found.origin is None:
        raise Refused("nvidia-ml-py is not installed here, so no probe can be sent", "Install raydeck anew")
    whole = Path(found.origin).read_text(encoding="utf-8")
    asking = " ".join(text for name, text in sources.items() if name.startswith("probes.nvml"))
    names = re.findall(r"(?:pynvml\.|[\"\'])((?:c_nvml|nvml[A-Z]|NVML_|NVMLError)\w*)", asking)
    sources["pynvml"] = trim(whole, set(names))
    blob = zlib.compress(json.dumps(sources).encode("ascii"), 9)
    return "{:0{}x}".format(len(blob), LENGTH_DIGITS).encode("ascii") + blob


def trim(source: str, wanted: set[str]) -> str:
    """A module's source without the top-level definitions that ``wanted`` names do not lead to.

    A definition is kept when a kept one mentions its name anywhere; statements that are no definition are all kept, and
    so is the licence at the head. What cannot be trimmed safely is given back whole.
    """
    head, chunks = _chunks(source)
    owners: dict[str, list[int]] = {}
    for number, chunk in enumerate(chunks):
        for name in chunk.defines:
            owners.setdefault(name, []).append(number)
    kept: set[int] = set()
    # nvidia-ml-py makes its exception classes from every name that begins so.
    waiting = [name for name in owners if name.startswith("NVML_ERROR_")] + sorted(wanted)
    for number, chunk in enumerate(chunks):
        if not chunk.defines:
            kept.add(number)
            waiting.extend(chunk.mentions)
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        for number in owners.get(name, ()):
            if number not in kept:
                kept.add(number)
                waiting.extend(chunks[number].mentions)
    text = head + "".join(chunk.text for number, chunk in enumerate(chunks) if number in kept)
    try:
        compile(text, "trimmed", "exec", dont_inherit=True)
    except SyntaxError:
        return source
    return text if wanted <= owners.keys() else source


class _Chunk:
    """One top-level statement."""

    _DEFINITION = re.compile(r"(?:^@.*\n)*(?:def|class)\s+(\w+)|(\w+)\s*(?::[^=\n]+)?=[^=]")
    _IMPORT = re.compile(r"(?:from\s+[\w.]+\s+)?import\s+(.+)")

    def __init__(self, text: str) -> None:
        self.text = text
        self.mentions = set(re.findall(r"[A-Za-z_]\w*", text))
        self.defines: list[str] = []
        imported = self._IMPORT.match(text)
        found = self._DEFINITION.match(text)
        if imported and "*" not in imported[1]:
            self.defines = [part.split(" as ")[-1].strip("() \n").split(".")[0] for part in imported[1].split(",")]
        elif found and not imported:
            self.defines = [found[1] or found[2]]


def _chunks(source: str) -> tuple[str, list[_Chunk]]:
    """The comment at the head, and the top-level statements without the comments between them."""
    lines = source.splitlines(keepends=True)
    body = next((at for at, line in enumerate(lines) if not line.startswith("#")), 0)
    texts: list[str] = []
    quoted = ""
    decorated = False
    for line in lines[body:]:
        if not quoted and (line.startswith("#") or not line.strip()):
            continue
        starts = not quoted and re.match(r"[A-Za-z_@]", line) and not re.match(r"(?:else|elif|except|finally)\b", line)
        if starts and not decorated:
            texts.append(line)
        elif texts:
            texts[-1] += line
        if not quoted:
            decorated = line.startswith("@")
        for mark in re.findall(r"\'\'\'|\"\"\"", line):
            quoted = "" if quoted == mark else quoted or mark
    return "".join(lines[:body]), [_Chunk(text) for text in texts]
