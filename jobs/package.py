"""What travels to the cluster: the operator's code with our own beside it, as one zip named by its digest.

Standard library only. It reads our packages through `importlib.resources`, so that it also works from the zip that the
controller itself was started from. It blocks while it reads and packs: call it in a thread.
"""

from __future__ import annotations

import fnmatch
import hashlib
import importlib.resources
import io
import os
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from jobs.bundle import MADE, bundle
from jobs.errors import Refused

if TYPE_CHECKING:
    from importlib.abc import Traversable

DEFAULT_EXCLUDES = (".git", "__pycache__", "*.pyc", ".venv", "node_modules")
IGNORE_FILE = ".raydeckignore"
MAX_BYTES = 100 * 1024 * 1024
"""Of the operator's files together: Ray's head takes no larger upload."""
MAX_FILES = 20_000
WORKLOAD = "workload"
"""The folder inside a package that holds the operator's code."""

_EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip can tell: the same files give the same bytes."""
_NOT_FOR_GANGS = frozenset({"controller", "local", "samples"})
"""Folders of ``jobs`` that no run on the cluster needs."""


@dataclass(frozen=True, slots=True)
class Package:
    """A zip that is ready for Ray, and how it is known."""

    digest: str
    """SHA-256 of ``content``, in hex."""
    content: bytes
    files: int
    """How many of the operator's files are in it."""
    code_digest: str
    """SHA-256 over the operator's files alone (names, whether executable, contents): the same for the same code,
    whichever version of raydeck packs it."""

    @property
    def name(self) -> str:
        """What it is called in Ray's package store."""
        return package_name(self.digest)


def package_name(digest: str) -> str:
    """A package's name in Ray's store; a job's working directory is ``gcs://`` and this."""
    return f"raydeck-{digest}.zip"


@dataclass(frozen=True, slots=True)
class _Entry:
    name: str
    """The path inside the zip, with slashes."""
    content: bytes
    executable: bool = False


def build(code_folder: Path | Traversable, *, exclude: Iterable[str] = DEFAULT_EXCLUDES) -> Package:
    """Packs a folder. ``exclude`` and the lines of the folder's ``.raydeckignore`` are patterns of what stays behind.

    A pattern without a slash matches a name at any depth, one with a slash a path from the folder's root; a trailing
    slash means folders only. Raises `Refused` for a folder that is not there, for links that lead out of it, for files
    that cannot be read, and for more than 100 MiB.
    """
    entries = _folder_entries(code_folder, exclude) if isinstance(code_folder, Path) else _shipped_entries(code_folder)
    if not entries:
        raise Refused(f"there is no file to ship in {code_folder}", "Check the workflow's field code")
    return _package(entries)


def _package(entries: list[_Entry]) -> Package:
    """These files of the operator's, sorted by name, with our own beside them."""
    ours = [*_ours("jobs", _NOT_FOR_GANGS), *_ours("probes")]
    theirs = [_Entry(f"{WORKLOAD}/{entry.name}", entry.content, entry.executable) for entry in entries]
    content = _zip([*ours, *theirs])
    return Package(hashlib.sha256(content).hexdigest(), content, len(entries), _code_digest(entries))


def code_digest(archive: Path) -> str:
    """A package's `Package.code_digest`, from its file. Raises `Refused` for what is no package, or holds no code."""
    return _code_digest(_workload(archive))


def renewed(archive: Path) -> Package:
    """The operator's code of a package again, with this version's own code beside it. Raises `Refused` likewise."""
    return _package(_workload(archive))


