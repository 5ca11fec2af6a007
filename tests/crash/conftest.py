"""How many kills, and which course: ``pytest tests/crash --kills 2000``, or RAYDECK_KILLS and RAYDECK_CRASH_SEED."""

from __future__ import annotations

import os
import random

import pytest

KILLS = 200


def pytest_addoption(parser: pytest.Parser) -> None:
    """Only where this folder is named on the command line; else the environment says it."""
    parser.addoption("--kills", type=int, default=None, help="how often the controller is killed")


@pytest.fixture
def kills(request: pytest.FixtureRequest) -> int:
    """How often the controller is killed."""
    asked: int | None = request.config.getoption("--kills", default=None)
    return asked or int(os.environ.get("RAYDECK_KILLS", KILLS))


@pytest.fixture
def crash_seed() -> int:
    """What the whole course follows from, as far as time lets it."""
    return int(os.environ.get("RAYDECK_CRASH_SEED", random.randrange(10**6)))
