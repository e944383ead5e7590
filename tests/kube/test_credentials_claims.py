"""What is read out of our own credential: the namespace of the account that it is of."""

import base64

import orjson
import pytest
from scripted import access_to

from tensile.kube.credentials import Access, account_namespace, claims_of, token_in

SUBJECT = "system:serviceaccount:tensile:engine"


def jwt(said: object) -> str:
    """Make a token that says something."""
    head, body = (base64.urlsafe_b64encode(orjson.dumps(one)).rstrip(b"=").decode() for one in ({}, said))
    return f"{head}.{body}.signature"


def of_token(token: str) -> Access:
    """Make an access by a token."""
    return access_to(1, {"Authorization": f"Bearer {token}"})


def test_an_accounts_token_names_its_namespace() -> None:
    """Those of today, bound to a pod, and those in Secrets say it alike."""
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
def test_any_other_token_names_none(token: str) -> None:
    """Those of proxies and of people, and nonsense."""
    assert account_namespace(of_token(token)) == ""


def test_a_certificate_names_none() -> None:
    """Its user has no namespace."""
    assert (token_in(access_to(1)), account_namespace(access_to(1))) == ("", "")


def test_what_is_no_object_says_nothing() -> None:
    """A list in its place, for one."""
    assert claims_of(jwt([1])) == {}
    assert claims_of(jwt({"a": 1})) == {"a": 1}
