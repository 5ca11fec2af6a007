"""Runs on a node: reads what a triage asks for, each thing in a process of its own: one that hangs holds up nothing.

Shipped as text over an SSH channel and read from there: standard library only, Python 3.8. It prints one line, which
begins with `MARK`. It changes nothing; the one file that it may write is what asks a gang for a look at its ranks.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pwd
import re
import select
import signal
import socket
import stat
import subprocess
import sys
import time
from typing import Any

MARK = "raydeck-triage:"
AT_ONCE = 16
COUNTED_BYTES = 256 << 20
"""Of a log: so much is read through to number its lines; a longer one has none."""
METRICS_BYTES = 64 << 20
METRICS_SECONDS = 5.0
FLAGS = (
    "node_id",
    "node_ip_address",
    "session-name",
    "labels",
    "gcs-address",
    "session_dir",
    "log_dir",
    "node_manager_port",
    "metrics_export_port",
)
PACKAGES = re.compile(r"(torch|ray|nvidia_nccl_cu\d+|transformers|deepspeed|numpy)-([^-]+)\.dist-info")
_KERNEL_LINE = re.compile(r"\[\s*(\d+\.\d+)\] ?(.*)")
_JOURNAL_LINE = re.compile(r"(\d{9,}\.\d+) \S+ kernel: ?(.*)")


def main(text: str) -> None:
    """Do what is asked for, and print what came of it."""
    asked = json.loads(text)
    told = {
        "wall": time.time(),
        "utc_offset_seconds": time.localtime().tm_gmtoff,
        "login": _login(os.getuid()),
        "answers": _all(asked["tasks"], float(asked["limit_seconds"])),
    }
    sys.stdout.write(MARK + json.dumps(told) + "\n")
    sys.stdout.flush()


# --- each task in a process of its own --------------------------------------------------------------------------------


def _all(tasks: list[list[Any]], limit_seconds: float) -> list[dict[str, Any]]:
    """One answer for each task: ``{"value": …}`` or ``{"reason": …}``."""
    answers: list[dict[str, Any]] = [{"reason": "there was no time left for it"} for _ in tasks]
    deadline = time.monotonic() + limit_seconds
    waiting = list(enumerate(tasks))[::-1]
    running: dict[int, tuple[int, int, list[bytes]]] = {}
    while (waiting or running) and time.monotonic() < deadline:
        while waiting and len(running) < AT_ONCE:
            at, task = waiting.pop()
            pid, pipe = _start(task)
            running[pipe] = (at, pid, [])
        ready, _, _ = select.select(list(running), [], [], max(0.0, deadline - time.monotonic()))
        for pipe in ready:
            at, pid, parts = running[pipe]
            data = os.read(pipe, 1 << 16)
            if data:
                parts.append(data)
                continue
            del running[pipe]
            os.close(pipe)
            os.waitpid(pid, 0)
            try:
                answers[at] = json.loads(b"".join(parts).decode("utf-8"))
            except ValueError:
                answers[at] = {"reason": "what looked for it was ended"}
    for pipe, (at, pid, _) in running.items():
        # One that the kernel does not let go of stays until it does: it holds nothing of ours.
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
        os.close(pipe)
        answers[at] = {"reason": f"it did not answer within {limit_seconds:g} s"}
    return answers


def _start(task: list[Any]) -> tuple[int, int]:
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        return pid, reading
    code = 0
    try:
        # The channel must not stay open for the sake of a child that hangs.
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(null, descriptor)
        os.close(reading)
        data = json.dumps(_answer(task)).encode("utf-8")
        while data:
            data = data[os.write(writing, data) :]
    except BaseException:  # a child never comes back into the parent's code
        code = 1
    os._exit(code)


def _answer(task: list[Any]) -> dict[str, Any]:
    name, arguments = task
    try:
        return {"value": TASKS[name](**arguments)}
    except OSError as error:
        return {"reason": error.strerror or str(error) or type(error).__name__}
    except (ValueError, KeyError, TypeError, subprocess.SubprocessError) as error:
        return {"reason": f"{type(error).__name__}: {error}"}


# --- the machine ------------------------------------------------------------------------------------------------------


def kernel(lines: int) -> list[list[Any]]:
    """The end of the kernel's log: wall seconds by this node's clock, and text."""
    problem = ""
    for argv, pattern, base in (
        (["journalctl", "-k", "-b", "-n", str(lines), "-o", "short-unix", "--no-pager", "-q"], _JOURNAL_LINE, 0.0),
        (["dmesg"], _KERNEL_LINE, time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)),
    ):
        try:
            done = subprocess.run(argv, capture_output=True, timeout=10, check=False)
        except OSError as error:
            problem = problem or f"{argv[0]}: {error.strerror}"
            continue
        found = [match for line in _text(done.stdout).splitlines()[-lines:] for match in [pattern.match(line)] if match]
        if found:
            return [[base + float(match.group(1)), match.group(2)] for match in found]
        problem = _text(done.stderr).strip().splitlines()[-1] if done.stderr.strip() else problem
    if problem:
        raise ValueError(problem)
    return []


def machine(node_id: str, name: str, latest: bool, lines: int) -> dict[str, Any]:
    """Its raylet, the end of that one's log, and what is installed where it runs.

    Args:
        node_id: Ray's id of the node, where it is known.
        name: The label that its raylet carries, where it carries one.
        latest: Take the newest session's log where no raylet runs.
        lines: Of the log.
    """
    raylets = [_flags(pid) for pid in _pids() if _read(pid, "comm", 64).strip() == b"raylet"]
    mine = [each for each in raylets if node_id and each["node_id"] == node_id]
    mine = mine or [each for each in raylets if name and f'"{name}"' in each["labels"]]
    mine = mine or [each for each in raylets if len(raylets) == 1 and not each["labels"]]
    told: dict[str, Any] = {"raylet": mine[0] if mine else None, "versions": {}, "log": [], "log_path": ""}
    folder = ""
    if mine:
        folder = mine[0]["log_dir"] or (f"{mine[0]['session_dir']}/logs" if mine[0]["session_dir"] else "")
        told["versions"] = _versions(mine[0]["exe"])
    elif latest:
        folder = "/tmp/ray/session_latest/logs"  # noqa: S108 - where Ray puts it
    for ending in ("out", "err") if folder else ():
        path = f"{folder}/raylet.{ending}"
        try:
            told["log"] += log(path, 256 << 10, lines)["lines"]
            told["log_path"] = told["log_path"] or path
        except OSError:
            continue  # another node of this machine's, or none: the rest is worth telling all the same
    return told


def serving(node_id: str, session_dir: str, port: int, names: list[str]) -> list[str]:
    """The lines of these metrics that Ray's agent on this node tells; no line where it serves nothing.

    Args:
        node_id: Ray's id of the node.
        session_dir: Of its session; the agent writes there on which port it is.
        port: Used where it wrote none; 0: not known.
        names: Of the metrics.
    """
    import http.client  # slow to load, and only needed here

    with contextlib.suppress(OSError, ValueError), open(f"{session_dir}/metrics_export_port_{node_id}") as file:
        port = int(file.read(16))
    if not port:
        raise OSError("Ray does not say on which port its metrics are")
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=METRICS_SECONDS)
    try:
        client.request("GET", "/metrics")
        told = client.getresponse().read(METRICS_BYTES)
    except http.client.HTTPException as error:
        raise OSError(f"port {port} does not answer as Ray's metrics do: {type(error).__name__}") from error
    finally:
        client.close()
    wanted = tuple(name + "{" for name in names)
    return [line for line in _text(told).splitlines() if line.startswith(wanted)]


def _flags(pid: int) -> dict[str, Any]:
    found: dict[str, Any] = {flag.replace("-", "_"): "" for flag in FLAGS}
    for part in _read(pid, "cmdline", 1 << 20).split(b"\0"):
        name, _, value = part.decode("utf-8", "replace").partition("=")
        if name.startswith("--") and name.lstrip("-") in FLAGS:
            found[name.lstrip("-").replace("-", "_")] = value
    found["pid"] = pid
    found["uid"] = _owner(f"/proc/{pid}")
    found["user"] = _login(found["uid"]) if found["uid"] is not None else ""
    try:
        found["exe"] = os.readlink(f"/proc/{pid}/exe")
    except OSError:
        found["exe"] = ""
    return found


def _versions(exe: str) -> dict[str, str]:
    """What stands beside the package that a raylet runs from, by the names of its folders."""
    at = exe.find("/ray/core/")
    if at < 0:
        return {}
    found: dict[str, str] = {}
    for entry in os.listdir(exe[:at]):
        match = PACKAGES.fullmatch(entry)
        if match:
            name = "nccl" if match.group(1).startswith("nvidia_nccl") else match.group(1)
            found[name] = match.group(2)
    return found


def processes(pids: list[int], seconds: float) -> dict[str, Any]:
    """Of each process: the kernel's letter, what it waits in, its share of a core; ``gone`` if it is not there."""
    before = {pid: _ticks(pid) for pid in pids}
    time.sleep(seconds)
    found: dict[str, Any] = {}
    for pid in pids:
        fields, old = _ticks(pid), before[pid]
        if fields is None:
            found[str(pid)] = {"state": "gone"}
            continue
        cpu = None if old is None else 100.0 * (fields[1] - old[1]) / os.sysconf("SC_CLK_TCK") / seconds
        where = _read(pid, "wchan", 64).decode("ascii", "replace").strip()
        found[str(pid)] = {"state": fields[0], "wchan": "" if where == "0" else where, "cpu_percent": cpu}
    return found


