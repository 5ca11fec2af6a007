"""What a process imports, looked at in a fresh one: the console never loads ray or torch, and paints first."""

from __future__ import annotations

import json
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import console
import jobs

HEAVY = ("ray", "torch", "numpy", "pynvml")
LATE = ("asyncssh", "httpx", "pydantic", "yaml")


def _modules_after(code: str) -> set[str]:
    """The top-level modules that a fresh interpreter has after running some code."""
    program = f"import sys, json\n{code}\nprint(json.dumps(sorted({{name.partition('.')[0] for name in sys.modules}})))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    return set(json.loads(done.stdout))


def _console_modules() -> list[str]:
    found = [module.name for module in pkgutil.walk_packages(console.__path__, "console.")]
    return [name for name in found if not name.endswith("__main__")]


def test_no_module_of_the_console_loads_ray_or_torch() -> None:
    names = _console_modules()
    assert len(names) > 40
    loaded = _modules_after("\n".join(f"import {name}" for name in names))
    assert {"textual", "asyncssh"} <= loaded
    assert not loaded & set(HEAVY)


def test_the_app_paints_before_anything_slow_is_imported() -> None:
    loaded = _modules_after("import console.app, console.screens.start, console.cli.main, console.demo.runner")
    assert "textual" in loaded
    assert not loaded & {*HEAVY, *LATE}


@pytest.mark.parametrize(
    "module",
    [
        "console.cli.main",
        "console.cli.reads",
        "console.cli.writes",
        "console.cli.output",
        "console.cli.queue",
        "console.cli.releases",
        "console.cli.runs",
        "console.cli.work",
    ],
)
def test_the_command_line_needs_no_screen(module: str) -> None:
    loaded = _modules_after(f"import {module}")
    assert not loaded & {*HEAVY, "asyncssh", "httpx", "textual"}


def test_the_controller_needs_only_what_a_head_has() -> None:
    loaded = _modules_after("import jobs.controller.__main__")
    assert "aiohttp" in loaded
    assert not loaded & {"ray", "torch", "httpx", "textual", "asyncssh", "console"}


def test_importing_settings_touches_no_disk(tmp_path: object) -> None:
    code = f"""
import os
os.environ.update(HOME={str(tmp_path)!r}, XDG_CONFIG_HOME={str(tmp_path)!r}, XDG_RUNTIME_DIR={str(tmp_path)!r})
import console.settings, console.cli.main
console.settings.load_settings()
assert not os.listdir({str(tmp_path)!r}), os.listdir({str(tmp_path)!r})
"""
    assert "console" in _modules_after(code)


def test_no_module_hides_what_scripts_call() -> None:
    """``import jobs.report`` would put a module in the place of the function ``jobs.report``."""
    files = {path.stem for path in Path(jobs.__path__[0]).iterdir()}
    assert files.isdisjoint(jobs.__all__)
