"""The small values that operators write in files: durations, priorities, references, command lines, port ranges.

Each parser raises `ValueError` with a sentence for the person who wrote the file; none of them repeats a secret.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from collections.abc import Callable, Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_core import PydanticCustomError

PRIORITIES = {"low": -100, "normal": 0, "high": 100}
"""The words for a priority, and where they stand among numbers. A higher one goes first."""
PRIORITY_LIMIT = 1000

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(?:[0-9]{1,9}(?:\.[0-9]{1,9})?(?:ms|[smhdw]))+")
_DURATION_PART = re.compile(r"([0-9.]+)(ms|[smhdw])")
LONGEST_SECONDS = 366 * 86400.0

REFERENCE = re.compile(r"\$\{(env|file):([^{}$\s]+)\}")
"""``${env:NAME}`` or ``${file:PATH}``: resolved on the node at start, never stored."""
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_SECRET_WORDS = ("SECRET", "PASSWORD", "PASSWD", "CREDENTIAL")
_SECRET_ENDINGS = ("TOKEN", "TOKENS", "KEY", "KEYS")
_SECRET_PLACES = ("FILE", "PATH", "DIR")
_SECRET_SHAPES = re.compile(
    r"://[^/@\s:]*:[^/@\s]+@"  # a password inside an address
    r"|\b(?:hf_|sk-|ghp_|gho_|glpat-|xox[abpr]-)[A-Za-z0-9_-]{16,}"
    r"|\bAKIA[A-Z0-9]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY"
)
_HARMLESS = re.compile(r"|true|false|none|[+-]?[0-9]+(?:\.[0-9]+)?", re.IGNORECASE)


def seconds(value: object) -> float:
    """``"10m"``, ``"1h30m"``, ``"45s"`` or a number of seconds, as seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be a duration such as 45s, 10m or 1h30m")
    if isinstance(value, str):
        text = value.strip().replace(" ", "")
        if re.fullmatch(r"[0-9]{1,9}(?:\.[0-9]{1,9})?", text):
            total = float(text)
        elif _DURATION.fullmatch(text):
            total = sum(float(number) * _UNITS[unit] for number, unit in _DURATION_PART.findall(text))
        else:
            raise ValueError("must be a duration such as 45s, 10m or 1h30m")
    else:
        total = float(value)
    if not 0 < total <= LONGEST_SECONDS:
        raise ValueError("must be longer than nothing and at most a year (366d)")
    return total


def priority_text(value: object) -> str:
    """A priority as it is kept: ``low``, ``normal``, ``high`` or a whole number in text."""
    text = str(value).strip().lower() if isinstance(value, int | str) and not isinstance(value, bool) else ""
    if text in PRIORITIES:
        return text
    if re.fullmatch(r"[+-]?[0-9]{1,6}", text) and abs(int(text)) <= PRIORITY_LIMIT:
        return str(int(text))
    raise ValueError(f"must be low, normal, high or a whole number from -{PRIORITY_LIMIT} to {PRIORITY_LIMIT}")


def priority_value(text: str) -> int:
    """Where a priority stands; a higher one goes first. Raises `ValueError` for anything `priority_text` refuses."""
    known = priority_text(text)
    return PRIORITIES.get(known, 0) if known in PRIORITIES else int(known)


def command(value: object) -> list[str]:
    """A command line, or a list of arguments, as a list of arguments. No shell ever reads it."""
    if isinstance(value, str):
        try:
            return shlex.split(value)
        except ValueError as error:
            raise ValueError("has a quote that is never closed") from error
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return list(value)
    raise ValueError('must be a command line such as "train.py --epochs 3", or a list of texts')


def pool(value: object) -> dict[str, str]:
    """Node labels that a gang needs; a bare word stands for the label ``pool``."""
    if isinstance(value, str):
        return {"pool": value} if value else {}
    if isinstance(value, dict):
        return value  # its own entries are checked one by one afterwards
    raise ValueError("must be a pool's name, or labels such as {pool: training}")


def ports(value: object) -> str:
    """A port, or a range of ports ``"a-b"``, as text."""
    match = None
    if isinstance(value, int | str) and not isinstance(value, bool):
        match = re.fullmatch(r"([0-9]{1,6})(?:-([0-9]{1,6}))?", str(value).replace(" ", ""))
    if match is None:
        raise ValueError("must be a port such as 6379, or a range of them such as 10001-10100")
    first, last = int(match[1]), int(match[2] or match[1])
    if not (1 <= first <= 65535 and 1 <= last <= 65535):
        raise ValueError("is outside the ports there are, 1 to 65535")
    if first > last:
        raise ValueError(f"runs backwards; write {last}-{first}")
    return str(first) if first == last else f"{first}-{last}"


def reference_fault(text: str) -> str:
    """What is wrong with the ``${…}`` in a text; empty if all of them are references that raydeck resolves."""
    if "${" not in REFERENCE.sub(lambda found: "" if _form(found[1], found[2]) else found[0], text):
        return ""
    return "has a ${…} that raydeck does not resolve; only ${env:NAME} and ${file:/ABSOLUTE/PATH} are"


def _form(kind: str, target: str) -> bool:
    return _ENV_NAME.fullmatch(target) is not None if kind == "env" else target.startswith(("/", "~/"))


