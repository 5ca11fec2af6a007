"""What a training script may say and ask, in a process of its own as it would."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

import jobs
from jobs import fence, metrics
from jobs.errors import Refused
from jobs.gang.progress import parse

ROOT = Path(jobs.__file__).parents[1]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("RANK", "RAYDECK_CONFIG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("RAYDECK_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("RAYDECK_ATTEMPT", "3")
    return tmp_path / "metrics.jsonl"


def test_a_report_is_a_line_that_the_driver_understands(run: Path) -> None:
    jobs.report(step=1, loss=2.5, tokens_per_second=100)
    jobs.report(step=2, loss=float("nan"))
    first, second = (parse(line) for line in run.read_text().splitlines())
    assert first is not None
    assert second is not None
    assert (first.progress.step, first.progress.loss, first.progress.throughput) == (1, 2.5, 100.0)
    assert first.attempt == 3
    assert first.progress.wall > 0
    assert (second.progress.loss, second.problem) == (None, "loss is not a number at step 2")
    for line in run.read_text().splitlines():
        json.loads(line, parse_constant=pytest.fail)  # NaN is no JSON, other readers would stumble


def test_an_attempt_that_is_fenced_off_reports_no_more(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(metrics, "_looked_at", None)
    monkeypatch.setattr(metrics, "time", SimpleNamespace(monotonic=lambda: now[0], time=time.time))
    fence.raise_fence(run.parent, 3)
    jobs.report(step=1)
    fence.raise_fence(run.parent, 4)
    jobs.report(step=2)  # it looks once a second, so that a report costs next to nothing
    now[0] += 1.0
    for step in (3, 4):
        with pytest.raises(Refused, match="this is attempt 3, and attempt 4 of the run has begun"):
            jobs.report(step=step)
    assert len(run.read_text().splitlines()) == 2
    monkeypatch.setenv("RAYDECK_ATTEMPT", "4")
    jobs.report(step=3)
    assert len(run.read_text().splitlines()) == 3


def test_only_the_first_rank_reports_unless_told(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "2")
    metrics.report(step=1)
    assert not run.exists()
    metrics.report(step=1, every_rank=True)
    assert json.loads(run.read_text())["rank"] == 2


def test_half_a_line_of_a_killed_rank_does_not_swallow_the_next(run: Path) -> None:
    run.write_text('{"step":1}\n{"step":2,"lo')
    metrics.report(step=3)
    assert [point.progress.step for line in run.read_text().splitlines() if (point := parse(line))] == [1, 3]


def test_outside_of_raydeck_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAYDECK_RUN_DIR", raising=False)
    monkeypatch.delenv("RAYDECK_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    metrics.report(step=1, loss=1.0)
    assert jobs.config() == {}
    assert list(tmp_path.iterdir()) == []


def test_the_settings_are_the_workflows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYDECK_CONFIG", '{"batch_size": 8, "parameters": {"steps": 3}}')
    assert jobs.config()["parameters"] == {"steps": 3}
    monkeypatch.setenv("RAYDECK_CONFIG", "[1]")
    with pytest.raises(ValueError, match="mapping"):
        jobs.config()


def test_a_script_hears_of_a_stop_and_goes_on() -> None:
    script = """
import sys, time, jobs
assert "jobs.metrics" not in sys.modules
print(jobs.stopping(), flush=True)
while not jobs.stopping():
    time.sleep(0.01)
heavy = {"pydantic", "asyncio", "ray", "torch", "jobs.model"} & set(sys.modules)
print("stops", sorted(heavy), flush=True)
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "False\n"
        child.send_signal(signal.SIGTERM)
        assert child.communicate(timeout=20)[0] == "stops []\n"
        assert child.returncode == 0


def test_the_package_has_no_other_names() -> None:
    with pytest.raises(AttributeError, match="no attribute 'reports'"):
        jobs.reports  # type: ignore[attr-defined]  # noqa: B018
