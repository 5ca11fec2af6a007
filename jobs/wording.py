"""What is wrong with a value in a file, in plain words. Pure; no value is repeated, since it may be a secret."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from typing import Any

from jobs import tree
from jobs.spec import Place
from jobs.tree import Node
from jobs.values import PATTERNS

_SHORTEST = 3
"""Letters of a word that another one may begin with."""
_EXPECTED = {
    "string_type": "text",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "list_type": "a list (lines that begin with -)",
    "dict_type": "a mapping (lines of key: value)",
    "model_type": "a mapping (lines of key: value)",
    "model_attributes_type": "a mapping (lines of key: value)",
}


def words(error: str, context: dict[str, Any], node: Node) -> str:
    """What is wrong with a value, to be read after its name."""
    if node.is_null and error != "stated":
        return "has no value; write one, or leave the line out"
    if error == "stated":
        return str(context.get("sentence", ""))
    if error in _EXPECTED:
        quotes = "; put it in quotes" if error == "string_type" and node.plain else ""
        return f"must be {_EXPECTED[error]}, not {_what(node)}{quotes}"
    if error == "literal_error":
        return f"must be one of {str(context.get('expected', '')).replace(chr(39), '')}"
    if error == "string_pattern_mismatch":
        return PATTERNS.get(str(context.get("pattern", "")), "has a form that is not allowed here")
    if error in _BOUNDS:
        bounds = {name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in context.items()}
        return _BOUNDS[error].format(**bounds)
    return str(context.get("error", "")) or "is not allowed here"


_BOUNDS = {
    "greater_than_equal": "must be at least {ge}",
    "greater_than": "must be more than {gt}",
    "less_than_equal": "must be at most {le}",
    "less_than": "must be less than {lt}",
    "string_too_long": "is too long; at most {max_length} characters",
    "too_long": "has too many entries; at most {max_length}",
    "too_short": "needs at least {min_length} of them",
}


def _what(node: Node) -> str:
    if node.fields is not None:
        return "a mapping"
    if node.items is not None:
        return "a list"
    if not node.plain:
        return "text in quotes"
    text = (node.text or "").lower()
    if text in ("true", "false"):
        return text
    if not tree.is_number(node):
        return "text"
    if "." in text:
        return "a number with a fraction"
    return "a number with an exponent" if "e" in text and not text.startswith("0x") else "a number"


def place_name(place: Place) -> str:
    """A place as a person writes it: ``scheduler.queues[2].name``."""
    return "".join(f"[{step + 1}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")


def nearest(word: str, known: Iterable[str]) -> str:
    """The known word that an unknown one may have been meant for; empty if none is near."""
    word, among = word.lower(), list(known)
    found = difflib.get_close_matches(word, among, n=1, cutoff=0.6)
    if not found and len(word) >= _SHORTEST:
        longer = [each for each in among if len(each) >= _SHORTEST and (word.startswith(each) or each.startswith(word))]
        found = longer if len(longer) == 1 else []
    return found[0] if found else ""


def meant(error: str, context: dict[str, Any], node: Node) -> str:
    """What a wrong value may have been meant for; empty where there is no telling."""
    if error == "literal_error":
        return nearest(node.text or "", re.findall(r"'([^']*)'", str(context.get("expected", ""))))
    if error == "stated":
        return nearest(node.text or "", context.get("known", ()))
    if error in ("int_type", "float_type") and node.text and not node.plain and tree.is_number(tree.bare(node)):
        return node.text
    return ""
