"""Which Python on a head can run the controller, and whether systemd can keep it running.

It travels to the head beside `jobs.starter`, as source: standard library only, and nothing newer than Python 3.8.
"""

from __future__ import annotations

import getpass
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping

NEEDED = ("aiohttp", "pydantic", "yaml")
"""What the controller imports beyond the standard library; ``ray[default]`` brings all of it."""
PASSED_ON = ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH")
"""What a unit of systemd needs of this login's environment to speak to Ray. No token: systemd shows it to all."""
OUTPUT_NAME = "controller.out"
"""Where the controller's own words go that do not reach its log."""


class Failed(Exception):
    """It cannot be done; a sentence, and what to do about it."""

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint


def find_python(named: str, dashboard: str) -> str:
    """An interpreter that can run the controller: the one that is named, else the one that Ray here runs with.

    Raises `Failed`, with what each lacked.
    """
    found = [named]
    if named in ("", "python3"):
        found = list(dict.fromkeys([*_pythons_of_ray(dashboard), "python3", sys.executable]))
    lacks: list[str] = []
    for candidate in found:
        path = shutil.which(os.path.expanduser(candidate)) if candidate else None
        lack = "it is not there" if path is None else _lack(path)
        if path is not None and not lack:
            return path
        lacks.append(f"{candidate}: {lack}")
    raise Failed(
        "no Python here can run the controller ({})".format("; ".join(lacks)),
        "Name the one that Ray runs with, as cluster.access.python",
    )


def _lack(python: str) -> str:
    """What this interpreter lacks; empty if nothing."""
    test = "import sys\nassert sys.version_info >= (3, 10), 'it is older than Python 3.10'\nimport {}".format(
        ", ".join(NEEDED)
    )
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run([python, "-c", test], capture_output=True, timeout=30, env=environment, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return "" if done.returncode == 0 else lines[-1].split(": ", 1)[-1] if lines else "it cannot be run"


def _pythons_of_ray(dashboard: str) -> Iterator[str]:
    """The interpreters that Ray's processes on this machine run with; the one of this dashboard first."""
    port = "--port=" + dashboard.rsplit(":", 1)[-1].strip("/")
    exact: list[str] = []
    others: list[str] = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/cmdline", "rb") as file:
                words = file.read(65536).decode("utf-8", "replace").split("\0")
        except OSError:
            continue  # it has ended, or is somebody else's
        if len(words) > 2 and any(word.endswith("/ray/dashboard/dashboard.py") for word in words[1:4]):
            (exact if port in words else others).append(words[0])
        elif words[0].endswith("/raylet"):
            command = [word.split("=", 1)[1] for word in words if word.startswith("--python_worker_command=")]
            others.extend(part.split()[0] for part in command if part.strip())
    yield from exact
    yield from others


def find_manager() -> list[str] | None:
    """The words that reach a systemd that keeps a unit running after this login ends; None if there is none."""
    if not os.path.isdir("/run/systemd/system") or shutil.which("systemd-run") is None:
        return None
    words: list[str] = [] if os.getuid() == 0 else ["--user"]
    if words and not os.path.exists(os.path.join("/var/lib/systemd/linger", getpass.getuser())):
        return None  # the user's systemd would end with the last login, and the controller with it
    return words if systemctl(words, "show-environment") else None


def systemctl(manager: list[str], *words: str) -> bool:
    try:
        done = subprocess.run(["systemctl", *manager, *words], capture_output=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0


def unit_name(store: str) -> str:
    return f"raydeck-controller-{hashlib.sha256(store.encode()).hexdigest()[:8]}.service"


def unit_command(
    manager: list[str], store: str, archive: str, arguments: list[str], environment: Mapping[str, str]
) -> list[str]:
    """The call that starts the controller as a transient unit, started again if it is killed."""
    output = os.path.join(store, OUTPUT_NAME)
    settings = [
        "Restart=on-failure",
        "RestartSec=2",
        "RestartPreventExitStatus=1",  # refused: the lock is held, or the store cannot be used
        "TimeoutStopSec=40",
        "KillMode=mixed",
        "WorkingDirectory=" + store,
        "StandardOutput=append:" + output,
        "StandardError=append:" + output,
    ]
    passed = {name: environment[name] for name in PASSED_ON if name in environment}
    passed["PYTHONPATH"] = archive
    return [
        "systemd-run",
        *manager,
        "--collect",
        "--unit=" + unit_name(store),
        *("--property=" + setting for setting in settings),
        *(f"--setenv={name}={value}" for name, value in passed.items()),
        "--",
        *arguments,
    ]


def start_unit(manager: list[str], store: str, archive: str, arguments: list[str]) -> None:
    with open(os.path.join(store, OUTPUT_NAME), "wb"):
        pass  # what an earlier one said is not this one's
    command = unit_command(manager, store, archive, arguments, os.environ)
    try:
        done = subprocess.run(command, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed(f"systemd did not start the controller: {error}") from error
    if done.returncode != 0:
        raise Failed("systemd did not start the controller: " + done.stderr.decode("utf-8", "replace").strip())
