"""Owns one attempt from placement to outcome, as its Ray job's entrypoint. Never decides whether there is another one.

``python -m jobs.gang.driver`` with a `Launch` in ``RAYDECK_LAUNCH``. SIGTERM (what Ray's job stop sends) asks the ranks
to save and leave; a second one, or a file ``stop-now`` in the attempt's folder, ends them at once. Exit code 0 for
succeeded and stopped, 1 for failed; ``outcome.json`` has the words.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

import ray

from jobs import checkpoint
from jobs.errors import RaydeckError, Refused
from jobs.gang import verdict
from jobs.gang.echo import Echo
from jobs.gang.members import End, Gang, Placement
from jobs.gang.progress import end_of
from jobs.gang.record import Record
from jobs.model import Launch, Outcome, Rank

TICK_SECONDS = 0.25
STATUS_EVERY_SECONDS = 1.0
SETTLE_SECONDS = 0.6
"""How long after the first failure the other ranks' ends are collected: they name the culprit."""
AGENT_START_SECONDS = 120.0
TORCHRUN_START_SECONDS = 30.0
TORCHRUN_EXIT_SECONDS = 10.0
"""How long torchrun may stay after its last rank; it has nothing left to do."""
SILENT_AGENT_SECONDS = 5.0


class _Stopped(Exception):
    """The run was asked to stop before its ranks were started."""


