"""Starts, asks and stops the controller on a cluster's head. It travels there as source and runs on the head's python3.

Standard library only, and nothing newer than Python 3.8, since it runs before anything of ours is there. Sent over SSH
as ``python3 -I -S -u -c BOOT`` with `start_argv_and_input`'s bytes on stdin; or called here, with `carry_out`.

It answers with one line of JSON: ``event`` (``started``, ``running``, ``stopped``, ``restored``, ``backups`` or
``failed``), ``pid``, ``socket``, ``digest`` (of the code that runs), ``offered`` (of the code that was sent),
``supervised_by``, ``reason``, ``hint``, ``details``.
Everything may be repeated: starting what runs, and stopping what does not, is no error.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO

from jobs.holder import LOCK_NAME, SOCKET_NAME, ask, holder
from jobs.supervision import OUTPUT_NAME, Failed, find_manager, find_python, start_unit, systemctl, unit_name

MODULES = ("jobs.holder", "jobs.supervision", "jobs.starter")
"""What travels, in the order in which it is executed."""
BOOT = (
    "import sys,json,types,zlib;i=sys.stdin.buffer;h=json.loads(i.readline());"
    "sys.modules['jobs']=types.ModuleType('jobs');"
    "[exec(compile(zlib.decompress(i.read(s)),n,'exec'),sys.modules.setdefault(n,types.ModuleType(n)).__dict__)"
    "for n,s in h['modules']];"
    "sys.exit(sys.modules['jobs.starter'].main(h,i))"
)
"""Makes modules of what arrives, in one line, since not every login shell takes more. They find each other by name."""
COMMANDS = ("start", "status", "stop", "restart", "restore", "backups")
ARCHIVES_KEPT = 3
RESTORE_SECONDS = 50.0
"""How long a restore may take; cut off, it is to be repeated before a controller starts."""
SETTLE_SECONDS = 5.0
"""How long one that holds the lock and does not answer is watched, before that is said."""


@dataclass(frozen=True)
class Options:
    """How a controller is to be started, asked or stopped."""

    store: str
    """Its folder on the head, absolute (``~/`` is the user's home); made if it is not there."""
    dashboard: str = "http://127.0.0.1:8265"
    """Ray's dashboard, as the head reaches it."""
    python: str = ""
    """The interpreter to run it with; empty or ``python3``: the one that Ray on this machine runs with."""
    cluster_text: str = ""
    """The cluster file; it is kept in the store, for the controller to read. Empty leaves the one that is there."""
    start_seconds: float = 30.0
    """How long it may take until it answers."""
    stop_seconds: float = 30.0
    """How long it may take to leave by itself before it is killed."""
    supervisor: str = "auto"
    """``auto``: systemd where it can keep a unit running after logout; ``none``: a plain process."""
    backup: str = ""
    """For a restore: the file on the head; empty takes the newest whole backup."""


@dataclass
class Answer:
    """What came of it."""

    event: str
    """``started``, ``running``, ``stopped``, ``restored``, ``backups`` or ``failed``."""
    pid: int | None = None
    socket: str = ""
    digest: str = ""
    offered: str = ""
    supervised_by: str = ""
    reason: str = ""
    hint: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    """Of a restore and of a list of backups: what `restore` says."""


def start_argv_and_input(
    command: str, options: Options, archive: tuple[str, bytes] | None = None
) -> tuple[list[str], bytes]:
    """What to run on the head, and what to write to its standard input.

    ``archive`` is the controller's code, its digest and its zip; all but ``status`` and ``stop`` need it. The first
    word is the head's ``python3``; over SSH the list is to be quoted as a whole.
    """
    import pkgutil  # here only: on the head this file is no package

    packed: list[bytes] = []
    for name in MODULES:
        source = pkgutil.get_data("jobs", name.split(".")[1] + ".py")
        assert source is not None
        packed.append(zlib.compress(source, 9))
    digest, body = archive or ("", b"")
    modules = [(name, len(source)) for name, source in zip(MODULES, packed)]  # noqa: B905 — 3.8 has no strict
    header: dict[str, Any] = {"command": command, "options": asdict(options), "modules": modules, "digest": digest}
    header["archive"] = len(body)
    return ["python3", "-I", "-S", "-u", "-c", BOOT], b"".join([json.dumps(header).encode(), b"\n", *packed, body])


def carry_out(command: str, options: Options, archive: tuple[str, bytes] | None = None) -> Answer:
    """Do it on this machine. Never raises for what can go wrong there: that is an `Answer` of ``failed``."""
    store = os.path.abspath(os.path.expanduser(options.store))
    try:
        if command == "status":
            return _status(store)
        if command == "stop":
            return _stop(store, options.stop_seconds)
        if command not in COMMANDS or archive is None:
            raise Failed(f"the starter was asked for {command!r}, which it does not know or lacks the code for")
        if command == "restart":
            stopped = _stop(store, options.stop_seconds)
            if stopped.event == "failed":
                return stopped
        if command in ("restore", "backups"):
            return restore(store, options, *archive, just_list=command == "backups")
        return _start(store, options, *archive)
    except Failed as error:
        return Answer("failed", offered=archive[0] if archive else "", reason=error.reason, hint=error.hint)
    except OSError as error:
        return Answer("failed", reason=f"{error.filename or store}: {error.strerror or error}")


# --- who runs -----------------------------------------------------------------------------------------------------


def _status(store: str) -> Answer:
    serving = holder(store)
    if serving is None:
        return Answer("stopped", reason=f"no controller serves {store}")
    answer = Answer(
        "running",
        pid=serving.get("pid"),
        socket=os.path.join(store, SOCKET_NAME),
        digest=str(serving.get("digest", "")),
        supervised_by=str(serving.get("supervised_by", "none")),
    )
    try:
        answer.digest = str(ask(store).get("code_digest", answer.digest))
    except (OSError, ValueError) as error:
        answer.reason = f"the controller (process {answer.pid}) runs, but does not answer: {error}"
    return answer


# --- start --------------------------------------------------------------------------------------------------------


def _start(store: str, options: Options, digest: str, body: bytes) -> Answer:
    running = _status(store)
    deadline = time.monotonic() + SETTLE_SECONDS
    while running.event == "running" and running.reason and time.monotonic() < deadline:
        time.sleep(0.05)  # it comes or goes at this very moment
        running = _status(store)
    if running.event == "running":
        running.offered = digest
        if not running.reason and running.digest != digest:
            running.reason = f"it runs other code than yours: {running.digest[:12]} instead of {digest[:12]}"
            running.hint = "A restart takes yours"
        return running
    # Others may pass through to the socket, and see nothing else.
    os.makedirs(store, mode=0o711, exist_ok=True)
    archive = _keep_archive(store, digest, body)
    if options.cluster_text:
        _write(os.path.join(store, "cluster.yaml"), options.cluster_text.encode(), 0o644)
    python = find_python(options.python, options.dashboard)
    arguments = [python, "-m", "jobs.controller", "--store", store, "--dashboard", options.dashboard]
    if os.path.exists(os.path.join(store, "cluster.yaml")):
        arguments += ["--cluster", os.path.join(store, "cluster.yaml")]
    manager = find_manager() if options.supervisor == "auto" else None
    arguments += ["--supervised-by", "none" if manager is None else "systemd"]
    if manager is not None:
        start_unit(manager, store, archive, arguments)
        return _wait_until_it_answers(store, digest, options.start_seconds, None)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONPATH"] = archive
    with open(os.path.join(store, OUTPUT_NAME), "wb") as output:
        child = subprocess.Popen(
            arguments,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd=store,
            env=environment,
            start_new_session=True,  # a session of its own: it stays when the login that started it goes
        )
    return _wait_until_it_answers(store, digest, options.start_seconds, child)


def _wait_until_it_answers(store: str, digest: str, limit: float, child: subprocess.Popen[bytes] | None) -> Answer:
    deadline = time.monotonic() + limit
    while True:
        ended = child is not None and child.poll() is not None
        try:
            found = ask(store)
        except (OSError, ValueError) as error:
            why = str(error)
        else:
            ours = child is None or found.get("pid") == child.pid
            return Answer(
                "started" if ours else "running",
                pid=found.get("pid"),
                socket=os.path.join(store, SOCKET_NAME),
                digest=str(found.get("code_digest", "")),
                offered=digest,
                supervised_by=str(found.get("supervised_by", "")),
                reason="" if ours else "somebody else started one at the same moment",
            )
        if ended:
            raise Failed(
                "the controller ended at once: {}".format(_last_words(store) or "it said nothing"),
                f"Its output is in {os.path.join(store, OUTPUT_NAME)}",
            )
        if time.monotonic() >= deadline:
            break
        time.sleep(0.05)
    if child is not None:
        _end(child.pid)
        child.wait(5)
    raise Failed(
        "the controller did not answer within {:.0f} s ({}): {}".format(
            limit, why, _last_words(store) or "it said nothing"
        ),
        f"Its output is in {os.path.join(store, OUTPUT_NAME)}",
    )


def _last_words(store: str) -> str:
    """The last line that it wrote."""
    try:
        with open(os.path.join(store, OUTPUT_NAME), "rb") as file:
            lines = file.read()[-4096:].decode("utf-8", "replace").strip().splitlines()
    except OSError:
        return ""
    return lines[-1].strip() if lines else ""


def _write(path: str, body: bytes, mode: int) -> None:
    """The whole file or none of it."""
    file, name = tempfile.mkstemp(dir=os.path.dirname(path), prefix=".incoming-")
    try:
        with os.fdopen(file, "wb") as out:
            out.write(body)
            out.flush()
            os.fsync(out.fileno())
        os.chmod(name, mode)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(name)
        raise


def _keep_archive(store: str, digest: str, body: bytes) -> str:
    """The code under its digest, as a path; the oldest others go."""
    if not digest or not all(letter in "0123456789abcdef" for letter in digest):
        raise Failed(f"{digest!r} is no digest of the controller's code")
    folder = os.path.join(store, "code")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, digest + ".zip")
    _write(path, body, 0o600)
    others = [os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(".zip")]
    others.sort(key=os.path.getmtime, reverse=True)
    for old in others[ARCHIVES_KEPT:]:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(old)
    return path


