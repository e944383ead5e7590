"""Checks of the access to a cluster: whether it is reachable, accepts the credentials and grants the rights.

Its version and its clock are checked here too: they come with the first response. For rights that are missing, the
advice contains the commands that grant them.
"""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from itertools import groupby
from shlex import quote

from cryptography import x509
from cryptography.x509.oid import NameOID

from tensile.diagnostics.doctor.facts import (
    ClusterFacts,
    ContactResult,
    Facts,
    Finding,
    Level,
    ServerEndpoint,
    Stage,
    shown,
)
from tensile.engine.permissions import Permission
from tensile.kube.tls import date_of, described, names_of
from tensile.kubelet.stats.usage import NODE_METRICS
from tensile.objects import UPPER
from tensile.policy.webhook.certificates import certificates_in

MOST_SECONDS = 5.0
"""The largest difference in seconds between two clocks that is not reported."""
OLDEST, TRIED = (1, 25), (1, 36)
"""The oldest minor version with every API that the engine uses, and the version that all tests run on."""
_TOLD_APART = (1, 26)
"""The oldest minor version that records an eviction on the pod, so that it is not mistaken for a deletion."""
_SLEEPS = (1, 30)
"""The oldest minor version with `preStop.sleep`, which the rendered Deployment uses (deploy/upper.py)."""
_MOST_MINORS = 3
"""The most minor versions that a kubelet, and so a lower cluster, may be older than the upper apiserver."""
_UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60))
_POD_ACCOUNT = "system:serviceaccount:"
CHECK = "rights"
_ACCOUNT = "system:serviceaccount:"
_DIGITS = 8


