"""What can go wrong, as one small family. Raised low with the fact, told to the user once, high.

RaydeckError
├── Refused       understood, and not done: a bad file, no permission, wrong state   (exit 1)
├── Usage         the request itself makes no sense                                  (exit 2)
├── Unreachable   the other side did not answer, or answered something foreign       (exit 3)
└── Busy          somebody else is doing it at this moment                           (exit 1)
"""

from __future__ import annotations


class RaydeckError(Exception):
    """A fact for a person: one sentence, and what to do about it where that is known."""

    exit_code = 1

    def __init__(self, sentence: str, hint: str = "") -> None:
        super().__init__(sentence)
        self.sentence = sentence
        """What is wrong, complete, without a trailing full stop."""
        self.hint = hint
        """What the person can do; empty where there is nothing better to say."""

    def __str__(self) -> str:
        return f"{self.sentence.rstrip('.')}. {self.hint}" if self.hint else self.sentence


class Refused(RaydeckError):
    """Understood, and not done."""


class Busy(RaydeckError):
    """Somebody else is doing it at this moment."""


class Usage(RaydeckError):
    """The request itself makes no sense."""

    exit_code = 2


class Unreachable(RaydeckError):
    """The other side did not answer, or answered something that is not its language."""

    exit_code = 3
