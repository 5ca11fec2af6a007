"""Owns one attempt of the kind ``ray``, as its Ray job's entrypoint: one command, which asks Ray for all else itself.

``python -m jobs.gang.entry`` with a `Launch` in ``RAYDECK_LAUNCH``. It does for the command what the driver does for a
gang, and is stopped in the same way. The command's output goes to ``rank-0.log`` and, unchanged, to the job's log.
"""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import ray

from jobs import failure
from jobs.errors import RaydeckError
from jobs.gang import environment, facts, ground, guard, leftovers, placing, processes, verdict
from jobs.gang.echo import say
from jobs.gang.ground import Stopped
from jobs.gang.kernel import Kernel
from jobs.gang.progress import end_of
from jobs.gang.record import End, Record
from jobs.gang.told import Heard, Told
from jobs.gang.verdict import Blame
from jobs.gang.vitals import Watch
from jobs.model import Failure, Launch, Outcome, Rank

TICK_SECONDS = 0.25
POLITE_SECONDS = 2.0
LIMIT_SECONDS = 8.0
_COPY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class _Here:
    """The node that the command runs on."""

    node_id: str
    name: str
    address: str


class Stops:
    """The requests to stop: SIGTERM to this process. Make it in the main thread, before there are others.

    Ray's job stop reaches all our descendants too; whoever else asks reaches us alone.
    """

    def __init__(self) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        self.count = 0
        self.told_to_all = False
        """Whether the command has been asked already."""
        self._ray = os.getppid()
        threading.Thread(target=self._wait, name="stops", daemon=True).start()

    def _wait(self) -> None:
        while True:
            sender = signal.sigwaitinfo({signal.SIGTERM}).si_pid
            self.told_to_all = self.told_to_all or sender == self._ray
            self.count += 1


