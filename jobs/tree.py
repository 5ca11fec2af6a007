"""A YAML text as nodes that know where they stand. Bounded in size, depth and aliases before anything is built.

Scalars are read as YAML 1.2 reads them (``1e-3`` is a number). What other readers read differently (``no``, ``017``) is
a mistake instead of a guess.
"""

from __future__ import annotations

import bisect
import math
import re
from collections.abc import Container
from dataclasses import dataclass, field
from typing import Any

import yaml

from jobs.wire import Mistake

MAX_BYTES = 1_000_000
MAX_DEPTH = 40
MAX_NODES = 20_000
"""Counted with every alias followed, so that a few lines cannot stand for millions of values."""
MAX_MISTAKES = 100

_LOADER: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
_BREAK = re.compile(r"\r\n|\n|\r")
_UNPRINTABLE = re.compile("[^\t\n\r\x20-\x7e\x85\xa0-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]")

_NULL = re.compile(r"|~|null|Null|NULL")
_TRUE = re.compile(r"true|True|TRUE")
_FALSE = re.compile(r"false|False|FALSE")
_AMBIGUOUS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_BASE = re.compile(r"0x[0-9a-fA-F]+|0o[0-7]+")
_OCTAL = re.compile(r"[-+]?0[0-9_]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9][0-9_]*(?:\.[0-9_]*)?)(?:[eE][-+]?[0-9]+)?")
_NO_NUMBER = re.compile(r"[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)")
_MAX_DIGITS = 40


@dataclass(slots=True, eq=False)
class Node:
    """One value in the file."""

    at: int
    """Offset of its first character."""
    text: str | None = None
    """A scalar as it is written."""
    plain: bool = False
    """A scalar without quotes: its text may stand for a number, true, false or nothing."""
    fields: dict[str, tuple[Node, Node]] | None = None
    """A mapping: its keys' texts to each key and its value, in the order of the file."""
    items: list[Node] | None = None
    weight: int = 1
    """Values from here down, aliases followed."""
    complete: bool = True
    height: int = 1
    """Levels from here down, this one included."""
    key: Node | None = field(default=None, repr=False)
    """While a mapping is being read: the key whose value comes next."""

    @property
    def is_null(self) -> bool:
        """Nothing stands here, or a bare null."""
        return self.plain and self.text is not None and _NULL.fullmatch(self.text) is not None

    def get(self, key: str) -> Node | None:
        """The value under a key of a mapping."""
        found = self.fields.get(key) if self.fields else None
        return found[1] if found else None

    def without(self, keys: Container[str]) -> Node:
        """The same mapping, some keys left out."""
        fields = {name: pair for name, pair in (self.fields or {}).items() if name not in keys}
        return Node(self.at, fields=fields)


class Source:
    """A file's text, and where its lines begin; collects the mistakes found in it."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.mistakes: list[Mistake] = []
        self._marked: set[int] = set()
        self._known: set[tuple[int, str]] = set()
        self._starts = [0, *(found.end() for found in _BREAK.finditer(text))]

    def mistake(self, at: int, message: str, suggestion: str = "") -> None:
        """Notes what is wrong at an offset; the same words at the same place count once."""
        at = min(max(at, 0), len(self.text))
        if self.full or (at, message) in self._known:
            return
        self._marked.add(at)
        self._known.add((at, message))
        line = bisect.bisect_right(self._starts, at)
        column = at - self._starts[line - 1] + 1
        self.mistakes.append(Mistake(file=self.file, line=line, column=column, message=message, suggestion=suggestion))

    @property
    def full(self) -> bool:
        """Enough is wrong: no more is noted."""
        return len(self.mistakes) >= MAX_MISTAKES

    def marked(self, at: int) -> bool:
        """Whether a mistake stands at this offset already."""
        return at in self._marked


class Unreadable(Exception):
    """The text is not read any further; why stands among the source's mistakes."""

    def __init__(self, source: Source) -> None:
        super().__init__(source.file)
        self.source = source


def source(content: str | bytes, file: str) -> Source:
    """The content as text with positions. Raises `Unreadable` for what is too large or no text."""
    size = len(content) if isinstance(content, bytes) else len(content.encode("utf-8", "surrogatepass"))
    if size > MAX_BYTES:
        empty = Source("", file)
        empty.mistake(0, f"the file has {size:,} bytes; at most {MAX_BYTES:,} are read")
        raise Unreadable(empty)
    if isinstance(content, bytes):
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            good = Source(content[: error.start].decode("utf-8-sig", "replace"), file)
            good.mistake(len(good.text), "the file is not UTF-8 text from here on")
            raise Unreadable(good) from error
    else:
        text = content.removeprefix("\ufeff")
    read = Source(text, file)
    strange = _UNPRINTABLE.search(text)
    if strange:
        read.mistake(strange.start(), f"a character that has no place in a text file: U+{ord(strange[0]):04X}")
        raise Unreadable(read)
    return read


