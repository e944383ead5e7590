"""Certificates and tokens: which there are, until when they hold, and what is wrong with those that we show."""

from dataclasses import astuple, replace
from datetime import timedelta
from typing import Any

import pytest
from doctorkit import CA, LOWER, NOW, at, contact, der, facts, lease, levels, node, only, side, signed_by, topology, way

from tensile.diagnostics.doctor.certificates import papers
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


def told(known: Facts) -> list[Finding]:
    """Look at the upper cluster's papers, and at ours."""
    return list(papers(known.upper, known))


def below(**fields: Any) -> list[Finding]:
    """Look at a lower's papers."""
    one = side(contact=contact(**fields))
    return list(papers(one, facts(None, one)))


def test_until_when_papers_hold() -> None:
    """The client's, the CA, the server's: a year from when they were made."""
    assert [one.what for one in below()] == [
        "client certificate of CN=engine,O=masters is valid until 2027-06-01 12:00 UTC",
        "CA CN=cluster-ca is valid until 2027-06-01 12:00 UTC",
        "the apiserver's certificate is valid until 2027-06-01 12:00 UTC",
    ]
    assert {one.level for one in below()} == {Level.OK}
    assert not any(one.advice for one in below())


def test_a_client_certificate_that_ends_soon() -> None:
    """A fortnight before its end it is worth a word."""
    finding = only(at(below(way=way(certificate=signed_by(ago=YEAR - timedelta(days=13)))), Level.WARN))
    assert finding.what == "client certificate of CN=engine,O=masters is valid until 2026-06-14 12:00 UTC"
    assert finding.advice == "renew it, and put it into kubeconfigs/it"
    assert not at(below(way=way(certificate=signed_by(ago=YEAR - timedelta(days=15)))), Level.WARN)


def test_an_apiservers_certificate_that_ends_soon() -> None:
    """It is for somebody else to renew."""
    shown = der(signed_by(ago=YEAR - timedelta(days=1), addresses=("192.0.2.1",)))
    assert "kubeadm certs renew apiserver" in only(at(below(shown=shown), Level.WARN)).advice


def test_a_certificate_that_is_not_trusted_is_told_of_once() -> None:
    """Where the way ends at TLS, that says all of it."""
    assert "the apiserver's" not in " ".join(one.what for one in below(stage=Stage.TLS))


def ca(name: str, ago: timedelta) -> bytes:
    """Make a CA's certificate that holds for a year, so long ago."""
    return authority(name, NOW - ago).pair.certificate


def bundle(*certificates: bytes, **fields: Any) -> Finding:
    """Return what is told of the CAs of a kubeconfig, and see that it is one thing."""
    found = below(way=way(certificate=b"", authority=b"".join(certificates)), **fields)
    return only(one for one in found if one.what.startswith("CA "))


def test_a_bundle_is_one_thing() -> None:
    """A system's has more than a hundred: what counts is the one that signed, else the last to end."""
    others = [ca(f"root-{number}", timedelta(days=-number)) for number in range(4)]
    finding = bundle(*others, CA.pair.certificate)
    assert (finding.level, finding.what) == (
        Level.OK,
        "CA CN=cluster-ca, of 5 in the bundle, is valid until 2027-06-01 12:00 UTC",
    )
    assert "CN=root-3," in bundle(*others).what


def test_what_has_ended_in_a_bundle_is_a_warning_beside_a_good_one() -> None:
    """As a renewed CA is: the old one is left in, and does no harm."""
    for stage in (Stage.DONE, Stage.CONNECTION):
        finding = bundle(ca("old", 20 * YEAR), CA.pair.certificate, ca("cluster-ca", 20 * YEAR), stage=stage)
        assert finding.level == Level.WARN
        assert finding.what.startswith("CA CN=cluster-ca, of 3 in the bundle, is valid until 2027-06-01 12:00 UTC")
        assert "; 2 of them expired, such as CN=old on 20" in finding.what
        assert finding.advice == "remove the expired ones from kubeconfigs/it"


def test_a_bundle_that_ends_soon_says_both() -> None:
    """What is to be done first is what ends."""
    soon = ca("cluster-ca", YEAR - timedelta(days=2))
    finding = bundle(ca("old", 20 * YEAR), soon)
    assert finding.level == Level.WARN
    assert "is valid until 2026-06-03 12:00 UTC; 1 of them expired" in finding.what
    assert "put the cluster's new CA into kubeconfigs/it" in finding.advice


