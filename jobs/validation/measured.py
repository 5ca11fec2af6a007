"""What a check brings from a node, before anybody judges it: right or wrong, figures, facts to compare, evidence.

The programs that run checks (`jobs.validation.work` starts them) tell it line by line, so that what was measured
before a program hangs or dies is not lost. Standard library only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Generator


@dataclass(slots=True)
class Measured:
    """One check, on one node, one of its GPUs, or one rank."""

    check: str
    """Its id, such as ``gpu.gemm`` (`jobs.validation.plan`)."""
    gpu: int | None = None
    """The index on its node; None for the node as a whole."""
    rank: int | None = None
    wrong: str = ""
    """Why it is not right, as a sentence; empty where it is."""
    warned: str = ""
    """What is amiss without being wrong."""
    skipped: str = ""
    """Why it was not done."""
    figures: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Samples by the figure's name (`jobs.validation.plan.FIGURES`), each as it was measured."""
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """What is compared between nodes, GPUs or ranks, or shown."""
    evidence: list[str] = field(default_factory=list[str])
    broken: bool = False
    """It ended by an error of its own, and not by a judgement: of several ranks the others wait for it in vain."""
    seconds: float = 0.0

    @property
    def right(self) -> bool:
        """It was done, and nothing is wrong with it."""
        return not self.wrong and not self.skipped


class Teller:
    """Writes what is measured, each as it is known, for whoever supervises the program."""

    def __init__(self, out: IO[str], rank: int | None = None) -> None:
        self._out, self._rank = out, rank

    @contextmanager
    def check(self, check: str, gpu: int | None = None) -> Generator[Measured]:
        """One check: told that it begins, filled in by the caller, told when it is done.

        What it raises is told as what is wrong with it, and goes no further: the next check may still be of use.
        """
        measured = Measured(check, gpu, self._rank)
        began = time.monotonic()
        self._say({"begin": check, "gpu": gpu})
        try:
            yield measured
        except Skip as reason:
            measured.skipped = str(reason)
        except Exception as error:
            # The boundary of a check: whatever breaks in it is what it found.
            first = str(error).strip().splitlines() or [""]
            measured.broken = True
            measured.wrong = f"{type(error).__name__}: {first[0][:300]}".rstrip(": ")
            measured.evidence += [line[:300] for line in first[1:9]]
        measured.seconds = time.monotonic() - began
        self._say({"done": asdict(measured)})

    def tell(self, **facts: Any) -> None:
        """Something that is no check, such as which rank this process is."""
        self._say(facts)

    def _say(self, line: dict[str, Any]) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()


class Skip(Exception):
    """Why a check cannot be done here, as a sentence."""


_NAMES = frozenset(each.name for each in fields(Measured))


def read(text: str) -> tuple[list[Measured], tuple[str, int | None] | None]:
    """What a program told: what it measured, and the check that it had begun and not finished, with its GPU.

    A line that was cut off by the program's death is left out.
    """
    found: list[Measured] = []
    open_check: tuple[str, int | None] | None = None
    for line in text.splitlines():
        try:
            told: Any = json.loads(line)
        except ValueError:
            continue
        if not isinstance(told, dict):
            continue
        if "begin" in told:
            open_check = (str(told["begin"]), told.get("gpu"))
        elif isinstance(done := told.get("done"), dict):
            found.append(Measured(**{name: value for name, value in done.items() if name in _NAMES}))
            open_check = None
    return found, open_check


Program = Callable[[dict[str, Any], Teller], None]
"""What `jobs.validation.work` runs: a request, and whom it tells."""
