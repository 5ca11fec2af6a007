"""What a release was made with, as the head has it: the software's versions, and the digest of the data's manifest.

Versions are read from what is installed; nothing is imported for them.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from jobs.errors import Refused

MANIFEST_BYTES = 256 * 2**20
PIECE_BYTES = 2**20
DRIVER_FILE = Path("/proc/driver/nvidia/version")
_DRIVER = re.compile(r"Kernel Module\s+(?:for \S+\s+)?([0-9]+(?:\.[0-9]+)+)")
_CUDA = re.compile(r"^cuda(?:\s*:[^=]+)?\s*=\s*'([^']+)'", re.MULTILINE)
_NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu11")


def fingerprint(ray: str = "", driver_file: Path = DRIVER_FILE) -> Mapping[str, str]:
    """``python``, ``ray``, ``torch``, ``cuda``, ``nccl`` and ``driver``, as far as they are here. Blocks on the disk.

    ``ray`` is the version that Ray itself told; without it the installed one is taken.
    """
    told = {
        "python": platform.python_version(),
        "ray": ray or _installed("ray"),
        "torch": _installed("torch"),
        "cuda": _found(_CUDA, _torch_version_file()),
        "nccl": next(filter(None, map(_installed, _NCCL)), ""),
        "driver": _found(_DRIVER, driver_file),
    }
    return {name: version for name, version in told.items() if version}


def file_digest(path: Path) -> str:
    """SHA-256 of a file, in hex. Raises `Refused` for one that cannot be read, or is too large to be a manifest."""
    digest, size = hashlib.sha256(), 0
    try:
        with path.open("rb") as file:
            while piece := file.read(PIECE_BYTES):
                size += len(piece)
                if size > MANIFEST_BYTES:
                    raise Refused(f"{path} is larger than {MANIFEST_BYTES // 2**20} MiB")
                digest.update(piece)
    except OSError as error:
        raise Refused(f"{path} cannot be read on the head: {error.strerror}") from error
    return digest.hexdigest()


def _installed(distribution: str) -> str:
    """The installed version; empty without one."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _torch_version_file() -> Path | None:
    """Where torch says which CUDA it was built for: importing it would take seconds and a gigabyte."""
    with contextlib.suppress(ImportError, ValueError):
        spec = importlib.util.find_spec("torch")
        if spec is not None and spec.origin:
            return Path(spec.origin).with_name("version.py")
    return None


def _found(pattern: re.Pattern[str], file: Path | None) -> str:
    """What the pattern takes from the file; empty if it is not there."""
    if file is None:
        return ""
    try:
        match = pattern.search(file.read_text("utf-8", "replace"))
    except OSError:
        return ""  # it cannot be known, and nothing is made up
    return match[1] if match else ""
