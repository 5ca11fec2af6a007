"""Runs on a node: looks for Ray and for raydeck's processes, runs one command with a limit, ends processes.

Shipped as text over an SSH channel and read from there: standard library only, Python 3.8. It prints one line, which
begins with `MARK`. A process is one by its pid and its start time together; a pid alone may be another one by now.
"""

from __future__ import annotations

import json
import os
import pwd
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

MARK = "raydeck-hands:"
COMMAND_LENGTH = 200
TAIL_BYTES = 4000
KILL_SECONDS = 3.0
LOOK_SECONDS = 0.05
RAYLET = "raylet"
FLAGS = ("node_id", "node_ip_address", "session-name", "labels")


def main(text: str) -> None:
    """Do what is asked for, and print what came of it."""
    asked = json.loads(text)
    done = {"look": look, "run": run, "end": end}[asked.pop("verb")](**asked)
    sys.stdout.write(MARK + json.dumps(done) + "\n")
    sys.stdout.flush()


# --- what is there ----------------------------------------------------------------------------------------------------


def look() -> dict[str, Any]:
    """The raylets of this machine, and the processes that carry raydeck's marks."""
    raylets: list[dict[str, Any]] = []
    marked: list[dict[str, Any]] = []
    for pid in _pids():
        fields = _stat(pid)
        if fields is None:
            continue
        if _read(pid, "comm", 64).strip() == RAYLET.encode():
            raylets.append({"pid": pid, "here": _here(pid), **_flags(pid)})
        marks = _marks(pid)
        if marks is not None and _here(pid) is not False:
            marked.append({"pid": pid, "run": marks[0], "attempt": marks[1]})
    return {"login": _login(os.getuid()), "raylets": raylets, "marked": marked}


def _flags(pid: int) -> dict[str, str]:
    """What a raylet was started with, as far as it matters."""
    found = {name.replace("-", "_"): "" for name in FLAGS}
    for part in _read(pid, "cmdline", 1 << 20).split(b"\0"):
        name, _, value = part.decode("utf-8", "replace").partition("=")
        name = name.lstrip("-")
        if name in FLAGS:
            found[name.replace("-", "_")] = value
    return found


def _here(pid: int) -> bool | None:
    """Whether a process is in this one's network; None where that may not be read.

    Several nodes may be on one machine, each with a network of its own, and all of them see all processes.
    """
    try:
        return os.readlink(f"/proc/{pid}/ns/net") == os.readlink("/proc/self/ns/net")
    except OSError:
        return None


# --- one command ------------------------------------------------------------------------------------------------------


