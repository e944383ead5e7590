"""Tests of the certificate checks: expiry of certificates and tokens, and faults of the ones that tensile presents."""

from dataclasses import astuple, replace
from datetime import timedelta
from typing import Any

import pytest
from doctorkit import (
    CA,
    LOWER,
    NOW,
    cluster_facts,
    contact,
    der,
    facts,
    findings_at,
    lease,
    levels,
    node,
    only_finding,
    server_endpoint,
    signed_by,
    topology,
)

from tensile.diagnostics.doctor.certificates import check_certificates
from tensile.diagnostics.doctor.facts import (
    AUTHORITY,
    NODES,
    REQUESTS,
    Facts,
    Finding,
    Level,
    QueryAnswer,
    Stage,
    TokenInfo,
    lease_of,
)
from tensile.kubelet.api.csr import request_for
from tensile.objects import UPPER, Manifest
from tensile.sandbox.credentials import authority

YEAR = timedelta(days=365)
KUBELET = {"tlsCertFile": "serving.crt", "tlsKeyFile": "serving.key"}


def upper_findings(known: Facts) -> list[Finding]:
    """Return the findings on the upper cluster's certificates and on the engine's own ones."""
    return list(check_certificates(known.upper, known))


def lower_findings(**fields: Any) -> list[Finding]:
    """Return the findings on a lower cluster's certificates."""
    one = cluster_facts(contact=contact(**fields))
    return list(check_certificates(one, facts(None, one)))


def test_the_expiry_of_every_certificate_is_reported() -> None:
    """Client certificate, CA and apiserver certificate expire a year after they are issued."""
    assert [one.what for one in lower_findings()] == [
        "client certificate of CN=engine,O=masters is valid until 2027-06-01 12:00 UTC",
        "CA CN=cluster-ca is valid until 2027-06-01 12:00 UTC",
        "the apiserver's certificate is valid until 2027-06-01 12:00 UTC",
    ]
    assert {one.level for one in lower_findings()} == {Level.OK}
    assert not any(one.advice for one in lower_findings())


def test_a_client_certificate_that_expires_within_14_days_is_a_warning() -> None:
    """One that expires 15 days from now is no warning."""
    finding = only_finding(
        findings_at(
            lower_findings(endpoint=server_endpoint(certificate=signed_by(ago=YEAR - timedelta(days=13)))), Level.WARN
        )
    )
    assert finding.what == "client certificate of CN=engine,O=masters is valid until 2026-06-14 12:00 UTC"
    assert finding.advice == "renew it, and put it into kubeconfigs/it"
    assert not findings_at(
        lower_findings(endpoint=server_endpoint(certificate=signed_by(ago=YEAR - timedelta(days=15)))), Level.WARN
    )


def test_an_apiserver_certificate_that_expires_soon_is_a_warning() -> None:
    """The advice is for the cluster's administrator: the kubeadm command that renews the certificate."""
    shown = der(signed_by(ago=YEAR - timedelta(days=1), addresses=("192.0.2.1",)))
    assert "kubeadm certs renew apiserver" in only_finding(findings_at(lower_findings(shown=shown), Level.WARN)).advice


def test_an_untrusted_apiserver_certificate_has_no_expiry_finding() -> None:
    """The connection finding already describes that certificate."""
    assert "the apiserver's" not in " ".join(one.what for one in lower_findings(stage=Stage.TLS))


def ca(name: str, ago: timedelta) -> bytes:
    """Create a CA certificate that was issued so long ago and is valid for a year."""
    return authority(name, NOW - ago).pair.certificate


def bundle(*certificates: bytes, **fields: Any) -> Finding:
    """Return the only finding on the CAs of a kubeconfig."""
    found = lower_findings(endpoint=server_endpoint(certificate=b"", authority=b"".join(certificates)), **fields)
    return only_finding(one for one in found if one.what.startswith("CA "))


def test_a_ca_bundle_has_one_finding() -> None:
    """System bundles have over a hundred CAs, so the CA that signed counts, otherwise the one that expires last."""
    others = [ca(f"root-{number}", timedelta(days=-number)) for number in range(4)]
    finding = bundle(*others, CA.pair.certificate)
    assert (finding.level, finding.what) == (
        Level.OK,
        "CA CN=cluster-ca, of 5 in the bundle, is valid until 2027-06-01 12:00 UTC",
    )
    assert "CN=root-3," in bundle(*others).what


