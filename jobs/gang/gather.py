"""Owns one look at the ranks of a node: their stacks, their states, their collectives. A process of its own, bounded.

``python -m jobs.gang.gather FOLDER AGENT_PID`` reads ``FOLDER/look.json``, which the agent wrote, and leaves
``FOLDER/look-ID.json``: ``{"node": a NodeLook, "ranks": [RankLook, …]}`` (see `jobs.looks`). Standard library only, and
nothing here touches shared storage. py-spy tells the stacks; where it may not, the rank itself does, if it can.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from jobs import pulse
from jobs.gang import vitals
from jobs.gang.rank import die_with_parent
from jobs.pulse import MAX_FRAMES, MAX_THREADS

LIMIT_SECONDS = 8.0
"""For all of it: what is not there by then is left out, and said so."""
OWN_SECONDS = 3.0
"""How long a rank may take to answer by itself."""
_PYTHON_SECONDS = 2.5
_NATIVE_SECONDS = 4.0
_TRIES = 3
_SAMPLES = 4
_SAMPLE_EVERY_SECONDS = 0.3
_LOOK_EVERY_SECONDS = 0.05
_MAX_TEXT = 200
_MAX_RAS = 20_000
_MAX_STUCK = 8
_HELD = ("T", "t", "D")
"""In these states ptrace fails, or waits; the memory of the process can be read all the same."""
_CALLS = {
    "x86_64": {
        0: "read", 17: "read", 19: "read", 1: "write", 18: "write", 20: "write", 74: "fsync", 75: "fdatasync",
        257: "open",
    },
    "aarch64": {
        63: "read", 65: "read", 67: "read", 64: "write", 66: "write", 68: "write", 82: "fsync", 83: "fdatasync",
        56: "open",
    },
}  # fmt: skip


def py_spy() -> str:
    """Where it is: beside this Python, which Ray runs under, or on the path; empty if it is nowhere."""
    beside = Path(sys.executable).parent / "py-spy"
    return str(beside) if beside.is_file() else shutil.which("py-spy") or ""


def look(folder: Path, request: dict[str, Any], spy: str) -> dict[str, Any]:
    """Look at all ranks at once. What hangs is left behind at the limit."""
    began = time.monotonic()
    found = [{**rank, "stack_problem": "the look at it did not end in time"} for rank in request["ranks"]]
    ras = [""]

    def one(index: int) -> None:
        found[index] = _rank(folder, request["id"], request["ranks"][index], spy)

    def ask_ras() -> None:
        ras[0] = _ras(request["ras"])

    works = [threading.Thread(target=one, args=(index,), daemon=True) for index in range(len(found))]
    if request["ras"]:
        works.append(threading.Thread(target=ask_ras, daemon=True))
    for work in works:
        work.start()
    for work in works:
        work.join(max(0.0, began + LIMIT_SECONDS - time.monotonic()))
    late = any(work.is_alive() for work in works)
    node = {
        "node": request["node"],
        "index": request["index"],
        "seconds": round(time.monotonic() - began, 2),
        "problem": f"not all of it came within {LIMIT_SECONDS:g} s" if late else "",
        "ras": ras[0],
    }
    return {"node": node, "ranks": found}


def _rank(folder: Path, look_id: str, rank: dict[str, Any], spy: str) -> dict[str, Any]:
    pid = rank["pid"]
    if pid is None or rank["exit_code"] is not None:
        return {**rank, "stack_problem": "its process has ended" if pid else "its process has not started"}
    state, seconds, stuck = _states(pid)
    if not state:
        return {**rank, "state": "", "missing": True, "stack_problem": "its process is not there any more"}
    if state == rank["state"] and rank["state_seconds"] is not None:
        seconds += rank["state_seconds"]
    found = {
        **rank,
        "state": state,
        "state_seconds": round(seconds, 1),
        "wchan": vitals.wchan(pid),
        "call": _call(pid),
        "stuck": stuck,
    }
    threads, problem, native = _stacks(spy, pid, state)
    own = None if state in ("T", "t") else _own(folder, look_id, rank["rank"])
    if own is not None:
        found |= {"collectives": own["collectives"], "recorder_problem": own["recorder_problem"]}
    else:
        found["recorder_problem"] = _untold(folder, rank["rank"], state)
    if (beat := pulse.read(folder, rank["rank"])) is not None:
        found |= {"step": beat.step, "step_seconds": max(0.0, time.monotonic() - beat.monotonic)}
    by = "py-spy"
    if not threads and own is not None:
        threads, by = own["threads"], "the rank itself"
    return {
        **found,
        "threads": threads,
        "stack_by": by if threads else "",
        "stack_problem": problem,
        "native_problem": native,
    }


def _states(pid: int) -> tuple[str, float, list[str]]:
    """The state that it was found in last, for how long each sample found that, and threads that are in D in all."""
    began = time.monotonic()
    first, since = vitals.stat(pid)[0], began
    stuck = _waiting(pid)
    for _ in range(_SAMPLES - 1):
        time.sleep(_SAMPLE_EVERY_SECONDS)
        state = vitals.stat(pid)[0]
        if state != first:
            first, since = state, time.monotonic()
        stuck &= _waiting(pid)
    told = [
        f"{_thread_name(pid, thread)} in {vitals.wchan(pid, thread=thread) or 'the kernel'}" for thread in sorted(stuck)
    ]
    return first, time.monotonic() - since, told[:_MAX_STUCK]


def _waiting(pid: int) -> set[int]:
    """Its threads, but for the main one, that are in uninterruptible sleep."""
    found: set[int] = set()
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return found
    for thread in threads:
        if thread != pid and vitals.stat(thread, Path(f"/proc/{pid}/task"))[0] == "D":
            found.add(thread)
    return found


def _thread_name(pid: int, thread: int) -> str:
    try:
        return Path(f"/proc/{pid}/task/{thread}/comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return str(thread)


def _call(pid: int) -> str:
    """The system call that the main thread is in, where it is one on a file; empty otherwise."""
    try:
        fields = Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()
        name = _CALLS.get(platform.machine(), {}).get(int(fields[0]), "")
        if name in ("", "open"):
            return name
        return f"{name} {os.readlink(f'/proc/{pid}/fd/{int(fields[1], 16)}')}"[:_MAX_TEXT]
    except (OSError, ValueError, IndexError):
        # "running", or this process may not see it.
        return ""


def _stacks(spy: str, pid: int, state: str) -> tuple[list[dict[str, Any]], str, str]:
    """The threads' stacks, why there are none, and why they are without native calls."""
    if not spy:
        return [], "py-spy is not installed beside Ray", ""
    threads: list[dict[str, Any]] = []
    problem = ""
    deadline = time.monotonic() + _PYTHON_SECONDS
    # Without a pause first: it cannot hurt the rank, whatever state that is in.
    for _ in range(_TRIES):
        threads, problem = _dump(spy, pid, "--nonblocking", deadline - time.monotonic())
        if threads or time.monotonic() > deadline:
            break
    if state in _HELD:
        return threads, problem, f"native calls cannot be read in state {state}"
    more, native = _dump(spy, pid, "--native", _NATIVE_SECONDS)
    return more or threads, "" if more else problem, native


