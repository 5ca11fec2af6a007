"""Reads workflow and cluster files, and says of every mistake where it stands and what may have been meant.

It reads text that it is given; it opens no file and follows no reference to a secret.
"""

from __future__ import annotations

import typing
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from jobs import alertfaults, contradictions, spec, together, tree
from jobs.contradictions import Fault
from jobs.errors import Refused
from jobs.section import Section
from jobs.spec import Cluster, Place, Training, Workflow
from jobs.tree import Node, Source, Unreadable
from jobs.wire import Mistake
from jobs.wording import meant, nearest, place_name, words

_Spec = TypeVar("_Spec", bound=Section)

_FIXED = ("name", "overlays")
"""Keys of a workflow that no overlay may hold."""


class FileMistakes(Refused):
    """A file (or two) that is not taken, with everything that is wrong in it, in the order of its lines."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = sorted(mistakes, key=lambda mistake: (mistake.file, mistake.line, mistake.column))
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
    variants = _variants(read, body)
    if overlay not in variants and not read.mistakes:
        near = nearest(overlay, variants)
        read.mistake(body.at, f"there is no overlay {tree.short(overlay)} in this file", near)
    return _result(read, variants[overlay][1] if overlay in variants else None)


def _variants(read: Source, body: Node) -> dict[str, tuple[Node, Workflow | None]]:
    """What the file says by itself (under the empty name) and with each of its overlays, mistakes noted."""
    overlays = _overlays(read, body)
    body = body.without(("overlays",))
    nodes = {"": body, **{name: _merged(body, over) for name, over in overlays.items()}}
    return {name: (node, _read(read, node, Workflow)) for name, node in nodes.items()}


def load_cluster(text: str | bytes, file: str) -> Cluster:
    """The cluster that a file describes. Raises `FileMistakes`."""
    read, body = _open(text, file, "cluster")
    return _result(read, _read(read, body, Cluster))


def check_together(text: str | bytes, file: str, cluster_text: str | bytes, cluster_file: str) -> Workflow:
    """Loads a workflow file, and sees whether the cluster of a cluster file can run it, with each overlay too.

    Raises `FileMistakes` with the mistakes of both files.
    """
    mistakes: list[Mistake] = []
    cluster: Cluster | None = None
    try:
        cluster = load_cluster(cluster_text, cluster_file)
    except FileMistakes as error:
        mistakes += error.mistakes
    try:
        read, body = _open(text, file, "workflow")
    except FileMistakes as error:
        raise FileMistakes([*mistakes, *error.mistakes]) from error
    variants = _variants(read, body)
    plain: set[Fault] = set()
    for name, (node, workflow) in variants.items():
        if workflow is None or cluster is None:
            continue
        faults = list(together.faults(workflow, cluster, cluster_file))
        if not name:
            plain = set(faults)
            note_faults(read, node, faults)
        else:
            fresh = [fault for fault in faults if fault not in plain]
            note_faults(
                read, node, (fault._replace(sentence=f"with overlay {name}: {fault.sentence}") for fault in fresh)
            )
    if mistakes or read.mistakes:
        raise FileMistakes([*mistakes, *read.mistakes])
    return _result(read, variants[""][1])


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
        near = nearest(key.text or "", ("workflow", "cluster"))
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
            near = nearest(key.text or "", (kind,))
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
                nearest(name, spec.OVERLAYS),
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
        _note(read, body, contradictions.env_faults(written))
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
        if isinstance(loaded, Workflow):
            _sweep(read, body, loaded)
        elif isinstance(loaded, Cluster):
            note_faults(read, body, contradictions.command_faults(loaded))
            note_faults(read, body, alertfaults.faults(loaded))
            if loaded.alerting.rules:
                from probes.health.rules import RULES  # all of them: only where a file changes one

                note_faults(read, body, alertfaults.rule_faults(loaded.alerting, RULES))
        return loaded


def _sweep(read: Source, body: Node, workflow: Workflow) -> None:
    """Notes what is wrong with a sweep: its paths, its size, and values that their field does not take."""
    note_faults(read, body, contradictions.sweep_faults(workflow))
    for path, values in (workflow.sweep.parameters if workflow.sweep else {}).items():
        if path not in Training.model_fields or path == contradictions.FREE:
            continue
        for index, value in enumerate(values):
            place: Place = ("sweep", "parameters", path, index)
            try:
                Training.model_validate({path: value})
            except ValidationError as error:
                found, node = error.errors(include_url=False)[0], _at(body, place)
                if not read.marked(node.at):
                    kind, context = found["type"], found.get("ctx", {})
                    read.mistake(node.at, f"{path} {words(kind, context, node)}", meant(kind, context, node))


def note_faults(read: Source, body: Node, faults: Iterable[Fault]) -> None:
    """Notes faults where they stand in a file."""
    for fault in faults:
        node = _key(body, fault.place) if fault.of_key else _at(body, fault.place)
        read.mistake(node.at, fault.sentence, fault.suggestion)


def _contradictions(loaded: Section) -> Iterator[tuple[Place, str]]:
    if isinstance(loaded, Workflow):
        yield from contradictions.workflow_contradictions(loaded)
    elif isinstance(loaded, Cluster):
        yield from contradictions.cluster_contradictions(loaded)


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
        read.mistake(key.at, f"{tree.short(key.text or '')} {words(error, context, key)}")
        return
    node = _at(body, place)
    if error == "missing":
        where = place_name(place[:-1]) or ("workflow" if kind is Workflow else "cluster")
        read.mistake(_at(body, place[:-1]).at, f"{where} needs {place[-1]}")
    elif not read.marked(node.at):
        read.mistake(node.at, f"{place_name(place)} {words(error, context, node)}", meant(error, context, node))


def _nearest_key(kind: type[Section], holder: Place, name: str) -> str:
    """The known key that an unknown one may have been meant for: here, or the same key in another section."""
    model = _model_at(kind, holder)
    near = nearest(name, (key for key, _ in _fields(model))) if model else ""
    if near:
        return near
    for place in _all_keys(kind):
        if place.rpartition(".")[2] == name:
            return place
    return ""


def _model_at(kind: type[Section], place: Place) -> type[BaseModel] | None:
    model: type[BaseModel] | None = kind
    named = False
    for step in place:
        if isinstance(step, str):
            # A step into a mapping with free names (rules, headers) leads to what the mapping holds.
            field = dict(_fields(model)).get(step) if model else None
            model = _inner_model(field.annotation) if field else model if named else None
            named = field is not None and typing.get_origin(field.annotation) is dict
    return model


def _fields(model: type[BaseModel]) -> Iterator[tuple[str, FieldInfo]]:
    """The keys of a section as they are written in a file, which Python has no name for in all cases (``from``)."""
    for name, field in model.model_fields.items():
        yield field.alias or name, field


def _inner_model(annotation: Any) -> type[BaseModel] | None:
    """The model that a field holds, directly or in a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    inner = (_inner_model(part) for part in typing.get_args(annotation))
    return next((model for model in inner if model), None)


def _all_keys(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in _fields(kind):
        yield f"{prefix}{name}"
        model = _inner_model(field.annotation)
        if model:
            yield from _all_keys(model, f"{prefix}{name}.")