def test_expired_cas_beside_a_valid_one_are_a_warning() -> None:
    """After a CA is renewed, the old one often stays in the bundle, which is harmless."""
    for stage in (Stage.DONE, Stage.CONNECTION):
        finding = bundle(ca("old", 20 * YEAR), CA.pair.certificate, ca("cluster-ca", 20 * YEAR), stage=stage)
        assert finding.level == Level.WARN
        assert finding.what.startswith("CA CN=cluster-ca, of 3 in the bundle, is valid until 2027-06-01 12:00 UTC")
        assert "; 2 of them expired, such as CN=old on 20" in finding.what
        assert finding.advice == "remove the expired ones from kubeconfigs/it"


def test_a_bundle_that_expires_soon_and_has_expired_cas_reports_both() -> None:
    """The advice is about the CA that expires soon, because that is more urgent."""
    soon = ca("cluster-ca", YEAR - timedelta(days=2))
    finding = bundle(ca("old", 20 * YEAR), soon)
    assert finding.level == Level.WARN
    assert "is valid until 2026-06-03 12:00 UTC; 1 of them expired" in finding.what
    assert "put the cluster's new CA into kubeconfigs/it" in finding.advice


def test_a_bundle_with_only_expired_cas_fails() -> None:
    """The bundle trusts no certificate at all."""
    finding = bundle(ca("old", 21 * YEAR), ca("older", 22 * YEAR), stage=Stage.TLS)
    assert finding.level == Level.FAIL
    assert finding.what.startswith("CA CN=old, of 2 in the bundle, expired on ")


def test_an_expired_client_certificate_or_token_fails() -> None:
    """Each finding has the expiry."""
    finding = only_finding(
        findings_at(lower_findings(endpoint=server_endpoint(certificate=signed_by(ago=2 * YEAR))), Level.FAIL)
    )
    assert "expired on" in finding.what
    token = TokenInfo("system:serviceaccount:ops:engine", NOW - timedelta(minutes=1))
    finding = only_finding(
        findings_at(lower_findings(endpoint=server_endpoint(certificate=b"", token=token)), Level.FAIL)
    )
    assert finding.what == "token of system:serviceaccount:ops:engine expired on 2026-06-01 11:59 UTC"


def test_an_expired_credential_that_is_refused_is_reported_once() -> None:
    """After a refused login, the login finding gives the cause and the remedy; without a login, this check does."""
    token = TokenInfo("system:serviceaccount:ops:engine", NOW - timedelta(minutes=1))
    refused = lower_findings(endpoint=server_endpoint(certificate=b"", token=token), stage=Stage.LOGIN)
    assert not any("expired" in one.what for one in refused)
    assert not any(
        "expired" in one.what
        for one in lower_findings(endpoint=server_endpoint(certificate=signed_by(ago=2 * YEAR)), stage=Stage.LOGIN)
    )
    unreached = only_finding(
        findings_at(
            lower_findings(endpoint=server_endpoint(certificate=b"", token=token), stage=Stage.CONNECTION), Level.FAIL
        )
    )
    assert "kubectl -n ops create token engine" in unreached.advice


def test_a_token_that_expires_soon_is_a_warning_if_it_is_accepted() -> None:
    """The advice is conditional, because doctor cannot know whether another process renews the token in its file."""
    finding = only_finding(
        findings_at(lower_findings(endpoint=server_endpoint(token=TokenInfo("", NOW + timedelta(hours=1)))), Level.WARN)
    )
    assert finding.what == "token of unknown is valid until 2026-06-01 13:00 UTC"
    assert "if something renews it" in finding.advice
    refused = contact(Stage.LOGIN, "HTTP 401", endpoint=server_endpoint(token=TokenInfo("", NOW + timedelta(hours=1))))
    one = cluster_facts(contact=refused)
    assert not any("token" in each.what for each in check_certificates(one, facts(None, one)))


