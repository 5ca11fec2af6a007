"""Real clusters of several hosts: one that tests share and leave as it was, and one for each test that breaks it."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from tests.hosts.bed import Bed, bed, why_not


@pytest.fixture(scope="session")
def shared_bed() -> Generator[Bed]:
    """A head and three workers with four simulated GPUs each. Whoever uses it puts back what they changed."""
    if reason := why_not():
        pytest.skip(reason)
    with bed() as made:
        yield made


@pytest.fixture
def own_bed() -> Generator[Bed]:
    """A head and two workers for one test; Ray finds a lost node within seconds there."""
    if reason := why_not():
        pytest.skip(reason)
    quick = {
        "health_check_initial_delay_ms": 1000,
        "health_check_period_ms": 1000,
        "health_check_timeout_ms": 2000,
        "health_check_failure_threshold": 3,
    }
    with bed(("worker-1", "worker-2"), system=quick) as made:
        yield made
