"""Where in its own work a controller is killed: at a commit, or when a file takes its place."""

from __future__ import annotations

import functools
import os
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class KillPoint:
    """The process kills itself at the ``count``-th of these, before or after it is done."""

    what: Literal["commit", "rename"]
    count: int
    after: bool
    about: str = ""
    """Only commits of what has this text in it count, such as a request's id."""

    def arm(self) -> None:
        """In the process that is to die."""
        if self.what == "commit":
            _arm_commits(self)
        else:
            _arm_renames(self)


def strike() -> None:
    """As `kill -9` does it: no handler, no farewell."""
    os.kill(os.getpid(), signal.SIGKILL)


class _Countdown:
    def __init__(self, point: KillPoint) -> None:
        self._point = point
        self._left = point.count

    def around(self, work: Callable[[], Any]) -> Any:
        self._left -= 1
        if self._left == 0 and not self._point.after:
            strike()
        result = work()
        if self._left == 0:
            strike()
        return result


def _arm_commits(point: KillPoint) -> None:
    countdown = _Countdown(point)

    class Counting(sqlite3.Connection):
        """A connection that counts what it makes durable."""

        _met = not point.about

        def execute(self, sql: str, /, *values: Any) -> sqlite3.Cursor:
            verb = sql.lstrip()[:6].upper()
            # What was read about it before the transaction began is not what is committed.
            self._met = not point.about if verb == "BEGIN " else self._met or point.about in str(values)
            if verb != "COMMIT" or not self._met:
                return super().execute(sql, *values)
            self._met = not point.about
            return countdown.around(functools.partial(super().execute, sql, *values))

        def executescript(self, sql: str, /) -> sqlite3.Cursor:
            return countdown.around(functools.partial(super().executescript, sql))

        def commit(self) -> None:
            countdown.around(super().commit)

    sqlite3.connect = functools.partial(sqlite3.connect, factory=Counting)


def _arm_renames(point: KillPoint) -> None:
    countdown = _Countdown(point)
    for name in ("replace", "rename"):
        real = getattr(os, name)

        def counted(*arguments: Any, real: Callable[..., Any] = real, **named: Any) -> Any:
            return countdown.around(lambda: real(*arguments, **named))

        setattr(os, name, counted)