def test_a_cluster_without_a_contact_result_has_no_certificate_findings() -> None:
    """Its certificates are unknown."""
    one = cluster_facts(contact=None)
    assert not list(check_certificates(one, facts(None, one)))


# The serving certificate of virtual nodes, and the webhook's.


def served(section: str = "kubelet", ago: timedelta = timedelta(), **names: Any) -> Facts:
    """Return facts in which the section's files hold a certificate and its key that were issued so long ago."""
    return with_files(section, *pair(ago, **names))


def pair(ago: timedelta = timedelta(), **names: Any) -> tuple[bytes, bytes]:
    """Create a certificate and its key that were issued so long ago."""
    return astuple(replace(CA, now=NOW - ago).issue("engine", **names))


def with_files(section: str, certificate: Any, key: Any) -> Facts:
    """Return facts in which the section's files have these contents or errors."""
    fields: Manifest = {section: KUBELET}
    if section == "webhook":
        fields["webhook"] = {**KUBELET, "enabled": True, "url": "https://hooks.example:8443/mutate"}
    files = {
        f"{section}.tlsCertFile": QueryAnswer(("/etc/serving.crt", certificate)),
        f"{section}.tlsKeyFile": QueryAnswer(("/etc/serving.key", key)),
    }
    return facts(topology=topology(**fields), files=files)


def about_files(known: Facts) -> list[Finding]:
    """Return the findings on files."""
    return [one for one in upper_findings(known) if "/etc/" in one.what]


def test_a_valid_serving_certificate_is_described() -> None:
    """The finding names its subject, its issuer and its first address."""
    finding = only_finding(about_files(served(addresses=("192.0.2.9",))))
    assert (finding.cluster, finding.level) == (UPPER, Level.OK)
    assert finding.what.startswith(
        "kubelet.tlsCertFile: /etc/serving.crt: CN=engine, issued by CN=cluster-ca, for 192."
    )


def test_a_serving_certificate_without_the_nodes_address_fails() -> None:
    """The upper apiserver calls the nodes at an address that the certificate does not have."""
    finding = only_finding(about_files(served(addresses=("192.0.2.8",))))
    assert finding.level == Level.FAIL
    assert "it is valid for 192.0.2.8, but the upper apiserver calls the nodes at 192.0.2.9" in finding.what
    assert "IP:192.0.2.9" in finding.advice


def test_an_expired_serving_certificate_fails_and_one_that_expires_soon_warns() -> None:
    """Both findings have the date and the advice to renew it."""
    ended = only_finding(about_files(served(ago=2 * YEAR, addresses=("192.0.2.9",))))
    assert (ended.level, "it expired on" in ended.what, ended.advice) == (Level.FAIL, True, "renew it")
    soon = only_finding(about_files(served(ago=YEAR - timedelta(days=2), addresses=("192.0.2.9",))))
    assert (soon.level, "until 2026-06-03" in soon.what, "renew it" in soon.advice) == (Level.WARN, True, True)


def test_a_key_that_does_not_match_its_certificate_fails() -> None:
    """The finding names the key file and its field."""
    finding = only_finding(about_files(with_files("kubelet", pair()[0], pair()[1])))
    assert finding.level == Level.FAIL
    assert "does not match the key in kubelet.tlsKeyFile: /etc/serving.key" in finding.what


def test_each_unreadable_certificate_file_fails_with_its_error() -> None:
    """A missing file has the advice to set a path that exists."""
    gone, locked = FileNotFoundError(2, "No such file or directory"), PermissionError(13, "Permission denied")
    first, second = about_files(with_files("kubelet", gone, locked))
    assert first.what == "kubelet.tlsCertFile: /etc/serving.crt: cannot be read (No such file or directory)"
    assert "set a path that exists" in first.advice
    assert second.what == "kubelet.tlsKeyFile: /etc/serving.key: cannot be read (Permission denied)"
    assert levels([first, second]) == [Level.FAIL] * 2


@pytest.mark.parametrize(
    ("hosts", "is_good"), [(("hooks.example",), True), (("*.example",), True), (("x.org",), False)]
)
def test_the_webhook_certificate_must_name_the_host_of_its_url(hosts: tuple[str, ...], *, is_good: bool) -> None:
    """A wildcard name is accepted too."""
    finding = only_finding(about_files(served("webhook", hosts=hosts)))
    assert (finding.level == Level.OK) == is_good
    if not is_good:
        assert finding.what.endswith("it names x.org, and the upper's apiserver calls the webhook at hooks.example")


