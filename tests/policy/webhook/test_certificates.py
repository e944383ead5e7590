"""The webhook's CA and certificate: when they are renewed, what a Secret may hold, and when trust in others changes."""

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tensile.kube.tls import KeyPair, issued, names_of, self_signed
from tensile.names import owner_of
from tensile.objects import SECRET, UPPER, Ref
from tensile.policy.webhook.certificates import (
    AUTHORITY_LIFE,
    LIFE,
    OVERLAP,
    Served,
    certificates_in,
    certificates_of,
    given,
    renewed,
    secret,
    shown,
    trusted,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NAMES = ("hook.tensile.svc", "10.0.0.1")
FIRST = renewed(None, NAMES, NOW)
OWNER = owner_of("11111111-upper", "demo")
REF = Ref(UPPER, SECRET, "tensile", "tensile-webhook-demo")


def names(pair: KeyPair) -> list[str]:
    """Return what a certificate is for."""
    return names_of(certificates_in(pair.certificate)[0])


def test_a_certificate_is_signed_by_a_ca_of_its_own_and_holds_for_clocks_that_are_behind() -> None:
    """The CA holds for years, and signs no other CA."""
    authority, serving = (certificates_in(pair.certificate)[0] for pair in FIRST)
    serving.verify_directly_issued_by(authority)
    assert sorted(names(FIRST.serving)) == sorted(NAMES)
    for certificate, life in ((authority, AUTHORITY_LIFE), (serving, LIFE)):
        assert certificate.not_valid_before_utc == NOW - timedelta(hours=1)
        assert certificate.not_valid_after_utc == NOW + life


@pytest.mark.parametrize(
    ("after", "same"),
    [
        (timedelta(days=20), "both"),
        (timedelta(days=22), "authority"),
        (timedelta(days=40), "authority"),
        (timedelta(hours=-2), "none"),
        (0.8 * AUTHORITY_LIFE, "none"),
    ],
    ids=["not due", "due", "ended", "a clock that is set back", "the CA is due"],
)
def test_what_is_due_is_renewed(after: timedelta, same: str) -> None:
    """The serving certificate at seven tenths of its life, under the same CA; so every apiserver trusts it already."""
    found = renewed(FIRST, NAMES, NOW + after)
    assert (found is FIRST) == (same == "both")
    assert (found.authority == FIRST.authority) == (same != "none")
    assert (found.serving == FIRST.serving) == (same == "both")


def test_another_name_is_added_to_the_former_ones() -> None:
    """They stay registered until the webhook has answered at the new address; the next renewal drops them."""
    found = renewed(FIRST, ["other.svc"], NOW)
    assert found.authority == FIRST.authority
    assert sorted(names(found.serving)) == sorted([*NAMES, "other.svc"])
    assert renewed(found, NAMES, NOW) is found
    assert names(renewed(found, ["other.svc"], NOW + timedelta(days=22)).serving) == ["other.svc"]
    for turn in range(20):
        found = renewed(found, [f"{turn}.svc"], NOW)
    assert len(names(found.serving)) == 8


def test_a_secret_gives_back_what_was_put_into_it() -> None:
    """It is marked as ours, and of the type that other tools know."""
    found = secret(REF, OWNER, FIRST)
    assert certificates_of(found) == FIRST
    assert (found["type"], set(found["data"])) == ("kubernetes.io/tls", {"ca.crt", "ca.key", "tls.crt", "tls.key"})
    assert found["metadata"]["labels"] == OWNER.label


def test_keys_are_not_printed() -> None:
    """Neither in a message nor in a traceback."""
    assert "PRIVATE" not in f"{FIRST} {FIRST!r} {given((), FIRST.serving, b'', 0.0)}"


OTHER = renewed(None, NAMES, NOW)
DATA = secret(REF, OWNER, FIRST)["data"]


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        "text",
        {key: value for key, value in DATA.items() if key != "ca.key"},
        {**DATA, "tls.crt": "?"},
        {**DATA, "tls.crt": b64encode(b"no PEM").decode()},
        {**DATA, "tls.key": ""},
        {**DATA, "tls.key": b64encode(OTHER.serving.key).decode()},
        {**DATA, "ca.crt": b64encode(OTHER.authority.certificate).decode()},
        secret(REF, OWNER, FIRST._replace(authority=OTHER.authority))["data"],
    ],
    ids=["null", "empty", "no map", "a part", "no base64", "no PEM", "no key", "another key", "another CA", "of two"],
)
def test_what_does_not_belong_together_is_nothing(data: Any) -> None:
    """Whoever edited it: it is written anew, if the Secret is ours."""
    assert certificates_of({"data": data}) is None


def under(authority: KeyPair, served: Served, now: float) -> Served:
    """Return what is served once another certificate under a CA was given."""
    pair = issued("x", "x", ["x"], NOW, timedelta(days=1), authority=authority)
    return given(served, pair, authority.certificate, now)


def test_a_certificate_under_the_same_ca_is_served_at_once() -> None:
    """Apiservers trust it already."""
    one = given((), FIRST.serving, FIRST.authority.certificate, 0.0)
    two = under(FIRST.authority, one, 1.0)
    assert shown(one, 0.0) == FIRST.serving
    assert shown(two, 1.0) not in (None, FIRST.serving)
    assert trusted(one) == trusted(two) == FIRST.authority.certificate


def test_a_certificate_that_needs_other_trust_is_trusted_before_it_is_served_and_the_last_one_after() -> None:
    """Replicas are given it at different moments; each serves one of the two, and both are trusted meanwhile."""
    assert shown((), 0.0) is None
    served = given((), FIRST.serving, FIRST.authority.certificate, 0.0)
    seen = []
    for now in (10.0, 9.9 + OVERLAP, 10.0 + OVERLAP, 9.9 + 2 * OVERLAP, 10.0 + 2 * OVERLAP):
        served = given(served, OTHER.serving, OTHER.authority.certificate, now)
        seen.append((shown(served, now) == OTHER.serving, FIRST.authority.certificate in trusted(served)))
        assert OTHER.authority.certificate in trusted(served)
    assert seen == [(False, True), (False, True), (True, True), (True, True), (True, False)]


def test_of_several_changes_the_one_that_is_served_and_the_last_count() -> None:
    """What comes in between is served by nobody; what comes back is served on."""
    third = renewed(None, NAMES, NOW)
    served = given((), FIRST.serving, FIRST.authority.certificate, 0.0)
    served = given(served, OTHER.serving, OTHER.authority.certificate, 1.0)
    served = given(served, third.serving, third.authority.certificate, 2.0)
    assert trusted(served) == third.authority.certificate + FIRST.authority.certificate
    assert shown(served, 2.0) == FIRST.serving
    back = given(served, FIRST.serving, FIRST.authority.certificate, 3.0)
    assert (shown(back, 3.0), trusted(back)) == (FIRST.serving, FIRST.authority.certificate)
    assert shown(back, 3.0 + OVERLAP) == FIRST.serving


def test_of_a_file_nothing_but_certificates_is_published() -> None:
    """Certificate and key may be in one file, with words about them."""
    pair = self_signed("x", "x", ["x"], NOW, timedelta(days=1))
    both = KeyPair(b"# ours\n" + pair.key + pair.certificate, pair.key)
    assert trusted(given((), both, both.certificate, 0.0)) == pair.certificate
