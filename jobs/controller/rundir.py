"""Makes a run's directory on the head, writable for whoever Ray's jobs run as, with the release in it."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from jobs.errors import Refused
from jobs.wire import Release

RELEASE_NAME = "release.json"


def make(run_directory: str, release: Release) -> None:
    """Create it, or find it as an earlier try of the same request left it. Raises `Refused`. Blocks on the storage."""
    make_all([(run_directory, release)])


def make_all(wanted: Iterable[tuple[str, Release]]) -> None:
    """The same for many. Raises `Refused` for the first that cannot be made; those before it stay for the next try."""
    owner = ray_uid()
    for run_directory, release in wanted:
        _make(run_directory, release, owner)


def _make(run_directory: str, release: Release, owner: int | None) -> None:
    folder = Path(run_directory)
    body = release.model_dump_json(indent=2).encode()
    try:
        _folder(folder, owner)
        written = folder / RELEASE_NAME
        if written.exists():
            if Release.model_validate_json(written.read_bytes()).id != release.id:
                raise Refused(
                    f"{folder} already belongs to another run", "Give the workflow another output_root, or move it away"
                )
            return
        incoming = folder / f".{RELEASE_NAME}.incoming"
        incoming.write_bytes(body)
        incoming.replace(written)
    except ValueError as error:
        raise Refused(f"{folder / RELEASE_NAME} is there and is no release", "Move the folder away") from error
    except OSError as error:
        raise Refused(
            f"the run's directory {folder} cannot be made on the head: {error.strerror}",
            "Its output_root must be on storage that the head mounts too, and that you may write to",
        ) from error


def check(run_directory: str) -> None:
    """Could it be made? Looks at the nearest folder that is there. Raises `Refused`. Blocks on the storage."""
    folder = Path(run_directory)
    for place in (folder, *folder.parents):
        if place.is_dir():
            if os.access(place, os.W_OK | os.X_OK):
                return
            raise Refused(f"the run's directory {folder} cannot be made on the head: {place} is not writable")
        if place.exists():
            raise Refused(f"the run's directory {folder} cannot be made on the head: {place} is not a folder")


def _folder(folder: Path, owner: int | None) -> None:
    """The folder and those above it. Ray's user gets the folder itself if it is somebody else's."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o775)
        folder.chmod(0o775)
        if owner is None or owner == os.getuid():
            return
        if os.getuid() == 0:
            os.chown(folder, owner, -1)
        else:
            # Two different users, neither of them root: only the open door is left.
            folder.chmod(0o1777)
    if not folder.is_dir():
        raise NotADirectoryError(20, "a file of that name is there", str(folder))


def ray_uid() -> int | None:
    """Whom the jobs run as: the owner of this machine's raylet. None if there is none."""
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                name = file.read(4096).split(b"\0", 1)[0]
            if name.endswith(b"/raylet"):
                return os.stat(f"/proc/{entry}").st_uid
        except OSError:
            continue  # it has ended meanwhile
    return None