class Entry:
    """One attempt."""

    def __init__(self, launch: Launch, stops: Stops) -> None:
        self.launch = ground.whole(launch)
        self.record = Record(self.launch)
        self._stops = stops
        self._marks = {"RAYDECK_RUN": launch.run, "RAYDECK_ATTEMPT": str(launch.attempt)}
        self._log = Path(launch.attempt_directory) / "rank-0.log"
        self._copied = 0
        self._watch, self._told = Watch(None), Told()
        self._command: subprocess.Popen[bytes] | None = None

    def run(self) -> Outcome:
        """The whole course; everything started on this node is ended when this returns."""
        launch = self.launch
        say(f"attempt {launch.attempt} of run {launch.run} ({launch.workflow}): {' '.join(launch.script)}")
        self.record.keeper.start()
        self.record.tell("starting", "connecting to Ray")
        try:
            ground.raise_fence(launch)
            here = self._prepare()
            kernel = Kernel()
            self._start(here)
            return self._follow(here, kernel)
        except Stopped:
            return self._finish("stopped", "stopped on request before its command was started")
        except RaydeckError as error:
            return self._fail(verdict.of_error(error, error.sentence))
        except Exception as error:
            # Whatever it is: an attempt without an outcome would be a riddle.
            traceback.print_exc()
            reason = f"what runs its command broke: {type(error).__name__}: {verdict.first_line(error)}"
            return self._fail(verdict.of_error(error, reason))

    def _go_on(self, detail: str) -> None:
        if self._stops.count > 0 or self.record.asked_to_leave or self.record.stop_now:
            raise Stopped
        self.record.tell("starting", detail)

    def _prepare(self) -> _Here:
        """See to it that nothing of an earlier attempt lives; gives where this is. Ray is not held any longer."""
        ray.init(log_to_driver=False, configure_logging=False)
        try:
            node_id = ray.get_runtime_context().get_node_id()
            node = next((node for node in ray.nodes() if node["NodeID"] == node_id), {"NodeID": node_id})
            here = _Here(node_id, placing.name_of(node), str(node.get("NodeManagerAddress", "")))
            launch = self.launch
            if launch.attempt > 1:
                # Whatever else is known of earlier attempts: their commands may have run here.
                nodes = {**launch.previous_nodes, node_id: here.name}
                launch = launch.model_copy(update={"previous_nodes": nodes})
            ground.prepare(launch, lambda meanwhile: leftovers.sweep(launch, meanwhile), self._go_on, say)
        finally:
            ray.shutdown()
        self.record.keeper.begin()
        return here

    def _start(self, here: _Here) -> None:
        launch = self.launch
        folder = environment.workload()
        variables = environment.of_command(launch, here.name, os.environ)
        # Kept open for as long as we live: it ends the command when we do, however that happens.
        self._guard = guard.start("", self._marks)
        name = launch.script[0]
        try:
            with self._log.open("ab") as log:
                self._command = subprocess.Popen(
                    launch.script,
                    cwd=folder,
                    env=variables,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=_hear_stops,
                )
        except FileNotFoundError:
            reason = f"its command {name} is neither in the code that was shipped with it nor a program on {here.name}"
            raise verdict.broken(Failure.APPLICATION, reason) from None
        except OSError as error:
            reason = f"its command {name} cannot be run: {error.strerror}"
            raise verdict.broken(Failure.APPLICATION, reason) from None
        self.record.status.environment = facts.common(
            {here.name: {**facts.of_python(), **facts.of_node(ray.__version__)}}
        )
        self.record.status.ranks = [
            Rank(
                rank=0,
                node_id=here.node_id,
                node_address=here.address,
                gpu=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
                pid=self._command.pid,
            )
        ]

    def _follow(self, here: _Here, kernel: Kernel) -> Outcome:
        """From the start of the command to the outcome."""
        assert self._command is not None
        command, launch = self._command, self.launch
        leave_by: float | None = None
        while True:
            code = command.poll()
            now = time.monotonic()
            self._copy()
            self._take_in(command.pid, code, now)
            if self._stops.count > 1 or self.record.stop_now:
                return self._finish("stopped", "stopped at once, without waiting for a checkpoint")
            if fenced := self.record.keeper.fenced:
                return self._fail(Blame(fenced, Failure.UNKNOWN, signature=failure.signature(fenced)))
            if leave_by is None and (self._stops.count or self.record.asked_to_leave):
                say("asked to save and leave")
                if not self._stops.told_to_all:
                    for process in processes.tree(command.pid):
                        processes.send(process, signal.SIGTERM)
                leave_by = math.inf
            if self._stops.count and leave_by == math.inf:
                say(f"asked to stop: the command has {launch.stop_grace_seconds:g} s to save and leave")
                leave_by = now + launch.stop_grace_seconds
            if code is not None:
                end = verdict.how(code, verdict.last_error(end_of(self._log)))
                if leave_by is not None:
                    more = "" if code in (0, -signal.SIGTERM, 128 + signal.SIGTERM) else f"; its command {end}"
                    return self._finish("stopped", "stopped on request", more, with_checkpoint=True)
                if code == 0:
                    return self._finish("succeeded", "its command ended with exit code 0")
                log = end_of(self._log)
                blame = verdict.of_process("its command", here.name, here.address, code, log, kernel.notes(), rank=0)
                return self._fail(blame)
            if leave_by is not None and now > leave_by:
                limit = f"{launch.stop_grace_seconds:g} s"
                return self._finish("stopped", f"stopped; its command did not leave within {limit} and was ended")
            if leave_by is not None:
                rest = f"{leave_by - now:.0f} s until its command is ended" if leave_by < math.inf else ""
                self.record.tell("saving", rest)
            else:
                self.record.tell("running", "")
            time.sleep(max(0.0, now + TICK_SECONDS - time.monotonic()))

    def _take_in(self, pid: int, code: int | None, now: float) -> None:
        rank = self.record.status.ranks[0]
        rank.exit_code = code
        looked_at, vitals = self._watch.of(0, pid if code is None else None)
        self._told.fill([Heard(rank, vitals, time.monotonic() - looked_at)], now, time.time())

    def _copy(self) -> None:
        """The command's output, as it is, into the job's log."""
        try:
            with self._log.open("rb") as log:
                log.seek(self._copied)
                while block := log.read(_COPY_BYTES):
                    self._copied += len(block)
                    sys.stdout.buffer.write(block)
        except FileNotFoundError:
            return
        sys.stdout.buffer.flush()

    def _fail(self, blame: Blame) -> Outcome:
        return self._finish("failed", blame.reason, blame=blame)

    def _finish(
        self, result: str, reason: str, more: str = "", blame: Blame | None = None, *, with_checkpoint: bool = False
    ) -> Outcome:
        """End what is left, and write how it went."""
        survivors = self._end() if self._command is not None else []
        if survivors:
            more += f"; these processes could not be ended: {', '.join(map(str, survivors))}"
        if self._command is not None and self.record.status.ranks:
            self.record.status.ranks[0].exit_code = self._command.poll()
        self._copy()
        outcome = self.record.conclude(result, reason, more, blame, End(survivors, []), with_checkpoint=with_checkpoint)
        say(f"{outcome.verdict}: {outcome.reason}")
        return outcome

    def _end(self) -> list[int]:
        """End all of the attempt on this node, and give the ids of what could not be ended."""
        command = self._command
        assert command is not None

        def find() -> list[processes.Process]:
            tree = processes.tree(command.pid) if command.poll() is None else []
            return [*processes.marked(self._marks), *tree]

        return processes.end(find, POLITE_SECONDS, LIMIT_SECONDS)


def _hear_stops() -> None:
    """In the command, before it begins: it inherits that we take our stops in another way."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def main() -> int:
    """Read the launch, run it; gives the exit code."""
    text = os.environ.get("RAYDECK_LAUNCH")
    if not text:
        print("RAYDECK_LAUNCH is not set: this is started by raydeck's controller, as a Ray job", file=sys.stderr)
        return 2
    outcome = Entry(Launch.model_validate_json(text), Stops()).run()
    return 1 if outcome.verdict == "failed" else 0


if __name__ == "__main__":
    sys.exit(main())
