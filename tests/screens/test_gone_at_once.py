"""Places that are left in the moment in which they are opened, as when keys are struck in a row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from textual.screen import Screen

from console.screens.alerts import AlertsScreen
from console.screens.audit import AuditScreen
from console.screens.drains import DrainsScreen
from console.screens.fleet import FleetScreen
from console.screens.logs import LogScreen
from console.screens.node import NodeScreen
from console.screens.queue import QueueScreen
from console.screens.releases import ReleasesScreen
from console.screens.run import RunScreen
from console.screens.triage import TriageScreen
from console.screens.validation import ValidationScreen, ValidationsScreen
from console.screens.work import RunsScreen
from console.triage.targets import target_of
from tests.screens.frozen import FrozenApp, session
from tests.screens.triaged import FAILED, failed

PLACES: dict[str, Callable[[FrozenApp], Screen[Any]]] = {
    "alerts": lambda app: AlertsScreen(),
    "audit": lambda app: AuditScreen(),
    "drains": lambda app: DrainsScreen(),
    "fleet": lambda app: FleetScreen(),
    "log": lambda app: LogScreen(FAILED),
    "node": lambda app: NodeScreen("worker-1"),
    "queue": lambda app: QueueScreen(),
    "releases": lambda app: ReleasesScreen(),
    "run": lambda app: RunScreen(FAILED),
    "runs": lambda app: RunsScreen(),
    "validation": lambda app: ValidationScreen(FAILED),
    "validations": lambda app: ValidationsScreen(),
    "triage": lambda app: TriageScreen(target_of(app.session, FAILED)),  # pyright: ignore[reportArgumentType]
}


@pytest.mark.parametrize("name", PLACES)
async def test_nothing_breaks(name: str) -> None:
    app = FrozenApp(failed(session()))
    async with app.run_test(size=(80, 24)) as pilot:
        before = app.screen
        app.push_screen(PLACES[name](app))
        app.pop_screen()
        await pilot.pause()
        assert app.screen is before
