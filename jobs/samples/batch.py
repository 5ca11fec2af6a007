"""Counts the words of a text with Ray tasks: the sample of a run that is any Ray program, with no torch in it.

Its settings stand under ``training.parameters``: ``tasks`` (into how many pieces the text goes) and ``task_seconds``
(how long each takes at least, so that there is something to watch).
"""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import ray

import jobs

TEXT = Path(__file__).with_name("operations.txt")
AT_ONCE = 4


def leave(number: int, frame: FrameType | None) -> None:
    """A request to stop: nothing here is worth saving, so leave at once."""
    print("asked to stop: leaving", flush=True)
    sys.exit(128 + number)


@ray.remote(num_cpus=0)  # the run's CPUs are held for it already; to ask for more is to wait behind everybody else
def count(piece: str, seconds: float) -> Counter[str]:
    """How often each word stands in a piece of the text."""
    words = Counter(word.strip(".,;:!?\"'").lower() for word in piece.split())
    time.sleep(seconds)
    return words


def pieces(text: str, number: int) -> list[str]:
    """The text in about so many pieces, cut between paragraphs."""
    paragraphs = text.split("\n\n")
    number = max(1, min(number, len(paragraphs)))
    return ["\n\n".join(paragraphs[index::number]) for index in range(number)]


def main() -> None:
    """Count, report each piece, and print the words that are said most."""
    parameters: dict[str, Any] = jobs.config().get("parameters") or {}
    seconds = float(parameters.get("task_seconds", 0.0))
    ray.init()
    signal.signal(signal.SIGTERM, leave)  # after Ray, which would put its own in this place
    waiting = pieces(TEXT.read_text(encoding="ascii"), int(parameters.get("tasks", 40)))
    total, done, began = Counter[str](), 0, time.monotonic()
    running: list[ray.ObjectRef[Counter[str]]] = []
    while waiting or running:
        while waiting and len(running) < AT_ONCE:
            running.append(count.remote(waiting.pop(), seconds))
        ready, running = ray.wait(running)
        for each in ready:
            total += ray.get(each)
            done += 1
        rate = done / (time.monotonic() - began)
        jobs.report(step=done, samples_per_second=rate)
        print(f"{done} pieces counted, {total.total():,} words", flush=True)
    print("most often:", ", ".join(f"{word} ({number})" for word, number in total.most_common(5)))


if __name__ == "__main__":
    main()
