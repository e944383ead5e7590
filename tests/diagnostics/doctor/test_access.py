"""How far one gets to a cluster: each step that fails has words of its own, and a remedy."""

from datetime import timedelta
from typing import Any

import pytest
from doctorkit import CA, LOWER, NOW, at, contact, der, facts, levels, only, side, signed_by, topology, way

from tensile.diagnostics.doctor.access import minor_of, reached
from tensile.diagnostics.doctor.facts import ContactResult, Finding, Level, Stage, TokenInfo
from tensile.objects import UPPER
from tensile.sandbox.credentials import authority

OTHER = authority("other-ca", NOW)
YEARS = timedelta(days=800)


def told(found: ContactResult | None, **fields: Any) -> list[Finding]:
    """Look at a lower that was reached so far."""
    one = side(contact=found, **fields)
    return list(reached(one, facts(None, one)))


def test_a_cluster_that_is_well() -> None:
    """Reached, let in, of the version that is tried, and at the same time."""
    found = told(contact())
    assert levels(found) == [Level.OK] * 4
    assert [one.what for one in found] == [
        "https://192.0.2.1:6443 answers",
        "as engine",
        "v1.36.3",
        "within seconds of this machine's",
    ]


def test_credentials_that_cannot_be_read_are_told_with_their_own_advice() -> None:
    """The words of who read them, whole, whatever signs are in them."""
    trouble, remedy = "kubeconfigs/gone: cannot be read (No such file)", "check: the path: and its permissions"
    one = side(trouble=trouble, remedy=remedy, contact=None)
    assert only(reached(one, facts(None, one))) == Finding(LOWER, "reach", Level.FAIL, trouble, remedy)


def test_a_trouble_without_advice_is_told_whole() -> None:
    """Nothing of it is lost."""
    one = side(trouble="it is broken", contact=None)
    finding = only(reached(one, facts(None, one)))
    assert (finding.what, finding.advice) == ("it is broken", "put that right")


def test_a_cluster_for_which_there_was_no_time() -> None:
    """It failed, in time."""
    finding = only(told(None))
    assert (finding.level, finding.what) == (Level.FAIL, "it did not answer in time")


@pytest.mark.parametrize(
    ("stage", "error", "what", "advice"),
    [
        (Stage.NAME, "Name or service not known", "the name 192.0.2.1 is not found", "getent hosts 192.0.2.1"),
        (
            Stage.CONNECTION,
            "Connection refused",
            "192.0.2.1:6443 cannot be connected to (Conn",
            "nothing listens there",
        ),
        (Stage.CONNECTION, "no answer in 3 s", "cannot be connected to (no answer in 3 s)", "check firewalls"),
        (Stage.ANSWER, "HTTP 502", "does not answer like an apiserver (HTTP 502)", "get --raw /version"),
    ],
)
def test_each_step_has_its_words(stage: Stage, error: str, what: str, advice: str) -> None:
    """What fails is named, and nothing after it is told."""
    finding = only(told(contact(stage, error)))
    assert finding.level == Level.FAIL
    assert what in finding.what
    assert advice in finding.advice
    assert "kubeconfigs/it" in finding.advice


def test_a_server_that_speaks_no_tls() -> None:
    """It showed nothing."""
    finding = only(told(contact(Stage.TLS, "WRONG_VERSION_NUMBER", shown=b"")))
    assert "the TLS handshake fails (WRONG_VERSION_NUMBER)" in finding.what


@pytest.mark.parametrize("stage", [Stage.TLS, Stage.ANSWER])
def test_a_server_that_hangs(stage: Stage) -> None:
    """Its address is right as a rule, so the server comes first in the advice."""
    finding = only(told(contact(stage, "no answer in 3 s", shown=b"")))
    assert finding.what == "192.0.2.1:6443 accepts connections, but does not respond (no answer in 3 s)"
    assert finding.advice == (
        "its apiserver hangs or is overloaded: look at its log and restart it; if there is none, correct `server` in "
        "kubeconfigs/it"
    )


def untrusted(error: str, pem: bytes, **fields: Any) -> Finding:
    """Look at a server whose certificate was not trusted."""
    return only(told(contact(Stage.TLS, error, shown=der(pem), **fields)))


def test_a_certificate_of_another_authority() -> None:
    """Both are named: the one that is trusted, and the one that signed."""
    finding = untrusted("unable to get local issuer certificate", signed_by(OTHER, addresses=("192.0.2.1",)))
    assert "the CA in kubeconfigs/it is CN=cluster-ca, and the certificate is by CN=other-ca" in finding.advice
    assert "kube-root-ca.crt" in finding.advice


