"""Owns one attempt from placement to outcome, as its Ray job's entrypoint. Never decides whether there is another one.

``python -m jobs.gang.driver`` with a `Launch` in ``RAYDECK_LAUNCH``. SIGTERM (what Ray's job stop sends) asks the ranks
to save and leave; a second one, or a file ``stop-now`` in the attempt's folder, ends them at once. Exit code 0 for
succeeded and stopped, 1 for failed; ``outcome.json`` has the words.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

import ray

from jobs import failure, looks
from jobs.errors import RaydeckError
from jobs.gang import facts, ground, leftovers, verdict
from jobs.gang.echo import Echo, say
from jobs.gang.ground import Stopped
from jobs.gang.looking import Looking
from jobs.gang.members import Gang, Member, Placement
from jobs.gang.progress import end_of
from jobs.gang.record import End, Record
from jobs.gang.told import Heard, Told
from jobs.gang.verdict import Blame
from jobs.model import Failure, Launch, Outcome, Rank

TICK_SECONDS = 0.25
SETTLE_SECONDS = 2.0
"""How long after the first failure the other ranks' ends are collected: they name the culprit."""
LOSS_SECONDS = 20.0
"""How long Ray may take to find out that a node is dead (15 s by default)."""
NOTES_SECONDS = 2.0
AGENT_START_SECONDS = 120.0
TORCHRUN_START_SECONDS = 30.0
TORCHRUN_EXIT_SECONDS = 10.0
"""How long torchrun may stay after its last rank; it has nothing left to do."""
SILENT_AGENT_SECONDS = 5.0


