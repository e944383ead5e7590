"""Checks certificates and tokens: their expiry, and errors that make callers reject them."""

from base64 import b64decode
from collections.abc import Generator, Iterable, Iterator
from datetime import datetime, timedelta

from cryptography import x509

from tensile.diagnostics.doctor.apiserver import renew_token
from tensile.diagnostics.doctor.facts import (
    AUTHORITY,
    REQUESTS,
    ClusterFacts,
    ContactResult,
    Facts,
    Finding,
    Level,
    QueryAnswer,
    Stage,
    endpoint_of,
    lease_of,
    node_named,
)
from tensile.engine.status.query import holds, renewed_at
from tensile.kube.tls import (
    CertificateProblem,
    authority_fault,
    authority_warnings,
    date_of,
    described,
    names_of,
    other_names,
    pair_fault,
    unreadable,
    warnings,
)
from tensile.kubelet.api.certificates import CALLERS_KEY, PUBLISHED
from tensile.kubelet.api.csr import AFTER_REFUSAL, refusal_of
from tensile.objects import UPPER, Manifest, metadata
from tensile.policy.webhook.certificates import certificates_in
from tensile.policy.webhook.registration import names_of as webhook_names

CHECK = "certificates"
SOON = timedelta(days=14)
"""The time before expiry from which on a certificate is reported as a warning."""


