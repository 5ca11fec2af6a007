"""The stand-in NVML, built once, and a process that uses it."""

from __future__ import annotations

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
