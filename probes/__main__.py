"""``python -m probes stream|once``: arguments in, NDJSON out, one line a second for as long as somebody listens."""

from __future__ import annotations

import os
import select
import sys
import time
from typing import Sequence

from probes.channel import Channel, ChannelClosed
from probes.reading import HEALTH_EVERY_SECONDS, Fault, Line, Pong, encode
from probes.sampler import DEADLINE_SECONDS, Sampler
from probes.worker import name_process

SHORTEST_SECONDS = 0.1
LONGEST_SECONDS = 3600.0
RATE_SECONDS = 0.25
USAGE = (
    "usage: probes stream|once [--interval SECONDS] [--deadline SECONDS] [--disk PATH]... [--health]"
    " [--health-every SECONDS]"
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the probe; the exit status is 0 when the other side ended it, 2 for wrong arguments."""
    try:
        options = Options(sys.argv[1:] if arguments is None else arguments)
    except ValueError as error:
        _say(Fault(str(error)))
        return 2
    name_process("raydeck-probe")
    sampler = Sampler(options.interval, options.disks, options.deadline, health_every=options.health_every)
    try:
        if options.command == "once":
            return _once(sampler, options.deadline)
        return _stream(sampler, Channel(), options.interval)
    except Exception as error:
        # The reader must learn why the stream ends; there is nobody else to tell.
        _say(Fault("the probe failed: {}: {}".format(type(error).__name__, error)))
        return 1
    finally:
        sampler.stop()


def _stream(sampler: Sampler, channel: Channel, interval: float) -> int:
    """Facts first, then samples on a steady beat, and an answer to every ping in between."""
    beat = time.monotonic()
    sampler.begin(beat)
    pending = True
    try:
        while True:
            now = time.monotonic()
            if pending and (sampler.ready() or now >= beat + sampler.patience):
                pending = False
                lines = sampler.lines(now)
                # A reader that has stalled gets the newest when it reads again, not everything that it missed.
                if channel.backlog == 0:
                    channel.send(*lines)
            if not pending:
                _say_health(sampler, channel, now)
            if not pending and now >= beat + interval:
                # Beats that were missed (a suspended machine) are skipped, not made up for.
                beat += interval * int((now - beat) / interval)
                sampler.begin(now)
                pending = True
                continue
            _attend(sampler, channel, beat + sampler.patience if pending else beat + interval)
    except ChannelClosed:
        return 0


def _say_health(sampler: Sampler, channel: Channel, now: float) -> None:
    # What happened is told once: not into a channel whose reader has stalled.
    told = sampler.health(now) if channel.backlog == 0 else None
    if told is not None:
        channel.send(told)


def _attend(sampler: Sampler, channel: Channel, until: float) -> None:
    """Wait for the children, the kernel and the other side, at most until then, and take what they say."""
    now = time.monotonic()
    poll = select.poll()
    channel.watch(poll)
    workers = {worker.fileno(): worker for worker in sampler.workers()}
    for fd in workers:
        poll.register(fd, select.POLLIN)
    watch = sampler.watch
    log = -1 if watch is None else watch.log_fileno(now)
    if watch is not None:
        if channel.backlog == 0:
            until = min(until, watch.wake_at)
        if log >= 0:
            poll.register(log, select.POLLIN)
    seconds = until - now
    ready = poll.poll(max(seconds, 0.0) * 1000.0 + 0.5)
    for line in channel.events(ready):
        verb, _, argument = line.strip().partition(" ")
        if verb == "ping" and argument:
            channel.send(Pong(argument[:64], sampler.wall()))
    now = time.monotonic()
    for fd, _ in ready:
        if fd in workers:
            sampler.receive(workers[fd], now)
        elif fd == log and watch is not None:
            watch.read_log(now)


def _once(sampler: Sampler, deadline: float) -> int:
    """One reading of everything, with the rates over a quarter of a second."""
    start = time.monotonic()
    sampler.begin(start)
    _settle(sampler, start + RATE_SECONDS, start + deadline)
    again = time.monotonic()
    sampler.begin(again)
    _settle(sampler, again, again + deadline)
    for line in sampler.lines(time.monotonic()):
        _say(line)
    told = sampler.health(time.monotonic())
    while told is None and sampler.watch is not None and time.monotonic() < again + deadline:
        _take(sampler)
        told = sampler.health(time.monotonic())
    if told is not None:
        _say(told)
    return 0


def _settle(sampler: Sampler, earliest: float, latest: float) -> None:
    """Take what the children say until they all have, not before the one moment and not beyond the other."""
    while True:
        now = time.monotonic()
        if now >= latest or (now >= earliest and sampler.ready()):
            return
        _take(sampler)


def _take(sampler: Sampler) -> None:
    """Take what the children say within 20 ms."""
    poll = select.poll()
    workers = {worker.fileno(): worker for worker in sampler.workers()}
    for fd in workers:
        poll.register(fd, select.POLLIN)
    for fd, _ in poll.poll(20.0):
        sampler.receive(workers[fd], time.monotonic())
    if sampler.watch is not None:
        sampler.watch.read_log(time.monotonic())


def _say(line: Line | str) -> None:
    data = (line if isinstance(line, str) else encode(line)).encode("ascii") + b"\n"
    try:
        while data:
            data = data[os.write(1, data) :]
    except OSError:
        # Nobody reads any more: there is no other way out, and nothing left to do.
        return


class Options:
    """What the command line asks for. Parsed by hand: ``argparse`` would double the time to the first line."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Raises ``ValueError`` with a sentence."""
        self.command = arguments[0] if arguments else ""
        self.interval = 1.0
        self.deadline = DEADLINE_SECONDS
        self.disks: list[str] = []
        self.health_every: float | None = None
        words = iter(arguments[1:])
        if self.command not in ("stream", "once"):
            raise ValueError(USAGE)
        for name in words:
            if name == "--health":
                self.health_every = self.health_every or HEALTH_EVERY_SECONDS
                continue
            value = next(words, None)
            if value is None:
                raise ValueError(USAGE)
            if name == "--disk":
                self.disks.append(value)
            elif name == "--interval":
                self.interval = _seconds(name, value)
            elif name == "--deadline":
                self.deadline = _seconds(name, value)
            elif name == "--health-every":
                self.health_every = _seconds(name, value)
            else:
                raise ValueError(USAGE)


def _seconds(name: str, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not SHORTEST_SECONDS <= seconds <= LONGEST_SECONDS:
        raise ValueError("{} must be {} to {} seconds, not {}".format(name, SHORTEST_SECONDS, LONGEST_SECONDS, text))
    return seconds


if __name__ == "__main__":
    sys.exit(main())
