"""The third of the app that leads somewhere: which key opens which place. Light: places are imported when opened."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from textual.app import App
from textual.screen import Screen

from console.screens.place import Place

if TYPE_CHECKING:
    from console.settings import Settings
    from console.sources.session import Session


class WaysApp(App[int]):
    """The places of a console on one session."""

    settings: Settings
    session: Session | None
    run_in_focus: str | None
    """The run that the operator looked at last: the heatmap shows what it holds."""

    def go(self, make: Callable[[], Screen[Any]], kind: type[Screen[Any]]) -> None:
        """To a place: back to it where it is open already, else in place of what is open."""
        while len(self.screen_stack) > 2:
            self.pop_screen()
        if not isinstance(self.screen, kind):
            self.switch_screen(make())

    def action_fleet(self) -> None:
        """The fleet."""
        from console.screens.fleet import FleetScreen

        if self.session is not None:
            self.go(FleetScreen, FleetScreen)

    def action_runs(self) -> None:
        """The runs."""
        from console.screens.work import RunsScreen

        if self.session is not None:
            self.go(RunsScreen, RunsScreen)

    def action_queue(self) -> None:
        """The queues."""
        from console.screens.queue import QueueScreen

        if self.session is not None:
            self.go(QueueScreen, QueueScreen)

    def action_releases(self) -> None:
        """The releases of all workflows."""
        from console.screens.releases import ReleasesScreen

        if self.session is not None:
            self.go(ReleasesScreen, ReleasesScreen)

    def action_audit(self) -> None:
        """The audit log."""
        from console.screens.audit import AuditScreen

        if self.session is not None:
            self.go(AuditScreen, AuditScreen)

    def action_drains(self) -> None:
        """The drains, the cursor on the node that one looked at."""
        from console.screens.drains import DrainsScreen

        if self.session is not None:
            node = self.screen.selected_node() if isinstance(self.screen, Place) else None
            self.go(lambda: DrainsScreen(node or ""), DrainsScreen)

    def action_alerts(self) -> None:
        """The alerts."""
        from console.screens.alerts import AlertsScreen

        if self.session is not None:
            self.go(AlertsScreen, AlertsScreen)

    def action_validations(self) -> None:
        """The validations that there were."""
        from console.screens.validation import ValidationsScreen

        if self.session is not None:
            self.go(ValidationsScreen, ValidationsScreen)

    def open_validation(self, run: str) -> None:
        """One validation, live."""
        from console.screens.validation import ValidationScreen

        self.push_screen(ValidationScreen(run))

    def triage(self, name: str = "") -> None:
        """What broke, and whose fault it is: of a run, a node, ``NODE/GPU``, or (empty) the whole fleet."""
        from console.screens.triage import TriageScreen
        from console.triage.targets import target_of
        from jobs.errors import RaydeckError

        if self.session is None:
            return
        try:
            target = target_of(self.session, name)
        except RaydeckError as error:
            self.notify(str(error), severity="warning", markup=False)
        else:
            self.push_screen(TriageScreen(target))

    def open_node(self, name: str) -> None:
        """The screen of one node."""
        from console.screens.node import NodeScreen

        self.push_screen(NodeScreen(name))

    def open_run(self, key: str) -> None:
        """The screen of one run, unless it is in front already."""
        from console.screens.run import RunScreen

        if not (isinstance(self.screen, RunScreen) and self.screen.run_id == key):
            self.push_screen(RunScreen(key))

    def open_log(self, key: str) -> None:
        """The log of a run."""
        from console.screens.logs import LogScreen

        self.push_screen(LogScreen(key))

    def open_sweep(self, sweep: str) -> None:
        """Every point of a sweep."""
        from console.screens.sweep import SweepScreen

        self.push_screen(SweepScreen(sweep))

    def explain(self, key: str) -> None:
        """Why a run waits, or failed."""
        from console.screens.pages import explain_page

        if self.session is not None:
            self.push_screen(explain_page(self.session, key))