def test_a_bundle_of_which_everything_ended() -> None:
    """Nothing is trusted by it."""
    finding = bundle(ca("old", 21 * YEAR), ca("older", 22 * YEAR), stage=Stage.TLS)
    assert finding.level == Level.FAIL
    assert finding.what.startswith("CA CN=old, of 2 in the bundle, expired on ")


def test_what_has_ended_fails() -> None:
    """A client certificate, and a token."""
    finding = only(at(below(way=way(certificate=signed_by(ago=2 * YEAR))), Level.FAIL))
    assert "expired on" in finding.what
    token = TokenInfo("system:serviceaccount:ops:engine", NOW - timedelta(minutes=1))
    finding = only(at(below(way=way(certificate=b"", token=token)), Level.FAIL))
    assert finding.what == "token of system:serviceaccount:ops:engine expired on 2026-06-01 11:59 UTC"


def test_what_has_ended_and_is_refused_is_told_once() -> None:
    """Where one gets as far as the login, that finding says why it fails, and the one remedy."""
    token = TokenInfo("system:serviceaccount:ops:engine", NOW - timedelta(minutes=1))
    refused = below(way=way(certificate=b"", token=token), stage=Stage.LOGIN)
    assert not any("ended" in one.what for one in refused)
    assert not any(
        "ended" in one.what for one in below(way=way(certificate=signed_by(ago=2 * YEAR)), stage=Stage.LOGIN)
    )
    unreached = only(at(below(way=way(certificate=b"", token=token), stage=Stage.CONNECTION), Level.FAIL))
    assert "kubectl -n ops create token engine" in unreached.advice


def test_a_token_that_ends_soon() -> None:
    """Something may renew it in its file, which cannot be seen."""
    finding = only(at(below(way=way(token=TokenInfo("", NOW + timedelta(hours=1)))), Level.WARN))
    assert finding.what == "token of unknown is valid until 2026-06-01 13:00 UTC"
    assert "if something renews it" in finding.advice
    refused = contact(Stage.LOGIN, "HTTP 401", way=way(token=TokenInfo("", NOW + timedelta(hours=1))))
    one = side(contact=refused)
    assert not any("token" in each.what for each in papers(one, facts(None, one)))


def test_a_cluster_without_a_way() -> None:
    """Nothing is known of its papers."""
    one = side(contact=None)
    assert not list(papers(one, facts(None, one)))


# The serving certificate of virtual nodes, and the webhook's.


def served(section: str = "kubelet", ago: timedelta = timedelta(), **names: Any) -> Facts:
    """Return facts in which the section's certificate and key are those of files, made so long ago."""
    return with_files(section, *pair(ago, **names))


def pair(ago: timedelta = timedelta(), **names: Any) -> tuple[bytes, bytes]:
    """Make a certificate and its key, so long ago."""
    return astuple(replace(CA, now=NOW - ago).issue("engine", **names))


def with_files(section: str, certificate: Any, key: Any) -> Facts:
    """Return facts with these contents, or errors."""
    fields: Manifest = {section: KUBELET}
    if section == "webhook":
        fields["webhook"] = {**KUBELET, "enabled": True, "url": "https://hooks.example:8443/mutate"}
    files = {
        f"{section}.tlsCertFile": QueryAnswer(("/etc/serving.crt", certificate)),
        f"{section}.tlsKeyFile": QueryAnswer(("/etc/serving.key", key)),
    }
    return facts(topology=topology(**fields), files=files)


def about_files(known: Facts) -> list[Finding]:
    """Return what is told of files."""
    return [one for one in told(known) if "/etc/" in one.what]


def test_a_good_serving_certificate() -> None:
    """Whose, by whom, for which names, until when."""
    finding = only(about_files(served(addresses=("192.0.2.9",))))
    assert (finding.cluster, finding.level) == (UPPER, Level.OK)
    assert finding.what.startswith(
        "kubelet.tlsCertFile: /etc/serving.crt: CN=engine, issued by CN=cluster-ca, for 192."
    )


def test_a_serving_certificate_for_another_address() -> None:
    """It has to name the address of the nodes."""
    finding = only(about_files(served(addresses=("192.0.2.8",))))
    assert finding.level == Level.FAIL
    assert "it is valid for 192.0.2.8, but the upper apiserver calls the nodes at 192.0.2.9" in finding.what
    assert "IP:192.0.2.9" in finding.advice


def test_a_serving_certificate_that_ended_or_ends_soon() -> None:
    """One fails, the other is worth a word."""
    ended = only(about_files(served(ago=2 * YEAR, addresses=("192.0.2.9",))))
    assert (ended.level, "it expired on" in ended.what, ended.advice) == (Level.FAIL, True, "renew it")
    soon = only(about_files(served(ago=YEAR - timedelta(days=2), addresses=("192.0.2.9",))))
    assert (soon.level, "until 2026-06-03" in soon.what, "renew it" in soon.advice) == (Level.WARN, True, True)


