"""An attempt on the stand-in cluster: a small course that leaves the same files as a real gang's driver.

Its course follows from the seed, the run and the attempt alone. Times are seconds of the fast clock.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jobs import catalogue, checkpoint, fence
from jobs.model import Failure, GangStatus, Outcome, Progress, Rank

TICK_SECONDS = 0.1


@dataclass(frozen=True, slots=True)
class Course:
    """How one attempt goes, if nobody stops it."""

    start_seconds: float
    steps: int
    step_seconds: float
    save_every: int
    save_seconds: float
    """How long it takes to save and leave when it is asked to."""
    end: str
    """``succeeded``, ``failed``, ``died`` (its driver left no outcome) or ``hung`` (only a stop ends it)."""
    failure: Failure = Failure.APPLICATION
    signature: str = ""
    deaf: bool = False
    """It does not leave when it is asked to; Ray ends it."""
    linger_seconds: float = 0.0
    """How long its driver stays after it has written its outcome."""


def course(seed: int, run: str, attempt: int, script: list[str]) -> Course:
    """The course of an attempt."""
    if script[0] in SCRIPTS:
        return SCRIPTS[script[0]]
    chance = random.Random(f"{seed} {run} {attempt}")
    end = chance.choices(["succeeded", "failed", "died", "hung"], [60, 25, 10, 5])[0]
    failure = chance.choice([each for each in Failure if each not in (Failure.CANCELLED, Failure.TIME_LIMIT)])
    return Course(
        start_seconds=chance.uniform(0.0, 0.8),
        steps=chance.randint(5, 40),
        step_seconds=chance.uniform(0.03, 0.2),
        save_every=chance.randint(3, 10),
        save_seconds=chance.uniform(0.0, 1.0),
        end=end,
        failure=failure,
        signature=chance.choice([f"the same in {run}", f"another in attempt {attempt}"]),
        deaf=chance.random() < 0.05,
        linger_seconds=chance.uniform(15.0, 25.0) if chance.random() < 0.06 else chance.uniform(0.0, 0.3),
    )


SCRIPTS = {
    "steady.py": Course(
        start_seconds=0.1, steps=10**9, step_seconds=0.2, save_every=5, save_seconds=0.2, end="succeeded"
    ),
    "lingering.py": Course(
        start_seconds=0.1,
        steps=10,
        step_seconds=0.1,
        save_every=5,
        save_seconds=0.2,
        end="failed",
        failure=Failure.COMMUNICATION,
        linger_seconds=600.0,
    ),
}
"""What a test may count on: one that trains until it is stopped, one whose driver fails and stays."""


@dataclass(slots=True)
class Gang:
    """One attempt while Ray has its job, and what was asked of it."""

    job: str
    launch: dict[str, Any]
    """What ``RAYDECK_LAUNCH`` says; read as plain JSON, so that a field that is new to this file does no harm."""
    course: Course
    nodes: list[str] = field(default_factory=list)
    """Where its processes are: Ray node ids. Empty while it has no place."""
    gpus: list[tuple[str, int]] = field(default_factory=list)
    """The accelerators that it holds: node id and index."""
    stops: int = 0
    """How often it was asked to leave."""
    step: int = 0
    status: GangStatus = field(default_factory=GangStatus)

    @property
    def run(self) -> str:
        return str(self.launch["run"])

    @property
    def attempt(self) -> int:
        return int(self.launch["attempt"])

    @property
    def run_directory(self) -> Path:
        return Path(self.launch["run_directory"])

    @property
    def folder(self) -> Path:
        return self.run_directory / f"attempt-{self.attempt}"

    @property
    def at_once(self) -> bool:
        return self.stops > 1 or (self.folder / "stop-now").exists()

    @property
    def leaves(self) -> bool:
        """It was asked to leave, and hears it."""
        return self.at_once or (self.asked and not self.course.deaf)

    @property
    def asked(self) -> bool:
        """Somebody wants it to leave, in whichever way."""
        return self.stops > 0 or (self.folder / "leave").exists()

    def tell(self, phase: str, detail: str = "") -> None:
        """Write ``status.json`` anew."""
        self.status.phase, self.status.detail, self.status.wall = phase, detail, time.time()
        _write(self.folder / "status.json", self.status.model_dump_json())

    async def work(self) -> Outcome | None:
        """From having its place to its end: the outcome that it has written, or None if it died without one."""
        if self.launch["set_aside_after"] is not None:
            catalogue.set_aside(self.run_directory, self.launch["set_aside_after"], self.attempt)
        step = self.launch["resume_from_step"]
        if step:
            found = Path(self.launch["resume_path"])
            if mistakes := checkpoint.verify(found):
                return self.end("failed", f"cannot resume from {found}: {mistakes[0]}", Failure.CHECKPOINT)
            self.step = int(step)
        first = self.step
        self.tell("starting")
        await self._pause(self.course.start_seconds)
        self.status.ranks = [
            Rank(rank=index, node_id=node, node_address="127.0.0.1", pid=1000 + index)
            for index, node in enumerate(self.nodes)
        ]
        self.tell("running")
        while self.step < first + self.course.steps or self.course.end == "hung":
            if self.leaves:
                return await self._leave()
            await self._pause(self.course.step_seconds)
            if self.course.end == "hung" and self.step > first + 3:
                continue
            self.step += 1
            self._report()
            if self.step % self.course.save_every == 0:
                self._save()
        if self.course.end == "died":
            return None
        if self.course.end == "failed":
            return self.end("failed", f"rank 0 failed: {self.course.failure.value}", self.course.failure)
        self._save()
        return self.end("succeeded", "all ranks ended with exit code 0")

    async def linger(self) -> None:
        """Its driver stays, until Ray is asked to end it."""
        asked = self.stops
        until = time.monotonic() + self.course.linger_seconds
        while (rest := until - time.monotonic()) > 0:
            if self.stops != asked:
                return
            await asyncio.sleep(min(rest, TICK_SECONDS))

    async def _pause(self, seconds: float) -> None:
        """Wait, or less when it is asked to leave."""
        until = time.monotonic() + seconds
        while (rest := until - time.monotonic()) > 0:
            if self.leaves:
                return
            await asyncio.sleep(min(rest, TICK_SECONDS))

    async def _leave(self) -> Outcome:
        if not self.at_once:
            self.tell("saving")
            until = time.monotonic() + self.course.save_seconds
            while time.monotonic() < until:
                if self.at_once:
                    break
                await asyncio.sleep(TICK_SECONDS)
        if self.at_once:
            return self.end("stopped", "stopped at once, without waiting for a checkpoint")
        if self.step:
            self._save()
        return self.end("stopped", f"stopped on request, the newest checkpoint is of step {self.step}")

    def _report(self) -> None:
        point = Progress(step=self.step, loss=4.0 / (1.0 + self.step / 20.0), wall=time.time())
        self.status.progress = point
        with (self.folder / "progress.jsonl").open("a", encoding="utf-8") as file:
            file.write(point.model_dump_json() + "\n")
        self.tell("running")

    def _save(self) -> None:
        fence.check(self.run_directory, self.attempt)
        draft = checkpoint.begin(self.run_directory, self.step)
        (draft.path / "state.json").write_text(json.dumps({"step": self.step, "attempt": self.attempt}))
        checkpoint.finish(draft)
        catalogue.prune(self.run_directory, self.launch["keep_last"], self.launch["keep_every"])
        self.status.checkpoint_step = self.step

    def end(self, verdict: str, reason: str, failure: Failure | None = None) -> Outcome:
        """Write ``outcome.json``."""
        newest = checkpoint.newest_complete(self.run_directory)
        lost = failure in (Failure.NODE_LOST, Failure.DRIVER, Failure.COMMUNICATION)
        outcome = Outcome(
            verdict=verdict,
            reason=reason,
            exit_codes={0: 1 if verdict == "failed" else 0},
            checkpoint_step=newest.step if newest else None,
            wall=time.time(),
        ).model_copy(
            update={
                "failure": failure,
                "signature": self.course.signature if failure else "",
                "suspects": self.nodes[:1] if lost else [],
                "last_step": self.step or None,
            }
        )
        self.tell("ended", reason)
        _write(self.folder / "outcome.json", outcome.model_dump_json())
        return outcome


def _write(path: Path, body: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".partial")
    partial.write_text(body, encoding="utf-8")
    partial.rename(path)
