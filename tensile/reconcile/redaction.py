"""Hide values that may be secret: in plans and reports, and in a cluster's error messages that quote a Secret.

In plans, values of Secrets are removed from objects and operations. Their keys stay, as a person has to see what
changes. `kubectl apply` stores the whole object, with values, in an annotation, so that is removed too.

Error messages go to logs, events and conditions, which more people read than may read the Secret, and a webhook can put
any part of the object into its message. A quote may be encoded, escaped, truncated or partial. So the message is
searched for the beginning of each word of each value, and hidden if it contains one.

A Secret with the backup of a pod contains common words. There only fields that may be secret are searched for, without
the Secret's own name and namespace.
"""

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from tensile.errors import ClusterError
from tensile.kube.store import Cache
from tensile.names import DESCHEDULE_COUNT, KEPT_POD, PREFIX, UNSCHEDULABLE_NODE
from tensile.objects import POD, SECRET, VOLUME, Kind, Manifest, Ref
from tensile.reconcile.diff import Difference, Operation, parts
from tensile.reconcile.plan import Step
from tensile.text import HIDDEN

REDACTED = "(redacted)"
OMITTED = "the error text is omitted, because it contains data of the Secret"
_SECTIONS = ("data", "stringData")
_ROOTS = tuple((name,) for name in _SECTIONS)
_ANNOTATIONS = ("metadata", "annotations")
PAYLOADS = ("data", "binaryData", "stringData")
"""The sections of a ConfigMap or Secret that have its content."""
_WORDS = re.compile(r"[^\s\"'\\{}\[\],:;=]+")
_BEGINNING = 8
SECRET_FIELDS = frozenset({"value", "command", "args", "volumeAttributes", "options"})
"""Fields of a pod's spec that may be secret: environment, headers, commands, options of volumes."""
_OURS = frozenset({DESCHEDULE_COUNT, UNSCHEDULABLE_NODE})
_SHORTEST = 4
"""The shortest value that is searched for as a whole. Shorter ones occur in every sentence, and are no secrets."""


def without_secrets(pod: Manifest) -> Manifest:
    """Return what a pod's author writes, with every value that may be secret replaced: also each annotation's."""
    meta = pod.get("metadata") or {}
    notes = dict.fromkeys(meta.get("annotations") or (), HIDDEN)
    spec = hidden(pod.get("spec"))
    return {"metadata": {"labels": meta.get("labels") or {}, "annotations": notes}, "spec": spec}


def hidden(found: Any, *, is_secret: bool = False) -> Any:
    """Return a part of a pod's spec without values that may be secret; the store limits the depth that it decodes."""
    if isinstance(found, dict):
        return {key: hidden(inner, is_secret=is_secret or key in SECRET_FIELDS) for key, inner in found.items()}
    if isinstance(found, list):
        return [hidden(inner, is_secret=is_secret) for inner in found]
    return HIDDEN if is_secret and found is not None else found


def redacted(kind: Kind, value: Any, path: tuple[str, ...] = ()) -> Any:
    """Return the value at `path` in an object of that kind, with "(redacted)" for each value of a Secret."""
    return _redacted(value, path) if kind.name == SECRET.name else value


def redacted_operation(kind: Kind, operation: Operation) -> Operation:
    """Return an RFC 6902 operation on an object of that kind without the values of a Secret."""
    if "value" not in operation:
        return operation
    return {**operation, "value": redacted(kind, operation["value"], tuple(parts(operation["path"])))}


def redacted_differences(kind: Kind, found: Iterable[Difference]) -> tuple[Difference, ...]:
    """Return the differences of an object of that kind, for a Secret by key and without values."""
    if kind.name != SECRET.name:
        return tuple(found)
    return tuple(
        Difference(
            one.path[:2] if one.path[:1] in _ROOTS else one.path,
            _redacted(one.old, one.path),
            _redacted(one.new, one.path),
        )
        for one in found
    )


def concealed(kind: Kind, one: Difference) -> Difference:
    """Return a change of a field for those who may not read the object, without values that may be secret.

    These are annotations, the content of ConfigMaps, and in pods and volumes what `without_secrets` hides.
    """
    is_secret = one.path[:2] == _ANNOTATIONS or not set(PAYLOADS).isdisjoint(one.path[:1])
    if kind.name in (POD.name, VOLUME.name) and not is_secret:
        old, new = hidden(one.old), hidden(one.new)
        is_secret = old == new or not SECRET_FIELDS.isdisjoint(one.path)
        one = one._replace(old=old, new=new)
    if is_secret:
        old, new = (None if side is None else REDACTED for side in (one.old, one.new))
        return one._replace(old=old, new=new)
    return one


