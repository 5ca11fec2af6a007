"""The dialog of `R`: from which checkpoint a run begins again, the newest complete one chosen beforehand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.binding import Binding, BindingType

from console import dispatch
from console.render.course import CHECKPOINT_COLUMNS, SavedRow, checkpoint_key, usable
from console.render.prose import listed
from console.screens.choose import PlanningDialog
from jobs.client import ControllerClient
from jobs.model import Run
from jobs.wire import CheckpointRow, Restarted

BEGINNING = "0:"


@dataclass(frozen=True, slots=True)
class Chosen:
    """From where, and what that does."""

    step: int | None
    """0: from the beginning; None: the newest complete one, also if it is saved only now."""
    plan: Restarted


class RestartDialog(PlanningDialog[Chosen, Restarted]):
    """The checkpoints of a run, the newest first."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("0", "beginning", "from the beginning", show=False)]
    HINT = "enter: from this one   0: from the beginning   esc: cancel"

    def __init__(self, client: ControllerClient, run: Run, now_wall: float) -> None:
        super().__init__(f"Restart {run.id} from", CHECKPOINT_COLUMNS, "no checkpoint: 0 or enter starts it anew")
        self._client, self._run, self._now = client, run, now_wall
        self._rows: dict[str, CheckpointRow] = {}
        self._newest: str | None = None

    async def load(self) -> None:
        """The checkpoints; the cursor goes to the newest one that can be used."""
        rows = await self._client.checkpoints(self._run.id)
        self._rows = {checkpoint_key(row): row for row in reversed(rows)}
        self._newest = next((key for key, row in self._rows.items() if usable(row)), None)
        self.table.set_rows(list(self._rows), lambda key: SavedRow(self._rows[key], self._now))
        self.fit_table(len(self._rows))
        if self._newest is not None:
            self.table.move_to(self._newest)
        if not self._rows:
            self.ask_plan(BEGINNING)

    def _step(self, key: str) -> int | None:
        if key == BEGINNING:
            return 0
        return None if key == self._newest else self._rows[key].step

    async def plan(self, key: str) -> Restarted:
        """What the controller would do."""
        return await dispatch.plan_restart(self._client, self._run, self._step(key))

    def plan_lines(self, plan: Restarted) -> list[tuple[str, str]]:
        """From where, what is passed over, what is set aside, what to be warned of."""
        begins = "from the beginning" if plan.from_step is None else f"from step {plan.from_step}"
        lines = [(f"it begins {begins}", "title")]
        lines += [(f"passed over: {text}", "warn") for text in plan.skipped]
        if plan.set_aside:
            steps = listed([str(step) for step in plan.set_aside])
            lines.append((f"set aside (renamed, not deleted): steps {steps}", "warn"))
        return lines + [(f"! {text}", "warn") for text in plan.warnings]

    def answer(self, key: str, plan: Restarted) -> Chosen:
        """From where, and what that does."""
        return Chosen(self._step(key), plan)

    def action_beginning(self) -> None:
        """From nothing."""
        self.take(BEGINNING)

    def default(self) -> str:
        """The row under the cursor; without any, the beginning."""
        return self.table.cursor_key or BEGINNING
