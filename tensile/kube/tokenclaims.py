"""What a token says of itself: who it is for, and until when.

Nothing is verified here: what is read is a credential of our own, and its server decides what it is worth. The claims
are there before the first request, need no right, and are the same in every release, which an apiserver's answer to
"who am I" (SelfSubjectReview) is not.
"""

import base64
import binascii
from collections.abc import Mapping
from typing import Any

import orjson

from tensile.kube.access import Access

_BEARER = "Bearer "
_ACCOUNT = ("system", "serviceaccount")
_PARTS = 4


def token_in(access: Access) -> str:
    """Return the token by which a cluster is called, "" where it is called by a certificate or by none."""
    return access.headers.get("Authorization", "").removeprefix(_BEARER)


def claims_of(token: str) -> Mapping[str, Any]:
    """Return what a JWT says in its second part, {} for a token of another form."""
    try:
        part = token.split(".")[1]
        said = orjson.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (IndexError, ValueError, binascii.Error):
        return {}
    return said if isinstance(said, dict) else {}


def account_namespace(access: Access) -> str:
    """Return the namespace of the ServiceAccount that a cluster is called as, "" where that is none."""
    parts = str(claims_of(token_in(access)).get("sub", "")).split(":")
    return parts[2] if len(parts) == _PARTS and (parts[0], parts[1]) == _ACCOUNT else ""
