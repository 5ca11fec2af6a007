"""Runs the benchmarks, or those that are named: ``python -m tests.benchmarks [cold_start|probe|queue …]``.

Figures are ratios against a peer or a floor measured in the same run, since absolute times say more about the machine.
"""

from __future__ import annotations

import importlib
import json
import sys

ALL = ("cold_start", "probe", "fleet_widgets", "queue", "queue_screen", "health", "recording")


def main(names: list[str]) -> int:
    """One JSON document: benchmark to its figures."""
    unknown = [name for name in names if name not in ALL]
    if unknown:
        print(f"there is no benchmark {unknown[0]!r}; there are {', '.join(ALL)}", file=sys.stderr)
        return 2
    found = {}
    for name in names or ALL:
        print(f"{name} …", file=sys.stderr)
        found[name] = importlib.import_module(f"tests.benchmarks.{name}").run()
    print(json.dumps(found, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
