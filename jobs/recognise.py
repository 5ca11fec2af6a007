"""Owns how checkpoints that raydeck did not write are recognised, and how far each format tells whether it is whole.

torch.distributed.checkpoint (``.metadata`` and ``__R_N.distcp``), Hugging Face's Trainer (``checkpoint-500/``) and
Lightning (``….ckpt``). A pickle is never opened: what it would do is its author's choice. Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from jobs import bounded, zips
from jobs.bounded import shown

Format = Literal["dcp", "huggingface", "lightning"]

_HUGGINGFACE = re.compile(r"^checkpoint-([0-9]{1,18})$")
_NAMED_STEP = re.compile(r"(?:step|iter|iteration)[=_-]?([0-9]{1,18})(?![0-9])", re.IGNORECASE)
_NUMBER = re.compile(r"(?<![0-9])[0-9]{1,18}(?![0-9])")
_SHARD = re.compile(r"^__([0-9]{1,9})_[0-9]{1,9}\.distcp$")
_SHARD_IN_METADATA = re.compile(rb"__[0-9]{1,9}_[0-9]{1,9}\.distcp")
_METADATA = ".metadata"
_STATE = "trainer_state.json"
_FSDP = "pytorch_model_fsdp_0"
_WEIGHTS = ("model.safetensors", "adapter_model.safetensors", "pytorch_model.bin", "adapter_model.bin")
_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
_RANDOM_STATE = re.compile(r"^rng_state(?:_[0-9]+)?\.pth$")
_MAX_JSON_BYTES = 64 << 20
_MAX_METADATA_BYTES = 64 << 20
"""Of a larger one it is not checked which shards it names."""
_MAX_FILES = 20_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """What looks like a checkpoint of one of these formats."""

    format: Format
    step: int
    path: Path


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, looked at."""

    reason: str = ""
    """Why it is not complete; empty for one that is."""
    size_bytes: int | None = None
    written_at: float | None = None
    """When the file that its format writes last was changed; seconds since 1970."""
    loss: float | None = None
    world_size: int | None = None


class _Incomplete(Exception):
    """It is not complete; the text says why."""


def recognise(path: Path, name: str = "") -> Candidate | None:
    """What a file or folder is, by its name and what lies in it; None for something else, or one without a step.

    ``name`` is what it was called before, where it was renamed. Raises OSError where a folder cannot be read.
    """
    name = name or path.name
    step = step_in(name)
    if step is None or path.is_symlink():
        return None
    if path.is_dir():
        if _is_distributed(path):
            return Candidate("dcp", step, path)
        return Candidate("huggingface", step, path) if _HUGGINGFACE.match(name) else None
    return Candidate("lightning", step, path) if name.endswith(".ckpt") and path.is_file() else None


def step_in(name: str) -> int | None:
    """The step that a name tells: what follows ``step`` or ``iter``, otherwise its last number; None without one."""
    if named := _NAMED_STEP.search(name):
        return int(named.group(1))
    if name.endswith(".ckpt"):
        return None  # its other numbers are epochs and figures
    numbers = _NUMBER.findall(name)
    return int(numbers[-1]) if numbers else None


def examine(candidate: Candidate) -> Found:
    """Whether it is complete, as far as its format tells. Never raises: what cannot be read is a reason."""
    size: int | None = None
    try:
        size = _size(candidate.path)
        if candidate.format == "lightning":
            _torch_file(candidate.path, must_be_zip=True)
            return Found(size_bytes=size, written_at=candidate.path.stat().st_mtime)
        if candidate.format == "dcp":
            ranks = _distributed(candidate.path)
            return Found("", size, (candidate.path / _METADATA).stat().st_mtime, world_size=ranks)
        return _trainer(candidate, size)
    except _Incomplete as why:
        return Found(str(why), size)
    except FileNotFoundError as error:
        return Found(f"{shown(Path(str(error.filename)).name)} went away while it was looked at", size)
    except OSError as error:
        return Found(f"it cannot be read: {error.strerror or error}", size)


def _is_distributed(folder: Path) -> bool:
    if (folder / _METADATA).is_file():
        return True
    return any(_SHARD.match(name) for name in _names(folder))


