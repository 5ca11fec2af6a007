"""Values as JSON has them, and every text of them without what looks like a secret. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, cast

from pydantic import BaseModel

from console.render.redact import redact
from console.render.safe import glyph

_PROBE = "Zx9Qw8Er7Ty6"
"""A value that is nobody's secret: a name under which it is painted over is the name of one."""
_BEGIN = re.compile(r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----")
_END = re.compile(r"-----END [A-Z ]{0,30}PRIVATE KEY-----")


def plain(value: Any) -> Any:
    """Dataclasses, models, enumerations and tuples as JSON values."""
    if value is None or (isinstance(value, (bool, int, float, str)) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in fields(value)}
    if isinstance(value, Mapping):
        known = cast("Mapping[Any, Any]", value)
        return {str(plain(name)): plain(each) for name, each in known.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        named = cast("Any", value)
        return plain(named._asdict())
    if isinstance(value, (list, tuple, set, frozenset)):
        many = cast("list[Any]", sorted(value, key=str) if isinstance(value, (set, frozenset)) else value)
        return [plain(each) for each in many]
    return str(value)


def paint(value: Any, name: str = "") -> Any:
    """A JSON value with its secrets painted over: what a text holds, and whatever stands under a secret's name."""
    if isinstance(value, str):
        if name and value and _secret(name):
            return redact_value(value)
        return paint_lines(value) if "\n" in value else redact(value)
    if isinstance(value, dict):
        return {redact(str(key)): paint(each, str(key)) for key, each in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [paint(each, name) for each in cast("list[Any]", value)]
    return value


def redact_value(value: str) -> str:
    """A value that is a secret as a whole; a reference to one stays, and so does what says that there is none."""
    quiet = redact(f"token={value}") == f"token={value}"
    reference = re.fullmatch(r"\$\{(?:env|file):[^}]*\}", value) is not None
    return value if quiet or reference else glyph("•••", "***")


def _secret(name: str) -> bool:
    return _PROBE not in redact(f"{name}={_PROBE}")


def paint_lines(text: str) -> str:
    """A text line by line; of a private key all lines."""
    out: list[str] = []
    inside = False
    for line in text.split("\n"):
        if inside and not _END.search(line):
            out.append(glyph("•••", "***"))
            continue
        if inside:
            inside = False
            out.append(line[line.index("-----END") :])
            continue
        begin = _BEGIN.search(line)
        inside = begin is not None and _END.search(line) is None
        out.append(redact(line))
    return "\n".join(out)
