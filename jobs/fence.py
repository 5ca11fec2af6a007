"""Owns which attempt of a run may write: ``<run>/fence.json`` holds the number of the newest one that has begun.

Two writers on one checkpoint folder is the worst accident there is. The driver of an attempt raises the fence before it
starts anything; from then on a process of an older attempt that still lives somewhere is refused. The fence never goes
backwards. Standard library only: scripts meet it on the cluster.

`held` closes the gap between looking and doing: while somebody puts a checkpoint in place under it, the fence cannot be
raised. That rests on ``flock``; where the shared storage has none, the look alone has to do.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from jobs import bounded
from jobs.errors import Refused

FILE = "fence.json"
_LOCK = "fence.lock"
_LOCK_SECONDS = 20.0
_LOOK_AGAIN_SECONDS = 0.02
_MAX_BYTES = 4096
_NO_LOCKS = {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL}

Folder = str | os.PathLike[str]


def raise_fence(run_directory: Folder, attempt: int) -> None:
    """From here on only this attempt, and newer ones, may write. Doing it again is no mistake.

    Raises Refused when a newer attempt has begun, and when the fence cannot be read or written.
    """
    if attempt < 1:
        raise ValueError(f"attempts count from 1, and this is {attempt}")
    directory = Path(run_directory)
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with _lock(directory, fcntl.LOCK_EX):
            now = newest(directory)
            if now is not None and now > attempt:
                raise Refused(_fenced_off(attempt, now), "Nothing of it may go on; end it")
            if now != attempt:
                _write(directory, attempt)
    except OSError as error:
        raise Refused(f"{directory / FILE} cannot be written: {error.strerror or error}") from None


def check(run_directory: Folder, attempt: int) -> None:
    """Raises Refused when a newer attempt has begun, or when the fence is there and cannot be read. One small read."""
    now = newest(run_directory)
    if now is not None and now > attempt:
        raise Refused(_fenced_off(attempt, now), "Nothing of it may go on; end it")


def newest(run_directory: Folder) -> int | None:
    """The newest attempt that has begun; None where no fence was ever raised. Raises Refused for one that is broken."""
    path = Path(run_directory) / FILE
    try:
        value = json.loads(bounded.read(path, _MAX_BYTES))
        attempt = value["attempt"]
        if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 1:
            raise ValueError("it holds no attempt's number")
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        # To go on would be to trust that nobody else writes.
        raise Refused(
            f"{path} cannot be read: {error}",
            "It says which attempt may write; remove it only when nothing of the run lives",
        ) from None
    return attempt


def own_attempt(run_directory: Folder) -> int | None:
    """The number of the attempt that this process belongs to, if it is one of this run; None elsewhere."""
    attempt = os.environ.get("RAYDECK_ATTEMPT", "")
    if not attempt.isdecimal():
        return None
    own = os.environ.get("RAYDECK_RUN_DIR")
    if own and os.path.realpath(own) != os.path.realpath(run_directory):
        return None
    return int(attempt)


@contextmanager
def held(run_directory: Folder, attempt: int | None = None) -> Generator[None]:
    """Look once, and keep the fence where it is meanwhile: for what must not happen beside a newer attempt.

    ``attempt`` is this process's own if not given; a process of no attempt is not looked at. Keep it short.
    """
    attempt = own_attempt(run_directory) if attempt is None else attempt
    if attempt is None or not Path(run_directory).is_dir():
        yield
        return
    with _lock(Path(run_directory), fcntl.LOCK_SH):
        check(run_directory, attempt)
        yield


def _fenced_off(attempt: int, now: int) -> str:
    return f"this is attempt {attempt}, and attempt {now} of the run has begun: it must not write any more"


def _write(directory: Path, attempt: int) -> None:
    partial = directory / f"{FILE}.{os.getpid()}.partial"
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        os.write(descriptor, json.dumps({"attempt": attempt, "raised_at": time.time()}).encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    partial.rename(directory / FILE)
    bounded.sync_folder(directory)


@contextmanager
def _lock(directory: Path, kind: int) -> Generator[None]:
    descriptor = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        deadline = time.monotonic() + _LOCK_SECONDS
        while True:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise Refused(
                        f"another process has held {directory / _LOCK} for {_LOCK_SECONDS:g} s",
                        "A process of an earlier attempt may be putting a checkpoint in place",
                    ) from None
                time.sleep(_LOOK_AGAIN_SECONDS)
            except OSError as error:
                if error.errno not in _NO_LOCKS:
                    raise
                break
        yield
    finally:
        os.close(descriptor)