def _ticks(pid: int) -> tuple[str, int] | None:
    text = _read(pid, "stat", 4096)
    fields = text[text.rfind(b")") + 2 :].split()
    try:
        return fields[0].decode("ascii"), int(fields[11]) + int(fields[12])
    except (IndexError, ValueError):
        return None


# --- files ------------------------------------------------------------------------------------------------------------


def path(path: str, uid: int | None) -> dict[str, Any]:
    """A path as it is here, and whether somebody may use it (this login, where ``uid`` is None)."""
    told: dict[str, Any] = {"exists": True}
    there = path
    try:
        seen = os.stat(path)
        told.update(owner=_login(seen.st_uid), mode=stat.filemode(seen.st_mode))
        told["readable"], told["writable"] = _may(path, seen, uid)
    except OSError as error:
        if error.errno not in (errno.ENOENT, errno.ENOTDIR):
            raise
        told["exists"] = False
        while there != "/" and not os.path.exists(there):
            there = os.path.dirname(there) or "/"
    room = os.statvfs(there)
    told.update(free=room.f_bavail * room.f_frsize, total=room.f_blocks * room.f_frsize)
    told["inodes_free"] = room.f_favail if room.f_files else None
    told["user"] = _login(os.getuid() if uid is None else uid)
    return told


