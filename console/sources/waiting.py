"""Those that wait, in order: the first of them as events bring them, the others page by page once somebody wants them.

Ten thousand wait as quickly as ten: an event has a page, and of the others one page at a time is asked for anew.
"""

from __future__ import annotations

from jobs.client import ControllerClient
from jobs.queueview import QueueView, Waiting

PAGE = 2_000
"""Each page costs the controller a whole pass over the queue."""


class WaitingList:
    """What is known of the line; `order` is all of it, each run once."""

    def __init__(self) -> None:
        self._head: list[Waiting] = []
        self._pages: list[list[Waiting]] = []
        self._rows: dict[str, Waiting] = {}
        self._turn = 0
        self.total = 0
        """How many there are, held ones too, as the controller said it last."""
        self.wanted = False
        """Does somebody want more than events bring?"""

    @property
    def keys(self) -> list[str]:
        """The runs, in order."""
        return list(self._rows)

    @property
    def complete(self) -> bool:
        """Are all of them known?"""
        return len(self._rows) >= self.total

    def row(self, run: str) -> Waiting:
        """One of them. Raises `KeyError` for one that does not wait any more."""
        return self._rows[run]

    def take(self, view: QueueView) -> set[str]:
        """The queues as an event has them; returns the runs that are new, gone, or changed."""
        self.total = view.waiting_total
        self._head = view.waiting
        if len(view.waiting) >= self.total:
            self._pages.clear()
        return self._arrange()

    async def load(self, client: ControllerClient) -> set[str]:
        """The next page that is not known yet, or one of the known ones anew; returns the runs that changed."""
        known = len(self._head) + sum(len(page) for page in self._pages)
        if known < self.total:
            view = await client.queue(offset=known, limit=PAGE)
            self._pages.append(view.waiting)
            if not view.waiting:  # fewer wait than was said
                self.total = known
        elif self._pages:
            self._turn = (self._turn + 1) % len(self._pages)
            offset = len(self._head) + sum(len(page) for page in self._pages[: self._turn])
            view = await client.queue(offset=offset, limit=max(1, len(self._pages[self._turn])))
            self._pages[self._turn] = view.waiting
        self._pages = [page for page in self._pages if page]
        return self._arrange()

    def _arrange(self) -> set[str]:
        before, rows = self._rows, {one.run: one for one in self._head}
        for page in self._pages:
            for one in page:
                rows.setdefault(one.run, one)
        self._rows = rows
        changed = {run for run, one in rows.items() if before.get(run) is not one and before.get(run) != one}
        return changed | (before.keys() - rows.keys())