def test_a_webhook_without_certificate_files_has_only_ok_findings() -> None:
    """The engine creates that certificate itself."""
    known = facts(topology=topology(webhook={"enabled": True, "url": "https://hooks.example:8443/"}))
    assert {one.level for one in upper_findings(known)} == {Level.OK}


# The CA for clients of the kubelet API.


def published(answer: QueryAnswer) -> list[Finding]:
    """Return the findings on the client CA that the upper cluster publishes."""
    known = facts(cluster_facts(UPPER, answers={AUTHORITY: answer}))
    return [one for one in upper_findings(known) if "extension-apiserver-authentication" in one.what]


def test_the_expiry_of_a_published_client_ca_is_reported() -> None:
    """The CA is read from ConfigMap extension-apiserver-authentication."""
    finding = only_finding(published(QueryAnswer({"data": {"client-ca-file": CA.pair.certificate.decode()}})))
    assert (finding.level, "valid until 2027-06-01" in finding.what) == (Level.OK, True)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (QueryAnswer({"data": {}}), "it has no client-ca-file"),
        (QueryAnswer({}), "it has no client-ca-file"),
        (QueryAnswer(error='configmaps "x" is forbidden', status=403), "is forbidden"),
    ],
)
def test_a_missing_client_ca_fails(answer: QueryAnswer, message: str) -> None:
    """The kubelet API refuses every request without a client CA."""
    finding = only_finding(published(answer))
    assert finding.level == Level.FAIL
    assert message in finding.what
    assert finding.what.endswith("so every kubelet API request is refused")
    assert "--client-ca-file" in finding.advice


def test_a_client_ca_file_is_checked_instead_of_the_published_ca() -> None:
    """A CA is OK, a certificate that is no CA is a warning, and a key is a failure."""
    named = topology(kubelet={"clientCAFile": "ca.crt"})
    for content, level in ((CA.pair.certificate, Level.OK), (signed_by(), Level.WARN), (CA.pair.key, Level.FAIL)):
        known = facts(topology=named, files={"kubelet.clientCAFile": QueryAnswer(("/etc/ca.crt", content))})
        finding = only_finding(about_files(known))
        assert (finding.level, finding.what.startswith("kubelet.clientCAFile: /etc/ca.crt: ")) == (level, True)


def test_a_missing_client_ca_file_fails() -> None:
    """A client CA file that does not exist is treated like any other unreadable file."""
    gone = QueryAnswer(("/etc/ca.crt", FileNotFoundError(2, "No such file or directory")))
    known = facts(topology=topology(kubelet={"clientCAFile": "ca.crt"}), files={"kubelet.clientCAFile": gone})
    assert only_finding(about_files(known)).level == Level.FAIL


def test_an_upper_cluster_that_was_not_queried_has_no_client_ca_finding() -> None:
    """Without responses doctor cannot know whether the client CA is published."""
    upper = cluster_facts(UPPER)
    upper.answers.clear()
    assert not any("every kubelet API request" in one.what for one in upper_findings(facts(upper)))


# Requests for serving certificates.


def request(name: str, minute: int, *, approved: bool = False, address: str = "192.0.2.1") -> Manifest:
    """Create a CertificateSigningRequest in the form of the API."""
    status = {"conditions": [{"type": "Approved", "status": "True"}]} if approved else {}
    meta = {"name": name, "creationTimestamp": f"2026-06-01T11:{minute:02}:00Z"}
    return {"metadata": meta, "spec": request_for(LOWER, address).manifest["spec"], "status": status}


def waiting(*requests: Manifest, nodes: tuple[Manifest, ...] = ()) -> list[Finding]:
    """Return the warnings for an upper cluster with these requests."""
    upper = cluster_facts(UPPER, answers={REQUESTS: QueryAnswer(list(requests)), NODES: QueryAnswer(list(nodes))})
    return findings_at(upper_findings(facts(upper)), Level.WARN)


