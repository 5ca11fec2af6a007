"""``python -m tests.faults``: makes faults on real hosts and prints, for each, when it was told and what was named.

``--only TEXT`` takes those whose name holds the text; ``--write`` keeps the matrix in tests/faults/RESULT.md.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.faults import drive, gpus, kernel, nodes, runs, together
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


def total(results: Sequence[Result]) -> str:
    """The last line."""
    seen = [result.detected_seconds for result in results if result.detected_seconds is not None]
    named = sum(result.named for result in results)
    alarms = sum(len(result.false_alarms) for result in results)
    median = f"{statistics.median(seen):.1f} s" if seen else "-"
    return (
        f"faults {len(results)}, detected {len(seen)}, named {named}, wrong {len(results) - named}, "
        f"false alarms {alarms}, median detection {median}"
    )


def written(results: Sequence[Result]) -> str:
    """The matrix as a page."""
    rows = [
        f"| {result.fault} | {'-' if result.detected_seconds is None else f'{result.detected_seconds:.1f}'} "
        f"| {result.alert or '-'} | {'yes' if result.named else '**no**'} | {result.headline.replace('|', '/')} |"
        for result in results
    ]
    head = "| fault | seconds to the alert | alert | cause and culprit named | what triage said |\n| --- | ---: | --- | --- | --- |"
    text = (
        "What `python -m tests.faults --write` found: real hosts in network namespaces, real Ray, GPUs simulated or\n"
    )
    text += "behind NVIDIA's library with a stand-in in C. The rules' own times are in the seconds.\n"
    return f"# The fault matrix\n\n{text}\n{head}\n" + "\n".join(rows) + f"\n\n    {total(results)}\n"


async def everything(made: Lab, faults: Sequence[Fault]) -> list[Result]:
    """All of them, one after the other."""
    results: list[Result] = []
    async with made.bed.desk() as desk:
        await made.calm(desk)
        for fault in faults:
            result = await drive.run(made, desk, fault)
            results.append(result)
            print(line(result), flush=True)
    return results


def main() -> int:
    """Run; the exit code is 0 if everything was named and nothing else was told."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--only", default="", help="those whose name holds this text")
    parser.add_argument("--write", action="store_true", help=f"keep the matrix in {RESULT.name}")
    options = parser.parse_args()
    if reason := why_not():
        print(f"faults cannot be made here: {reason}", file=sys.stderr)
        return 2
    chosen = [fault for fault in FAULTS if options.only.lower() in fault.name.lower()]
    began = time.monotonic()
    with lab() as made:
        results = asyncio.run(everything(made, chosen))
    print(total(results))
    print(f"took {(time.monotonic() - began) / 60:.1f} min")
    if options.write:
        RESULT.write_text(written(results))
    return 0 if all(result.named and not result.false_alarms for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
