"""Folders with names that are short enough for a socket in them, in memory where there is room for that."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

MEMORY = "/dev/shm"


@contextmanager
def short_folder() -> Generator[Path]:
    """A folder that everybody may pass through. In memory nothing waits for a disk; `kill -9` is the same to both."""
    place = MEMORY if os.access(MEMORY, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="rd-", dir=place))
    folder.chmod(0o711)
    try:
        yield folder
    finally:
        shutil.rmtree(folder)