def test_a_key_of_another_certificate() -> None:
    """Both files are named."""
    finding = only(about_files(with_files("kubelet", pair()[0], pair()[1])))
    assert finding.level == Level.FAIL
    assert "does not match the key in kubelet.tlsKeyFile: /etc/serving.key" in finding.what


def test_files_that_cannot_be_read() -> None:
    """Each is told, with what to do."""
    gone, locked = FileNotFoundError(2, "No such file or directory"), PermissionError(13, "Permission denied")
    first, second = about_files(with_files("kubelet", gone, locked))
    assert first.what == "kubelet.tlsCertFile: /etc/serving.crt: cannot be read (No such file or directory)"
    assert "set a path that exists" in first.advice
    assert second.what == "kubelet.tlsKeyFile: /etc/serving.key: cannot be read (Permission denied)"
    assert levels([first, second]) == [Level.FAIL] * 2


@pytest.mark.parametrize(
    ("hosts", "is_good"), [(("hooks.example",), True), (("*.example",), True), (("x.org",), False)]
)
def test_the_webhooks_certificate_has_to_name_where_it_is_called(hosts: tuple[str, ...], *, is_good: bool) -> None:
    """By its URL, or the name of its Service; a wildcard counts."""
    finding = only(about_files(served("webhook", hosts=hosts)))
    assert (finding.level == Level.OK) == is_good
    if not is_good:
        assert finding.what.endswith("it names x.org, and the upper's apiserver calls the webhook at hooks.example")


def test_a_webhook_without_certificate_files() -> None:
    """Its certificate is of the engine's own making."""
    known = facts(topology=topology(webhook={"enabled": True, "url": "https://hooks.example:8443/"}))
    assert {one.level for one in told(known)} == {Level.OK}


# The authority of those who call the kubelet API.


def published(answer: QueryAnswer) -> list[Finding]:
    """Look at what the upper cluster publishes."""
    known = facts(side(UPPER, answers={AUTHORITY: answer}))
    return [one for one in told(known) if "extension-apiserver-authentication" in one.what]


def test_an_authority_that_is_published() -> None:
    """Until when it holds."""
    finding = only(published(QueryAnswer({"data": {"client-ca-file": CA.pair.certificate.decode()}})))
    assert (finding.level, "valid until 2027-06-01" in finding.what) == (Level.OK, True)


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (QueryAnswer({"data": {}}), "it has no client-ca-file"),
        (QueryAnswer({}), "it has no client-ca-file"),
        (QueryAnswer(error='configmaps "x" is forbidden', status=403), "is forbidden"),
    ],
)
def test_an_authority_that_is_not_published(answer: QueryAnswer, words: str) -> None:
    """Nobody gets in then."""
    finding = only(published(answer))
    assert finding.level == Level.FAIL
    assert words in finding.what
    assert finding.what.endswith("so every kubelet API request is refused")
    assert "--client-ca-file" in finding.advice


def test_an_authority_in_a_file() -> None:
    """It takes the place of the published one."""
    named = topology(kubelet={"clientCAFile": "ca.crt"})
    for content, level in ((CA.pair.certificate, Level.OK), (signed_by(), Level.WARN), (CA.pair.key, Level.FAIL)):
        known = facts(topology=named, files={"kubelet.clientCAFile": QueryAnswer(("/etc/ca.crt", content))})
        finding = only(about_files(known))
        assert (finding.level, finding.what.startswith("kubelet.clientCAFile: /etc/ca.crt: ")) == (level, True)


def test_an_authority_whose_file_is_gone() -> None:
    """As with other files."""
    gone = QueryAnswer(("/etc/ca.crt", FileNotFoundError(2, "No such file or directory")))
    known = facts(topology=topology(kubelet={"clientCAFile": "ca.crt"}), files={"kubelet.clientCAFile": gone})
    assert only(about_files(known)).level == Level.FAIL


def test_an_upper_cluster_that_was_not_asked() -> None:
    """Nothing is said of what it publishes."""
    upper = side(UPPER)
    upper.answers.clear()
    assert not any("every kubelet API request" in one.what for one in told(facts(upper)))


# Requests for serving certificates.


