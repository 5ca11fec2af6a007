"""Fast tests first: what can be known in a second is told before a cluster is started."""

from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is: no test may fail by that.
settings.register_profile("raydeck", deadline=None)
settings.load_profile("raydeck")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Unmarked tests, then slow ones, then those on a real cluster; within each as they were collected."""
    items.sort(
        key=lambda item: (item.get_closest_marker("cluster") is not None, item.get_closest_marker("slow") is not None)
    )