def run(command: str, limit_seconds: float) -> dict[str, Any]:
    """Run a command in this user's login shell, so many seconds at most; the end of what it prints.

    What it prints goes to a file: what it leaves running would keep a pipe, and the channel behind it, open.
    """
    shell = os.environ.get("SHELL") or pwd.getpwuid(os.getuid()).pw_shell or "/bin/sh"
    with tempfile.TemporaryFile() as out:
        started = time.monotonic()
        child = subprocess.Popen(
            ["-" + os.path.basename(shell), "-c", command],  # a dash in front: a login shell, to every shell there is
            executable=shell,
            cwd=os.path.expanduser("~"),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        late = False
        try:
            code = child.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            late = True
            code = _end_group(child)
        size = out.seek(0, os.SEEK_END)
        out.seek(max(0, size - TAIL_BYTES))
        tail = out.read().decode("utf-8", "replace")
    return {"code": code, "late": late, "tail": tail, "seconds": time.monotonic() - started}


def _end_group(child: subprocess.Popen[bytes]) -> int:
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
            return child.wait(KILL_SECONDS)
        except ProcessLookupError:
            break
        except subprocess.TimeoutExpired:
            continue
    return child.wait(KILL_SECONDS)


# --- ending processes -------------------------------------------------------------------------------------------------


def end(
    processes: list[dict[str, Any]], runs: dict[str, int], even_living: bool, kill: bool, grace_seconds: float
) -> dict[str, Any]:
    """End those of these processes that are still the ones that were meant.

    Args:
        processes: Each with ``pid``, ``started``, ``user``, ``command``, as they were seen.
        runs: Runs that are known, with the attempt that lives now; 0 for one that holds nothing.
        even_living: Also what belongs to a run that lives, or that is not known.
        kill: End at once what has not ended ``grace_seconds`` after it was asked to.
    """
    told: dict[int, tuple[str, str]] = {}
    waited: dict[int, int] = {}
    for each in processes:
        pid, started = int(each["pid"]), int(each["started"])
        verdict = _other_than_meant(pid, started, each) or ("" if even_living else _belongs(pid, runs))
        if verdict:
            told[pid] = _split(verdict)
            continue
        verdict = _send(pid, started, signal.SIGTERM)
        if verdict:
            told[pid] = _split(verdict)
        else:
            waited[pid] = started
    for pid in _wait(waited, grace_seconds):
        told[pid] = ("ended", "")
        del waited[pid]
    if kill:
        for pid, started in list(waited.items()):
            _send(pid, started, signal.SIGKILL)
        for pid in _wait(waited, KILL_SECONDS):
            told[pid] = ("killed", "")
            del waited[pid]
    for pid in waited:
        told[pid] = ("still there", _state(pid))
    return {"login": _login(os.getuid()), "ended": [[pid, result, detail] for pid, (result, detail) in told.items()]}


def _split(verdict: str) -> tuple[str, str]:
    result, _, detail = verdict.partition(": ")
    return result, detail


def _other_than_meant(pid: int, started: int, meant: Mapping[str, Any]) -> str:
    """Why it is not the process that was meant; empty if it is."""
    fields = _stat(pid)
    if pid <= 1 or pid == os.getpid() or fields is None:
        return "gone"
    user, command = _user_of(pid), _command(pid)
    if fields[1] != started:
        return "another: {} of {}".format(command or "a process", user)
    if user != meant["user"]:
        return f"another: it is {user}'s by now"
    if command != meant["command"]:
        return "another: it runs {} by now".format(command or "nothing that is shown")
    return ""


def _belongs(pid: int, runs: Mapping[str, int]) -> str:
    """The run that it belongs to, by its own marks or by those that it descends from, if that one lives.

    A program that renames itself may write over what the kernel shows of its environment, so its parents are asked too.
    """
    seen = 0
    while pid > 1 and seen < 64:
        marks = _marks(pid)
        if marks is not None:
            run, attempt = marks
            if run not in runs:
                return f"spared: run {run}, of which nothing is known"
            if runs[run] and runs[run] == attempt:
                return f"spared: run {run}, which lives"
            return ""
        fields = _stat(pid)
        if fields is None:
            return ""
        pid, seen = fields[0], seen + 1
    return ""


def _send(pid: int, started: int, number: int) -> str:
    """Signal that very process; what kept it from that, if anything."""
    opened = getattr(os, "pidfd_open", None)
    sent = getattr(signal, "pidfd_send_signal", None)
    fd = -1
    try:
        if opened is not None and sent is not None:
            fd = opened(pid, 0)
        fields = _stat(pid)  # with the descriptor held, what is found now is what gets the signal
        if fields is None or fields[1] != started:
            return "gone"
        if fd >= 0 and sent is not None:
            sent(fd, number)
        else:
            os.kill(pid, number)
    except ProcessLookupError:
        return "gone"
    except PermissionError:
        return f"not permitted: it is {_user_of(pid)}'s"
    except OSError as error:
        return f"still there: {error.strerror}"
    finally:
        if fd >= 0:
            os.close(fd)
    return ""


def _wait(waited: Mapping[int, int], seconds: float) -> list[int]:
    """Those that have ended, as soon as all have, or after so long."""
    deadline = time.monotonic() + seconds
    while True:
        gone = [pid for pid, started in waited.items() if (_stat(pid) or (0, -1))[1] != started]
        if len(gone) == len(waited) or time.monotonic() > deadline:
            return gone
        time.sleep(LOOK_SECONDS)


def _state(pid: int) -> str:
    found = _stat_text(pid)[:1]
    return "the kernel does not let it end (state D)" if found == [b"D"] else "it does not heed SIGTERM"


# --- /proc ------------------------------------------------------------------------------------------------------------


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str, limit: int) -> bytes:
    """A file of a process, or nothing if it is gone or not ours to read."""
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _stat_text(pid: int) -> list[bytes]:
    """The fields after the name; that may hold brackets and spaces itself, so they are counted from the last one."""
    text = _read(pid, "stat", 4096)
    return text[text.rfind(b")") + 2 :].split()


def _stat(pid: int) -> tuple[int, int] | None:
    """Parent and start time in clock ticks; None if it is not there, or has ended and is not collected."""
    fields = _stat_text(pid)
    try:
        return None if fields[0] in (b"Z", b"X") else (int(fields[1]), int(fields[19]))
    except (IndexError, ValueError):
        return None


def _command(pid: int) -> str:
    """As the probe tells it."""
    raw = _read(pid, "cmdline", COMMAND_LENGTH * 4)
    return raw.replace(b"\0", b" ").decode("utf-8", "replace").strip()[:COMMAND_LENGTH]


def _marks(pid: int) -> tuple[str, int] | None:
    """The run and the attempt in its environment."""
    found: dict[bytes, str] = {}
    for entry in _read(pid, "environ", 131072).split(b"\0"):
        if entry.startswith((b"RAYDECK_RUN=", b"RAYDECK_ATTEMPT=")):
            name, _, value = entry.partition(b"=")
            found[name] = value.decode("utf-8", "replace")
    run = found.get(b"RAYDECK_RUN", "")
    attempt = found.get(b"RAYDECK_ATTEMPT", "")
    return (run, int(attempt) if attempt.isdigit() else 0) if run else None


def _user_of(pid: int) -> str:
    try:
        return _login(os.stat(f"/proc/{pid}").st_uid)
    except OSError:
        return "nobody"


def _login(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
