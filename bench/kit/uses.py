"""What engines asked of real clusters, by the audit logs, and what they were refused: the proof of which rights serve.

A request that opens a stream is told with one verb, and the apiserver asks for a second right on the way; so is one
that writes a role, which takes all that the role gives. What was refused is told by the request in either case.
"""

from collections.abc import Iterable, Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple

import orjson

from bench.kit import audit
from bench.kit.granting import OWN, Thing, named, side_of
from tensile.sandbox.state import UPPER

_DECISION = "authorization.k8s.io/decision"
_WRITES = ("create", "patch", "delete")
_SCOPED = {"leases.coordination.k8s.io", "configmaps", "secrets"}
"""Resources on which there are rights in one namespace."""
_CERTIFICATE = "tensile-webhook-"
"""How the name of the one Secret begins on which there are."""


class Used(NamedTuple):
    """What was done, what was refused, and of that what for want of a right: quotas and the like refuse too."""

    done: frozenset[Thing]
    refused: frozenset[Thing]
    denied: frozenset[Thing]


class Uses:
    """What is asked from now on, `logs` being the audit logs of the clusters by name."""

    def __init__(self, logs: dict[str, Path]) -> None:
        self._starts = {name: (log, audit.position(log)) for name, log in logs.items()}

    def keep(self, path: Path, user: str, own: str) -> None:
        """Add a line to a file: what a user did since, and was refused; `own` is the engine's namespace."""
        found = self.found(user, own)
        told = {kind: sorted(map(str, some)) for kind, some in found._asdict().items()}
        with path.open("ab") as file:
            file.write(orjson.dumps(told, option=orjson.OPT_APPEND_NEWLINE))

    def found(self, user: str, own: str) -> Used:
        """Return the same."""
        sorts: dict[str, set[Thing]] = {sort: set() for sort in Used._fields}
        for name, (log, start) in self._starts.items():
            for record in of_user(audit.read(log, start), user):
                for sort in sorts_of(record):
                    sorts[sort].add(asked_of(name, record, own))
        return Used(**{sort: frozenset(some) for sort, some in sorts.items()})


def sorts_of(record: audit.Record) -> Iterator[str]:
    """Yield in which fields of `Used` a request belongs."""
    if record["responseStatus"].get("code") != HTTPStatus.FORBIDDEN:
        yield "done"
        return
    yield "refused"
    if record.get("annotations", {}).get(_DECISION) == "forbid":
        yield "denied"


def of_user(records: Iterable[audit.Record], user: str) -> Iterator[audit.Record]:
    """Yield the requests of a user that are about a resource, once each: the last stage tells of the answer."""
    for one in records:
        is_told = "responseStatus" in one and "objectRef" in one
        if is_told and one["user"].get("username") == user and "resource" in one["objectRef"]:
            yield one


def asked_of(cluster: str, record: dict[str, Any], own: str) -> Thing:
    """Return which right a request needs, as roles have it."""
    ref = record["objectRef"]
    plural = "/".join(filter(None, (ref["resource"], ref.get("subresource", ""))))
    resource = named(plural, ref.get("apiGroup", ""))
    return Thing(side_of(cluster), resource, record["verb"], _scope(cluster, resource, record["verb"], ref, own))


def _scope(cluster: str, resource: str, verb: str, ref: dict[str, Any], own: str) -> str:
    """Return in which one namespace a right stands that is not for all: of those above, four do.

    The log has no name of what was refused at its creation.
    """
    namespace, name = ref.get("namespace", ""), ref.get("name", "")
    is_certificate = name.startswith(_CERTIFICATE) or (not name and verb == "create" and namespace == own)
    if cluster != UPPER or resource not in _SCOPED or (resource == "configmaps" and verb not in _WRITES):
        return ""
    if resource == "secrets" and (verb in ("list", "watch") or not is_certificate):
        return ""
    return OWN if namespace == own else namespace