def check_certificates(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield findings on the certificates of a connection.

    For the upper cluster, also on those of the engine's own servers, which the upper apiserver calls.
    """
    found = [] if cluster.contact is None else list(_contact(cluster.name, cluster.contact, facts.now))
    if cluster.name == UPPER:
        found += [*_kubelet(facts), *_webhook(facts), *_authority(cluster, facts), *_requests(cluster, facts)]
    yield from found


def _contact(cluster: str, contact: ContactResult, now: datetime) -> Iterator[Finding]:
    """Yield findings on the certificates of a connection, and on the token.

    If the cluster rejects the credential, the finding of check `login` reports that instead, with advice: when it
    expires does not matter then.
    """
    endpoint, is_rejected = contact.endpoint, contact.stage == Stage.LOGIN
    for certificate in [] if is_rejected else certificates_in(endpoint.certificate)[:1]:
        holder, expiry = (
            f"client certificate of {certificate.subject.rfc4514_string()}",
            certificate.not_valid_after_utc,
        )
        yield _expiry_finding(cluster, holder, expiry, now, f"renew it, and put it into {endpoint.origin}")
    if endpoint.token.expiry is not None and not is_rejected:
        advice = f"{renew_token(endpoint)}; skip this if something renews it there"
        yield _expiry_finding(
            cluster, f"token of {endpoint.token.subject or 'unknown'}", endpoint.token.expiry, now, advice
        )
    bundle = certificates_in(endpoint.authority)
    if bundle:
        yield _authority_finding(cluster, bundle, contact, now)
    if contact.shown and contact.stage > Stage.TLS:
        shown = x509.load_der_x509_certificate(contact.shown)
        advice = "renew it; with kubeadm: kubeadm certs renew apiserver"
        yield _expiry_finding(cluster, "the apiserver's certificate", shown.not_valid_after_utc, now, advice)


def _authority_finding(cluster: str, bundle: list[x509.Certificate], contact: ContactResult, now: datetime) -> Finding:
    """Return the expiry of a kubeconfig's CAs; an expired CA does no harm next to a valid one."""
    expired = [one for one in bundle if one.not_valid_after_utc < now]
    latest = max(_signers(bundle, contact, now), key=lambda one: one.not_valid_after_utc)
    bundle_note = f", of {len(bundle)} in the bundle," * (len(bundle) > 1)
    holder, origin = f"CA {latest.subject.rfc4514_string()}{bundle_note}", contact.endpoint.origin
    finding = _expiry_finding(
        cluster, holder, latest.not_valid_after_utc, now, f"put the cluster's new CA into {origin}"
    )
    if not expired or latest in expired:
        return finding
    example = f"{expired[0].subject.rfc4514_string()} on {date_of(expired[0].not_valid_after_utc)}"
    what = f"{finding.what}; {len(expired)} of them expired, such as {example}"
    return finding._replace(
        level=Level.WARN, what=what, advice=finding.advice or f"remove the expired ones from {origin}"
    )


def _signers(bundle: list[x509.Certificate], contact: ContactResult, now: datetime) -> list[x509.Certificate]:
    """Return the CAs that may have signed the apiserver's certificate; of these the valid ones, if any."""
    valid = [one for one in bundle if one.not_valid_after_utc >= now] or bundle
    issuer = x509.load_der_x509_certificate(contact.shown).issuer if contact.shown else None
    return [one for one in valid if one.subject == issuer] or valid


def _expiry_finding(cluster: str, holder: str, expiry: datetime, now: datetime, advice: str) -> Finding:
    """Return a finding on the expiry of a certificate or token."""
    if expiry < now:
        return Finding(cluster, CHECK, Level.FAIL, f"{holder} expired on {date_of(expiry)}", advice)
    what = f"{holder} is valid until {date_of(expiry)}"
    return Finding(
        cluster, CHECK, Level.WARN if expiry - now < SOON else Level.OK, what, advice * (expiry - now < SOON)
    )


def _kubelet(facts: Facts) -> Iterator[Finding]:
    """Yield findings on the serving certificate of the virtual nodes, if it is in a file."""
    fields = ("kubelet.tlsCertFile", "kubelet.tlsKeyFile")
    certificate = yield from _pair(facts, *fields)
    if certificate is not None:
        label = _label(fields[0], facts.files[fields[0]])
        yield from _certificate_findings(
            label, certificate, warnings(label, certificate, facts.address, facts.now), facts.now
        )


def _webhook(facts: Facts) -> Iterator[Finding]:
    """Yield findings on the webhook's serving certificate, if it is in a file."""
    fields = ("webhook.tlsCertFile", "webhook.tlsKeyFile")
    certificate = yield from _pair(facts, *fields)
    if certificate is None:
        return
    label, expected_name = _label(fields[0], facts.files[fields[0]]), webhook_names(facts.topology.webhook)[0]
    found = list(warnings(label, certificate, "", facts.now))
    if names := other_names(certificate, expected_name):
        what = f"it names {names}, and the upper's apiserver calls the webhook at {expected_name}"
        found.append(CertificateProblem(label, what, f"reissue it with {expected_name} among its subjectAltNames"))
    yield from _certificate_findings(label, certificate, found, facts.now)


def _pair(facts: Facts, *fields: str) -> Generator[Finding, None, x509.Certificate | None]:
    """Yield findings on a certificate and its key, and return the certificate if both are valid."""
    answers = [facts.files[field] for field in fields if field in facts.files]
    if len(answers) != len(fields):
        return None
    for field, answer in zip(fields, answers, strict=True):
        if isinstance(answer.value[1], OSError):
            yield _problem_finding(unreadable(_label(field, answer), answer.value[1]))
    contents = [answer.value[1] for answer in answers]
    if any(isinstance(content, OSError) for content in contents):
        return None
    certificate_of, key_of = (_label(field, answer) for field, answer in zip(fields, answers, strict=True))
    fault = pair_fault(certificate_of, key_of, *contents)
    if fault is not None:
        yield _problem_finding(fault)
        return None
    return x509.load_pem_x509_certificates(contents[0])[0]


def _certificate_findings(
    label: str, certificate: x509.Certificate, found: Iterable[CertificateProblem], now: datetime
) -> Iterator[Finding]:
    """Yield the problems of a serving certificate, or its expiry if it has none."""
    problems = [_problem_finding(problem) for problem in found]
    yield from problems
    if not problems:
        expires_soon = certificate.not_valid_after_utc - now < SOON
        advice = "renew it: the engine rereads the file" if expires_soon else ""
        yield Finding(
            UPPER, CHECK, Level.WARN if expires_soon else Level.OK, f"{label}: {described(certificate)}", advice
        )


def _authority(upper: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield findings on the CA that verifies callers of the kubelet API."""
    field = "kubelet.clientCAFile"
    answer = facts.files.get(field)
    if answer is not None:
        label, content = _label(field, answer), answer.value[1]
        fault = unreadable(label, content) if isinstance(content, OSError) else authority_fault(label, content)
    elif AUTHORITY not in upper.answers:
        return
    else:
        label = PUBLISHED
        content = ((upper.value(AUTHORITY) or {}).get("data") or {}).get(CALLERS_KEY, "").encode()
        fault = None if content else _unpublished(upper.answers[AUTHORITY])
    if fault is not None:
        yield _problem_finding(fault._replace(what=f"{fault.what}, so every kubelet API request is refused"))
        return
    certificates = certificates_in(content)
    problems = [_problem_finding(each, Level.WARN) for each in authority_warnings(label, certificates, facts.now)]
    expiry = min((each.not_valid_after_utc for each in certificates), default=facts.now)
    yield from problems or [Finding(UPPER, CHECK, Level.OK, f"{label}: valid until {date_of(expiry)}")]


def _unpublished(answer: QueryAnswer) -> CertificateProblem:
    what = answer.error or f"it has no {CALLERS_KEY}"
    advice = "start the upper's apiserver with --client-ca-file, let the engine read it, or set kubelet.clientCAFile"
    return CertificateProblem(PUBLISHED, what, advice)


def _requests(upper: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield CertificateSigningRequests for serving certificates that wait for approval, or were refused.

    Two requests of each node count: the newest, from the engine that started last; and the newest for the address in
    the Node's status, from the leader. Others may come from engines that no longer run. None counts if no engine renews
    the node's lease: the next one makes its own request.
    """
    error = upper.answers.get(REQUESTS, QueryAnswer()).error
    if error:
        what = f"requests for serving certificates cannot be read ({error}): a request may wait for approval unnoticed"
        yield Finding(UPPER, CHECK, Level.SKIP, what, "as an administrator of the upper cluster: kubectl get csr")
    for lower in facts.topology.lowers:
        node, lease = node_named(upper, lower.node.name), upper.value(lease_of(lower.node.name))
        if lease and not holds(renewed_at(lease), facts.now):
            continue
        address = endpoint_of(node)[0] if node else ""
        found = [one for one in upper.items(REQUESTS) if _is_request_of(one, lower.node.name)]
        found.sort(key=lambda one: str(metadata(one)["creationTimestamp"]))
        for_address = [one for one in found if address in _asked_for(one)]
        relevant = {metadata(one)["name"]: one for one in (*for_address[-1:], *found[-1:])}
        for name, request in relevant.items():
            what = f"the request for a serving certificate of node {lower.node.name}"
            if refusal := refusal_of(request):
                yield Finding(lower.name, CHECK, Level.WARN, f"{what} was {refusal}", AFTER_REFUSAL)
            elif not (request.get("status") or {}).get("conditions"):
                advice = f"kubectl certificate approve {name}"
                yield Finding(lower.name, CHECK, Level.WARN, f"{what} waits for approval", advice)


def _is_request_of(request: Manifest, node: str) -> bool:
    name_prefix, _, digest = str(metadata(request)["name"]).rpartition("-")
    return name_prefix == f"tensile-{node}" and bool(digest)


def _asked_for(request: Manifest) -> list[str]:
    """Return the names and addresses that a certificate is requested for, none if the request cannot be read."""
    try:
        return names_of(x509.load_pem_x509_csr(b64decode(request["spec"]["request"])))
    except (ValueError, LookupError):
        return []


def _problem_finding(fault: CertificateProblem, level: Level = Level.FAIL) -> Finding:
    return Finding(UPPER, CHECK, level, f"{fault.which}: {fault.what}", fault.advice)


def _label(field: str, answer: QueryAnswer) -> str:
    return f"{field}: {answer.value[0]}"