# --- restore ------------------------------------------------------------------------------------------------------


def restore(store: str, options: Options, digest: str, body: bytes, *, just_list: bool = False) -> Answer:
    """Over SSH: ``start_argv_and_input("restore", Options(store=…, backup=FILE or ""), controller_archive())``, as for
    a start; ``"backups"`` in its place lists them. Here: ``carry_out`` with the same.

    Puts a backup in the place of the store's journal, which no controller may be using. The answer's ``event`` is
    ``restored``, and its ``details`` are ``backup`` (the file), ``until`` (the time of its last entry, or None),
    ``runs_active``, ``moved`` (the names that the files before it have now) and ``skipped`` (sentences about newer
    backups that are not whole). For a list ``event`` is ``backups`` and ``details`` has ``backups``: the newest first,
    each with ``path``, ``at`` and ``size_bytes``. What fails is an answer of ``failed`` with ``reason`` and ``hint``.
    """
    serving = holder(store)
    if serving is not None and not just_list:
        raise Failed(
            "the controller (process {}) runs, and the journal is in its hands".format(serving.get("pid", "unknown")),
            "Stop it first: raydeck controller stop",
        )
    if not os.path.isdir(store):
        raise Failed(f"there is no folder {store} on this machine", "Check the metadata store of this cluster")
    archive = _keep_archive(store, digest, body)
    python = find_python(options.python, options.dashboard)
    command = [python, "-m", "jobs.controller", "backups" if just_list else "restore", "--store", store]
    if options.backup and not just_list:
        command += ["--from", os.path.abspath(os.path.expanduser(options.backup))]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["PYTHONPATH"] = archive
    try:
        done = subprocess.run(
            command, capture_output=True, timeout=RESTORE_SECONDS, cwd=store, env=environment, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise Failed(
            f"it did not end within {RESTORE_SECONDS:.0f} s", "Look at the disk there, and repeat it"
        ) from error
    lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
    try:
        told = json.loads(lines[-1])
        event = str(told.pop("event"))
    except (IndexError, ValueError, KeyError, AttributeError, TypeError) as error:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise Failed("it ended with {}: {}".format(done.returncode, said[-1] if said else "it said nothing")) from error
    if event == "failed":
        raise Failed(str(told.get("reason", "")), str(told.get("hint", "")))
    return Answer(event, offered=digest, details=told)


# --- stop ---------------------------------------------------------------------------------------------------------


def _stop(store: str, limit: float) -> Answer:
    serving = holder(store)
    if serving is None:
        return Answer("stopped", reason="no controller was running")
    pid = serving.get("pid")
    if not isinstance(pid, int) or pid <= 1:
        raise Failed(f"a controller holds {os.path.join(store, LOCK_NAME)}, but does not say who it is")
    if not _is_controller(pid):
        lock = os.path.join(store, LOCK_NAME)
        raise Failed(f"process {pid}, which {lock} names, is no controller", "Look on the head who holds that file")
    manager: list[str] = [] if os.getuid() == 0 else ["--user"]
    by_systemd = serving.get("supervised_by") == "systemd"
    if not (by_systemd and systemctl(manager, "stop", "--no-block", unit_name(store))):
        _end(pid, signal.SIGTERM)
    if _wait_until_gone(store, pid, limit):
        return Answer("stopped", pid=pid)
    if by_systemd:
        systemctl(manager, "kill", "--signal=SIGKILL", unit_name(store))
    _end(pid)
    if not _wait_until_gone(store, pid, 5.0):
        raise Failed(f"the controller (process {pid}) is still there after SIGKILL", "Look at it on the head")
    return Answer("stopped", pid=pid, reason=f"it did not leave within {limit:.0f} s and was killed")


def _is_controller(pid: int) -> bool:
    """Is it one of ours? A process id may have gone to somebody else."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            return b"jobs.controller" in file.read(65536).split(b"\0")
    except FileNotFoundError:
        return True  # gone meanwhile: then there is nothing to hit
    except OSError:
        return False


def _end(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
    except PermissionError as error:
        raise Failed(
            f"the controller (process {pid}) belongs to another user", "Stop it as the user who started it"
        ) from error


def _wait_until_gone(store: str, pid: int, limit: float) -> bool:
    """Has the process given the lock back? A lock that another one holds now counts as given back."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        serving = holder(store)
        if serving is None or serving.get("pid") not in (pid, None):
            return True
        time.sleep(0.05)
    return False


def main(header: dict[str, Any], stream: BinaryIO) -> int:
    """Run as source on the head: the request is the header, the archive is what is left of the stream."""
    size = int(header["archive"])
    body = stream.read(size) if size else b""
    known = {name: value for name, value in header["options"].items() if name in Options.__dataclass_fields__}
    if len(body) != size:
        answer = Answer("failed", reason=f"the controller's code arrived in part: {len(body)} of {size} bytes")
    else:
        answer = carry_out(header["command"], Options(**known), (header["digest"], body) if size else None)
    sys.stdout.write(json.dumps(asdict(answer)) + "\n")
    sys.stdout.flush()
    return 1 if answer.event == "failed" else 0
