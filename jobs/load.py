"""Reads workflow and cluster files, and says of every mistake where it stands and what may have been meant.

It reads text that it is given; it opens no file and follows no reference to a secret.
"""

from __future__ import annotations

import difflib
import typing
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from jobs import spec, tree
from jobs.errors import Refused
from jobs.spec import Cluster, Place, Section, Workflow
from jobs.tree import Node, Source, Unreadable
from jobs.values import PATTERNS
from jobs.wire import Mistake

_Spec = TypeVar("_Spec", bound=Section)

_FIXED = ("name", "overlays")
"""Keys of a workflow that no overlay may hold."""

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


class FileMistakes(Refused):
    """A file that is not taken, with everything that is wrong in it, in the order of its lines."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = sorted(mistakes, key=lambda mistake: (mistake.line, mistake.column))
        first = self.mistakes[0]
        count = len(self.mistakes)
        meant = f" (did you mean {first.suggestion}?)" if first.suggestion else ""
        more = f", and {count - 1} more" if count > 1 else ""
        super().__init__(f"{first.file}:{first.line}:{first.column}: {first.message}{meant}{more}")


def load_workflow(text: str | bytes, file: str, overlay: str = "") -> Workflow:
    """The workflow that a file describes, with an overlay (``dev``, ``test``, ``prod``) laid over it if one is named.

    Raises `FileMistakes` with everything that is wrong, in the overlays that are not asked for too.
    """
    read, body = _open(text, file, "workflow")
    overlays = _overlays(read, body)
    body = body.without(("overlays",))
    results = {"": _read(read, body, Workflow)}
    for name, over in overlays.items():
        results[name] = _read(read, _merged(body, over), Workflow)
    if overlay not in results and not read.mistakes:
        near = _nearest(overlay, overlays)
        read.mistake(body.at, f"there is no overlay {tree.short(overlay)} in this file", near)
    return _result(read, results.get(overlay))


def load_cluster(text: str | bytes, file: str) -> Cluster:
    """The cluster that a file describes. Raises `FileMistakes`."""
    read, body = _open(text, file, "cluster")
    return _result(read, _read(read, body, Cluster))


def check(text: str | bytes, file: str) -> Workflow | Cluster:
    """Loads either kind of file, told by its top key. Raises `FileMistakes`."""
    read, root = _document(text, file)
    if root is not None and root.get("cluster") is not None:
        return load_cluster(text, file)
    if root is not None and root.get("workflow") is not None:
        return load_workflow(text, file)
    key = next(iter(root.fields.values()))[0] if root is not None and root.fields else None
    if key is None:
        read.mistake(0, "the file must begin with workflow: or cluster:")
    else:
        near = _nearest(key.text or "", ("workflow", "cluster"))
        read.mistake(key.at, f"{tree.short(key.text or '')} is neither workflow nor cluster", near)
    raise FileMistakes(read.mistakes)


def _document(text: str | bytes, file: str) -> tuple[Source, Node | None]:
    try:
        read = tree.source(text, file)
        return read, tree.parse(read)
    except Unreadable as error:
        raise FileMistakes(error.source.mistakes) from error


def _open(text: str | bytes, file: str, kind: str) -> tuple[Source, Node]:
    """The mapping under the file's top key. Mistakes beside it are noted, the lack of it is raised."""
    read, root = _document(text, file)
    if root is None or root.fields is None:
        read.mistake(root.at if root else 0, f"the file must begin with {kind}:")
        raise FileMistakes(read.mistakes)
    other = "cluster" if kind == "workflow" else "workflow"
    body: Node | None = None
    for key, child in root.fields.values():
        if key.text == kind:
            body = child
        elif key.text == other:
            read.mistake(key.at, f"this is a {other} file, not a {kind} file")
        else:
            near = _nearest(key.text or "", (kind,))
            read.mistake(key.at, f"unknown key {tree.short(key.text or '')}; the file holds {kind}: alone", near)
    if body is None:
        if not read.mistakes:
            read.mistake(root.at, f"the file must begin with {kind}:")
        raise FileMistakes(read.mistakes)
    if body.fields is None:
        read.mistake(body.at, f"{kind} must be a mapping (lines of key: value)")
        raise FileMistakes(read.mistakes)
    return read, body


def _result(read: Source, loaded: _Spec | None) -> _Spec:
    if read.mistakes or loaded is None:
        raise FileMistakes(read.mistakes)
    return loaded


def _overlays(read: Source, body: Node) -> dict[str, Node]:
    """The workflow's overlays by name."""
    found: dict[str, Node] = {}
    node = body.get("overlays")
    if node is None:
        return found
    if node.fields is None:
        if not node.is_null:
            read.mistake(node.at, "overlays must be a mapping with dev, test or prod")
        return found
    for name, (key, child) in node.fields.items():
        if name not in spec.OVERLAYS:
            read.mistake(
                key.at,
                f"unknown overlay {tree.short(name)}; there are dev, test and prod",
                _nearest(name, spec.OVERLAYS),
            )
        elif child.fields is None:
            if not child.is_null:
                read.mistake(child.at, f"overlay {name} must be a mapping, as workflow is")
        else:
            for fixed in _FIXED:
                if fixed in child.fields:
                    read.mistake(child.fields[fixed][0].at, f"an overlay cannot change {fixed}")
            found[name] = child.without(_FIXED)
    return found


def _merged(base: Node, over: Node) -> Node:
    """Two mappings as one: the second's values win, mappings in both are merged in turn."""
    if base.fields is None or over.fields is None:
        return over
    fields = dict(base.fields)
    for name, (key, child) in over.fields.items():
        fields[name] = (fields[name][0], _merged(fields[name][1], child)) if name in fields else (key, child)
    return Node(base.at, fields=fields)


