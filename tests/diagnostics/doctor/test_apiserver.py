"""Tests of the connection and login checks: each step that can fail has its own finding and its own advice."""

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
    levels,
    only_finding,
    server_endpoint,
    signed_by,
    topology,
)

from tensile.diagnostics.doctor.apiserver import check_connection, minor_of
from tensile.diagnostics.doctor.facts import ContactResult, Finding, Level, Stage, TokenInfo
from tensile.objects import UPPER
from tensile.sandbox.credentials import authority

OTHER = authority("other-ca", NOW)
YEARS = timedelta(days=800)


def access_findings(found: ContactResult | None, **fields: Any) -> list[Finding]:
    """Return the findings on a lower cluster with this contact result."""
    one = cluster_facts(contact=found, **fields)
    return list(check_connection(one, facts(None, one)))


def test_a_healthy_cluster_has_only_ok_findings() -> None:
    """The cluster is reachable, accepts the credential, has the tested version, and its clock agrees."""
    found = access_findings(contact())
    assert levels(found) == [Level.OK] * 4
    assert [one.what for one in found] == [
        "https://192.0.2.1:6443 answers",
        "as engine",
        "v1.36.3",
        "within seconds of this machine's",
    ]


def test_unreadable_credentials_are_reported_with_the_error_and_its_advice() -> None:
    """The finding contains the error and the advice of the reader unchanged, including colons and parentheses."""
    error, remedy = "kubeconfigs/gone: cannot be read (No such file)", "check: the path: and its permissions"
    one = cluster_facts(access_error=error, remedy=remedy, contact=None)
    assert only_finding(check_connection(one, facts(None, one))) == Finding(LOWER, "reach", Level.FAIL, error, remedy)


def test_an_error_without_advice_is_reported_in_full() -> None:
    """The finding has the complete error, and a default advice."""
    one = cluster_facts(access_error="it is broken", contact=None)
    finding = only_finding(check_connection(one, facts(None, one)))
    assert (finding.what, finding.advice) == ("it is broken", "put that right")


def test_a_cluster_without_a_contact_result_fails_as_timed_out() -> None:
    """The timeout expired before the connection had any result."""
    finding = only_finding(access_findings(None))
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
def test_each_failed_connection_step_is_reported_alone_with_its_advice(
    stage: Stage, error: str, what: str, advice: str
) -> None:
    """The finding names the failed step and the kubeconfig, and no later step is reported."""
    finding = only_finding(access_findings(contact(stage, error)))
    assert finding.level == Level.FAIL
    assert what in finding.what
    assert advice in finding.advice
    assert "kubeconfigs/it" in finding.advice


def test_a_server_without_tls_is_reported_as_a_failed_tls_handshake() -> None:
    """The server presented no certificate."""
    finding = only_finding(access_findings(contact(Stage.TLS, "WRONG_VERSION_NUMBER", shown=b"")))
    assert "the TLS handshake fails (WRONG_VERSION_NUMBER)" in finding.what


@pytest.mark.parametrize("stage", [Stage.TLS, Stage.ANSWER])
def test_a_server_that_accepts_connections_but_hangs_is_reported_as_silent(stage: Stage) -> None:
    """The advice names the apiserver first and `server` second, because the address is usually right."""
    finding = only_finding(access_findings(contact(stage, "no answer in 3 s", shown=b"")))
    assert finding.what == "192.0.2.1:6443 accepts connections, but does not respond (no answer in 3 s)"
    assert finding.advice == (
        "its apiserver hangs or is overloaded: look at its log and restart it; if there is none, correct `server` in "
        "kubeconfigs/it"
    )


def untrusted(error: str, pem: bytes, **fields: Any) -> Finding:
    """Return the finding on a server whose certificate is not trusted."""
    return only_finding(access_findings(contact(Stage.TLS, error, shown=der(pem), **fields)))


def test_an_untrusted_issuer_is_reported_next_to_the_trusted_ca() -> None:
    """The advice names both the CA in the kubeconfig and the CA that issued the certificate."""
    finding = untrusted("unable to get local issuer certificate", signed_by(OTHER, addresses=("192.0.2.1",)))
    assert "the CA in kubeconfigs/it is CN=cluster-ca, and the certificate is by CN=other-ca" in finding.advice
    assert "kube-root-ca.crt" in finding.advice


