"""Makes the recorded logs beside this file anew: gangs of four gloo ranks that fail in one way each.

``python tests/data/triage/record.py FOLDER`` takes about a minute; needs torch. Each case becomes a folder with the
ranks' logs as they were written and ``ends.json``: exit codes, and when each rank ended, in seconds from the start.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RANKS = 4
TIMEOUT_SECONDS = 6

SCRIPT = """
import datetime, os, sys, time
import torch, torch.distributed as dist
case, rank = sys.argv[1], int(os.environ["RANK"])
dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={timeout}))
value = torch.ones(1000)
for step in range(1, 40):
    if step == 8 and rank == 1:
        if case == "killed":
            os.kill(os.getpid(), 9)
        if case == "raised":
            raise ValueError("label 1007 is outside of 0..999")
        if case == "left":
            print("done with all batches", flush=True)
            os._exit(0)
        if case == "stopped":
            os.kill(os.getpid(), 19)
        if case == "disk":
            raise OSError(28, "No space left on device", "/output/run/checkpoint-8/model.pt")
        if case == "mismatch":
            value = torch.ones(500)
    if case == "barrier" and step == 8:
        if rank in (1, 3):
            time.sleep({timeout} + 2)
        dist.monitored_barrier(timeout=datetime.timedelta(seconds=3), wait_all_ranks=True)
    dist.all_reduce(value)
    print(f"step {{step}} loss {{2.0 / step:.4f}}", flush=True)
    time.sleep(0.02)
"""


def record(case: str, folder: Path) -> None:
    """One gang, from its start until nothing of it lives."""
    folder.mkdir(parents=True, exist_ok=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with tempfile.TemporaryDirectory() as scratch:
        script = Path(scratch) / "train.py"
        script.write_text(SCRIPT.format(timeout=TIMEOUT_SECONDS), encoding="utf-8")
        began = time.time()
        ranks: list[subprocess.Popen[bytes]] = []
        for rank in range(RANKS):
            environment = {
                **os.environ, "RANK": str(rank), "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo",
            }  # fmt: skip
            with (folder / f"rank-{rank}.log").open("wb") as log:
                ranks.append(
                    subprocess.Popen(
                        [sys.executable, str(script), case], stdout=log, stderr=subprocess.STDOUT, env=environment
                    )
                )
        ends: dict[int, dict[str, float | int]] = {}
        while len(ends) < RANKS and time.time() - began < 60:
            for rank, process in enumerate(ranks):
                if rank not in ends and process.poll() is not None:
                    ends[rank] = {"exit_code": process.returncode, "seconds": round(time.time() - began, 3)}
            if case == "stopped" and len(ends) == RANKS - 1:
                ranks[1].send_signal(signal.SIGKILL)
            time.sleep(0.002)
        for process in ranks:
            process.kill()
            process.wait()
        for log in folder.glob("rank-*.log"):
            # Where this was recorded is nobody's business.
            text = log.read_text(encoding="utf-8").replace(sys.prefix, "/opt/venv").replace(scratch, "/code")
            log.write_text(text, encoding="utf-8")
    (folder / "ends.json").write_text(json.dumps(ends, indent=1, sort_keys=True) + "\n", encoding="utf-8")


if __name__ == "__main__":
    for name in ("killed", "raised", "left", "stopped", "disk", "mismatch", "barrier"):
        record(name, Path(sys.argv[1]) / name)
        print(name)
