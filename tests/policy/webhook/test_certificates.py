"""Tests of the webhook's CA and certificate: their renewal, the Secret's content, and changes of the trusted CA."""

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tensile.kube.tls import KeyPair, issued, names_of, self_signed
from tensile.names import owner_of
from tensile.objects import SECRET, UPPER, Ref
from tensile.policy.webhook.certificates import (
    AUTHORITY_LIFE,
    OVERLAP,
    SERVING_LIFE,
    Served,
    ca_bundle,
    certificate_to_serve,
    certificates_in,
    certificates_of,
    ensure_current,
    secret,
    with_certificate,
)

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
NAMES = ("hook.tensile.svc", "10.0.0.1")
FIRST = ensure_current(None, NAMES, NOW)
OWNER = owner_of("11111111-upper", "demo")
REF = Ref(UPPER, SECRET, "tensile", "tensile-webhook-demo")


def names(pair: KeyPair) -> list[str]:
    """Return the names in a certificate."""
    return names_of(certificates_in(pair.certificate)[0])


def test_a_certificate_has_its_own_ca_and_is_backdated_by_an_hour() -> None:
    """Apiservers whose clock is behind accept it too; the CA is valid for years."""
    authority, serving = (certificates_in(pair.certificate)[0] for pair in FIRST)
    serving.verify_directly_issued_by(authority)
    assert sorted(names(FIRST.serving)) == sorted(NAMES)
    for certificate, life in ((authority, AUTHORITY_LIFE), (serving, SERVING_LIFE)):
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
    ids=["not due", "due", "expired", "a clock that is set back", "the CA is due"],
)
def test_a_certificate_is_renewed_at_seven_tenths_of_its_life(after: timedelta, same: str) -> None:
    """The CA stays the same until it is due itself, so every apiserver already trusts the new certificate."""
    found = ensure_current(FIRST, NAMES, NOW + after)
    assert (found is FIRST) == (same == "both")
    assert (found.authority == FIRST.authority) == (same != "none")
    assert (found.serving == FIRST.serving) == (same == "both")


def test_a_new_name_is_added_to_the_former_names() -> None:
    """They stay until the next renewal, because the webhook stays registered there until the new address responds."""
    found = ensure_current(FIRST, ["other.svc"], NOW)
    assert found.authority == FIRST.authority
    assert sorted(names(found.serving)) == sorted([*NAMES, "other.svc"])
    assert ensure_current(found, NAMES, NOW) is found
    assert names(ensure_current(found, ["other.svc"], NOW + timedelta(days=22)).serving) == ["other.svc"]
    for turn in range(20):
        found = ensure_current(found, [f"{turn}.svc"], NOW)
    assert len(names(found.serving)) == 8


def test_certificates_are_read_from_the_secret_as_they_were_written() -> None:
    """The Secret has the owner label and the standard TLS type."""
    found = secret(REF, OWNER, FIRST)
    assert certificates_of(found) == FIRST
    assert (found["type"], set(found["data"])) == ("kubernetes.io/tls", {"ca.crt", "ca.key", "tls.crt", "tls.key"})
    assert found["metadata"]["labels"] == OWNER.label


def test_private_keys_are_not_in_any_repr() -> None:
    """They must appear neither in a message nor in a traceback."""
    assert "PRIVATE" not in f"{FIRST} {FIRST!r} {with_certificate((), FIRST.serving, b'', 0.0)}"


OTHER = ensure_current(None, NAMES, NOW)
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
def test_a_secret_with_invalid_or_mismatched_content_has_no_certificates(data: Any) -> None:
    """Regardless of its editor, it is written again if it is the engine's own Secret."""
    assert certificates_of({"data": data}) is None


def under(authority: KeyPair, served: Served, now: float) -> Served:
    """Return the served state after another certificate under a CA was added."""
    pair = issued("x", "x", ["x"], NOW, timedelta(days=1), authority=authority)
    return with_certificate(served, pair, authority.certificate, now)


def test_a_certificate_under_the_same_ca_is_served_at_once() -> None:
    """Apiservers already trust its CA."""
    one = with_certificate((), FIRST.serving, FIRST.authority.certificate, 0.0)
    two = under(FIRST.authority, one, 1.0)
    assert certificate_to_serve(one, 0.0) == FIRST.serving
    assert certificate_to_serve(two, 1.0) not in (None, FIRST.serving)
    assert ca_bundle(one) == ca_bundle(two) == FIRST.authority.certificate


def test_a_certificate_with_another_ca_is_trusted_before_it_is_served() -> None:
    """Replicas switch at different times, so both CAs are trusted until all have switched."""
    assert certificate_to_serve((), 0.0) is None
    served = with_certificate((), FIRST.serving, FIRST.authority.certificate, 0.0)
    seen = []
    for now in (10.0, 9.9 + OVERLAP, 10.0 + OVERLAP, 9.9 + 2 * OVERLAP, 10.0 + 2 * OVERLAP):
        served = with_certificate(served, OTHER.serving, OTHER.authority.certificate, now)
        seen.append(
            (certificate_to_serve(served, now) == OTHER.serving, FIRST.authority.certificate in ca_bundle(served))
        )
        assert OTHER.authority.certificate in ca_bundle(served)
    assert seen == [(False, True), (False, True), (True, True), (True, True), (True, False)]


def test_of_several_changes_only_the_served_and_the_last_certificate_count() -> None:
    """One in between is never served; if the served one is set again, it is served on."""
    third = ensure_current(None, NAMES, NOW)
    served = with_certificate((), FIRST.serving, FIRST.authority.certificate, 0.0)
    served = with_certificate(served, OTHER.serving, OTHER.authority.certificate, 1.0)
    served = with_certificate(served, third.serving, third.authority.certificate, 2.0)
    assert ca_bundle(served) == third.authority.certificate + FIRST.authority.certificate
    assert certificate_to_serve(served, 2.0) == FIRST.serving
    back = with_certificate(served, FIRST.serving, FIRST.authority.certificate, 3.0)
    assert (certificate_to_serve(back, 3.0), ca_bundle(back)) == (FIRST.serving, FIRST.authority.certificate)
    assert certificate_to_serve(back, 3.0 + OVERLAP) == FIRST.serving


def test_only_certificates_of_a_file_are_published_as_trusted() -> None:
    """A file may contain the certificate, the key and comments."""
    pair = self_signed("x", "x", ["x"], NOW, timedelta(days=1))
    both = KeyPair(b"# ours\n" + pair.key + pair.certificate, pair.key)
    assert ca_bundle(with_certificate((), both, both.certificate, 0.0)) == pair.certificate
