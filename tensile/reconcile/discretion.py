"""What a cluster says when it refuses a Secret, unless it quotes what is in it.

A refusal goes into logs, events and conditions, where more people read than may read the Secret; and whoever writes a
webhook can have it say anything of the object. A quotation may be encoded or not, escaped, cut off, or a single line of
many: so what is looked for is how each word of a value begins, and what has one of them is not told at all.
"""

import re
from base64 import b64decode
from binascii import Error
from collections.abc import Iterator, Mapping
from typing import Any

from tensile.cache import Cache
from tensile.errors import ClusterError
from tensile.objects import SECRET
from tensile.reconcile.plan import Step

UNTOLD = "its words are not shown, because they quote what is in the Secret"
_SECTIONS = ("data", "stringData")
_WORDS = re.compile(r"[^\s\"'\\{}\[\],:;=]+")
_BEGINNING = 8
_SHORTEST = 4
"""Characters of a value that is looked for as a whole: shorter ones are in every sentence, and no secret."""


def discreet(error: ClusterError, step: Step, cache: Cache | None) -> ClusterError:
    """Give a refused step's error, without its words where they quote a Secret.

    `step` is what was sent, `cache` holds what the Secret was before.
    """
    if step.ref.kind != SECRET:
        return error
    known = cache.get(step.ref.namespace, step.ref.name) if cache else None
    contents = [step.body or {}, _patched(step), known.manifest() if known and known.raw else {}]
    pieces = {piece for content in contents for value in _values(content) for piece in _pieces(value)}
    if any(piece in error.message for piece in pieces):
        error.message = UNTOLD
        error.args = (UNTOLD,)
    return error


def _patched(step: Step) -> Mapping[str, Any]:
    """Give what a patch writes, in the form of an object."""
    body = step.patch.body if step.patch else {}
    if isinstance(body, dict):
        return body
    found: dict[str, Any] = {section: {} for section in _SECTIONS}
    for one in body:
        section, _, key = one["path"][1:].partition("/")
        if section in found and "value" in one:
            found[section].update({key: one["value"]} if key else one["value"] or {})
    return found


def _values(content: Mapping[str, Any]) -> Iterator[str]:
    for section in _SECTIONS:
        values = content.get(section)
        if isinstance(values, dict):
            yield from (str(value) for value in values.values() if value)


def _pieces(value: str) -> Iterator[str]:
    """Give what would be found of a value in a sentence that quotes it."""
    for text in (value, _decoded(value)):
        whole = " ".join(text.split())
        if len(whole) >= _SHORTEST:
            yield whole
        yield from (word[:_BEGINNING] for word in _WORDS.findall(text) if len(word) >= _BEGINNING)


def _decoded(value: str) -> str:
    try:
        return b64decode(value, validate=True).decode(errors="replace")
    except (Error, ValueError):
        return ""
