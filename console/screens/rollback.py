"""The dialogs of `B`: to which release a workflow goes back, what is different in it, and the way back out."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType

from console import dispatch
from console.preview import Preview
from console.render.cells import age
from console.render.prose import listed
from console.render.releases import RELEASE_COLUMNS, ShownRelease, difference_lines, newest_first
from console.screens.choose import PlanningDialog
from console.screens.dialogs import ConfirmDialog
from console.widgets.lines import Lines
from jobs.client import ControllerClient
from jobs.errors import RaydeckError, Refused
from jobs.wire import ReleaseRow, Rollback


@dataclass(frozen=True, slots=True)
class Forth:
    """Go to a release."""

    plan: Rollback
    old: ReleaseRow | None
    """What runs, or ran last; None if the controller does not list it any more."""
    new: ReleaseRow


@dataclass(frozen=True, slots=True)
class Back:
    """Take a rollback back."""

    rollback: str
    plan: Rollback


class RollbackDialog(PlanningDialog[Forth | Back, Rollback]):
    """The releases of a workflow, the newest first, the cursor on the one that a rollback goes to by itself."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("u", "undo", "take the rollback back", show=False)]
    HINT = "enter: the difference, and what is stopped   esc: cancel"

    def __init__(self, client: ControllerClient, workflow: str, release: str, now_wall: float) -> None:
        columns = [column for column in RELEASE_COLUMNS if column.key != "workflow"]
        super().__init__(f"Roll {workflow} back to", columns, f"{workflow} has no release")
        self._client, self._workflow, self._release, self._now = client, workflow, release, now_wall
        self._rows: dict[str, ReleaseRow] = {}
        self._undo: Rollback | None = None

    async def load(self) -> None:
        """The releases, and the rollback that can be taken back; the cursor goes where a rollback would."""
        rows = newest_first(await self._client.releases(self._workflow))
        self._rows = {row.id: row for row in rows}
        done = await self._client.rollbacks(self._workflow)
        self._undo = next((one for one in done if one.undone_at is None and (one.started or one.stopped)), None)
        target = self._release
        if not target:
            try:
                target = (await dispatch.plan_rollback(self._client, self._workflow, "")).to_release
            except Refused:
                # There is none that it goes to by itself: the newest that does not run now, for a person to decide.
                target = next((row.id for row in rows if not row.active), "")
        self.table.set_rows(list(self._rows), lambda key: ShownRelease(self._rows[key], self._now))
        self.fit_table(len(self._rows))
        self.table.move_to(target)

    async def plan(self, key: str) -> Rollback:
        """What the controller would do."""
        return await dispatch.plan_rollback(self._client, self._workflow, key)

    def plan_lines(self, plan: Rollback) -> list[tuple[str, str]]:
        """What is stopped, and from where it goes on."""
        lines: list[tuple[str, str]] = []
        if self._undo is not None:
            undo = self._undo
            does = [f"stops {undo.started}"] if undo.started else []
            does += [f"restarts {listed(undo.stopped)}"] if undo.stopped else []
            ago = age(self._now - undo.at)
            lines.append((f"u: take back the rollback of {ago} ago by {undo.user}: {', '.join(does)}", "accent"))
        begins = "from the beginning" if plan.from_step is None else f"from step {plan.from_step} of {plan.from_run}"
        stops = f"{listed(plan.stopped)} saves and is stopped; " if plan.stopped else "nothing has to be stopped; "
        does = f"starts {begins}" if plan.started else "runs already, and goes on"
        lines.append((f"{stops}{plan.to_release} {does}", "title"))
        return lines + [(f"passed over: {text}", "warn") for text in plan.skipped]

    def answer(self, key: str, plan: Rollback) -> Forth | Back:
        """To which release, with the two that are to be compared."""
        return Forth(plan, self._rows.get(plan.from_release), self._rows[key])

    def action_undo(self) -> None:
        """One key back out of the last rollback."""
        if self._undo is None:
            self.notify("there is no rollback to take back")
        else:
            self.run_worker(partial(self._take_back, self._undo.id), name="undo", group="plan", exclusive=True,
                            exit_on_error=False)  # fmt: skip

    async def _take_back(self, rollback: str) -> None:
        try:
            plan = await dispatch.plan_undo(self._client, rollback)
        except RaydeckError as error:
            self.say([(str(error), "bad")])
            return
        self.dismiss(Back(rollback, plan))


class RollbackConfirm(ConfirmDialog):
    """What is stopped and started, and both releases side by side. ``y`` goes to the reason, enter there does it."""

    REASON_LAST = True
    SHAPE = "dialog page"

    def __init__(self, preview: Preview, old: ReleaseRow, new: ReleaseRow) -> None:
        super().__init__(replace(preview, title=f"{preview.title}   (↑ ↓: all of it)"))
        self._old, self._new = old, new

    def detail(self) -> ComposeResult:
        """Side by side."""
        yield Lines(lambda width: difference_lines(self._old, self._new, width), id="difference", most=500)


def ask_rollback(preview: Preview, old: ReleaseRow | None, new: ReleaseRow) -> ConfirmDialog:
    """The question; without a release that it leaves there is nothing to compare."""
    return ConfirmDialog(preview) if old is None else RollbackConfirm(preview, old, new)