def reached(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield how far a connection to a cluster gets, and as which user."""
    contact = side.contact
    if side.trouble:
        yield Finding(side.name, "reach", Level.FAIL, side.trouble, side.remedy or "put that right")
    elif contact is None:
        advice = "check that its apiserver runs, and the network path to it"
        yield Finding(side.name, "reach", Level.FAIL, "it did not answer in time", advice)
    elif contact.stage < Stage.LOGIN:
        yield Finding(side.name, "reach", Level.FAIL, *_failed(contact, facts))
    else:
        yield Finding(side.name, "reach", Level.OK, f"{contact.way.url} answers")
        yield from _logged_in(side, contact, facts)


def _logged_in(side: ClusterFacts, contact: ContactResult, facts: Facts) -> Iterator[Finding]:
    if contact.stage == Stage.LOGIN:
        yield Finding(side.name, "login", Level.FAIL, *_shut_out(contact.way, facts))
        return
    yield Finding(side.name, "login", Level.OK, f"as {side.user}" if side.user else "the credential is accepted")
    yield _version(side, contact, facts)
    if contact.ahead is not None:
        yield _clock(side, contact.ahead)
    if side.unanswered:
        missing = ", ".join(sorted(side.unanswered))
        advice = "check whether its apiserver is overloaded, and try again"
        yield Finding(side.name, "reach", Level.WARN, f"it did not answer these queries in time: {missing}", advice)


def _failed(contact: ContactResult, facts: Facts) -> tuple[str, str]:
    """Return which step of the connection failed, and what to do."""
    way, error = contact.way, contact.error
    match contact.stage:
        case Stage.NAME:
            advice = f"correct `server` in {way.origin}, or this machine's DNS; try: getent hosts {quote(way.host)}"
            return f"the name {way.host} is not found ({error})", advice
        case Stage.CONNECTION:
            return f"{way.where} cannot be connected to ({error})", _unconnected(way, error)
        case Stage.TLS if contact.shown:
            return _untrusted(contact, x509.load_der_x509_certificate(contact.shown), facts)
        case Stage.TLS | Stage.ANSWER if contact.is_silent:
            advice = (
                "its apiserver hangs or is overloaded: look at its log and restart it; if there is none, correct "
                f"`server` in {way.origin}"
            )
            return f"{way.where} accepts connections, but does not respond ({error})", advice
        case Stage.TLS:
            advice = f"check that an apiserver listens there; otherwise correct `server` in {way.origin}"
            return f"{way.where} accepts connections, but the TLS handshake fails ({error})", advice
    where = f" (FILE: what is in {way.origin})" if " FILE" in way.flags else ""
    command = " ".join(filter(None, ("kubectl", way.flags, "get --raw /version")))
    advice = f"check that this is an apiserver, and any proxy in front of it: {command}{where}"
    return f"{way.where} does not answer like an apiserver ({error})", advice


def _unconnected(way: ServerEndpoint, error: str) -> str:
    if "refused" in error:
        return f"nothing listens there: start the apiserver, or correct `server` in {way.origin}"
    return f"check firewalls, routes and the machine, or correct `server` in {way.origin}"


def _untrusted(contact: ContactResult, leaf: x509.Certificate, facts: Facts) -> tuple[str, str]:
    """Return why a certificate is not trusted, and what to do."""
    way = contact.way
    what = f"{way.where} presents an untrusted certificate ({contact.error}): {described(leaf)}"
    if other := _server_of(way, facts):
        return what, f"{way.where} is the server of {other} in this topology: correct `server` in {way.origin}"
    if leaf.not_valid_after_utc < facts.now:
        return what, "renew the apiserver's certificate; with kubeadm: kubeadm certs renew apiserver"
    if leaf.not_valid_before_utc > facts.now:
        return what, "set the clock of this machine, or of the one that made the certificate"
    if "mismatch" in contact.error:
        names = names_of(leaf)
        other = f"tls-server-name: {names[0]} in {way.origin}" if names else "a `server` that it names"
        return what, f"it is not for {way.name}: set {other}, or have the apiserver's certificate made for {way.name}"
    known = ", ".join(each.subject.rfc4514_string() for each in certificates_in(way.authority)) or "the system's"
    issuer = leaf.issuer.rfc4514_string()
    return what, (
        f"the CA in {way.origin} is {known}, and the certificate is by {issuer}: put that CA there; with a kubeconfig "
        "that works for that cluster, this prints it: kubectl --kubeconfig WORKING -n kube-system get configmap "
        "kube-root-ca.crt -o jsonpath='{.data.ca\\.crt}'; with kubeadm it is /etc/kubernetes/pki/ca.crt of its control "
        "plane"
    )


def _server_of(way: ServerEndpoint, facts: Facts) -> str:
    """Return the cluster that is reached at the address of a way, with its own kubeconfig; "" for none."""
    contacts = {side.name: side.contact for side in facts.sides() if side.contact and side.contact.way != way}
    place = (way.where, way.name)
    there = (
        name for name, one in contacts.items() if (one.way.where, one.way.name) == place and one.stage == Stage.DONE
    )
    return next(map(shown, there), "")


def _shut_out(way: ServerEndpoint, facts: Facts) -> tuple[str, str]:
    """Return the likely reason why the credentials are not accepted, and what to do."""
    refused = f"the credential in {way.origin} is not accepted"
    if other := _server_of(way, facts):
        return f"{refused}: {way.where} is the server of {other} in this topology", f"correct `server` in {way.origin}"
    if way.token.until is not None and way.token.until < facts.now:
        return f"{refused}: its token expired on {date_of(way.token.until)}", renew_token(way)
    for certificate in certificates_in(way.certificate)[:1]:
        who = certificate.subject.rfc4514_string()
        advice = (
            f"have the cluster's CA sign a new one, and put it into {way.origin}; with kubeadm: {_signed(certificate)}"
        )
        if certificate.not_valid_after_utc < facts.now:
            return f"{refused}: the client certificate of {who} expired on {_end(certificate)}", advice
        authorities = [each.subject for each in certificates_in(way.authority)]
        signer = certificate.issuer.rfc4514_string()
        advice = f"have one signed by the CA in the apiserver's --client-ca-file, and put it into {way.origin}"
        if authorities and certificate.issuer not in authorities:
            return f"{refused}: its client certificate is by {signer}, and the cluster's CA is another", advice
        return f"{refused}: the apiserver does not know the client certificate of {who} by {signer}", advice
    return f"{refused}: the token is damaged, of another cluster, or revoked", renew_token(way)


def _signed(certificate: x509.Certificate) -> str:
    """Return kubeadm's command for a new certificate of the same user and groups."""
    names = {attribute.oid: str(attribute.value) for attribute in certificate.subject}
    groups = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    organizations = "".join(f" --org={quote(group)}" for group in groups)
    return f"kubeadm kubeconfig user --client-name={quote(names.get(NameOID.COMMON_NAME, 'NAME'))}{organizations}"


def renew_token(way: ServerEndpoint) -> str:
    """Return advice on how to get a new token."""
    if way.token.subject.startswith(_POD_ACCOUNT):
        namespace, _, name = way.token.subject.removeprefix(_POD_ACCOUNT).partition(":")
        command = f"kubectl -n {quote(namespace)} create token {quote(name)} --duration=8760h"
    else:
        command = "kubectl -n NAMESPACE create token SERVICEACCOUNT --duration=8760h"
    return (
        f"replace the token in {way.origin}; as an administrator of that cluster, where the ServiceAccount has to "
        f"exist: {command}"
    )


def _version(side: ClusterFacts, contact: ContactResult, facts: Facts) -> Finding:
    found, above = minor_of(contact.version), minor_of(_upper_version(facts))
    told = contact.version or "unknown"
    if found is None:
        return Finding(side.name, "version", Level.SKIP, f"its version is {told}")
    if found < OLDEST:
        advice = f"upgrade the cluster: {_dotted(OLDEST)} is the oldest that has every API the engine uses"
        return Finding(side.name, "version", Level.FAIL, f"{told} is too old", advice)
    if side.name == UPPER and found < _TOLD_APART and facts.topology.descheduler.recreate_bare_pods:
        what = f"{told} is too old for descheduler.recreateBarePods: evicted pods would be lost"
        advice = f"upgrade the cluster to {_dotted(_TOLD_APART)} or newer, or set descheduler.recreateBarePods: false"
        return Finding(side.name, "version", Level.FAIL, what, advice)
    if side.name != UPPER and above is not None and not above[1] - _MOST_MINORS <= found[1] <= above[1]:
        what = f"{told}, and the upper cluster has {_upper_version(facts)}"
        advice = (
            f"bring the lower cluster to the upper one's version, or at most {_MOST_MINORS} minor versions behind it: "
            "its node is a kubelet of the lower's version, and Kubernetes supports no other distance"
        )
        return Finding(side.name, "version", Level.WARN, what, advice)
    if side.name == UPPER and found < _SLEEPS and facts.in_map:
        what = (
            f"{told} is not tested with this release, and rejects `preStop.sleep`, which the Deployment of "
            "`tensile manifests` has"
        )
        advice = f'write exec: {{command: [sleep, "5"]}} in its place, or upgrade the cluster to {_dotted(_SLEEPS)}'
        return Finding(side.name, "version", Level.WARN, what, advice)
    if found != TRIED:
        advice = f"no action needed if everything works; tested is Kubernetes {_dotted(TRIED)}"
        return Finding(side.name, "version", Level.WARN, f"{told} is not tested with this release", advice)
    return Finding(side.name, "version", Level.OK, told)


def _clock(side: ClusterFacts, ahead: float) -> Finding:
    if abs(ahead) <= MOST_SECONDS:
        return Finding(side.name, "clock", Level.OK, "within seconds of this machine's")
    sense = "ahead of" if ahead > 0 else "behind"
    advice = (
        "set both by NTP (chronyc tracking, timedatectl): leases of nodes, tokens and certificates are good at certain "
        "times only"
    )
    return Finding(side.name, "clock", Level.WARN, f"the cluster's clock is {_span(abs(ahead))} {sense} ours", advice)


def _span(seconds: float) -> str:
    """Return a duration in the largest unit of which it has at least two."""
    unit, size = next(((unit, size) for unit, size in _UNITS if seconds >= 2 * size), ("s", 1))
    return f"{seconds / size:.0f} {unit}"


def minor_of(version: str) -> tuple[int, int] | None:
    """Return major and minor of a version such as "v1.36.3+k3s1"; None if it is no version."""
    parts = version.removeprefix("v").split(".")
    if len(parts) < 2 or not (parts[0].isdecimal() and parts[1].isdecimal()):  # noqa: PLR2004 - major and minor
        return None
    return int(parts[0]), int(parts[1])


def _upper_version(facts: Facts) -> str:
    return facts.upper.contact.version if facts.upper.contact is not None else ""


def _end(certificate: x509.Certificate) -> str:
    return date_of(certificate.not_valid_after_utc)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def permitted(side: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield the missing rights; those that the engine requires come in one finding, optional ones by what they cost."""
    if not side.is_in:
        return
    if side.missing is None:
        error = side.answers["rights"].error if "rights" in side.answers else "no answer in time"
        advice = "let the user create selfsubjectaccessreviews, as ClusterRole system:basic-user does for everybody"
        yield Finding(side.name, CHECK, Level.WARN, f"its permissions cannot be read ({error})", advice)
        return
    needed = [right for right in side.missing if not right.lost]
    extra = [right for right in side.missing if right.lost]
    if needed:
        yield Finding(side.name, CHECK, Level.FAIL, f"missing: {_listed(needed)}", _granted(side, needed, facts))
    for lost, rights in groupby(extra, lambda right: right.lost):
        lacking = list(rights)
        what = f"missing: {_listed(lacking)}: without it there is none of this: {lost}"
        yield Finding(side.name, CHECK, Level.WARN, what, _granted(side, lacking, facts))
    if not side.missing:
        yield Finding(side.name, CHECK, Level.OK, "all permissions that this topology needs")


def _listed(rights: Iterable[Permission]) -> str:
    """Return the missing rights, each with its purpose."""
    return "; ".join(f"{', '.join(right.verbs)} {_object(right)} ({right.purpose})" for right in rights)


def _granted(side: ClusterFacts, rights: list[Permission], facts: Facts) -> str:
    """Return the commands that grant rights; rights with the same verbs share a role.

    kubectl resolves the resources, so it cannot create a role for the metrics API while no server provides that.
    """
    name, subject = f"tensile-{facts.topology.name}-{side.name or 'upper'}", _subject(side.user)
    whose = "the upper cluster" if side.name == UPPER else f"cluster {side.name}"
    later = ", once metrics-server is installed" * any(right.kind.api == NODE_METRICS.api for right in rights)
    lines = [f"as an administrator of {whose}{later}:"]
    for (namespace, one, verbs), group in groupby(sorted(rights, key=_group), _group):
        resources = ",".join(quote(_resource(right)) for right in group)
        rules = f"--verb={','.join(verbs)} --resource={resources}{f' --resource-name={quote(one)}' if one else ''}"
        role, kind = f"{name}-{_digest(rules, subject)}", "role" if namespace else "clusterrole"
        scope = f"-n {quote(namespace)} " if namespace else ""
        lines.append(f"kubectl {scope}create {kind} {role} {rules}")
        lines.append(f"kubectl {scope}create {kind}binding {role} --{kind}={role} {subject}")
    return "\n".join(lines)


def _digest(*words: str) -> str:
    """Return a short hash of what a role grants to whom.

    It makes role names distinct: a role that was created for other rights already exists, and stays.
    """
    return sha256("\0".join(words).encode()).hexdigest()[:_DIGITS]


def _group(right: Permission) -> tuple[str, str, tuple[str, ...]]:
    return right.namespace, right.name, right.verbs


def _object(right: Permission) -> str:
    """Return the name of a resource, or of the one object that a right is for."""
    return f"{_resource(right)} {right.name}" if right.name else _resource(right)


def _resource(right: Permission) -> str:
    """Return a resource in kubectl's notation: pods/log, endpointslices.discovery.k8s.io."""
    if right.kind.plural == "*":
        return "*.*"
    group = f".{right.group}" if right.group else ""
    tail = f"/{right.subresource}" if right.subresource else ""
    return f"{right.kind.plural}{group}{tail}"


def _subject(user: str) -> str:
    """Return kubectl's option for the user or account that gets a right."""
    if user.startswith(_ACCOUNT):
        return f"--serviceaccount={quote(user.removeprefix(_ACCOUNT))}"
    return f"--user={quote(user)}" if user else "--user=USER"
