"""Requests of engines to real clusters according to the audit logs, allowed and refused: the proof of used rights.

A request that opens a stream is recorded with one verb, and the apiserver requires a second right during it; so is a
request that writes a role, which requires all rights that the role grants. The refusal is recorded for the request in
either case.
"""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench.kit import audit
from bench.kit.rbac import OWN, Right, qualified, side_of
from tensile.sandbox.state import UPPER

_DECISION = "authorization.k8s.io/decision"
_WRITES = ("create", "patch", "delete")
_SCOPED = {"leases.coordination.k8s.io", "configmaps", "secrets"}
"""Resources with rights that are limited to one namespace."""
_CERTIFICATE = "tensile-webhook-"
"""The beginning of the name of the one Secret with such rights."""


class RightsUsed(NamedTuple):
    """The allowed requests, the refused ones, and those refused for lack of a right: quotas and the like refuse too."""

    done: frozenset[Right]
    refused: frozenset[Right]
    denied: frozenset[Right]


class RequestsByRight:
    """Collects the requests since its creation; `logs` are the audit logs of the clusters by name."""

    def __init__(self, logs: dict[str, Path]) -> None:
        self._starts = {name: (log, audit.position(log)) for name, log in logs.items()}

    def keep(self, path: Path, user: str, own: str) -> None:
        """Append a line to a file: a user's requests since, and the refused ones; `own` is the engine's namespace."""
        found = self.found(user, own)
        line = {kind: sorted(map(str, some)) for kind, some in found._asdict().items()}
        with path.open("ab") as file:
            file.write(orjson.dumps(line, option=orjson.OPT_APPEND_NEWLINE))

    def found(self, user: str, own: str) -> RightsUsed:
        """Return the requests of a user since the start."""
        rights: dict[str, set[Right]] = {outcome: set() for outcome in RightsUsed._fields}
        for name, (log, start) in self._starts.items():
            for record in of_user(audit.read(log, start), user):
                for outcome in outcomes_of(record):
                    rights[outcome].add(required_right(name, record, own))
        return RightsUsed(**{outcome: frozenset(some) for outcome, some in rights.items()})


def outcomes_of(record: audit.Record) -> Iterator[str]:
    """Yield the fields of `RightsUsed` that a request belongs to."""
    if record["responseStatus"].get("code") != HTTPStatus.FORBIDDEN:
        yield "done"
        return
    yield "refused"
    if record.get("annotations", {}).get(_DECISION) == "forbid":
        yield "denied"


def of_user(records: Iterable[audit.Record], user: str) -> Iterator[audit.Record]:
    """Yield the requests of a user about a resource, once each: only the last stage contains the response."""
    for one in records:
        is_complete = "responseStatus" in one and "objectRef" in one
        if is_complete and one["user"].get("username") == user and "resource" in one["objectRef"]:
            yield one


def required_right(cluster: str, record: dict[str, Any], own: str) -> Right:
    """Return the right that a request requires, in the form of roles."""
    ref = record["objectRef"]
    plural = "/".join(filter(None, (ref["resource"], ref.get("subresource", ""))))
    resource = qualified(plural, ref.get("apiGroup", ""))
    return Right(side_of(cluster), resource, record["verb"], _scope(cluster, resource, record["verb"], ref, own))


def _scope(cluster: str, resource: str, verb: str, ref: dict[str, Any], own: str) -> str:
    """Return the namespace of a right that is limited to one, which only four rights in the upper cluster are.

    The log does not contain the name of an object whose creation was refused.
    """
    namespace, name = ref.get("namespace", ""), ref.get("name", "")
    is_certificate = name.startswith(_CERTIFICATE) or (not name and verb == "create" and namespace == own)
    if cluster != UPPER or resource not in _SCOPED or (resource == "configmaps" and verb not in _WRITES):
        return ""
    if resource == "secrets" and (verb in ("list", "watch") or not is_certificate):
        return ""
    return OWN if namespace == own else namespace