@pytest.mark.parametrize(
    ("stage", "error", "pem"),
    [(Stage.TLS, "unable to get local issuer certificate", signed_by(OTHER)), (Stage.LOGIN, "HTTP 401", signed_by())],
)
def test_the_server_of_another_cluster_is_reported_as_a_wrong_address(stage: Stage, error: str, pem: bytes) -> None:
    """Neither another CA nor another client certificate would help, so the advice is to correct `server`."""
    place = {"endpoint": server_endpoint("192.0.2.3", origin="kubeconfigs/wrong")}
    wrong = access_findings(contact(stage, error, shown=der(pem), **place))[-1]
    assert "192.0.2.3:6443 is the server of upper in this topology" in f"{wrong.what} {wrong.advice}"
    assert wrong.advice.endswith("correct `server` in kubeconfigs/wrong")


def test_an_untrusted_certificate_is_compared_with_the_system_cas_if_none_is_set() -> None:
    """The kubeconfig has no CA, so the CAs of the system count."""
    without = server_endpoint(authority=b"")
    finding = untrusted("self-signed certificate", signed_by(OTHER), endpoint=without)
    assert "is the system's, and the certificate is by CN=other-ca" in finding.advice


def test_a_certificate_for_another_host_is_reported_with_tls_server_name() -> None:
    """The advice suggests a name that the certificate has, or another `server` if it has none."""
    pem = signed_by(addresses=("10.0.0.1",), hosts=("api.example",))
    finding = untrusted("IP address mismatch, certificate is not valid for '192.0.2.1'", pem)
    assert "it is not for 192.0.2.1: set tls-server-name: 10.0.0.1 in kubeconfigs/it" in finding.advice
    finding = untrusted("Hostname mismatch", signed_by())
    assert "set a `server` that it names" in finding.advice


def test_a_certificate_outside_its_validity_is_reported_with_the_cause() -> None:
    """An expired certificate has to be renewed; if it is not yet valid, a clock is wrong."""
    assert "kubeadm certs renew apiserver" in untrusted("certificate has expired", signed_by(ago=YEARS)).advice
    assert "set the clock" in untrusted("certificate is not yet valid", signed_by(ago=-YEARS)).advice


# Credentials that are not accepted.


def refused(**fields: Any) -> Finding:
    """Return the login finding on a cluster that does not accept the credential."""
    reach, login = access_findings(contact(Stage.LOGIN, "HTTP 401", endpoint=server_endpoint(**fields)))
    assert reach.level == Level.OK
    assert (login.check, login.level) == ("login", Level.FAIL)
    return login


def test_an_expired_client_certificate_is_reported_with_its_user() -> None:
    """The finding has its subject and its expiry; the advice has the kubeadm command for a new one."""
    finding = refused(certificate=signed_by(ago=YEARS))
    assert "the client certificate of CN=engine,O=masters expired on 2025-03-23 12:00 UTC" in finding.what
    assert "kubeadm kubeconfig user --client-name=engine --org=masters" in finding.advice


def test_a_client_certificate_of_another_ca_is_reported() -> None:
    """The CA that issued the client certificate differs from the CA in the kubeconfig."""
    finding = refused(certificate=signed_by(OTHER))
    assert "its client certificate is by CN=other-ca, and the cluster's CA is another" in finding.what
    assert "--client-ca-file" in finding.advice


def test_a_rejected_client_certificate_without_visible_cause_is_named() -> None:
    """The finding can only name its subject and its issuer, because the certificate itself has no fault."""
    assert "does not know the client certificate of CN=engine,O=masters by CN=cluster-ca" in refused().what


def test_an_expired_token_is_reported_with_its_service_account() -> None:
    """The token contains its expiry and its ServiceAccount, so the advice has the exact kubectl command."""
    finding = refused(certificate=b"", token=TokenInfo("system:serviceaccount:ops:engine", NOW - timedelta(hours=1)))
    assert "its token expired on 2026-06-01 11:00 UTC" in finding.what
    assert "kubectl -n ops create token engine" in finding.advice


def test_a_rejected_opaque_token_is_reported_with_its_possible_causes() -> None:
    """The token is damaged, of another cluster, or revoked; the advice has placeholders for its ServiceAccount."""
    finding = refused(certificate=b"")
    assert "the token is damaged, of another cluster, or revoked" in finding.what
    assert "kubectl -n NAMESPACE create token SERVICEACCOUNT" in finding.advice


# Versions and clocks.


