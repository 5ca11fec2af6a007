"""As much of ``dataclasses`` as `probes.reading` needs; on a node it travels in the place of the real one.

The real one imports ``inspect`` and compiles every class's methods from text, which takes a third of the probe's start.
"""

from __future__ import annotations

from typing import Any, Callable


class _Made:
    """A default that is made anew for each object."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self.make = make


def field(*, default_factory: Callable[[], Any]) -> Any:
    """A field whose default is made anew for each object."""
    return _Made(default_factory)


def dataclass(cls: Any) -> Any:
    """Give the class a constructor that takes its fields, by place or by name, in the order in which they stand."""
    names = tuple(cls.__annotations__)
    defaults = {name: cls.__dict__[name] for name in names if name in cls.__dict__}

    def construct(self: Any, *values: Any, **named: Any) -> None:
        given = {names[at]: value for at, value in enumerate(values[: len(names)])}
        if len(given) < len(values) or given.keys() & named.keys() or not named.keys() <= set(names):
            raise TypeError("{}: arguments that are no fields, or twice the same".format(cls.__name__))
        given.update(named)
        for name in names:
            if name not in given:
                if name not in defaults:
                    raise TypeError("{}: {} is missing".format(cls.__name__, name))
                default = defaults[name]
                given[name] = default.make() if isinstance(default, _Made) else default
            setattr(self, name, given[name])

    cls.__init__ = construct
    cls.__dataclass_fields__ = dict.fromkeys(names)
    return cls