def _redacted(value: Any, path: tuple[str, ...]) -> Any:
    if value is None:
        return None
    if isinstance(value, dict) and not _is_value(path):
        return {name: _redacted(content, (*path, name)) for name, content in value.items()}
    return REDACTED if _is_value(path) or path[:1] in _ROOTS else value


def _is_value(path: tuple[str, ...]) -> bool:
    """Report whether a path in a Secret leads to a secret value or into one.

    Tools keep the object that they applied in an annotation of theirs, so only our own annotations are no secrets.
    """
    is_annotation = len(path) > len(_ANNOTATIONS) and path[: len(_ANNOTATIONS)] == _ANNOTATIONS
    is_ours = is_annotation and path[len(_ANNOTATIONS)].startswith(PREFIX)
    return (len(path) > 1 and path[:1] in _ROOTS) or (is_annotation and not is_ours)


def redact_error(error: ClusterError, step: Step, cache: Cache | None) -> ClusterError:
    """Return a step's error, without its message if that quotes a Secret.

    `step` is what was sent, `cache` holds the Secret's previous state.
    """
    if step.ref.kind != SECRET:
        return error
    known = cache.get(step.ref.namespace, step.ref.name) if cache else None
    return redact(error, step.ref, [step.body or {}, _patched(step), known.manifest() if known and known.raw else {}])


def redact(error: ClusterError, ref: Ref, contents: Sequence[Mapping[str, Any]]) -> ClusterError:
    """Return an error about a Secret, without its message if that quotes one of these states of the Secret."""
    is_backup = any(content.get("type") == KEPT_POD for content in contents)
    pieces = {piece for content in contents for piece in _quotable_texts(content, ref, is_pod=is_backup)}
    if any(piece in error.message for piece in pieces):
        error.message = OMITTED
        error.args = (OMITTED,)
    return error


def _quotable_texts(content: Mapping[str, Any], ref: Ref, *, is_pod: bool) -> Iterator[str]:
    """Yield the texts that a message would contain if it quoted the content of a Secret, or of a pod's backup."""
    for value in _values(content):
        decoded = _decoded(value)
        pod = _pod_in(decoded) if is_pod else None
        for text in (value, *([decoded] if pod is None else _secrets_of(pod))):
            yield from (piece for piece in _pieces(text) if not (is_pod and piece in f"{ref.name} {ref.namespace}"))


def _pod_in(text: Any) -> Manifest | None:
    try:
        found: Any = orjson.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) and found.get("kind") == "Pod" else None


def _secrets_of(pod: Manifest) -> Iterator[str]:
    """Yield the values of a pod that may be secret. An annotation may contain the applied pod, or anything."""
    meta = pod.get("metadata")
    notes = meta.get("annotations") if isinstance(meta, dict) else None
    for key, value in notes.items() if isinstance(notes, dict) else ():
        applied = _pod_in(value)
        if applied is not None:
            yield from _secrets_of(applied)
        elif key not in _OURS and not key.startswith(PREFIX):
            yield str(value)
    yield from _secret_values(pod.get("spec"))


def _secret_values(spec: Any) -> Iterator[str]:
    pending = [(spec, False)]
    while pending:
        found, is_secret = pending.pop()
        if isinstance(found, dict):
            pending += [(inner, is_secret or key in SECRET_FIELDS) for key, inner in found.items()]
        elif isinstance(found, list):
            pending += [(inner, is_secret) for inner in found]
        elif is_secret and found is not None:
            yield str(found)


def _patched(step: Step) -> Mapping[str, Any]:
    """Return what a patch writes, in the form of an object."""
    body = step.patch.body if step.patch else {}
    if isinstance(body, dict):
        return body
    found: dict[str, Any] = {section: {} for section in _SECTIONS}
    for operation in body:
        section, _, key = operation["path"][1:].partition("/")
        if section in found and "value" in operation:
            found[section].update({key: operation["value"]} if key else operation["value"] or {})
    return found


def _values(content: Mapping[str, Any]) -> Iterator[str]:
    for section in _SECTIONS:
        values = content.get(section)
        if isinstance(values, dict):
            yield from (str(value) for value in values.values() if value)


def _pieces(text: str) -> Iterator[str]:
    whole = " ".join(text.split())
    if len(whole) >= _SHORTEST:
        yield whole
    yield from (word[:_BEGINNING] for word in _WORDS.findall(text) if len(word) >= _BEGINNING)


def _decoded(value: str) -> str:
    try:
        return b64decode(value, validate=True).decode(errors="replace")
    except (Error, ValueError):
        return ""