@pytest.mark.parametrize(
    ("below", "level", "message"),
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
def test_the_version_of_a_lower_is_compared_with_the_upper(below: str, level: Level, message: str) -> None:
    """The virtual node has the lower's version, and a kubelet may be three minor versions behind the apiserver."""
    finding = only_finding(one for one in access_findings(contact(version=below)) if one.check == "version")
    assert finding.level == level
    assert message in finding.what
    assert bool(finding.advice) == (level in (Level.WARN, Level.FAIL))


def test_the_upper_cluster_is_not_checked_for_version_skew() -> None:
    """Only the age of its version counts: an old one is reported as not tested."""
    upper = cluster_facts(UPPER, contact=contact(version="v1.30.0"))
    found = [one for one in check_connection(upper, facts(upper)) if one.check == "version"]
    assert "is not tested" in only_finding(found).what


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
def test_recreating_bare_pods_fails_if_the_upper_is_older_than_1_26(fields: Any, version: str, level: Level) -> None:
    """Before 1.26 an evicted pod has no mark of the eviction, and would be lost; the lower's version is irrelevant."""
    old = contact(version=version)
    known = facts(cluster_facts(UPPER, contact=old), cluster_facts(contact=old), topology=topology(**fields))
    found = only_finding(one for one in check_connection(known.upper, known) if one.check == "version")
    assert found.level == level
    assert ("evicted pods would be lost" in found.what) == (level == Level.FAIL)
    below = only_finding(one for one in check_connection(known.lowers[LOWER], known) if one.check == "version")
    assert below.level == Level.WARN


@pytest.mark.parametrize(
    ("version", "in_map", "is_told"),
    [("v1.25.9", True, True), ("v1.29.9", True, True), ("v1.30.0", True, False), ("v1.29.9", False, False)],
)
def test_an_upper_before_1_30_is_warned_about_prestop_sleep_if_in_a_configmap(
    version: str, *, in_map: bool, is_told: bool
) -> None:
    """It refuses `preStop.sleep` of the rendered Deployment, which is in use if the topology is in a ConfigMap."""
    old = contact(version=version)
    known = facts(cluster_facts(UPPER, contact=old), cluster_facts(contact=old), in_configmap=in_map)
    for one, is_named in ((known.upper, is_told), (known.lowers[LOWER], False)):
        found = only_finding(each for each in check_connection(one, known) if each.check == "version")
        assert (found.level, "is not tested" in found.what) == (Level.WARN, True)
        assert ("preStop.sleep" in found.what, 'exec: {command: [sleep, "5"]}' in found.advice) == (is_named, is_named)


@pytest.mark.parametrize("version", ["", "1", "v1", "v1.x", "vx.36", "v1.36"])
def test_a_version_needs_two_numbers(version: str) -> None:
    """Only the one valid version is parsed to its major and minor number."""
    assert minor_of(version) == ((1, 36) if version == "v1.36" else None)


@pytest.mark.parametrize(
    ("ahead", "message"),
    [
        (6.0, "6 s ahead of ours"),
        (-90.0, "90 s behind ours"),
        (-300.0, "5 minutes behind ours"),
        (3 * 3600.0, "3 hours ahead of ours"),
        (86_400.0 * 30, "30 days ahead of ours"),
    ],
)
def test_a_clock_that_differs_by_more_than_five_seconds_is_a_warning(ahead: float, message: str) -> None:
    """The difference is in a readable unit, and the advice is to use NTP."""
    finding = only_finding(findings_at(access_findings(contact(ahead=ahead)), Level.WARN))
    assert (finding.check, message in finding.what, "NTP" in finding.advice) == ("clock", True, True)


@pytest.mark.parametrize("ahead", [5.0, -5.0, 0.0])
def test_a_clock_that_differs_by_at_most_five_seconds_is_no_warning(ahead: float) -> None:
    """The date of a response has whole seconds, and the response takes some time."""
    assert not findings_at(access_findings(contact(ahead=ahead)), Level.WARN)


def test_a_server_without_a_date_has_no_clock_finding() -> None:
    """The response has no date to compare."""
    assert "clock" not in {one.check for one in access_findings(contact(ahead=None))}


def test_queries_that_time_out_are_a_warning_with_their_names() -> None:
    """The cluster is reachable and the other responses count, so this is no failure."""
    finding = only_finding(findings_at(access_findings(contact(), unanswered={"rights", "nodes"}), Level.WARN))
    assert (finding.check, "in time: nodes, rights" in finding.what) == ("reach", True)


def test_the_two_cas_of_these_tests_have_different_names() -> None:
    """Otherwise the tests could not distinguish another CA from the cluster's."""
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
def test_kubectl_commands_use_the_same_kubeconfig_and_context(flags: str, command: str) -> None:
    """The command has the topology's context; a kubeconfig that is no file has to be written to FILE first."""
    finding = only_finding(access_findings(contact(Stage.ANSWER, "HTTP 502", endpoint=server_endpoint(flags=flags))))
    assert finding.advice.endswith(f": {command}")
