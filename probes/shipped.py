"""Runs the probe from memory: its modules arrive as text, and nothing is ever written to the node."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import CodeType, ModuleType
from typing import Any, Mapping, Sequence


class Shipped:
    """Finds and compiles modules in what was sent, each when it is first imported."""

    def __init__(self, sources: Mapping[str, str]) -> None:
        self._sources = sources

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
        """Ours, or None for the node's own finders."""
        if name not in self._sources:
            return None
        return ModuleSpec(name, self, origin="<raydeck>", is_package=name == "probes")  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """The usual kind of module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Compile it and run it. It stands in ``sys.modules`` by now, where nvidia-ml-py looks itself up."""
        exec(self._code(module.__name__), module.__dict__)  # noqa: S102  the text is our own, sent over the same channel

    def _code(self, name: str) -> CodeType:
        return compile(self._sources[name], "<raydeck>/{}.py".format(name.replace(".", "/")), "exec", dont_inherit=True)


def run(sources: Mapping[str, str], arguments: Sequence[str]) -> int:
    """Make the sources importable before anything that the node has, and run the probe. Returns the exit status."""
    sys.dont_write_bytecode = True
    sys.meta_path.insert(0, Shipped(sources))  # type: ignore[arg-type]
    from probes.__main__ import main

    return main(arguments)