def request(name: str, minute: int, *, approved: bool = False, address: str = "192.0.2.1") -> Manifest:
    """Make a request as the API has it."""
    status = {"conditions": [{"type": "Approved", "status": "True"}]} if approved else {}
    meta = {"name": name, "creationTimestamp": f"2026-06-01T11:{minute:02}:00Z"}
    return {"metadata": meta, "spec": request_for(LOWER, address).manifest["spec"], "status": status}


def waiting(*requests: Manifest, nodes: tuple[Manifest, ...] = ()) -> list[Finding]:
    """Look at an upper cluster with these requests."""
    upper = side(UPPER, answers={REQUESTS: QueryAnswer(list(requests)), NODES: QueryAnswer(list(nodes))})
    return at(told(facts(upper)), Level.WARN)


def test_a_request_that_nobody_has_approved() -> None:
    """The command is told, for the lower whose node it is."""
    finding = only(waiting(request("tensile-lower-a-0123abcd", 5)))
    assert (finding.cluster, finding.advice) == (LOWER, "kubectl certificate approve tensile-lower-a-0123abcd")


def test_a_request_that_was_denied() -> None:
    """It stays denied; the engine makes another one, which needs an approval too."""
    denied = request("tensile-lower-a-0123abcd", 5)
    denied["status"] = {"conditions": [{"type": "Denied", "status": "True", "message": "not here"}]}
    finding = only(waiting(denied))
    assert finding.what == "the request for a serving certificate of node lower-a was denied: not here"
    assert finding.advice.startswith("approve the next request: the engine makes it 15 minutes after the refusal")


def test_only_the_newest_request_of_a_node_counts() -> None:
    """Older ones were made before a restart: nobody waits for them."""
    assert (
        "tensile-lower-a-new"
        in only(waiting(request("tensile-lower-a-old", 1), request("tensile-lower-a-new", 2))).advice
    )
    assert not waiting(request("tensile-lower-a-old", 1), request("tensile-lower-a-new", 2, approved=True))


def test_the_request_of_the_engine_that_drives_counts_too() -> None:
    """Another one that stands by has asked after it; those of engines that are gone count no more."""
    ours, address = node(LOWER, address="192.0.2.9"), "192.0.2.9"
    drives = [request("tensile-lower-a-gone", 1), request("tensile-lower-a-drives", 3, address=address)]
    stands_by = request("tensile-lower-a-by", 4, approved=True)
    finding = only(waiting(*drives, stands_by, nodes=(ours,)))
    assert finding.advice == "kubectl certificate approve tensile-lower-a-drives"
    both = waiting(*drives, request("tensile-lower-a-by", 4), nodes=(ours,))
    assert [one.advice.split()[-1] for one in both] == ["tensile-lower-a-drives", "tensile-lower-a-by"]
    alone = only(waiting(*drives, nodes=(ours,)))
    assert alone.advice == "kubectl certificate approve tensile-lower-a-drives"


@pytest.mark.parametrize(("ago", "count"), [(1.0, 1), (120.0, 0)])
def test_requests_of_engines_that_have_ended_do_not_wait(ago: float, count: int) -> None:
    """Their nodes' leases have expired, and the next engine makes another request."""
    answers = {REQUESTS: QueryAnswer([request("tensile-lower-a-0123abcd", 5)]), lease_of(LOWER): lease(ago)}
    assert len(at(told(facts(side(UPPER, answers=answers))), Level.WARN)) == count


@pytest.mark.parametrize("spec", [{}, {"request": "bm90aGluZw=="}, {"request": "%"}])
def test_a_request_that_cannot_be_read_is_one_all_the_same(spec: Manifest) -> None:
    """Its name says whose it is."""
    strange = {**request("tensile-lower-a-0123abcd", 5), "spec": spec}
    assert only(waiting(strange, nodes=(node(LOWER),))).level == Level.WARN


def test_requests_of_others_are_not_looked_at() -> None:
    """Nodes of other topologies, and other programs'."""
    assert not waiting(request("csr-abc", 1), request("tensile-lower-b-0123", 2), request("tensile-lower-a-b-0123", 3))


def test_requests_that_may_not_be_listed() -> None:
    """As with the engine's own role: whether one waits is not known then, and an administrator sees it."""
    upper = side(UPPER, answers={REQUESTS: QueryAnswer(error="forbidden", status=403)})
    finding = only(at(told(facts(upper)), Level.SKIP))
    assert (finding.cluster, "cannot be read (forbidden)" in finding.what) == (UPPER, True)
    assert finding.advice == "as an administrator of the upper cluster: kubectl get csr"
    assert not at(told(facts(side(UPPER, answers={REQUESTS: QueryAnswer([])}))), Level.SKIP)
