"""What torch's flight recorder tells of a rank's collectives, from real ranks over gloo."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jobs.looks import Collective
from tests.unit.jobs.ranks import Ranks

pytestmark = pytest.mark.slow

SCRIPT = """
import json, sys
import torch
import torch.distributed as dist
from jobs import pulse

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([0, 1])
for _ in range(3):
    dist.all_reduce(torch.zeros(2))
dist.broadcast(torch.zeros(1), 0, group=pair)
store = dist.distributed_c10d._get_default_store()
if rank == 0:
    work = dist.all_reduce(torch.zeros(5), async_op=True)  # the other one has not called it
    print(json.dumps(pulse.recorder()), flush=True)
    store.set("told", "0")
    work.wait()
else:
    store.wait(["told"])
    print(json.dumps(pulse.recorder()), flush=True)
    dist.all_reduce(torch.zeros(5))
dist.barrier()
dist.destroy_process_group()
"""


def test_each_group_is_told_with_its_members_and_how_far_the_rank_is(tmp_path: Path) -> None:
    script = tmp_path / "collect.py"
    script.write_text(SCRIPT)
    with Ranks() as ranks:
        codes = ranks.run(script, tmp_path / "log", {})
    logs = [(tmp_path / f"log-{rank}").read_text() for rank in (0, 1)]
    assert codes == [0, 0], logs
    told: list[dict[str, Any]] = [
        json.loads(next(line for line in log.splitlines() if line[:1] == "{")) for log in logs
    ]
    assert [each["recorder_problem"] for each in told] == ["", ""]
    groups = [[Collective(**group) for group in each["collectives"]] for each in told]
    for rank, (whole, pair) in enumerate(groups):
        assert whole.about == "default_pg"
        assert (whole.members, pair.members) == ([0, 1], [0, 1])
        # What has just ended may not be marked as such yet.
        assert (pair.enqueued, pair.operation) == (1, "gloo:broadcast")
        assert pair.completed in (0, 1)
        assert whole.operation == "gloo:all_reduce"
        assert whole.enqueued == (4 if rank == 0 else 3)
        assert whole.completed in (2, 3)
        assert whole.pending or rank == 1
        assert whole.waiting_seconds is not None or rank == 1
    assert groups[0][0].sizes == "[[5]]"
