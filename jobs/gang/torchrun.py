"""Owns torchrun on one node: runs it as it is, dies with the agent, and notes how each rank ended, at once.

``python -m jobs.gang.torchrun FOLDER AGENT_PID FIRST_RANK RANKS [torchrun's own arguments…]``. torchrun itself tells
of a failed rank only after it has ended all others, which takes up to 30 s; so each rank is also waited for here,
without taking its exit status away. Notes are ``FOLDER/exit-R.json``: ``{"rank", "pid", "exit_code", "monotonic"}``,
and ``FOLDER/environment.json``: what the ranks run on.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from jobs.gang import facts
from jobs.gang.rank import die_with_parent

_LOOK_EVERY_SECONDS = 0.05
_PR_SET_CHILD_SUBREAPER = 36


def main(folder: Path, agent: int, first_rank: int, ranks: int, arguments: list[str]) -> int:
    """Run torchrun's ``arguments``; gives its exit code."""
    die_with_parent(agent)
    # What the ranks leave behind becomes our child and not init's, so that it is found in our tree.
    if ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER) failed")
    (folder / "torchrun.pid").write_text(str(os.getpid()), encoding="ascii")
    for rank in range(first_rank, first_rank + ranks):
        threading.Thread(target=_watch, args=(folder, rank), name=f"rank-{rank}", daemon=True).start()

    import torch
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import parse_args, run

    _write(folder / "environment.json", facts.of_torch(torch))
    try:
        run(parse_args(arguments))
    except ChildFailedError as error:
        for rank, failure in error.failures.items():
            _note(folder, int(rank), failure.pid, failure.exitcode)
        return 1
    # A status that torchrun took before our thread could see it: with torchrun content, it was 0.
    for rank in range(first_rank, first_rank + ranks):
        _note(folder, rank, _pid(folder, rank), 0)
    return 0


def _pid(folder: Path, rank: int) -> int:
    return int(json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))["pid"])


def _watch(folder: Path, rank: int) -> None:
    while not (folder / f"rank-{rank}.json").exists():
        time.sleep(_LOOK_EVERY_SECONDS)
    pid = _pid(folder, rank)
    try:
        ended: Any = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    except ChildProcessError:
        # torchrun took the status first; its own report comes when it ends.
        return
    _note(folder, rank, pid, ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status)


def _note(folder: Path, rank: int, pid: int, exit_code: int) -> None:
    target = folder / f"exit-{rank}.json"
    if target.exists():
        return
    # The monotonic clock is the node's: the agent turns it into an age, which holds on any machine.
    note = {"rank": rank, "pid": pid, "exit_code": exit_code, "monotonic": time.monotonic()}
    _write(target, note)


def _write(target: Path, value: Any) -> None:
    partial = target.with_name(f"{target.name}.{threading.get_ident()}.partial")
    partial.write_text(json.dumps(value), encoding="utf-8")
    partial.rename(target)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5:]))