def _workload(archive: Path) -> list[_Entry]:
    """The operator's files in a package. It came from outside, so what it unpacks to is bounded too."""
    entries: dict[str, _Entry] = {}
    try:
        with zipfile.ZipFile(archive) as packed:
            infos = [info for info in packed.infolist() if info.filename.startswith(f"{WORKLOAD}/")]
            infos = [info for info in infos if not info.is_dir()]
            if len(infos) > MAX_FILES or sum(info.file_size for info in infos) > MAX_BYTES:
                raise Refused(f"the package {archive.stem[:12]} unpacks to more than is taken", _ADVICE)
            for info in infos:
                name = info.filename[len(WORKLOAD) + 1 :]
                if name in entries or name.startswith("/") or ".." in name.split("/"):
                    raise Refused(f"the package {archive.stem[:12]} has a file that may not be in it: {name!a}")
                executable = bool((info.external_attr >> 16) & stat.S_IXUSR)
                # zipfile stops at the size that was told, so a false one ends as a wrong checksum.
                entries[name] = _Entry(name, packed.read(info), executable)
    except OSError as error:
        raise Refused(f"the package {archive.stem[:12]} cannot be read: {error.strerror}") from error
    except (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError) as error:
        raise Refused(f"the package {archive.stem[:12]} is no zip that can be read: {error}") from error
    if not entries:
        raise Refused(f"the package {archive.stem[:12]} holds no code", f"Its folder {WORKLOAD} is empty")
    return [entries[name] for name in sorted(entries)]


def controller_archive() -> tuple[str, bytes]:
    """The digest and the bytes of a zip of ``jobs`` and ``probes``: with it on PYTHONPATH the controller can start.

    The finished probe is in it. Raises `Refused` without nvidia-ml-py.
    """
    content = _zip([*_ours("jobs"), *_ours("probes"), _Entry(f"probes/{MADE}", bundle())])
    return hashlib.sha256(content).hexdigest(), content


def sample_folder() -> Traversable:
    """The workflows and scripts that ship with raydeck: a folder, or its like inside a zip. `build` takes it."""
    return importlib.resources.files("jobs").joinpath("samples")


def _code_digest(entries: Iterable[_Entry]) -> str:
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(f"{entry.name}\0{entry.executable:d}\0{len(entry.content)}\0".encode())
        digest.update(entry.content)
    return digest.hexdigest()


def _zip(entries: Iterable[_Entry]) -> bytes:
    """The same entries give the same bytes, whenever and wherever they are packed by the same zlib."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as archive:
        for entry in sorted(entries, key=lambda entry: entry.name):
            info = zipfile.ZipInfo(entry.name, _EPOCH)
            info.compress_type = zipfile.ZIP_DEFLATED
            info.create_system = 3  # Unix: else the mode below is not read
            info.external_attr = (stat.S_IFREG | (0o755 if entry.executable else 0o644)) << 16
            archive.writestr(info, entry.content)
    return buffer.getvalue()


def _ours(package: str, without: frozenset[str] = frozenset()) -> Iterator[_Entry]:
    for entry in _shipped_entries(importlib.resources.files(package)):
        # Within a controller's archive there is also what it was given for the nodes, which is none of the sources.
        if entry.name != MADE and entry.name.partition("/")[0] not in without:
            yield _Entry(f"{package}/{entry.name}", entry.content)


def _shipped_entries(folder: Traversable) -> list[_Entry]:
    """The files of a folder that came with raydeck, which may lie in a zip."""
    found: list[_Entry] = []

    def walk(place: Traversable, prefix: str) -> None:
        for child in place.iterdir():
            name = f"{prefix}{child.name}"
            if any(fnmatch.fnmatchcase(child.name, pattern) for pattern in DEFAULT_EXCLUDES):
                continue
            if child.is_dir():
                walk(child, f"{name}/")
            else:
                found.append(_Entry(name, child.read_bytes()))

    walk(folder, "")
    return sorted(found, key=lambda entry: entry.name)


class _Patterns:
    """What stays behind."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns: list[tuple[str, bool, bool]] = []
        for pattern in patterns:
            bare = pattern.rstrip("/")
            self._patterns.append((bare.lstrip("/"), "/" in bare, pattern.endswith("/")))

    def match(self, path: str, is_folder: bool) -> bool:
        """Whether this path (with slashes, from the root) is left out."""
        name = path.rpartition("/")[2]
        return any(
            (is_folder or not folders_only) and fnmatch.fnmatchcase(path if from_root else name, pattern)
            for pattern, from_root, folders_only in self._patterns
        )


