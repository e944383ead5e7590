"""Tests of the claims in our own token, from which the namespace of its ServiceAccount is read."""

import base64

import orjson
import pytest
from scripted import access_to

from tensile.kube.credentials import Access, account_namespace, claims_of, token_in

SUBJECT = "system:serviceaccount:tensile:engine"


def jwt(claims: object) -> str:
    """Make a JWT with these claims."""
    head, body = (base64.urlsafe_b64encode(orjson.dumps(one)).rstrip(b"=").decode() for one in ({}, claims))
    return f"{head}.{body}.signature"


def of_token(token: str) -> Access:
    """Make an access with a token."""
    return access_to(1, {"Authorization": f"Bearer {token}"})


def test_the_namespace_of_a_service_account_is_read_from_its_token() -> None:
    """This works for tokens that are bound to a pod and for tokens from Secrets."""
    assert account_namespace(of_token(jwt({"sub": SUBJECT, "aud": ["api"]}))) == "tensile"
    assert account_namespace(of_token(jwt({"iss": "kubernetes/serviceaccount", "sub": SUBJECT}))) == "tensile"


OTHERS = [
    "",
    "opaque",
    "a.b.c",
    "a..c",
    "kubeconfig-user-x1:secret",
    jwt([]),
    jwt({}),
    jwt({"sub": None}),
    jwt({"sub": 5}),
    jwt({"sub": "alice"}),
    jwt({"sub": "system:serviceaccount:tensile"}),
    jwt({"sub": "system:serviceaccount:tensile:engine:more"}),
    jwt({"sub": "other:serviceaccount:tensile:engine"}),
    "a." + "\u00ff" + ".c",
]


@pytest.mark.parametrize("token", OTHERS)
def test_other_tokens_have_no_service_account_namespace(token: str) -> None:
    """Such tokens are those of proxies and users, and malformed ones."""
    assert account_namespace(of_token(token)) == ""


def test_a_client_certificate_has_no_service_account_namespace() -> None:
    """An access without a token belongs to a user, who has no namespace."""
    assert (token_in(access_to(1)), account_namespace(access_to(1))) == ("", "")


def test_claims_that_are_no_json_object_are_ignored() -> None:
    """A token with a JSON list as claims counts as a token without claims."""
    assert claims_of(jwt([1])) == {}
    assert claims_of(jwt({"a": 1})) == {"a": 1}