def parse(read: Source) -> Node | None:
    """The tree of the file's one document, or None for an empty one. Raises `Unreadable` for broken YAML."""
    root: Node | None = None
    stack: list[Node] = []
    anchors: dict[str, Node] = {}
    documents = 0
    loader = _LOADER(read.text)
    try:
        while loader.check_event():
            event = loader.get_event()
            at: int = event.start_mark.index if event.start_mark else 0
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    read.mistake(at, "a second document begins here; a file holds one")
                    raise Unreadable(read)
                continue
            if isinstance(event, yaml.CollectionEndEvent):
                closed = stack.pop()
                closed.complete = True
                if stack:
                    _weigh(read, stack[-1], closed)
                continue
            node = _node(read, event, at, anchors)
            if node is None:
                continue
            if not stack:
                root = node
            else:
                _attach(read, stack[-1], node)
                if node.complete:
                    _weigh(read, stack[-1], node)
            if not node.complete:
                stack.append(node)
            if len(stack) + node.height > MAX_DEPTH:
                read.mistake(at, f"more than {MAX_DEPTH} levels deep")
                raise Unreadable(read)
    except yaml.MarkedYAMLError as error:
        at, sentence = _complaint(read.text, error)
        read.mistake(at, sentence)
        raise Unreadable(read) from error
    except yaml.YAMLError as error:
        read.mistake(0, "the text cannot be read as YAML")
        raise Unreadable(read) from error
    finally:
        loader.dispose()
    return root


def _node(read: Source, event: Any, at: int, anchors: dict[str, Node]) -> Node | None:
    """The node that an event begins; an alias gives the node that it stands for."""
    if isinstance(event, yaml.AliasEvent):
        target = anchors.get(event.anchor or "")
        if target is None or not target.complete:
            why = "stands for something that contains it" if target else "stands for nothing named before it"
            read.mistake(at, f"*{event.anchor} {why}")
            raise Unreadable(read)
        return target
    if not isinstance(event, yaml.NodeEvent):
        return None
    if isinstance(event, yaml.ScalarEvent):
        node = Node(at, text=event.value, plain=event.style is None or event.style == "")
    elif isinstance(event, yaml.MappingStartEvent):
        node = Node(at, fields={}, complete=False)
    else:
        node = Node(at, items=[], complete=False)
    tag = getattr(event, "tag", None)
    if tag not in (None, "!"):
        read.mistake(at, "tags (such as !!str or !name) are not read here; write the plain value")
    if event.anchor:
        anchors[event.anchor] = node
    return node


def _attach(read: Source, parent: Node, node: Node) -> None:
    if parent.items is not None:
        parent.items.append(node)
        return
    assert parent.fields is not None
    if parent.key is None:
        parent.key = node
        return
    key, parent.key = parent.key, None
    if key.text is None:
        read.mistake(key.at, "a key must be a plain word")
    elif key.text == "<<" and key.plain:
        read.mistake(key.at, "merge keys (<<) are not read here; say it in full, or use overlays")
    elif key.text in parent.fields:
        read.mistake(key.at, f"{short(key.text)} stands here a second time")
    else:
        parent.fields[key.text] = (key, node)


def _weigh(read: Source, parent: Node, child: Node) -> None:
    parent.weight += child.weight
    parent.height = max(parent.height, child.height + 1)
    if parent.weight > MAX_NODES:
        read.mistake(child.at, f"the file stands for more than {MAX_NODES:,} values")
        raise Unreadable(read)


def short(text: str) -> str:
    """A name as it may be shown in a sentence."""
    line = " ".join(text.split())
    return repr(line if len(line) <= 40 else f"{line[:39]}…")


def _complaint(text: str, error: yaml.MarkedYAMLError) -> tuple[int, str]:
    """A parser's complaint: where it stands, and in plain words."""
    problem, mark, opened = str(error.problem or error.context or ""), error.problem_mark, error.context_mark
    unclosed = any(sign in problem for sign in _UNCLOSED)
    if unclosed and opened is not None and (mark is None or mark.line != opened.line):
        mark = opened  # a person looks for it where it was opened, not where the text ran out
    mark = mark or opened
    at = mark.index if mark else 0
    return at, _syntax(text, at, problem)