class Driver:
    """One attempt."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.record = Record(launch)
        self._terms = 0
        self._gang: Gang | None = None
        self._echo = Echo(Path(launch.attempt_directory), self._total, say)
        self._next_status = 0.0
        self._ended_at: dict[int, float] = {}

    def on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """A stop is asked for; the loop sees it at its next tick."""
        self._terms += 1

    @property
    def _stop_asked(self) -> bool:
        return self._terms > 0 or self.record.stop_now

    def run(self) -> Outcome:
        """The whole course; everything started is ended when this returns."""
        launch = self.launch
        say(f"attempt {launch.attempt} of run {launch.run} ({launch.workflow}): {' '.join(launch.script)}")
        self.record.read_checkpoint()
        self._phase("placing", "connecting to Ray")
        placement: Placement | None = None
        try:
            self._check_resume()
            self._connect()
            placement = Placement(launch)
            self._place(placement)
            self._start(placement)
            return self._follow()
        except _Stopped:
            return self._finish("stopped", "stopped on request before its ranks were started")
        except RaydeckError as error:
            return self._finish("failed", str(error))
        except Exception as error:
            # Whatever it is: an attempt without an outcome would be a riddle, and its nodes would stay held.
            traceback.print_exc()
            return self._finish("failed", f"its driver broke: {type(error).__name__}: {verdict.first_line(error)}")
        finally:
            if placement is not None:
                placement.remove()

    def _connect(self) -> None:
        # Ray puts its own handler in our place, and a stop that comes between would be lost with it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        ray.init(log_to_driver=False, configure_logging=False)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _check_resume(self) -> None:
        step = self.launch.resume_from_step
        if step is None:
            return
        found = checkpoint.folder(self.launch.run_directory, step)
        if mistakes := checkpoint.verify(found):
            raise Refused(f"cannot resume from step {step}: the checkpoint {found.name} is broken: {mistakes[0]}")
        say(f"resuming from the checkpoint of step {step}")

    def _place(self, placement: Placement) -> None:
        deadline = time.monotonic() + self.launch.start_timeout_seconds
        told = ""
        while not placement.wait(TICK_SECONDS):
            if self._stop_asked:
                raise _Stopped
            over = time.monotonic() > deadline
            if not over and not self._due("placing"):
                continue
            missing = placement.missing()
            if over:
                why = missing or "Ray did not place it, though it would fit"
                raise Refused(f"no place for it within {self.launch.start_timeout_seconds:g} s: {why}")
            if missing and missing != told:
                told = missing
                say(f"waiting for a place: {missing}")
            self._phase("placing", missing or "Ray is placing it")

    def _start(self, placement: Placement) -> None:
        launch = self.launch
        gang = self._gang = Gang(launch, placement)
        names = ", ".join(member.node for member in gang.members)
        say(f"placed on {names}")
        self._phase("starting", f"starting the agents on {names}")
        deadline = time.monotonic() + AGENT_START_SECONDS
        while (facts := gang.facts(TICK_SECONDS)) is None:
            if self._stop_asked:
                raise _Stopped
            if time.monotonic() > deadline:
                raise Refused(f"the agents on {names} did not all start within {AGENT_START_SECONDS:g} s")
            self._phase("starting", f"starting the agents on {names}")
        head = gang.members[0]
        say(
            f"starting {launch.processes_per_node} ranks on each node; they meet at {head.address}:{facts[0].free_port}"
        )
        gang.start(head.address, facts[0].free_port, TORCHRUN_START_SECONDS)

    def _follow(self) -> Outcome:
        """From the start of torchrun to the outcome."""
        assert self._gang is not None
        gang, launch = self._gang, self.launch
        failed_at = left_at = leave_by = None
        while True:
            gang.poll(TICK_SECONDS)
            now = time.monotonic()
            self._take_in(now)
            if self._terms > 1 or self.record.stop_now:
                return self._finish("stopped", "stopped at once, without waiting for a checkpoint")
            ranks = self.record.status.ranks
            all_started = self._all_started()
            if self._terms and not all_started:
                # Without all of them nothing was learnt yet, so there is nothing to save.
                return self._finish("stopped", "stopped on request while its ranks were starting")
            if self._terms and leave_by is None:
                say(f"asked to stop: the ranks have {launch.stop_grace_seconds:g} s to save and leave")
                gang.ask_to_leave()
                leave_by = now + launch.stop_grace_seconds
            lost = {member.node_id for member in gang.members if member.lost}
            gone = all_started and all(rank.exit_code is not None or rank.node_id in lost for rank in ranks)
            if leave_by is not None:
                if gone:
                    return self._finish("stopped", self._how_they_left())
                if now > leave_by:
                    late = ", ".join(str(rank.rank) for rank in ranks if rank.exit_code is None)
                    limit = f"{launch.stop_grace_seconds:g} s"
                    return self._finish("stopped", f"stopped; not all ranks left within {limit} and were ended: {late}")
            else:
                if failed_at is None and self._failure_seen():
                    failed_at = now
                if failed_at is not None and (gone or now > failed_at + SETTLE_SECONDS):
                    return self._finish("failed", self._why())
                if gone and failed_at is None:
                    left_at = left_at or now
                    still = any(member.report.torchrun_exit_code is None for member in gang.members)
                    if not still or now > left_at + TORCHRUN_EXIT_SECONDS:
                        return self._finish("succeeded", f"all {len(ranks)} ranks ended with exit code 0")
            self._phase(*self._where(leave_by, now))
            time.sleep(max(0.0, now + TICK_SECONDS - time.monotonic()))

    def _take_in(self, now: float) -> None:
        """The agents' reports as the status of ranks."""
        assert self._gang is not None
        ranks: list[Rank] = []
        for member in self._gang.members:
            for report in member.report.ranks:
                if report.ended_seconds_ago is not None:
                    self._ended_at.setdefault(report.rank, now - report.ended_seconds_ago)
                ranks.append(
                    Rank(
                        rank=report.rank,
                        node_id=member.node_id,
                        node_address=member.address,
                        gpu=report.gpu,
                        pid=report.pid,
                        exit_code=report.exit_code,
                    )
                )
        self.record.status.ranks = ranks

    @property
    def _total(self) -> int:
        return self.launch.nodes * self.launch.processes_per_node

    def _all_started(self) -> bool:
        return sum(rank.pid is not None for rank in self.record.status.ranks) == self._total

    def _failure_seen(self) -> bool:
        assert self._gang is not None
        return any(rank.exit_code for rank in self.record.status.ranks) or any(
            member.lost or member.report.torchrun_exit_code for member in self._gang.members
        )

    def _ends(self) -> list[verdict.Ended]:
        assert self._gang is not None
        nodes = {member.node_id: member.node for member in self._gang.members}
        return [
            verdict.Ended(
                rank=rank.rank,
                node=nodes[rank.node_id],
                address=rank.node_address,
                exit_code=rank.exit_code,
                ended_at=self._ended_at[rank.rank],
                error=verdict.last_error(end_of(Path(self.launch.attempt_directory) / f"rank-{rank.rank}.log")),
            )
            for rank in self.record.status.ranks
            if rank.exit_code
        ]

    def _why(self) -> str:
        assert self._gang is not None
        # A lost node takes its ranks' peers along, so it is the cause whatever they say.
        for member in self._gang.members:
            if member.lost:
                return member.lost
        if first := verdict.culprit(self._ends()):
            return verdict.sentence(first)
        for member in self._gang.members:
            if code := member.report.torchrun_exit_code:
                return f"torchrun on {member.node} ({member.address}) {verdict.how(code, member.report.torchrun_error)}"
        raise AssertionError("a failure was seen and nothing failed")

    def _how_they_left(self) -> str:
        step = self.record.read_checkpoint()
        saved = "there is no checkpoint" if step is None else f"the newest checkpoint is of step {step}"
        bad = [end for end in self._ends() if end.exit_code != -signal.SIGTERM]
        if first := verdict.culprit(bad):
            return f"stopped on request, {saved}; {verdict.sentence(first)}"
        return f"stopped on request, {saved}"

    def _where(self, leave_by: float | None, now: float) -> tuple[str, str]:
        """Phase and detail, for the screen."""
        assert self._gang is not None
        ranks = self.record.status.ranks
        silent = [
            f"no answer from the agent on {member.node} for {now - member.asked_at:.0f} s"
            for member in self._gang.members
            if member.asked_at is not None and now - member.asked_at > SILENT_AGENT_SECONDS
        ]
        if leave_by is not None:
            left = sum(rank.exit_code is not None for rank in ranks)
            detail = f"{left} of {len(ranks)} ranks have left; {max(0.0, leave_by - now):.0f} s until they are ended"
            return "saving", "; ".join([detail, *silent])
        if not self._all_started():
            started = sum(rank.pid is not None for rank in ranks)
            return "starting", "; ".join([f"{started} of {self._total} ranks have started", *silent])
        waiting = [] if self.record.status.progress else ["waiting for the first step"]
        problem = [self.record.problem] if self.record.problem else []
        return "running", "; ".join([*waiting, *problem, *silent])

    def _due(self, phase: str) -> bool:
        """Whether the status is to be written: once a second, and when the phase changes."""
        return self.record.status.phase != phase or time.monotonic() >= self._next_status

    def _phase(self, phase: str, detail: str) -> None:
        """Bring everything that others read up to date, if it is due."""
        if not self._due(phase):
            return
        self._next_status = time.monotonic() + STATUS_EVERY_SECONDS
        self.record.status.phase, self.record.status.detail = phase, detail
        self._echo.copy(time.monotonic())
        self.record.read_progress()
        self.record.read_checkpoint()
        self.record.write_status()

    def _finish(self, result: str, reason: str) -> Outcome:
        """End what is left, and write how it went."""
        failing = verdict.culprit(self._ends()) if self._gang and result == "failed" else None
        end = self._gang.end() if self._gang else End([], [])
        self._echo.copy(time.monotonic(), final=True)
        if end.survivors:
            reason += f"; these processes could not be ended: {', '.join(map(str, end.survivors))}"
        if end.unanswered:
            reason += f"; what is left on {', '.join(end.unanswered)} is not known, its guard ends it"
        say(f"{result}: {reason}")
        self.record.read_progress()
        outcome = Outcome(
            verdict=result,
            reason=reason,
            first_failing_rank=failing.rank if failing else None,
            exit_codes={rank.rank: rank.exit_code for rank in self.record.status.ranks},
            checkpoint_step=self.record.read_checkpoint(),
            survivors=end.survivors,
        )
        self.record.write_outcome(outcome)
        return outcome


def say(line: str) -> None:
    """A line in the job's log."""
    print(line, flush=True)


def main() -> int:
    """Read the launch, run it; gives the exit code."""
    text = os.environ.get("RAYDECK_LAUNCH")
    if not text:
        print("RAYDECK_LAUNCH is not set: this is started by raydeck's controller, as a Ray job", file=sys.stderr)
        return 2
    driver = Driver(Launch.model_validate_json(text))
    signal.signal(signal.SIGTERM, driver.on_sigterm)
    outcome = driver.run()
    return 1 if outcome.verdict == "failed" else 0


if __name__ == "__main__":
    sys.exit(main())