@pytest.mark.parametrize(
    ("stage", "error", "pem"),
    [(Stage.TLS, "unable to get local issuer certificate", signed_by(OTHER)), (Stage.LOGIN, "HTTP 401", signed_by())],
)
def test_a_server_of_another_cluster_of_the_topology(stage: Stage, error: str, pem: bytes) -> None:
    """Neither its CA nor a client certificate for it would help: the address is wrong."""
    place = {"way": way("192.0.2.3", origin="kubeconfigs/wrong")}
    wrong = told(contact(stage, error, shown=der(pem), **place))[-1]
    assert "192.0.2.3:6443 is the server of upper in this topology" in f"{wrong.what} {wrong.advice}"
    assert wrong.advice.endswith("correct `server` in kubeconfigs/wrong")


def test_a_certificate_where_the_systems_authorities_are_trusted() -> None:
    """The kubeconfig has no CA."""
    without = way(authority=b"")
    finding = untrusted("self-signed certificate", signed_by(OTHER), way=without)
    assert "is the system's, and the certificate is by CN=other-ca" in finding.advice


def test_a_certificate_for_other_names() -> None:
    """A name that it has can be asked for."""
    pem = signed_by(addresses=("10.0.0.1",), hosts=("api.example",))
    finding = untrusted("IP address mismatch, certificate is not valid for '192.0.2.1'", pem)
    assert "it is not for 192.0.2.1: set tls-server-name: 10.0.0.1 in kubeconfigs/it" in finding.advice
    finding = untrusted("Hostname mismatch", signed_by())
    assert "set a `server` that it names" in finding.advice


def test_a_certificate_out_of_date() -> None:
    """It is renewed, or a clock is wrong."""
    assert "kubeadm certs renew apiserver" in untrusted("certificate has expired", signed_by(ago=YEARS)).advice
    assert "set the clock" in untrusted("certificate is not yet valid", signed_by(ago=-YEARS)).advice


# Who is not let in.


def refused(**fields: Any) -> Finding:
    """Look at a cluster that does not accept the credential."""
    reach, login = told(contact(Stage.LOGIN, "HTTP 401", way=way(**fields)))
    assert reach.level == Level.OK
    assert (login.check, login.level) == ("login", Level.FAIL)
    return login


def test_a_client_certificate_that_ended() -> None:
    """Its owner and its end are told, and how another one is made."""
    finding = refused(certificate=signed_by(ago=YEARS))
    assert "the client certificate of CN=engine,O=masters expired on 2025-03-23 12:00 UTC" in finding.what
    assert "kubeadm kubeconfig user --client-name=engine --org=masters" in finding.advice


def test_a_client_certificate_of_another_authority() -> None:
    """The CA that the kubeconfig trusts is another one than signed it."""
    finding = refused(certificate=signed_by(OTHER))
    assert "its client certificate is by CN=other-ca, and the cluster's CA is another" in finding.what
    assert "--client-ca-file" in finding.advice


def test_a_client_certificate_that_is_not_known() -> None:
    """Nothing is to be seen of why."""
    assert "does not know the client certificate of CN=engine,O=masters by CN=cluster-ca" in refused().what


def test_a_token_that_ended() -> None:
    """A token tells until when it holds, and whose it is."""
    finding = refused(certificate=b"", token=TokenInfo("system:serviceaccount:ops:engine", NOW - timedelta(hours=1)))
    assert "its token expired on 2026-06-01 11:00 UTC" in finding.what
    assert "kubectl -n ops create token engine" in finding.advice


def test_a_token_that_tells_nothing() -> None:
    """It is not of this cluster, or no longer."""
    finding = refused(certificate=b"")
    assert "the token is damaged, of another cluster, or revoked" in finding.what
    assert "kubectl -n NAMESPACE create token SERVICEACCOUNT" in finding.advice


# Versions and clocks.


@pytest.mark.parametrize(
    ("below", "level", "words"),
    [
        ("v1.36.0", Level.OK, "v1.36.0"),
        ("v1.36.3+k3s1", Level.OK, "v1.36.3+k3s1"),
        ("v1.35.1", Level.WARN, "v1.35.1 is not tested with this release"),
        ("v1.33.0", Level.WARN, "is not tested"),
        ("v1.32.9", Level.WARN, "v1.32.9, and the upper cluster has v1.36.3"),
        ("v1.37.0", Level.WARN, "v1.37.0, and the upper cluster has v1.36.3"),
        ("v1.24.17", Level.FAIL, "v1.24.17 is too old"),
        ("", Level.SKIP, "its version is unknown"),
        ("unknown", Level.SKIP, "its version is unknown"),
    ],
)
def test_versions(below: str, level: Level, words: str) -> None:
    """The lower's node is a kubelet of its version: at most three minor versions behind the apiserver above."""
    finding = only(one for one in told(contact(version=below)) if one.check == "version")
    assert finding.level == level
    assert words in finding.what
    assert bool(finding.advice) == (level in (Level.WARN, Level.FAIL))


