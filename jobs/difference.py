"""What is different between two JSON values, as a small JSON value of its own; and the newer one made from it again.

A run of 512 ranks is told anew each second, and two figures of it are others: that is all that a recording has to keep.
A difference is a list: ``[0, value]`` stands in place of the old one, ``[1, changed, gone]`` changes an object by key,
``[2, parts]`` makes a list of parts of the old one: ``[from, count]`` as they were, ``[at, difference, 0]`` changed,
``[value]`` new.
"""

from __future__ import annotations

from typing import Any, cast

Difference = list[Any]

KEYS = ("id", "run", "name", "rank", "number", "index", "path", "user")
"""What the members of a list are known by, the first that all of them have."""


def difference(old: Any, new: Any) -> Difference | None:
    """What turns ``old`` into ``new``; None where they are the same."""
    if old == new:
        return None
    if isinstance(old, dict) and isinstance(new, dict):
        return _of_objects(cast("dict[str, Any]", old), cast("dict[str, Any]", new))
    if isinstance(old, list) and isinstance(new, list):
        return _of_lists(cast("list[Any]", old), cast("list[Any]", new))
    return [0, new]


def _of_objects(old: dict[str, Any], new: dict[str, Any]) -> Difference:
    changed: dict[str, Difference] = {}
    for key, value in new.items():
        if key not in old:
            changed[key] = [0, value]
        elif (found := difference(old[key], value)) is not None:
            changed[key] = found
    return [1, changed, [str(key) for key in old if key not in new]]


def _of_lists(old: list[Any], new: list[Any]) -> Difference:
    known_by = _known_by(old, new)
    if known_by is None:
        return [0, new]
    places = {member[known_by]: at for at, member in enumerate(old)}
    parts: list[list[Any]] = []
    for member in new:
        at = places.get(member[known_by])
        if at is None:
            parts.append([member])
            continue
        found = difference(old[at], member)
        if found is not None:
            parts.append([at, found, 0])
        elif parts and len(parts[-1]) == 2 and sum(parts[-1]) == at:
            parts[-1][1] += 1
        else:
            parts.append([at, 1])
    return [2, parts]


def _known_by(old: list[Any], new: list[Any]) -> str | None:
    """By which key the members of both lists can be told apart; None if there is none."""
    if not old or not new:
        return None
    for key in KEYS:
        if all(_names(members, key) for members in (old, new)):
            return key
    return None


def _names(members: list[Any], key: str) -> bool:
    names: set[Any] = set()
    for member in members:
        name = cast("dict[str, Any]", member).get(key) if isinstance(member, dict) else None
        if not isinstance(name, (str, int)) or name in names:
            return False
        names.add(name)
    return True


def patched(old: Any, change: Any) -> Any:
    """The newer value; ``old`` stays as it is.

    Raises `ValueError`, `TypeError`, `LookupError` or `RecursionError` for what is no difference of such a value.
    """
    kind = change[0]
    if kind == 0:
        return change[1]
    if kind == 1:
        gone = set(change[2])
        kept = {key: value for key, value in dict(old).items() if key not in gone}
        for key, each in change[1].items():
            kept[key] = patched(kept.get(key), each)
        return kept
    if kind != 2 or not isinstance(old, list):
        raise ValueError("no difference of a list")
    before = cast("list[Any]", old)
    out: list[Any] = []
    for part in change[1]:
        if len(part) == 1:
            out.append(part[0])
        elif len(part) == 2:
            start, count = part
            if not 0 <= start <= start + count <= len(before):
                raise ValueError("a part of a list that is not there")
            out += before[start : start + count]
        else:
            out.append(patched(before[part[0]], part[1]))
    return out