def _may(path: str, seen: os.stat_result, uid: int | None) -> tuple[bool, bool]:
    """Whether this user may read it, and write to it."""
    if uid is not None and uid != os.getuid() and os.getuid() == 0:
        # This process is the task's own: it may become that user, and then the kernel knows best.
        with contextlib.suppress(KeyError, OSError):
            user = pwd.getpwuid(uid)
            os.setgroups(os.getgrouplist(user.pw_name, user.pw_gid))
            os.setgid(user.pw_gid)
            os.setuid(uid)
    needed = os.X_OK if stat.S_ISDIR(seen.st_mode) else 0
    if uid is None or uid == os.getuid():
        return os.access(path, os.R_OK | needed), os.access(path, os.W_OK | needed)
    shift = 6 if seen.st_uid == uid else 3 if seen.st_gid in _groups(uid) else 0
    bits = seen.st_mode >> shift & 7
    inside = not needed or bits & 1
    return bool(bits & 4 and inside), bool(bits & 2 and inside)


def _groups(uid: int) -> list[int]:
    try:
        user = pwd.getpwuid(uid)
    except KeyError:
        return []
    return os.getgrouplist(user.pw_name, user.pw_gid)


def log(path: str, most_bytes: int, most_lines: int) -> dict[str, Any]:
    """The end of a log: its lines, the number of the first of them, its size, and when it was written last."""
    with open(path, "rb") as file:
        seen = os.fstat(file.fileno())
        begin = max(0, seen.st_size - most_bytes)
        before: int | None = 0
        if begin > COUNTED_BYTES:
            before = None
        elif begin:
            before = 0
            left = begin
            while left:
                piece = file.read(min(left, 1 << 20))
                if not piece:
                    break
                before += piece.count(b"\n")
                left -= len(piece)
        file.seek(begin)
        data = file.read(most_bytes)
    lines = data.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    if begin and lines:
        lines = lines[1:]  # the first one may lack its beginning
        before = None if before is None else before + 1
    cut = max(0, len(lines) - most_lines)
    return {
        "size": seen.st_size,
        "modified": seen.st_mtime,
        "first": None if before is None else before + cut + 1,
        "lines": [line[:4000].decode("utf-8", "replace") for line in lines[cut:]],
    }


def ask_look(folder: str, look: str) -> str:
    """Ask the gang for a look at all its ranks, by the file that its driver watches."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,39}", look):
        raise ValueError("no id of a look")
    partial = f"{folder}/look.{os.getpid()}.partial"
    with open(partial, "w", encoding="ascii") as file:
        file.write(look)
    os.rename(partial, f"{folder}/look")
    return look


def read_look(folder: str, look: str) -> dict[str, str]:
    """What a look has brought so far: the name of each file, and its text."""
    place = f"{folder}/looks/{look}"
    found: dict[str, str] = {}
    for name in sorted(os.listdir(place)) if os.path.isdir(place) else ():
        if re.fullmatch(r"(look|rank-\d+|node-\d+)\.json", name):
            with open(f"{place}/{name}", encoding="utf-8", errors="replace") as file:
                found[name] = file.read(1 << 20)
    return found


# --- network ----------------------------------------------------------------------------------------------------------


def connect(host: str, port: int, seconds: float) -> dict[str, Any]:
    """One try to reach a port."""
    began = time.monotonic()
    try:
        socket.create_connection((host, port), timeout=seconds).close()
        result = "open"
    except socket.timeout:  # noqa: UP041 - before Python 3.10 it is a class of its own
        result = "no answer"
    except socket.gaierror:
        result = "no such name"
    except OSError as error:
        result = {errno.ECONNREFUSED: "refused", errno.ETIMEDOUT: "no answer"}.get(error.errno or 0, "no route")
    return {"result": result, "milliseconds": (time.monotonic() - began) * 1000}


# --- /proc ------------------------------------------------------------------------------------------------------------


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _read(pid: int, name: str, limit: int) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read(limit)
    except OSError:
        return b""


def _owner(path: str) -> int | None:
    try:
        return os.stat(path).st_uid
    except OSError:
        return None


def _login(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")


TASKS: dict[str, Any] = {
    "kernel": kernel, "machine": machine, "processes": processes, "path": path, "log": log, "ask_look": ask_look,
    "read_look": read_look, "connect": connect, "serving": serving,
}  # fmt: skip
