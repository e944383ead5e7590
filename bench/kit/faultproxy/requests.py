"""Parses the requests that a proxy receives: verb, resource, object, and the preconditions of writes.

The terms are those of audit logs (verb, resource, subresource), so that the same oracles apply to the requests that a
proxy received and to those that a cluster recorded. The preconditions of a write are read from its body, because no
audit log contains them.
"""

from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

WRITES = frozenset({"create", "update", "patch", "delete", "deletecollection"})
_VERBS = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
_PRECONDITIONS = {"/metadata/uid": "uid", "/metadata/resourceVersion": "resourceVersion"}


class ProxiedRequest(NamedTuple):
    """One request.

    `namespace` is "" if the resource has none, but that of a Namespace is its own name. `uid` and `version` are the
    preconditions of a write, "" for none; `user` is the name in the caller's certificate, `agent` its User-Agent.
    """

    cluster: str
    verb: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    version: str = ""
    user: str = ""
    agent: str = ""
    query: str = ""

    @property
    def is_write(self) -> bool:
        """Whether the request changes something."""
        return self.verb in WRITES

    @property
    def kind(self) -> str:
        """The resource with its subresource: "pods/status"."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource

    def __str__(self) -> str:
        where = "/".join(part for part in (self.namespace, self.name) if part)
        return f"{self.cluster}: {self.verb} {self.kind} {where}"


class RequestTarget(NamedTuple):
    """The object or the collection that a path refers to; each field is "" if the path does not contain it."""

    resource: str = ""
    subresource: str = ""
    namespace: str = ""
    name: str = ""


def parse_request(
    cluster: str, method: str, target: str, body: bytes, *, user: str = "", agent: str = ""
) -> ProxiedRequest:
    """Parse a request; `target` is the path and the query as they were sent."""
    parts = urlsplit(target)
    target_ref = parse_path(parts.path)
    verb = verb_of(method, target_ref, parts.query)
    content = _content(body) if verb in WRITES else None
    if verb == "create" and not target_ref.name and isinstance(content, dict):
        name = _text((content.get("metadata") or {}).get("name"))
        target_ref = target_ref._replace(
            name=name, namespace=name if target_ref.resource == "namespaces" else target_ref.namespace
        )
    preconditions = _preconditions(verb, content)
    uid, version = preconditions.get("uid", ""), preconditions.get("resourceVersion", "")
    return ProxiedRequest(
        cluster,
        verb,
        target_ref.resource,
        target_ref.subresource,
        target_ref.namespace,
        target_ref.name,
        uid=uid,
        version=version,
        user=user,
        agent=agent,
        query=parts.query,
    )


def parse_path(path: str) -> RequestTarget:
    """Return the place that a path of the API refers to; all fields are empty for any other path."""
    parts = [unquote(part) for part in path.strip("/").split("/")]
    rest = parts[{"api": 2, "apis": 3}.get(parts[0], len(parts)) :]
    namespace = ""
    if rest[:1] == ["namespaces"] and len(rest) > 1:
        namespace = rest[1]
        rest = rest[2:] if rest[2:3] not in ([], ["status"], ["finalize"]) else rest
    resource, name, *tail = (*rest, "", "")
    return RequestTarget(resource, "/".join(part for part in tail if part), namespace, name)


def verb_of(method: str, target_ref: RequestTarget, query: str) -> str:
    """Return the verb as an audit log has it."""
    if method == "DELETE" and not target_ref.name:
        return "deletecollection"
    if method in _VERBS:
        return _VERBS[method]
    if target_ref.name:
        return "get"
    return "watch" if parse_qs(query).get("watch", [""])[0] in ("1", "true") else "list"


def _content(body: bytes) -> Any:
    try:
        return orjson.loads(body) if body else None
    except orjson.JSONDecodeError:
        return None


def _preconditions(verb: str, content: Any) -> dict[str, str]:
    """Return the preconditions of a body: those of a delete, of an eviction, of an object, or of a JSON patch."""
    if isinstance(content, list):
        tests = [one for one in content if isinstance(one, dict) and one.get("path") in _PRECONDITIONS]
        return {_PRECONDITIONS[one["path"]]: _text(one.get("value")) for one in tests if one.get("op") != "remove"}
    if not isinstance(content, dict):
        return {}
    if verb in ("delete", "deletecollection"):
        found = content.get("preconditions")
    elif verb == "create":
        found = (content.get("deleteOptions") or {}).get("preconditions")
    else:
        found = content.get("metadata")
    return {key: _text((found or {}).get(key)) for key in ("uid", "resourceVersion")}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
