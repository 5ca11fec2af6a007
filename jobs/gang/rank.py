"""Owns the moment in which a process that torchrun started becomes the user's script.

``python -I -S rank.py FOLDER SCRIPT [ARGUMENT…]``: it ties the process to its parent, leads its output to the rank's
log, tells the agent who it is, and replaces itself. It runs without site packages and before anything of the user's, so
it imports nothing but the standard library, and nothing of ours.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1
_PR_SET_PTRACER = 0x59616D61


def die_with_parent(parent: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Have the kernel send ``number`` to this process when its parent ends; leave at once if it has ended already.

    It is the parent's *thread* that counts, so the parent has to start us from one that lasts. Survives an exec.
    """
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:
        os._exit(128 + int(number))


def _let_look(agent: int) -> None:
    """Have the agent's children read this process's stack where only parents may (Yama). Survives an exec.

    Fails where there is no Yama, and then nothing stands in the way.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, agent, 0, 0, 0)


def main(folder: str, script: list[str]) -> None:
    """Become ``script``; returns only by an exception."""
    with open(os.path.join(folder, "gang.json"), encoding="utf-8") as file:
        gang = json.load(file)
    with open(os.path.join(folder, "torchrun.pid"), encoding="ascii") as file:
        parent = int(file.read())
    die_with_parent(parent)

    rank, local_rank = int(os.environ["RANK"]), int(os.environ["LOCAL_RANK"])
    gpus: list[str] = gang["gpus"]
    gpu = gpus[local_rank] if local_rank < len(gpus) else ""
    log = os.path.join(gang["attempt_directory"], f"rank-{rank}.log")
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    sys.stdout.flush()
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.close(descriptor)

    note = {"rank": rank, "pid": os.getpid(), "gpu": gpu}
    target = os.path.join(folder, f"rank-{rank}.json")
    with open(target + ".partial", "w", encoding="utf-8") as file:
        json.dump(note, file)
    os.rename(target + ".partial", target)

    _let_look(gang["agent"])
    os.environ["RAYDECK_PULSE"] = folder
    os.environ["RAYDECK_RANK_PID"] = str(os.getpid())
    os.chdir(gang["workload"])
    if not script[0].startswith("-") and not os.path.exists(script[0]):
        sys.exit(f"raydeck: the script {script[0]} is not in the code that was shipped with this run")
    os.environ["RAYDECK_GPU"] = gpu
    # The user's modules come first: theirs may have the name of one of ours.
    paths = [gang["workload"], gang["package"], os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    os.execv(sys.executable, [sys.executable, "-u", *script])  # noqa: S606 - this is the point


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