def test_the_upper_cluster_has_no_distance_to_itself() -> None:
    """Only how old it is counts."""
    upper = side(UPPER, contact=contact(version="v1.30.0"))
    found = [one for one in reached(upper, facts(upper)) if one.check == "version"]
    assert "is not tested" in only(found).what


@pytest.mark.parametrize(
    ("fields", "version", "level"),
    [
        ({}, "v1.25.9", Level.WARN),
        ({"descheduler": {"enabled": True}}, "v1.25.9", Level.WARN),
        ({"descheduler": {"recreateBarePods": True}}, "v1.25.9", Level.FAIL),
        ({"descheduler": {"recreateBarePods": True}}, "v1.26.0", Level.WARN),
        ({"lower": {"maintenance": "drain"}}, "v1.25.9", Level.WARN),
    ],
)
def test_bare_pods_leave_only_where_an_eviction_is_told_from_a_delete(fields: Any, version: str, level: Level) -> None:
    """Before 1.26 an evicted pod does not say so, and would be lost; what a lower cluster is does not matter."""
    old = contact(version=version)
    known = facts(side(UPPER, contact=old), side(contact=old), topology=topology(**fields))
    found = only(one for one in reached(known.upper, known) if one.check == "version")
    assert found.level == level
    assert ("evicted pods would be lost" in found.what) == (level == Level.FAIL)
    below = only(one for one in reached(known.lowers[LOWER], known) if one.check == "version")
    assert below.level == Level.WARN


@pytest.mark.parametrize(
    ("version", "in_map", "is_told"),
    [("v1.25.9", True, True), ("v1.29.9", True, True), ("v1.30.0", True, False), ("v1.29.9", False, False)],
)
def test_what_the_rendered_deployment_asks_of_the_upper_cluster(version: str, *, in_map: bool, is_told: bool) -> None:
    """An apiserver before 1.30 refuses its `preStop.sleep`: told where the engine is a pod there."""
    old = contact(version=version)
    known = facts(side(UPPER, contact=old), side(contact=old), in_map=in_map)
    for one, words in ((known.upper, is_told), (known.lowers[LOWER], False)):
        found = only(each for each in reached(one, known) if each.check == "version")
        assert (found.level, "is not tested" in found.what) == (Level.WARN, True)
        assert ("preStop.sleep" in found.what, 'exec: {command: [sleep, "5"]}' in found.advice) == (words, words)


@pytest.mark.parametrize("version", ["", "1", "v1", "v1.x", "vx.36", "v1.36"])
def test_what_is_a_version(version: str) -> None:
    """Two numbers, and whatever follows."""
    assert minor_of(version) == ((1, 36) if version == "v1.36" else None)


@pytest.mark.parametrize(
    ("ahead", "words"),
    [
        (6.0, "6 s ahead of ours"),
        (-90.0, "90 s behind ours"),
        (-300.0, "5 minutes behind ours"),
        (3 * 3600.0, "3 hours ahead of ours"),
        (86_400.0 * 30, "30 days ahead of ours"),
    ],
)
def test_clocks_that_differ(ahead: float, words: str) -> None:
    """It is a warning, in a unit that a person reads."""
    finding = only(at(told(contact(ahead=ahead)), Level.WARN))
    assert (finding.check, words in finding.what, "NTP" in finding.advice) == ("clock", True, True)


@pytest.mark.parametrize("ahead", [5.0, -5.0, 0.0])
def test_clocks_that_hardly_differ(ahead: float) -> None:
    """Answers tell whole seconds, and take a moment."""
    assert not at(told(contact(ahead=ahead)), Level.WARN)


def test_a_server_that_tells_no_time() -> None:
    """Nothing is said of its clock."""
    assert "clock" not in {one.check for one in told(contact(ahead=None))}


def test_questions_that_were_not_answered_in_time() -> None:
    """They are named, as a warning: what was answered counts."""
    finding = only(at(told(contact(), unanswered={"rights", "nodes"}), Level.WARN))
    assert (finding.check, "in time: nodes, rights" in finding.what) == ("reach", True)


def test_the_authority_of_these_tests_is_the_clusters() -> None:
    """Or what is told of strangers would be told of everybody."""
    assert CA.name != OTHER.name


@pytest.mark.parametrize(
    ("flags", "command"),
    [
        (
            "--kubeconfig kubeconfigs/it --context b",
            "kubectl --kubeconfig kubeconfigs/it --context b get --raw /version",
        ),
        ("", "kubectl get --raw /version"),
        ("--kubeconfig FILE", "kubectl --kubeconfig FILE get --raw /version (FILE: what is in kubeconfigs/it)"),
    ],
)
def test_kubectl_is_told_the_same_way(flags: str, command: str) -> None:
    """With the context that the topology asks for; what is in no file has to be put into one first."""
    finding = only(told(contact(Stage.ANSWER, "HTTP 502", way=way(flags=flags))))
    assert finding.advice.endswith(f": {command}")
