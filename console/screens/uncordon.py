"""The dialog of `U`: whose holds are on the nodes, and which are taken back. Another's has to be chosen by name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from console import upkeep
from console.preview import Preview
from console.render.cells import Cell, Column, age, safe
from console.render.prose import listed, moment
from console.screens.choose import PlanningDialog
from jobs.client import ControllerClient
from jobs.nodeview import Hold, NodeRef
from jobs.wire import NodesReply


@dataclass(frozen=True, slots=True)
class HoldsOf:
    """All holds of one person on the nodes that are meant."""

    user: str
    own: bool
    holds: tuple[Hold, ...]
    now_wall: float


@dataclass(frozen=True, slots=True)
class Taken:
    """Whose holds are to be taken back, and what that does."""

    user: str
    own: bool
    reply: NodesReply


def _kinds(row: HoldsOf) -> str:
    words = {"cordon": "cordon", "drain": "drain", "retire": "retire"}
    return ", ".join(dict.fromkeys(words[hold.kind] for hold in row.holds))


def _until(row: HoldsOf) -> Cell:
    ends = [hold.until for hold in row.holds if hold.until is not None]
    if not ends:
        return Cell("no end", "muted")
    return Cell(moment(min(ends), row.now_wall) + ("" if len(ends) == len(row.holds) else " …"))


def _why(row: HoldsOf) -> Cell:
    reasons = dict.fromkeys(hold.reason for hold in row.holds if hold.reason)
    return Cell(safe("; ".join(reasons)) or "no reason given", "" if reasons else "muted")


HOLD_COLUMNS: tuple[Column[HoldsOf], ...] = (
    Column("user", "WHOSE", 14, lambda row: Cell(safe(row.user) + (" (you)" if row.own else ""), "title")),
    Column("kind", "HOLD", 9, lambda row: Cell(_kinds(row), "warn")),
    Column("since", "SINCE", 6, lambda row: Cell(age(row.now_wall - min(hold.at for hold in row.holds)))),
    Column("until", "UNTIL", 11, _until),
    Column("nodes", "NODES", 12, lambda row: Cell(listed(sorted({hold.node for hold in row.holds}), 3)), drop=1),
    Column("why", "WHY", 16, _why, grow=True),
)


class UncordonDialog(PlanningDialog[Taken, NodesReply]):
    """The holds by their owners, one's own first."""

    HINT = "enter: take this one's holds back   esc: cancel"

    def __init__(self, client: ControllerClient, nodes: Sequence[NodeRef], you: str, now_wall: float) -> None:
        names = listed([node.name for node in nodes], 3)
        super().__init__(f"Uncordon {names}: whose holds?", HOLD_COLUMNS, "not cordoned: nothing is held there")
        self._client, self._meant, self._you, self._now = client, nodes, you, now_wall
        self._rows: dict[str, HoldsOf] = {}

    async def load(self) -> None:
        """The holds as they are now."""
        view = await self._client.nodes()
        names = {node.name for node in self._meant}
        addresses = {node.address for node in self._meant if node.address}
        found: dict[str, list[Hold]] = {}
        for each in view.nodes:
            if each.name in names or (each.address in addresses and each.name not in names):
                for hold in each.holds:
                    found.setdefault(hold.user, []).append(hold)
        order = sorted(found, key=lambda user: (user != self._you, user))
        self._rows = {user: HoldsOf(user, user == self._you, tuple(found[user]), self._now) for user in order}
        self.table.set_rows(order, self._rows.__getitem__)
        self.fit_table(len(order))
        if not order:
            self.say([])

    async def plan(self, key: str) -> NodesReply:
        """What taking these back would do."""
        return await upkeep.uncordon(self._client, self._meant, "", of=self._of(key), dry_run=True)

    def _of(self, key: str) -> str:
        return "" if self._rows[key].own else key

    def plan_lines(self, plan: NodesReply) -> list[tuple[str, str]]:
        """That in words."""
        preview = upkeep.preview(plan.plan, you=self._you, now_wall=self._now)
        return [(line, "") for line in preview.lines] + [(f"! {line}", "warn") for line in preview.warnings]

    def answer(self, key: str, plan: NodesReply) -> Taken:
        """Whose, and what that does."""
        return Taken(key, self._rows[key].own, plan)


def ask_preview(taken: Taken, you: str, now_wall: float) -> Preview:
    """The question: what it does; another's holds take the name of their owner."""
    preview = upkeep.preview(taken.reply.plan, you=you, now_wall=now_wall)
    if taken.own or not taken.reply.plan.changes:
        return preview
    warning = f"these are holds of {taken.user}, not yours"
    return replace(
        preview, title=f"{preview.title}: the holds of {taken.user}", ask="name", expected=taken.user,
        warnings=(warning, *preview.warnings),
    )  # fmt: skip