class Driver:
    """One attempt."""

    def __init__(self, launch: Launch) -> None:
        self.launch = ground.whole(launch)
        self.record = Record(self.launch)
        self._terms = 0
        self._gang: Gang | None = None
        self._echo = Echo(Path(launch.attempt_directory), self._total, say)
        self._ended_at: dict[int, float] = {}
        self._told = Told()
        self._looking: Looking | None = None

    def on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """A stop is asked for; the loop sees it at its next tick."""
        self._terms += 1

    def run(self) -> Outcome:
        """The whole course; everything started is ended when this returns."""
        launch = self.launch
        say(f"attempt {launch.attempt} of run {launch.run} ({launch.workflow}): {' '.join(launch.script)}")
        self.record.keeper.start()
        self._tell("placing", "connecting to Ray")
        placement: Placement | None = None
        try:
            ground.raise_fence(launch)
            self._connect()
            self._prepare()
            placement = Placement(launch)
            self._place(placement)
            self._start(placement)
            return self._follow()
        except Stopped:
            return self._finish("stopped", "stopped on request before its ranks were started")
        except RaydeckError as error:
            return self._fail(verdict.of_error(error, error.sentence))
        except Exception as error:
            # Whatever it is: an attempt without an outcome would be a riddle, and its nodes would stay held.
            traceback.print_exc()
            reason = f"its driver broke: {type(error).__name__}: {verdict.first_line(error)}"
            return self._fail(verdict.of_error(error, reason))
        finally:
            if placement is not None:
                placement.remove()

    def _connect(self) -> None:
        # Ray puts its own handler in our place, and a stop that comes between would be lost with it.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        ray.init(log_to_driver=False, configure_logging=False)
        signal.signal(signal.SIGTERM, self.on_sigterm)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})

    def _go_on(self, detail: str) -> None:
        """What is done at each tick of a wait before the ranks are started."""
        if self._asked:
            raise Stopped
        self._tell("placing", detail)

    @property
    def _asked(self) -> bool:
        """Somebody wants it to leave, in whichever way."""
        return self._terms > 0 or self.record.asked_to_leave or self.record.stop_now

    def _prepare(self) -> None:
        """See to it that nothing of an earlier attempt lives, and that the checkpoint is whole."""
        launch = self.launch
        ground.prepare(launch, lambda meanwhile: leftovers.sweep(launch, meanwhile), self._go_on, say)
        self.record.keeper.begin()

    def _place(self, placement: Placement) -> None:
        limit = self.launch.start_timeout_seconds
        deadline = time.monotonic() + limit
        told = ""
        while not placement.wait(TICK_SECONDS):
            over = time.monotonic() > deadline
            if not over and not self.record.due("placing"):
                self._go_on("")
                continue
            missing = placement.missing()
            if over:
                why = missing or "Ray did not place it, though it would fit"
                raise verdict.broken(Failure.START_TIMEOUT, f"no place for it within {limit:g} s: {why}")
            if missing and missing != told:
                told = missing
                say(f"waiting for a place: {missing}")
            self._go_on(missing or "Ray is placing it")

    def _start(self, placement: Placement) -> None:
        launch = self.launch
        gang = self._gang = Gang(launch, placement)
        names = ", ".join(member.node for member in gang.members)
        say(f"placed on {names}")
        self._tell("starting", f"starting the agents on {names}")
        deadline = time.monotonic() + AGENT_START_SECONDS
        while (known := gang.facts(TICK_SECONDS)) is None:
            if self._asked:
                raise Stopped
            if time.monotonic() > deadline:
                reason = f"the agents on {names} did not all start within {AGENT_START_SECONDS:g} s"
                raise verdict.broken(Failure.START_TIMEOUT, reason)
            self._tell("starting", f"starting the agents on {names}")
        head = gang.members[0]
        port = known[0].free_port
        say(f"starting {launch.processes_per_node} ranks on each node; they meet at {head.address}:{port}")
        gang.start(head.address, port, TORCHRUN_START_SECONDS)
        self._looking = Looking(launch, gang.members, self._states)
        self._looking.start()

    def _follow(self) -> Outcome:
        """From the start of torchrun to the outcome."""
        assert self._gang is not None
        gang, launch = self._gang, self.launch
        failed_at = left_at = None
        leave_by: float | None = None
        while True:
            gang.poll(TICK_SECONDS)
            now = time.monotonic()
            self._take_in(now)
            if self._terms > 1 or self.record.stop_now:
                return self._finish("stopped", "stopped at once, without waiting for a checkpoint")
            if fenced := self.record.keeper.fenced:
                return self._fail(Blame(fenced, Failure.UNKNOWN, signature=failure.signature(fenced)))
            ranks = self.record.status.ranks
            all_started = self._all_started()
            asked = leave_by is not None or self._asked
            if asked and not all_started:
                # Without all of them nothing was learnt yet, so there is nothing to save.
                return self._finish("stopped", "stopped on request while its ranks were starting")
            if asked and leave_by is None:
                say("asked to save and leave")
                gang.ask_to_leave()
                leave_by = math.inf
            if self._terms and leave_by == math.inf:
                say(f"asked to stop: the ranks have {launch.stop_grace_seconds:g} s to save and leave")
                leave_by = now + launch.stop_grace_seconds
            lost = {member.node_id for member in gang.members if member.lost}
            gone = all_started and all(rank.exit_code is not None or rank.node_id in lost for rank in ranks)
            if leave_by is not None:
                if gone:
                    return self._finish("stopped", "stopped on request", self._bad_end(), with_checkpoint=True)
                if now > leave_by:
                    late = ", ".join(str(rank.rank) for rank in ranks if rank.exit_code is None)
                    limit = f"{launch.stop_grace_seconds:g} s"
                    return self._finish("stopped", f"stopped; not all ranks left within {limit} and were ended: {late}")
            else:
                if failed_at is None and self._failure_seen():
                    failed_at = now
                if failed_at is not None and (gone or now > failed_at + SETTLE_SECONDS):
                    return self._fail(self._why())
                if gone and failed_at is None:
                    left_at = left_at or now
                    still = any(member.report.torchrun_exit_code is None for member in gang.members)
                    if not still or now > left_at + TORCHRUN_EXIT_SECONDS:
                        return self._finish("succeeded", f"all {len(ranks)} ranks ended with exit code 0")
            self._tell(*self._where(leave_by, now))
            time.sleep(max(0.0, now + TICK_SECONDS - time.monotonic()))

    def _take_in(self, now: float) -> None:
        """The agents' reports as the status of ranks, and what the nodes run on."""
        assert self._gang is not None
        heard: list[Heard] = []
        for member in self._gang.members:
            silent = _silence(member, now)
            for report in member.report.ranks:
                if report.ended_seconds_ago is not None:
                    self._ended_at.setdefault(report.rank, now - report.ended_seconds_ago)
                rank = Rank(
                    rank=report.rank,
                    node_id=member.node_id,
                    node_address=member.address,
                    gpu=report.gpu,
                    pid=report.pid,
                    exit_code=report.exit_code,
                )
                heard.append(Heard(rank, report.vitals, now - member.told_at + report.vitals_seconds_ago, silent))
        self._told.fill(heard, now, time.time())
        self.record.status.ranks = [each.rank for each in heard]
        nodes = {member.node: member.report.environment for member in self._gang.members}
        self.record.status.environment = facts.common(nodes)
        self.record.notices = facts.differences(nodes)

    def _states(self) -> list[looks.RankState]:
        """What is known of the ranks without a look; for the thread that takes looks."""
        assert self._gang is not None
        names = {member.node_id: member.node for member in self._gang.members}
        return looks.states_of(self.record.status.model_copy(update={"wall": time.time()}), names)

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
                log=end_of(Path(self.launch.attempt_directory) / f"rank-{rank.rank}.log"),
            )
            for rank in self.record.status.ranks
            if rank.exit_code
        ]

    def _why(self) -> Blame:
        """Who and what failed; asks the nodes, as far as they answer."""
        assert self._gang is not None
        gang, ended = self._gang, self._ends()
        # Peers of a node that is gone say so at once, and Ray only after a while.
        gang.find_losses(LOSS_SECONDS, verdict.only_followed(ended), lambda: self._tell("running", "finding out why"))
        lost = [member.lost for member in gang.members if member.lost]
        nodes = {member.node_id: member.node for member in gang.members}
        where = {rank.rank: nodes[rank.node_id] for rank in self.record.status.ranks}
        if blame := verdict.blame(lost, ended, where, gang.notes(NOTES_SECONDS)):
            return blame
        for member in gang.members:
            if code := member.report.torchrun_exit_code:
                log = member.report.torchrun_log
                return verdict.of_process("torchrun", member.node, member.address, code, log)
        raise AssertionError("a failure was seen and nothing failed")

    def _bad_end(self) -> str:
        """How ranks went wrong that had been asked to leave; empty if none did."""
        bad = [end for end in self._ends() if end.exit_code != -signal.SIGTERM]
        first = verdict.culprit(bad)
        return f"; {verdict.sentence(first)}" if first else ""

    def _where(self, leave_by: float | None, now: float) -> tuple[str, str]:
        """Phase and detail, for the screen."""
        assert self._gang is not None
        ranks = self.record.status.ranks
        silent = [
            f"no answer from the agent on {member.node} for {seconds:.0f} s"
            for member in self._gang.members
            if (seconds := _silence(member, now)) is not None
        ]
        if leave_by is not None:
            left = sum(rank.exit_code is not None for rank in ranks)
            rest = f"; {max(0.0, leave_by - now):.0f} s until they are ended" if leave_by < math.inf else ""
            detail = f"{left} of {len(ranks)} ranks have left{rest}"
            return "saving", "; ".join([detail, *silent])
        if not self._all_started():
            started = sum(rank.pid is not None for rank in ranks)
            return "starting", "; ".join([f"{started} of {self._total} ranks have started", *silent])
        waiting = [] if self.record.status.progress else ["waiting for the first step"]
        return "running", "; ".join([*waiting, *silent])

    def _tell(self, phase: str, detail: str) -> None:
        if self.record.due(phase):
            self._echo.copy(time.monotonic())
            self.record.tell(phase, detail)

    def _fail(self, blame: Blame) -> Outcome:
        return self._finish("failed", blame.reason, blame=blame)

    def _finish(
        self, result: str, reason: str, more: str = "", blame: Blame | None = None, *, with_checkpoint: bool = False
    ) -> Outcome:
        """End what is left, and write how it went."""
        end = self._gang.end() if self._gang else End([], [])
        if end.survivors:
            more += f"; these processes could not be ended: {', '.join(map(str, end.survivors))}"
        if end.unanswered:
            more += f"; what is left on {', '.join(end.unanswered)} is not known, its guard ends it"
        self._echo.copy(time.monotonic(), final=True)
        outcome = self.record.conclude(result, reason, more, blame, end, with_checkpoint=with_checkpoint)
        say(f"{outcome.verdict}: {outcome.reason}")
        if self._looking is not None:
            self._looking.close()
        return outcome


def _silence(member: Member, now: float) -> float | None:
    """For how long an agent has not answered; None as long as that is nothing to speak of."""
    seconds = 0.0 if member.asked_at is None else now - member.asked_at
    return seconds if seconds > SILENT_AGENT_SECONDS else None


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