def is_plaintext_secret(name: str, value: str) -> bool:
    """Whether an environment variable seems to carry a secret itself, and not a reference to one."""
    if REFERENCE.search(value):
        return False
    if _SECRET_SHAPES.search(value):
        return True
    parts = re.split(r"[^A-Z0-9]+", name.upper())
    if parts[-1] in _SECRET_PLACES or not value:
        return False
    if any(word in part for part in parts for word in _SECRET_WORDS):
        return True
    return any(part.endswith(_SECRET_ENDINGS) for part in parts) and _HARMLESS.fullmatch(value) is None


def _stated(parse: Callable[[object], Any], known: Iterable[str] = ()) -> Callable[[object], Any]:
    """The parser, with its sentence handed to pydantic as it is, and the words that may have been meant."""

    def run(value: object) -> Any:
        try:
            return parse(value)
        except ValueError as error:
            context = {"sentence": str(error), "known": list(known)}
            raise PydanticCustomError("stated", "{sentence}", context) from error

    return run


def stated(sentence: str) -> PydanticCustomError:
    """A mistake whose words are shown to the person as they are."""
    return PydanticCustomError("stated", "{sentence}", {"sentence": sentence})


def _written(value: object) -> object:
    if isinstance(value, int | float) and not isinstance(value, bool):
        raise PydanticCustomError("written", "must be text; put it in quotes")
    return value


def _well_formed(text: str) -> str:
    fault = reference_fault(text)
    if fault:
        raise stated(fault)
    return text


def unreferenced_fault(text: str) -> str:
    """What is wrong with a text outside ``env``, where nothing resolves references; empty if it has none."""
    if "${" not in text:
        return ""
    return reference_fault(text) or "has a reference, and references are resolved in env only"


def _unreferenced(text: str) -> str:
    fault = unreferenced_fault(text)
    if fault:
        raise stated(fault)
    return text


Text = Annotated[str, Field(max_length=4096), AfterValidator(_unreferenced)]
EnvValue = Annotated[str, Field(max_length=32768), AfterValidator(_well_formed), BeforeValidator(_written)]
"""Text in which every ``${…}`` is a reference that is resolved on the node."""
Written = Annotated[Text, BeforeValidator(_written)]
"""Text, where a bare number in the file is taken exactly as it stands there: ``1.10`` stays ``1.10``."""
Seconds = Annotated[float, BeforeValidator(_stated(seconds))]
"""A duration: ``10m``, ``1h30m``, ``45s``, or a number of seconds; kept in seconds."""
Priority = Annotated[str, BeforeValidator(_stated(priority_text, PRIORITIES))]
Command = Annotated[list[Text], Field(max_length=1000), BeforeValidator(_stated(command))]
Ports = Annotated[str, BeforeValidator(_stated(ports))]


def _folder(text: str) -> str:
    if "://" in text:
        raise stated("must be a folder that every node mounts, not an address")
    if ".." in text.split("/"):
        raise stated("must not climb out of its folder with ..")
    return text


def _absolute(text: str) -> str:
    if text and not text.startswith("/"):
        raise stated("must be an absolute path")
    return text


def _shipped(text: str) -> str:
    if text.startswith(("/", "~")):
        raise stated("must be relative to this file's folder, such as . or src")
    return text


def _network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise stated("must be a network such as 10.0.0.0/24") from None
    return text


def _address(text: str) -> str:
    if text and not re.fullmatch(r"https?://[^\s/@?#]+(?:/[^\s@?#]*)?", text):
        raise stated("must be an address such as http://127.0.0.1:8265, without user or password")
    return text.rstrip("/")


Folder = Annotated[Text, AfterValidator(_folder)]
"""A folder on storage that every node mounts; it may be relative to one that the cluster file names."""
AbsolutePath = Annotated[Text, AfterValidator(_folder), AfterValidator(_absolute)]
ShippedFolder = Annotated[Text, AfterValidator(_shipped)]
NetworkText = Annotated[str, AfterValidator(_network)]
Address = Annotated[str, AfterValidator(_address)]
_NAME = r"^[A-Za-z0-9](?:[A-Za-z0-9-]{0,38}[A-Za-z0-9])?$"
_QUEUE = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$"
_HOST = r"^[A-Za-z0-9_][A-Za-z0-9._:-]{0,252}$"
_VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
_LOGIN = r"^@?[A-Za-z0-9_][A-Za-z0-9._-]{0,63}\$?$"
_LABEL = r"^[A-Za-z0-9]?[A-Za-z0-9._/-]{0,252}$"
PATTERNS = {
    _NAME: "may have letters, digits and dashes, at most 40 in all, and no dash at either end",
    _QUEUE: "may have letters, digits, dots, dashes and underscores, at most 63 in all",
    _HOST: "is no host name or address",
    _VARIABLE: "is no name for an environment variable (letters, digits and underscores)",
    _LOGIN: "is no user name, and no group as @group",
    _LABEL: "is no label (letters, digits, dots, dashes, underscores and slashes)",
}
"""What each pattern means, to be read after the name of a field."""

Name = Annotated[str, Field(pattern=_NAME)]
"""It becomes part of ids, folders and Ray's job names."""
QueueName = Annotated[str, Field(pattern=_QUEUE)]
Host = Annotated[str, Field(pattern=_HOST)]
VariableName = Annotated[str, Field(pattern=_VARIABLE)]
Login = Annotated[str, Field(pattern=_LOGIN)]
"""A user of the operating system, or a group of it as ``@group``."""
Count = Annotated[int, Field(ge=1, le=1_000_000)]
CountOrNone = Annotated[int, Field(ge=0, le=1_000_000)]
Label = Annotated[Written, Field(pattern=_LABEL)]
Pool = Annotated[dict[str, Label], BeforeValidator(_stated(pool))]
