"""A preview for programs: JSON with a version of its own, so that a pipeline can gate on it for years.

`formatVersion` counts as semantic versions do: a new field raises the second number, anything that breaks a reader the
first.
"""

from typing import Any

import orjson

from tensile.reconcile.desired import Moving
from tensile.reconcile.preview.changes import Change, Preview, count
from tensile.reconcile.preview.text import title
from tensile.world import Key, Problem

FORMAT = "1.2"


def as_json(found: Preview) -> bytes:
    """Write a preview as JSON (UTF-8, two spaces deep, in the order of the text), without a newline at the end."""
    document = {
        "formatVersion": FORMAT,
        "topology": found.topology,
        "changes": [_change(change) for change in found.changes],
        "problems": [_problem(key, problem) for key, problem in found.problems],
        "unreached": [{"lower": name, "message": why} for name, why in found.unreached.items()],
        "summary": {**count(found.changes)._asdict(), "clusters": _clusters(found)},
    }
    return orjson.dumps(document, option=orjson.OPT_INDENT_2)


def _change(change: Change) -> dict[str, Any]:
    return {
        "cluster": title(change.ref.cluster),
        "action": change.action,
        "kind": change.ref.kind.name,
        "apiVersion": change.ref.kind.api,
        "namespace": change.ref.namespace,
        "name": change.ref.name,
        "reason": change.reason,
        "fields": [one.field for one in change.differences],
        "operations": change.operations,
        **({"move": _move(change.moving)} if change.moving else {}),
    }


def _move(moving: Moving) -> dict[str, Any]:
    """Say where a pod goes: from one virtual node to another, and the real node that has room behind the first."""
    return {"from": moving.source, "to": moving.targets, "node": moving.node}


def _problem(key: Key, problem: Problem) -> dict[str, str]:
    return {
        "lower": key.lower,
        "rule": key.rule,
        "namespace": key.namespace,
        "name": key.name,
        "reason": problem.reason,
        "message": problem.message,
    }


def _clusters(found: Preview) -> dict[str, dict[str, int]]:
    return {title(name): count(changes)._asdict() for name, changes in found.clusters.items()}
