"""What a table says of itself. Handlers are named after the table: ``on_virtual_table_highlighted`` and so on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from textual.message import Message

if TYPE_CHECKING:
    from console.widgets.keyed import KeyedView


class _OfTable(Message):
    """A fact about one table."""

    def __init__(self, table: KeyedView[Any]) -> None:
        self.table = table
        super().__init__()

    @property
    def control(self) -> KeyedView[Any]:
        """The table that says so; lets handlers choose it with a selector."""
        return self.table


class Highlighted(_OfTable, namespace="virtual_table"):
    """The cursor stands on another key. A newer one replaces an older one that waits."""

    def __init__(self, table: KeyedView[Any], key: str) -> None:
        self.key = key
        super().__init__(table)

    def can_replace(self, message: Message) -> bool:
        """See `Message.can_replace`."""
        return isinstance(message, Highlighted) and message.table is self.table


class Opened(_OfTable, namespace="virtual_table"):
    """Enter was pressed on a row, or it was clicked twice."""

    def __init__(self, table: KeyedView[Any], key: str) -> None:
        self.key = key
        super().__init__(table)


class Marked(_OfTable, namespace="virtual_table"):
    """The marks changed."""

    def __init__(self, table: KeyedView[Any], keys: frozenset[str]) -> None:
        self.keys = keys
        super().__init__(table)


class Arranged(_OfTable, namespace="virtual_table"):
    """Other rows are shown, or in another order: a filter or a sort has come through."""

    def __init__(self, table: KeyedView[Any], visible: int, total: int) -> None:
        self.visible = visible
        self.total = total
        super().__init__(table)

    def can_replace(self, message: Message) -> bool:
        """See `Message.can_replace`."""
        return isinstance(message, Arranged) and message.table is self.table
