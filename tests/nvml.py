"""Builds the stand-in NVML with gcc, and tells it what to do while it runs."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

SOURCE = Path(__file__).parent / "data" / "nvml" / "nvml_standin.c"

RELOAD_SECONDS = 0.025
"""The library looks at its file at most every 20 ms."""

NOT_SUPPORTED = 3
NO_PERMISSION = 4
DRIVER_NOT_LOADED = 9
FUNCTION_NOT_FOUND = 13
LOST = 15
RESET_REQUIRED = 16
VERSION_MISMATCH = 18
UNKNOWN = 999

XID_EVENT = 8
DOUBLE_BIT_ECC_EVENT = 2
FIELD_ECC_UNCORRECTED = 4
FIELD_MEMORY_CELSIUS = 82
FIELD_NVLINK_COUNT = 91
FIELD_REMAP_PENDING = 144
FIELD_REMAP_FAILED = 145
FIELD_NVLINK_REPLAYS = 161
FIELD_NVLINK_STATE = 165
FIELD_RECOVERY_ACTION = 230


def build(folder: Path, *, old_driver: bool = False) -> Path:
    """Compile ``libnvidia-ml.so.1`` into this folder; gives the library's path. A few tenths of a second."""
    folder.mkdir(parents=True, exist_ok=True)
    library = folder / "libnvidia-ml.so.1"
    options = ["-DOLD_DRIVER"] if old_driver else []
    subprocess.run(
        ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", *options, "-o", str(library), str(SOURCE)],
        check=True,
        timeout=60,
    )
    return library


class StandIn:
    """One built library and the file that tells it what to do."""

    def __init__(self, library: Path, control: Path) -> None:
        self.library = library
        self.control = control
        self.say()

    def say(self, *rules: str) -> None:
        """Replace the rules, in one step; the next call sees them. Their form stands in the C file."""
        new = self.control.with_suffix(".new")
        new.write_text("".join(rule + "\n" for rule in rules))
        os.replace(new, self.control)
        time.sleep(RELOAD_SECONDS)

    @property
    def environ(self) -> dict[str, str]:
        """What a process needs in its environment to load this library instead of NVIDIA's."""
        return {"LD_LIBRARY_PATH": str(self.library.parent), "NVML_STANDIN": str(self.control)}
