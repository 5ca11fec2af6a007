"""What a node may read and write: the paths of the cluster file, the disk under them, limits and device files."""

from __future__ import annotations

import contextlib
import os
import resource
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jobs.validation.apart import at_once
from jobs.validation.measured import Measured, Skip, Teller

PATH_SECONDS = 5.0
SEEN_SECONDS = 5.0
"""How long a file that another node has written may take to be seen."""
FREE_FAIL, FREE_WARN = 0.05, 0.10
INODES_FAIL = 0.05
DISK_BYTES, DEEP_DISK_BYTES = 32 << 20, 256 << 20
OPEN_FILES = 16_384
"""Below this the workers of a few data loaders run out of them."""
SHARED_MEMORY_BYTES = 1 << 30


def token_path(path: str, token: str, node: str) -> str:
    """The file that a node writes into a path, for the others to see."""
    return os.path.join(path, f".raydeck-{token}-{node}")


def mounts(request: Mapping[str, Any], measured: Measured) -> None:
    """Each path that runs use: there, answering, writable where it has to be, with room."""
    asked: list[dict[str, Any]] = list(request["paths"])
    if not asked:
        raise Skip("the cluster file names no paths")
    work = [lambda path=path: _look_at(path, str(request["token"]), str(request["node"])) for path in asked]
    wrong: list[tuple[str, str]] = []
    warned: list[str] = []
    shown: dict[str, Any] = {}
    for path, told in zip(asked, at_once(work, PATH_SECONDS), strict=True):
        where = f"{path['path']} ({path['purpose']})"
        if told is None:
            wrong.append((path["path"], f"{where} hangs: no answer within {PATH_SECONDS:.0f} s"))
            continue
        shown[path["path"]] = told
        if told["wrong"]:
            wrong.append((path["path"], f"{where} {told['wrong']}"))
        elif told["free_share"] < FREE_FAIL or told["inode_share"] < INODES_FAIL:
            room, inodes = told["free_share"], told["inode_share"]
            told_room = f"{where} is full: {room:.1%} of its room and {inodes:.1%} of its inodes are free"
            wrong.append((path["path"], told_room))
        elif told["free_share"] < FREE_WARN:
            warned.append(f"{where} has {told['free_share']:.1%} of its room free")
    measured.facts.update(paths=shown, bad=list(dict.fromkeys(path for path, _ in wrong)))
    measured.wrong, measured.warned = "; ".join(words for _, words in wrong), "; ".join(warned)


def _look_at(path: Mapping[str, Any], token: str, node: str) -> dict[str, Any]:
    told: dict[str, Any] = {"wrong": "", "free_share": 1.0, "inode_share": 1.0}
    where = path["path"]
    if not os.path.isdir(where):
        told["wrong"] = "is not there" if not os.path.exists(where) else "is no folder"
        return told
    room = os.statvfs(where)
    told["free_share"] = room.f_bavail / room.f_blocks if room.f_blocks else 1.0
    told["inode_share"] = room.f_favail / room.f_files if room.f_files else 1.0
    told["free_bytes"] = room.f_bavail * room.f_frsize
    if path["purpose"] in ("dataset", "model"):
        if not os.access(where, os.R_OK | os.X_OK):
            told["wrong"] = "may not be read by the user that Ray runs as"
        return told
    file = token_path(where, token, node)
    try:
        with open(file, "w", encoding="ascii") as out:
            out.write(node)
            out.flush()
            os.fsync(out.fileno())
        with open(file, encoding="ascii") as written:
            if written.read() != node:
                told["wrong"] = "does not give back what was written"
    except OSError as error:
        told["wrong"] = f"cannot be written: {error.strerror}"
    if not path.get("shared") and not told["wrong"]:
        os.unlink(file)
    return told


def seen(request: dict[str, Any], tell: Teller) -> None:
    """Look for what the other nodes have written to the shared paths."""
    with tell.check("preflight.shared") as measured:
        shared(request, measured)


def shared(request: Mapping[str, Any], measured: Measured) -> None:
    """Whether what the other nodes have written is seen here."""
    paths = [
        path["path"] for path in request["paths"] if path["shared"] and path["purpose"] not in ("dataset", "model")
    ]
    others = [str(node) for node in request["nodes"] if node != request["node"]]
    token = str(request["token"])
    if not paths or not others:
        raise Skip("there is no shared path, or no other node")
    missing = {path: list(others) for path in paths}
    deadline = time.monotonic() + SEEN_SECONDS
    while True:
        for path in paths:
            # A listing is asked for anew: what a network file system remembers of a name may be old.
            there = at_once([lambda path=path: set(os.listdir(path))], PATH_SECONDS)[0] or set()
            missing[path] = [node for node in others if os.path.basename(token_path(path, token, node)) not in there]
        if not any(missing.values()) or time.monotonic() > deadline:
            break
        time.sleep(0.2)
    unseen = {path: nodes for path, nodes in missing.items() if nodes}
    measured.facts["unseen"] = unseen
    if unseen:
        told = "; ".join(f"{path} of {', '.join(nodes)}" for path, nodes in unseen.items())
        measured.wrong = f"what was written to is not seen here: {told}"


def clean(request: dict[str, Any], tell: Teller) -> None:
    """After all nodes have looked: take away what this one has written."""
    del tell
    for path in request["paths"]:
        with contextlib.suppress(OSError):
            os.unlink(token_path(path["path"], str(request["token"]), str(request["node"])))


def disk(request: Mapping[str, Any], measured: Measured) -> None:
    """Written to the disk and read from it: ``fsync`` and dropping the cache are what makes that true."""
    paths = [path["path"] for path in request["paths"] if path["purpose"] in ("output", "cache")]
    if not paths:
        raise Skip("the cluster file names neither an output nor a cache path")
    size = DEEP_DISK_BYTES if request.get("deep") else DISK_BYTES
    block = os.urandom(1 << 20)
    for path in paths:
        file = token_path(path, f"{request['token']}-disk", str(request["node"]))
        try:
            began = time.perf_counter()
            with open(file, "wb", buffering=0) as out:
                for _ in range(size >> 20):
                    out.write(block)
                os.fsync(out.fileno())
            wrote = time.perf_counter()
            with open(file, "rb", buffering=0) as written:
                os.posix_fadvise(written.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                began_reading = time.perf_counter()
                while written.read(1 << 20):
                    pass
            measured.figures.setdefault("disk_write", []).append(size / (wrote - began) / 1e6)
            measured.figures.setdefault("disk_read", []).append(size / (time.perf_counter() - began_reading) / 1e6)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(file)


def limits(measured: Measured) -> None:
    """Open files, shared memory, and the GPUs' device files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    measured.facts["open_files"] = files if files != resource.RLIM_INFINITY else None
    told: list[str] = []
    if files != resource.RLIM_INFINITY and files < OPEN_FILES:
        told.append(f"it may open {files} files; {OPEN_FILES} is what data loaders need")
    with contextlib.suppress(OSError):
        room = os.statvfs("/dev/shm")  # noqa: S108 - where the kernel has it
        measured.facts["shared_memory_bytes"] = free = room.f_bavail * room.f_frsize
        if free < SHARED_MEMORY_BYTES:
            told.append(f"shared memory has {free >> 20} MiB free; data loaders and NCCL need more")
    closed = [str(file) for file in sorted(Path("/dev").glob("nvidia[0-9]*")) if not os.access(file, os.R_OK | os.W_OK)]
    if closed:
        measured.wrong = f"{', '.join(closed)} may not be used by the user that Ray runs as"
    measured.warned = "; ".join(told)
