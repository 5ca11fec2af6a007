"""Whether a dataset is what it was: the files of its list of checksums, read on every node.

The list is what ``sha256sum`` writes, in a file ``SHA256SUMS`` at the dataset's root.
"""

from __future__ import annotations

import hashlib
import random
import time
from pathlib import Path
from typing import Any

from jobs.validation.apart import at_once
from jobs.validation.measured import Skip, Teller

LIST = "SHA256SUMS"
SAMPLE_BYTES = 1 << 30
"""So much of it is read, chosen by chance but the same on every node; all of it in the profile ``full``."""
READ_SECONDS = 120.0
_CHUNK = 1 << 20
_DIGITS = 64


def run(request: dict[str, Any], tell: Teller) -> None:
    """``request``: ``paths``, ``token`` (what the choice depends on), ``deep``."""
    with tell.check("cluster.data") as measured:
        roots = [Path(path["path"]) for path in request["paths"] if path["purpose"] == "dataset"]
        lists = [root / LIST for root in roots if (root / LIST).is_file()]
        if not lists:
            raise Skip(f"no dataset path has a list of checksums ({LIST})")
        bad: dict[str, str] = {}
        read = files = 0
        began = time.perf_counter()
        for told in lists:
            chosen = listed(told)
            random.Random(str(request["token"])).shuffle(chosen)  # noqa: S311 - a sample, the same everywhere
            for digest, name in chosen:
                if read >= SAMPLE_BYTES and not request.get("deep"):
                    break
                path = told.parent / name
                found = at_once([lambda path=path: digest_of(path)], READ_SECONDS)[0]
                files += 1
                if found is None:
                    bad[str(path)] = f"cannot be read within {READ_SECONDS:.0f} s"
                elif isinstance(found, str):
                    bad[str(path)] = found
                else:
                    read += found[1]
                    if found[0] != digest:
                        bad[str(path)] = "does not have the content of the list (its SHA-256 differs)"
        measured.facts.update(files=files, bytes=read, bad=bad)
        measured.figures["data"] = [read / (time.perf_counter() - began) / 1e6] if read else []
        if bad:
            path, why = next(iter(bad.items()))
            more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
            measured.wrong = f"{path} {why}{more}"


def listed(file: Path) -> list[tuple[str, str]]:
    """The list's digests and names. Raises `ValueError` for a line that is none."""
    found: list[tuple[str, str]] = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        digest, _, name = line.partition(" ")
        name = name[1:] if name[:1] in (" ", "*") else name
        outside = name.startswith("/") or ".." in Path(name).parts
        if len(digest) != _DIGITS or set(digest) - set("0123456789abcdef") or not name or outside:
            raise ValueError(f"line {number} of {file} is none of a list of checksums")
        found.append((digest, name))
    return found


def digest_of(path: Path) -> tuple[str, int] | str:
    """A file's SHA-256 in hex, and its size; why it cannot be read."""
    told = hashlib.sha256()
    size = 0
    try:
        with path.open("rb") as opened:
            while part := opened.read(_CHUNK):
                told.update(part)
                size += len(part)
    except FileNotFoundError:
        return "is missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    return told.hexdigest(), size