def test_a_pending_certificate_request_is_a_warning_with_the_approve_command() -> None:
    """The finding belongs to the lower cluster whose node created the request."""
    finding = only_finding(waiting(request("tensile-lower-a-0123abcd", 5)))
    assert (finding.cluster, finding.advice) == (LOWER, "kubectl certificate approve tensile-lower-a-0123abcd")


def test_a_denied_certificate_request_is_reported_with_its_message() -> None:
    """A denial is final; the engine creates another request after 15 minutes, which has to be approved."""
    denied = request("tensile-lower-a-0123abcd", 5)
    denied["status"] = {"conditions": [{"type": "Denied", "status": "True", "message": "not here"}]}
    finding = only_finding(waiting(denied))
    assert finding.what == "the request for a serving certificate of node lower-a was denied: not here"
    assert finding.advice.startswith("approve the next request: the engine makes it 15 minutes after the refusal")


def test_only_the_newest_certificate_request_of_a_node_is_reported() -> None:
    """Older requests are from before a restart, and the engine no longer uses them."""
    assert (
        "tensile-lower-a-new"
        in only_finding(waiting(request("tensile-lower-a-old", 1), request("tensile-lower-a-new", 2))).advice
    )
    assert not waiting(request("tensile-lower-a-old", 1), request("tensile-lower-a-new", 2, approved=True))


def test_the_pending_request_of_the_leader_is_reported_beside_newer_ones() -> None:
    """A newer request may be of a standby engine; requests of engines that ended are ignored."""
    ours, address = node(LOWER, address="192.0.2.9"), "192.0.2.9"
    drives = [request("tensile-lower-a-gone", 1), request("tensile-lower-a-drives", 3, address=address)]
    stands_by = request("tensile-lower-a-by", 4, approved=True)
    finding = only_finding(waiting(*drives, stands_by, nodes=(ours,)))
    assert finding.advice == "kubectl certificate approve tensile-lower-a-drives"
    both = waiting(*drives, request("tensile-lower-a-by", 4), nodes=(ours,))
    assert [one.advice.split()[-1] for one in both] == ["tensile-lower-a-drives", "tensile-lower-a-by"]
    alone = only_finding(waiting(*drives, nodes=(ours,)))
    assert alone.advice == "kubectl certificate approve tensile-lower-a-drives"


@pytest.mark.parametrize(("ago", "count"), [(1.0, 1), (120.0, 0)])
def test_requests_are_not_reported_if_the_nodes_lease_expired(ago: float, count: int) -> None:
    """No engine uses such a request, and the next engine creates another one."""
    answers = {REQUESTS: QueryAnswer([request("tensile-lower-a-0123abcd", 5)]), lease_of(LOWER): lease(ago)}
    assert len(findings_at(upper_findings(facts(cluster_facts(UPPER, answers=answers))), Level.WARN)) == count


@pytest.mark.parametrize("spec", [{}, {"request": "bm90aGluZw=="}, {"request": "%"}])
def test_an_unparsable_certificate_request_is_still_reported(spec: Manifest) -> None:
    """The request's name identifies its node."""
    strange = {**request("tensile-lower-a-0123abcd", 5), "spec": spec}
    assert only_finding(waiting(strange, nodes=(node(LOWER),))).level == Level.WARN


def test_certificate_requests_of_other_owners_are_ignored() -> None:
    """They belong to nodes of other topologies or to other programs."""
    assert not waiting(request("csr-abc", 1), request("tensile-lower-b-0123", 2), request("tensile-lower-a-b-0123", 3))


def test_certificate_requests_that_may_not_be_listed_are_skipped() -> None:
    """The engine's own role has no such right, so the advice is a command for an administrator."""
    upper = cluster_facts(UPPER, answers={REQUESTS: QueryAnswer(error="forbidden", status=403)})
    finding = only_finding(findings_at(upper_findings(facts(upper)), Level.SKIP))
    assert (finding.cluster, "cannot be read (forbidden)" in finding.what) == (UPPER, True)
    assert finding.advice == "as an administrator of the upper cluster: kubectl get csr"
    assert not findings_at(upper_findings(facts(cluster_facts(UPPER, answers={REQUESTS: QueryAnswer([])}))), Level.SKIP)
