"""Owns what stands in a checkpoint's ``manifest.json``: its files with sizes and SHA-256, and how it came about.

Standard library only. Reading is bounded and believes nothing: a manifest may have been cut, edited, or made to lead
elsewhere.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jobs import bounded

FILE = "manifest.json"
PARTIAL = ".partial"
_MAX_BYTES = 32 << 20
"""About 200,000 files."""


class Sealed(NamedTuple):
    """A file that is durable, and what it holds."""

    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """What was written down when a checkpoint was finished."""

    step: int
    begun_at: float
    """Seconds since 1970, as `written_at`."""
    written_at: float
    files: dict[str, Sealed]
    """By the path below the checkpoint's folder, with slashes."""
    world_size: int | None = None
    """How many ranks saved it."""
    attempt: int | None = None
    loss: float | None = None
    """What the script said it was; may be NaN."""
    versions: dict[str, str] = field(default_factory=dict[str, str])
    """``python``, ``torch`` (where the script uses it), ``raydeck`` (where it is installed)."""

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(file.size for file in self.files.values())

    @property
    def seconds(self) -> float:
        """How long it took to write."""
        return max(0.0, self.written_at - self.begun_at)


def seal(path: Path, durable: bool = True) -> Sealed:
    """Read a saved file through for its size and digest, and have it on the disk when this returns, if ``durable``."""
    digest = hashlib.sha256()
    size = 0
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
            size += len(block)
        if durable:
            os.fsync(file.fileno())
    return Sealed(size, digest.hexdigest())


def write(folder: Path, manifest: Manifest) -> None:
    """Put the manifest into the folder, whole or not at all; it is durable when this returns."""
    value: dict[str, Any] = {"step": manifest.step, "begun_at": manifest.begun_at, "written_at": manifest.written_at}
    if manifest.world_size is not None:
        value["world_size"] = manifest.world_size
    if manifest.attempt is not None:
        value["attempt"] = manifest.attempt
    if manifest.loss is not None:
        # JSON has neither NaN nor infinity; as words they survive every reader.
        value["loss"] = manifest.loss if math.isfinite(manifest.loss) else str(manifest.loss)
    value["versions"] = manifest.versions
    value["files"] = {name: file._asdict() for name, file in manifest.files.items()}
    partial = folder / (FILE + PARTIAL)
    with partial.open("w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    partial.rename(folder / FILE)
    bounded.sync_folder(folder)


def read(folder: Path) -> Manifest:
    """The manifest of a checkpoint's folder. Raises ValueError with the reason why there is none to go by."""
    try:
        value: Any = json.loads(bounded.read(folder / FILE, _MAX_BYTES))
    except FileNotFoundError:
        raise ValueError("it has no manifest") from None
    except OSError as error:
        raise ValueError(f"its manifest cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"its manifest cannot be read: {error}") from None
    try:
        return _understood(value)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"its manifest is not one: {error}") from None


def _understood(value: Any) -> Manifest:
    files: dict[str, Sealed] = {}
    for name, entry in value["files"].items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise ValueError(f"it names {bounded.shown(name)}, which is outside")
        size = _whole(entry["size"])
        if size is None or not isinstance(entry["sha256"], str):
            raise ValueError(f"it has no size and SHA-256 for {bounded.shown(name)}")
        files[name] = Sealed(size, entry["sha256"])
    if not files:
        raise ValueError("it names no file")
    begun, written = float(value["begun_at"]), float(value["written_at"])
    step = _whole(value["step"])
    if step is None or not (math.isfinite(begun) and math.isfinite(written)):
        raise ValueError("its step or its times are no numbers")
    versions = value.get("versions")
    return Manifest(
        step=step,
        begun_at=begun,
        written_at=written,
        files=files,
        world_size=_whole(value.get("world_size")),
        attempt=_whole(value.get("attempt")),
        loss=_loss(value.get("loss")),
        versions={name: text for name, text in versions.items() if isinstance(text, str)}
        if isinstance(versions, Mapping)
        else {},
    )


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None


def _loss(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float, str)):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def versions() -> dict[str, str]:
    """What this process runs on. Torch is asked only where the script has loaded it."""
    found = {"python": platform.python_version()}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(getattr(torch, "__version__", "unknown"))
    from importlib.metadata import PackageNotFoundError, version

    # The code that travels to a node comes without the record of an installation; then there is no version to tell.
    with suppress(PackageNotFoundError):
        found["raydeck"] = version("raydeck")
    return found