def _read(read: Source, body: Node, kind: type[_Spec]) -> _Spec | None:
    """The section as its model, or None with the mistakes noted."""
    not_built = spec.NOT_BUILT if issubclass(kind, Workflow) else {}
    for name, sentence in not_built.items():
        if body.get(name) is not None:
            read.mistake(_key(body, (name,)).at, sentence)
    body = body.without(not_built)
    raw = tree.value(read, body)
    env = body.get("env")
    if env is not None and issubclass(kind, Workflow):
        written = {name: child.text or "" for name, (_, child) in (env.fields or {}).items()}
        _note(read, body, spec.env_faults(written))
    while True:
        try:
            loaded = kind.model_validate(raw)
        except ValidationError as error:
            errors = error.errors(include_url=False)
            if _mend(body, raw, errors):
                continue
            for found in errors:
                if read.full:
                    break
                _explain(read, body, kind, found)
            return None
        _note(read, body, _contradictions(loaded))
        return loaded


def _contradictions(loaded: Section) -> Iterator[tuple[Place, str]]:
    if isinstance(loaded, Workflow):
        yield from spec.workflow_contradictions(loaded)
    elif isinstance(loaded, Cluster):
        yield from spec.cluster_contradictions(loaded)


def _note(read: Source, body: Node, faults: Iterator[tuple[Place, str]]) -> None:
    for place, sentence in faults:
        read.mistake(_at(body, place).at, sentence)


def _mend(body: Node, raw: Any, errors: list[Any]) -> bool:
    """Takes a bare number as it is written where text is meant, and an empty section as one that is not there.

    True if anything was mended; each round mends what it finds for good, so there is an end.
    """
    mended = False
    for found in errors:
        place: Place = found["loc"]
        if not place:
            continue
        holder = raw
        for step in place[:-1]:
            holder = holder[step]
        node = _at(body, place)
        if found["type"] == "written" and node.text is not None:
            holder[place[-1]] = node.text
            mended = True
        elif found["type"] in ("dict_type", "list_type", "model_type") and node.is_null and isinstance(holder, dict):
            del holder[place[-1]]
            mended = True
    return mended


def _at(body: Node, place: Place) -> Node:
    """The node at a place, or the nearest one above it that stands in the file."""
    node = body
    for step in place:
        below = node.get(step) if isinstance(step, str) else None
        if isinstance(step, int) and node.items is not None and step < len(node.items):
            below = node.items[step]
        if below is None:
            return node
        node = below
    return node


def _key(body: Node, place: Place) -> Node:
    """The key at a place, as it stands in the file."""
    holder = _at(body, place[:-1])
    found = (holder.fields or {}).get(str(place[-1]))
    return found[0] if found else holder


def _explain(read: Source, body: Node, kind: type[Section], found: Any) -> None:
    """One error of pydantic's as a mistake in the file, in plain words. No value is repeated: it may be a secret."""
    place: Place = tuple(found["loc"])
    error: str = found["type"]
    context: dict[str, Any] = found.get("ctx", {})
    if error == "extra_forbidden":
        name = str(place[-1])
        read.mistake(_key(body, place).at, f"unknown key {tree.short(name)}", _nearest_key(kind, place[:-1], name))
        return
    if place and place[-1] == "[key]":
        key = _key(body, place[:-1])
        read.mistake(key.at, f"{tree.short(key.text or '')} {_words(error, context, key)}")
        return
    node = _at(body, place)
    if error == "missing":
        where = _name(place[:-1]) or ("workflow" if kind is Workflow else "cluster")
        read.mistake(_at(body, place[:-1]).at, f"{where} needs {place[-1]}")
    elif not read.marked(node.at):
        near = ""
        if error == "literal_error":
            near = _nearest(node.text or "", str(context.get("expected", "")).replace("'", "").split(" or "))
        read.mistake(node.at, f"{_name(place)} {_words(error, context, node)}", near)


def _words(error: str, context: dict[str, Any], node: Node) -> str:
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
    for name, words in _BOUNDS.items():
        if error == name:
            return words.format(**context)
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
    return "a number with a fraction" if "." in text else "a number"


def _name(place: Place) -> str:
    """A place as a person writes it: ``scheduler.queues[2].name``."""
    return "".join(f"[{step + 1}]" if isinstance(step, int) else f".{step}" for step in place).lstrip(".")


def _nearest(word: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(word.lower(), list(known), n=1, cutoff=0.6)
    return found[0] if found else ""


def _nearest_key(kind: type[Section], holder: Place, name: str) -> str:
    """The known key that an unknown one may have been meant for: here, or the same key in another section."""
    model = _model_at(kind, holder)
    near = _nearest(name, model.model_fields) if model else ""
    if near:
        return near
    for place in _all_keys(kind):
        if place.rpartition(".")[2] == name:
            return place
    return ""


def _model_at(kind: type[Section], place: Place) -> type[BaseModel] | None:
    model: type[BaseModel] | None = kind
    for step in place:
        if isinstance(step, str):
            field = model.model_fields.get(step) if model else None
            model = _inner_model(field.annotation) if field else None
    return model


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, directly or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_inner_model(part) for part in typing.get_args(annotation))
    return next((model for model in inner if model), None)


def _all_keys(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in kind.model_fields.items():
        yield f"{prefix}{name}"
        model = _inner_model(field.annotation)
        if model:
            yield from _all_keys(model, f"{prefix}{name}.")