def _distributed(folder: Path) -> int:
    """How many ranks saved it. Its metadata is written last, by a rename."""
    if not (folder / _METADATA).is_file():
        raise _Incomplete(f"it has no {_METADATA}, which is written last")
    shards = {name: int(match.group(1)) for name in _names(folder) if (match := _SHARD.match(name))}
    if not shards:
        raise _Incomplete("it has no shard (__R_N.distcp)")
    if (folder / _METADATA).stat().st_size <= _MAX_METADATA_BYTES:
        metadata = _content(folder / _METADATA, _MAX_METADATA_BYTES)
        if not metadata:
            raise _Incomplete(f"its {_METADATA} is empty")
        # The names of the shards stand in it as they are; the pickle around them is left closed.
        for name in {match.decode() for match in _SHARD_IN_METADATA.findall(metadata)} - shards.keys():
            raise _Incomplete(f"{name} is missing")
    for name in shards:
        if (folder / name).stat().st_size == 0:
            raise _Incomplete(f"{name} is empty")
    return len(set(shards.values()))


def _trainer(candidate: Candidate, size: int | None) -> Found:
    folder = candidate.path
    names = set(_names(folder))
    if _STATE not in names:
        raise _Incomplete(f"it has no {_STATE}, which is written last")
    state = _json(folder / _STATE)
    if state.get("global_step") != candidate.step:
        raise _Incomplete(f"its {_STATE} is of step {shown(str(state.get('global_step')))}")
    weights = [name for name in _WEIGHTS if name in names]
    for index in _INDEXES:
        if index in names:
            weights += _shards_of(folder / index, names)
    if weights:
        for name in weights:
            _weights(folder / name)
    elif _FSDP in names:
        _distributed(folder / _FSDP)
    else:
        raise _Incomplete("it has no model weights")
    for name in names.difference(weights):
        if name.endswith((".pt", ".pth", ".bin")):
            _torch_file(folder / name, must_be_zip=False)
    ranks = sum(_RANDOM_STATE.match(name) is not None for name in names)
    return Found("", size, (folder / _STATE).stat().st_mtime, _last_loss(state), ranks or None)


def _shards_of(index: Path, names: set[str]) -> list[str]:
    shards = _json(index).get("weight_map")
    if not isinstance(shards, dict) or not shards:
        raise _Incomplete(f"{index.name} names no weights")
    wanted = {str(name) for name in shards.values()}
    for name in sorted(wanted - names):
        raise _Incomplete(f"{shown(name)} is missing")
    return sorted(wanted)


def _weights(path: Path) -> None:
    if path.suffix != ".safetensors":
        _torch_file(path, must_be_zip=True)
        return
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > size - 8:
            raise _Incomplete(f"{path.name} is cut short: its header is not whole")
        if length > _MAX_JSON_BYTES:
            raise _Incomplete(f"{path.name} has a header of {length} bytes, which is more than is read")
        header = _parsed(path.name, file.read(length))
    end = 0
    for name, tensor in header.items():
        if name != "__metadata__":
            offsets = tensor.get("data_offsets") if isinstance(tensor, dict) else None
            if not isinstance(offsets, list) or not offsets or not isinstance(offsets[-1], int):
                raise _Incomplete(f"the header of {path.name} is not one")
            end = max(end, offsets[-1])
    if size != 8 + length + end:
        raise _Incomplete(f"{path.name} has {size} bytes instead of {8 + length + end}")


def _torch_file(path: Path, must_be_zip: bool) -> None:
    if wrong := zips.damage(path, must_be_zip):
        raise _Incomplete(f"{shown(path.name)} {wrong}")


def _last_loss(state: dict[str, Any]) -> float | None:
    history = state.get("log_history")
    for entry in reversed(history) if isinstance(history, list) else ():
        if isinstance(entry, dict) and isinstance(entry.get("loss"), float):
            return entry["loss"]
    return None


def _json(path: Path) -> dict[str, Any]:
    return _parsed(path.name, _content(path, _MAX_JSON_BYTES))


def _parsed(name: str, content: bytes) -> dict[str, Any]:
    try:
        value: Any = json.loads(content)
    except (ValueError, RecursionError):
        raise _Incomplete(f"{name} is not whole: it cannot be parsed") from None
    if not isinstance(value, dict):
        raise _Incomplete(f"{name} is not what it should be: it holds no mapping")
    return value


def _content(path: Path, limit: int) -> bytes:
    try:
        return bounded.read(path, limit)
    except ValueError as error:
        raise _Incomplete(f"{path.name} cannot be read: {error}") from None


def _names(folder: Path) -> Iterator[str]:
    with os.scandir(folder) as entries:
        yield from (entry.name for entry in islice(entries, _MAX_FILES))


def _size(path: Path) -> int:
    """All its files together; of a folder with very many, the first of them."""
    if not path.is_dir():
        return path.stat().st_size
    total, left = 0, _MAX_FILES
    for folder, _, files in os.walk(path):
        for name in files[:left]:
            try:
                total += os.lstat(os.path.join(folder, name)).st_size
            except FileNotFoundError:
                continue  # it went away meanwhile
        left -= len(files)
        if left <= 0:
            break
    return total
