"""The stand-in NVML, built once, and a process that uses it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests import nvml
from tests.unit.probes.live import NvmlSession


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nvml.build(tmp_path_factory.mktemp("nvml"))


@pytest.fixture
def standin(library: Path, tmp_path: Path) -> nvml.StandIn:
    return nvml.StandIn(library, tmp_path / "control")


@pytest.fixture
def session(standin: nvml.StandIn) -> Generator[NvmlSession]:
    session = NvmlSession(standin.environ)
    yield session
    session.close()


@pytest.fixture
def hung_mount(tmp_path: Path) -> Generator[Path]:
    """A FUSE file system whose server never answers, as a network mount whose server has gone."""
    folder = tmp_path / "hung"
    folder.mkdir()
    try:
        server = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"no FUSE here: {error}")
    libc = ctypes.CDLL(None, use_errno=True)
    options = f"fd={server},rootmode=40000,user_id=0,group_id=0".encode()
    if libc.mount(b"hung", os.fsencode(folder), b"fuse", 0, options):
        os.close(server)
        pytest.skip("no right to mount")
    yield folder
    # Ending the server is what ends the calls that wait for it.
    os.close(server)
    libc.umount2(os.fsencode(folder), 2)
