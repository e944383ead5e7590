"""How an object or a collection is asked for: the path and the query of a request, and its name in an error."""

import re
from urllib.parse import quote, urlencode

from tensile.cluster import Selection
from tensile.errors import Denied
from tensile.kube.answers import Doing
from tensile.objects import Ref

_PLAIN = re.compile(r"[A-Za-z0-9._:-]*").fullmatch


def shown(ref: Ref) -> str:
    """Name an object for an error."""
    return f"{ref.kind.name} {ref.namespace}/{ref.name}" if ref.namespace else f"{ref.kind.name} {ref.name}"


def path_of(doing: Doing, ref: Ref, subresource: str = "") -> str:
    """Give the URL path of an object.

    References inside a pod's spec are not checked by Kubernetes, so a name may hold what would lead to another path.
    """
    if _PLAIN(ref.name) and _PLAIN(ref.namespace) and ref.name not in (".", "..") and ref.namespace not in (".", ".."):
        return ref.path(subresource)
    for part in (ref.namespace, ref.name):
        if part in (".", "..") or "/" in part or "%" in part:
            raise Denied(
                f"{part!r} is no name in Kubernetes: correct what refers to it", cluster=doing.cluster, doing=str(doing)
            )
    return quote(ref.path(subresource), safe="/:")


def query_of(selection: Selection) -> dict[str, str]:
    """Give a selection's query parameters."""
    asked = {"labelSelector": selection.labels, "fieldSelector": selection.fields}
    return {key: value for key, value in asked.items() if value}


def target_of(path: str, query: dict[str, str]) -> str:
    """Join path and query."""
    return f"{path}?{urlencode(query)}" if query else path