def _dump(spy: str, pid: int, how: str, seconds: float) -> tuple[list[dict[str, Any]], str]:
    command = [spy, "dump", "--json", how, "--pid", str(pid)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=max(0.1, seconds), stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return _threads(json.loads(done.stdout), pid), ""
        lines = [line.strip() for line in done.stderr.decode(errors="replace").splitlines() if line.strip()]
        # The reason comes after "Caused by"; the first line says only that it failed.
        reason = next(
            (line for line in lines[1:] if line[0].isdigit() or "denied" in line.lower()), lines[0] if lines else ""
        )
        return [], f"py-spy: {reason}"[:_MAX_TEXT]
    except subprocess.TimeoutExpired:
        return [], f"py-spy did not end within {seconds:.0f} s"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return [], f"py-spy: {type(error).__name__}: {error}"[:_MAX_TEXT]


def _threads(told: list[dict[str, Any]], pid: int) -> list[dict[str, Any]]:
    threads = sorted(told, key=lambda thread: thread["os_thread_id"] != pid)
    return [
        {
            "name": str(thread["thread_name"] or "")[:_MAX_TEXT],
            "main": thread["os_thread_id"] == pid,
            "frames": [_frame(frame) for frame in thread["frames"][:MAX_FRAMES]],
        }
        for thread in threads[:MAX_THREADS]
    ]


def _frame(frame: dict[str, Any]) -> dict[str, Any]:
    # Only a native call is told with the library that it is in.
    native = bool(frame.get("module"))
    return {
        "function": str(frame["name"])[:_MAX_TEXT],
        "file": str(frame["filename"])[-_MAX_TEXT:],
        "line": int(frame["line"] or 0),
        "native": native,
    }


def _own(folder: Path, look_id: str, rank: int) -> dict[str, Any] | None:
    """What the rank says of itself, once it has."""
    if not (folder / f"pulse-{rank}").exists():
        return None
    deadline = time.monotonic() + OWN_SECONDS
    while time.monotonic() < deadline:
        try:
            answer = json.loads((folder / f"own-{rank}.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            answer = {}
        if answer.get("id") == look_id:
            return answer
        time.sleep(_LOOK_EVERY_SECONDS)
    return None


def _untold(folder: Path, rank: int, state: str) -> str:
    """Why a rank did not tell of its collectives; has torch itself write them down, where it can."""
    if state in ("T", "t"):
        return "its process is stopped, and cannot answer"
    try:
        pipe = os.open(folder / f"flight-{rank}.pipe", os.O_WRONLY | os.O_NONBLOCK)
    except OSError:
        dumped = ""
    else:
        os.write(pipe, b"1\n")
        os.close(pipe)
        dumped = f"; torch was asked to write them to flight-rank-{rank} in the attempt's folder"
    if not (folder / f"pulse-{rank}").exists():
        return f"its script does not use raydeck's metrics{dumped}"
    return f"it did not answer within {OWN_SECONDS:g} s: its interpreter does not get to run{dumped}"


def _ras(address: str) -> str:
    """What NCCL's RAS on this node says; empty where nobody listens there."""
    host, _, port = address.rpartition(":")
    told = b""
    try:
        with socket.create_connection((host.strip("[]") or "127.0.0.1", int(port)), timeout=1.0) as client:
            client.settimeout(OWN_SECONDS)
            client.sendall(b"verbose status\n")
            while len(told) < _MAX_RAS and (block := client.recv(4096)):
                told += block
    except (OSError, ValueError):
        # Nobody there, or it did not end: what came is still worth something.
        pass
    text = told[:_MAX_RAS].decode("utf-8", errors="replace")
    return text if "NCCL" in text else ""


def main(folder: Path, agent: int) -> None:
    """Take the look that is asked for, and leave without waiting for what hangs."""
    die_with_parent(agent)
    request = json.loads((folder / "look.json").read_text(encoding="utf-8"))
    answer = json.dumps(look(folder, request, py_spy()))
    target = folder / f"look-{request['id']}.json"
    partial = target.with_name(f"{target.name}.partial")
    partial.write_text(answer, encoding="utf-8")
    partial.rename(target)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