_UNCLOSED = ("',' or ']'", "',' or '}'", "unexpected end of stream")


def _syntax(text: str, at: int, problem: str) -> str:
    line = text[text.rfind("\n", 0, at) + 1 : at + 1]
    if "\t" in line and not line.strip():
        return "a tab indents this line; YAML wants spaces"
    if line[:-1].strip() and any(sign in problem for sign in ("expected key", "<block end>")):
        return "something follows the end of a value here; a quote may be missing, on this line or above it"
    for sign, sentence in _COMPLAINTS:
        if sign in problem:
            return sentence
    return f"this is no YAML: {problem}" if problem else "this is no YAML"


_COMPLAINTS = (
    ("mapping values are not allowed", "a colon is one too many here; a value with a colon in it needs quotes"),
    ("could not find expected ':'", "a key without its colon, or a value that is not indented enough"),
    ("did not find expected key", "this line is not indented like the ones around it"),
    ("expected <block end>", "this line is not indented like the ones around it"),
    ("did not find expected '-'", "this line is not indented like the entries of the list above it"),
    ("did not find expected ',' or ']'", "a list that is opened with [ is not closed, or a comma is missing in it"),
    ("expected ',' or ']'", "a list that is opened with [ is not closed, or a comma is missing in it"),
    ("did not find expected ',' or '}'", "a mapping that is opened with { is not closed, or a comma is missing in it"),
    ("expected ',' or '}'", "a mapping that is opened with { is not closed, or a comma is missing in it"),
    ("unexpected end of stream", "a quote that is opened here is never closed"),
    ("cannot start any token", "this character cannot begin a value; put the value in quotes"),
    ("undefined tag handle", "tags (such as !!str or !name) are not read here; write the plain value"),
    ("unknown escape character", "an escape in double quotes that YAML does not know; use single quotes"),
    ("block sequence entries are not allowed", "a list cannot begin here; put each - on a line of its own"),
)


def value(read: Source, node: Node) -> Any:
    """What a node says, as plain Python: text, int, float, bool, None, dict or list.

    What cannot be said for sure is noted as a mistake at the node, and None stands in its place.
    """
    if node.fields is not None:
        return {name: value(read, child) for name, (_, child) in node.fields.items()}
    if node.items is not None:
        return [value(read, child) for child in node.items]
    text = node.text or ""
    if not node.plain:
        return text
    if _NULL.fullmatch(text):
        return None
    if _TRUE.fullmatch(text):
        return True
    if _FALSE.fullmatch(text):
        return False
    if text.lower() in _AMBIGUOUS:
        meant = _AMBIGUOUS[text.lower()]
        read.mistake(
            node.at,
            f'{text} is {meant} to some readers of YAML and text to others; say {meant}, or "{text}" for the text',
            meant,
        )
        return None
    return _number(read, node, text)


def is_number(node: Node) -> bool:
    """Whether a plain scalar looks like a number to some reader of YAML."""
    text = node.text or ""
    return node.plain and any(form.fullmatch(text) for form in (_INT, _BASE, _OCTAL, _FLOAT, _NO_NUMBER))


def bare(node: Node) -> Node:
    """A scalar in quotes as it would be without them."""
    return Node(node.at, text=node.text, plain=True)


def _number(read: Source, node: Node, text: str) -> Any:
    """A plain scalar as a number if it is one; else the text."""
    if _OCTAL.fullmatch(text):
        read.mistake(
            node.at,
            f"{short(text)} begins with a 0: some readers of YAML count it in eights; drop the 0, or put it in quotes",
        )
        return None
    if _NO_NUMBER.fullmatch(text):
        read.mistake(node.at, f"{text} is no number that can be used here")
        return None
    whole = _INT.fullmatch(text) is not None
    if not (whole or _BASE.fullmatch(text) or _FLOAT.fullmatch(text)):
        return text
    if len(text) > _MAX_DIGITS:
        read.mistake(node.at, "a number with so many digits is not read; put it in quotes if it is a name")
        return None
    if whole or _BASE.fullmatch(text):
        return int(text.replace("_", ""), 0)
    number = float(text.replace("_", ""))
    if not math.isfinite(number):
        read.mistake(node.at, f"{text} is larger than any number that can be used here")
        return None
    return number