def _ignored(root: Path) -> list[str]:
    """The patterns of the folder's ignore file."""
    file = root / IGNORE_FILE
    if not file.is_file():
        return []
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise Refused(f"{file} cannot be read: {error}") from error
    patterns = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    for pattern in patterns:
        if pattern.startswith("!"):
            raise Refused(f"{file}: a pattern that begins with ! is not supported: {pattern}")
    return patterns


def _folder_entries(root: Path, exclude: Iterable[str]) -> list[_Entry]:
    if not root.is_dir():
        raise Refused(f"{root} is not a folder", "Check the workflow's field code")
    patterns = _Patterns([*exclude, *_ignored(root), f"/{IGNORE_FILE}"])
    files: list[tuple[str, Path, os.stat_result]] = []
    _walk(root.resolve(), root, "", patterns, (root.resolve(),), files)
    total = sum(status.st_size for _, _, status in files)
    if total > MAX_BYTES:
        largest = sorted(files, key=lambda item: item[2].st_size, reverse=True)[:5]
        named = ", ".join(f"{name} ({status.st_size / 2**20:.1f} MiB)" for name, _, status in largest)
        most = f"at most {MAX_BYTES / 2**20:.0f} MiB are shipped"
        raise Refused(f"{root} has {total / 2**20:.0f} MiB; {most}. The largest: {named}", _ADVICE)
    return [_read(name, path, status) for name, path, status in sorted(files)]


_ADVICE = f"Name what need not travel in {IGNORE_FILE}, and keep data on the shared storage"


def _walk(
    top: Path,
    folder: Path,
    prefix: str,
    patterns: _Patterns,
    above: tuple[Path, ...],
    files: list[tuple[str, Path, os.stat_result]],
) -> None:
    """Collects the files below a folder. ``above`` are the folders on the way here, links resolved."""
    try:
        children = sorted(os.scandir(folder), key=lambda child: child.name)
    except OSError as error:
        raise Refused(f"{folder} cannot be read: {error.strerror}") from error
    for child in children:
        name = f"{prefix}{child.name}"
        path = Path(child.path)
        if patterns.match(name, path.is_dir()):
            continue
        try:
            name.encode()
            real = path.resolve(strict=True)
            status = real.stat()
        except UnicodeEncodeError as error:
            raise Refused(f"{folder} has a file whose name is not UTF-8: {name!a}") from error
        except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself, before Python 3.13
            raise Refused(f"{path} cannot be read: it is a link that leads nowhere, or not permitted") from error
        if child.is_symlink() and not real.is_relative_to(top):
            raise Refused(f"{path} is a link that leads out of the folder, to {real}", "Copy the file, or leave it out")
        if stat.S_ISDIR(status.st_mode):
            if real in above:
                raise Refused(f"{path} is a link that leads back to a folder it lies in")
            _walk(top, path, f"{name}/", patterns, (*above, real), files)
        elif stat.S_ISREG(status.st_mode):
            files.append((name, real, status))
            if len(files) > MAX_FILES:
                raise Refused(f"{top} has more than {MAX_FILES:,} files", _ADVICE)
        else:
            raise Refused(f"{path} is no plain file", f"Name it in {IGNORE_FILE}")


def _read(name: str, path: Path, status: os.stat_result) -> _Entry:
    try:
        with path.open("rb") as file:
            content = file.read(status.st_size + 1)
    except OSError as error:
        raise Refused(f"{path} cannot be read: {error.strerror}") from error
    if len(content) != status.st_size:
        raise Refused(f"{path} changed while it was read", "Try again when nothing writes to it")
    return _Entry(name, content, bool(status.st_mode & stat.S_IXUSR))
