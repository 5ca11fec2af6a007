"""``python -m tests.faults``: makes faults on real hosts and prints, for each, when it was told and what was named.

``--only TEXT`` takes those whose name holds the text (several: with commas); ``--write`` keeps each one's row in
tests/faults/RESULT.md.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import drive, gpus, kernel, nodes, page, runs, together
from tests.faults.fault import Fault, Result
from tests.faults.lab import Lab, lab
from tests.hosts.bed import why_not

RESULT = Path(__file__).with_name("RESULT.md")
FAULTS: tuple[Fault, ...] = (*runs.FAULTS, *nodes.FAULTS, *gpus.FAULTS, *together.FAULTS, *kernel.FAULTS)


def line(result: Result) -> str:
    """One row of what is printed."""
    seen = "-" if result.detected_seconds is None else f"{result.detected_seconds:.1f} s"
    named = "named" if result.named else "NOT NAMED"
    rest = f"  {result.trouble}" if result.trouble else ""
    alarms = "".join(f"\n      false alarm: {alarm}" for alarm in result.false_alarms)
    return f"{result.fault:42} {seen:>8}  {result.alert or '-':24} {named:9}  {result.headline[:110]}{rest}{alarms}"


async def everything(made: Lab, faults: Sequence[Fault], keep: bool) -> list[Result]:
    """All of them, one after the other. ``keep``: each on the page as soon as it is known."""
    results: list[Result] = []
    async with made.bed.desk() as desk:
        await made.calm(desk)
        await asyncio.to_thread(made.keep_runs_away)
        for fault in faults:
            result = await drive.run(made, desk, fault)
            results.append(result)
            print(line(result), flush=True)
            if keep:
                rows = {**page.read(RESULT), result.fault: page.Row.of(result)}
                page.write(RESULT, rows, [each.name for each in FAULTS])
    return results


def main() -> int:
    """Run; the exit code is 0 if everything was named and nothing else was told."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name holds this text, or one of several with commas")
    parser.add_argument("--write", action="store_true", help=f"keep what is found in {RESULT.name}")
    options = parser.parse_args()
    if reason := why_not():
        print(f"faults cannot be made here: {reason}", file=sys.stderr)
        return 2
    texts = options.only.lower().split(",")
    chosen = [fault for fault in FAULTS if any(text in fault.name.lower() for text in texts)]
    began = time.monotonic()
    with lab() as made:
        results = asyncio.run(everything(made, chosen, options.write))
    print(page.total([page.Row.of(result) for result in results]))
    print(f"took {(time.monotonic() - began) / 60:.1f} min")
    return 0 if all(result.named and not result.false_alarms for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
