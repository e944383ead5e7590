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
_RECORDS_EVICTIONS = (1, 26)
"""The oldest minor version that records an eviction on the pod, so that it is not mistaken for a deletion."""
_HAS_SLEEP = (1, 30)
"""The oldest minor version with `preStop.sleep`, which the rendered Deployment uses (deploy/upper.py)."""
_MOST_MINORS = 3
"""The most minor versions that a kubelet, and so a lower cluster, may be older than the upper apiserver."""
_UNITS = (("days", 86_400), ("hours", 3600), ("minutes", 60))
_POD_ACCOUNT = "system:serviceaccount:"
CHECK = "rights"
_ACCOUNT = "system:serviceaccount:"
_DIGITS = 8


def check_connection(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield how far a connection to a cluster gets, and as which user."""
    contact = cluster.contact
    if cluster.access_error:
        yield Finding(cluster.name, "reach", Level.FAIL, cluster.access_error, cluster.remedy or "put that right")
    elif contact is None:
        advice = "check that its apiserver runs, and the network path to it"
        yield Finding(cluster.name, "reach", Level.FAIL, "it did not answer in time", advice)
    elif contact.stage < Stage.LOGIN:
        yield Finding(cluster.name, "reach", Level.FAIL, *_connection_failure(contact, facts))
    else:
        yield Finding(cluster.name, "reach", Level.OK, f"{contact.endpoint.url} answers")
        yield from _logged_in(cluster, contact, facts)


def _logged_in(cluster: ClusterFacts, contact: ContactResult, facts: Facts) -> Iterator[Finding]:
    if contact.stage == Stage.LOGIN:
        yield Finding(cluster.name, "login", Level.FAIL, *_login_failure(contact.endpoint, facts))
        return
    yield Finding(
        cluster.name, "login", Level.OK, f"as {cluster.user}" if cluster.user else "the credential is accepted"
    )
    yield _version(cluster, contact, facts)
    if contact.ahead is not None:
        yield _clock(cluster, contact.ahead)
    if cluster.unanswered:
        missing = ", ".join(sorted(cluster.unanswered))
        advice = "check whether its apiserver is overloaded, and try again"
        yield Finding(cluster.name, "reach", Level.WARN, f"it did not answer these queries in time: {missing}", advice)


def _connection_failure(contact: ContactResult, facts: Facts) -> tuple[str, str]:
    """Return which step of the connection failed, and what to do."""
    endpoint, error = contact.endpoint, contact.error
    match contact.stage:
        case Stage.NAME:
            command = f"getent hosts {quote(endpoint.host)}"
            advice = f"correct `server` in {endpoint.origin}, or this machine's DNS; try: {command}"
            return f"the name {endpoint.host} is not found ({error})", advice
        case Stage.CONNECTION:
            return f"{endpoint.host_and_port} cannot be connected to ({error})", _connect_advice(endpoint, error)
        case Stage.TLS if contact.shown:
            return _trust_failure(contact, x509.load_der_x509_certificate(contact.shown), facts)
        case Stage.TLS | Stage.ANSWER if contact.is_silent:
            advice = (
                "its apiserver hangs or is overloaded: look at its log and restart it; if there is none, correct "
                f"`server` in {endpoint.origin}"
            )
            return f"{endpoint.host_and_port} accepts connections, but does not respond ({error})", advice
        case Stage.TLS:
            advice = f"check that an apiserver listens there; otherwise correct `server` in {endpoint.origin}"
            return f"{endpoint.host_and_port} accepts connections, but the TLS handshake fails ({error})", advice
    file_note = f" (FILE: what is in {endpoint.origin})" if " FILE" in endpoint.flags else ""
    command = " ".join(filter(None, ("kubectl", endpoint.flags, "get --raw /version")))
    advice = f"check that this is an apiserver, and any proxy in front of it: {command}{file_note}"
    return f"{endpoint.host_and_port} does not answer like an apiserver ({error})", advice


def _connect_advice(endpoint: ServerEndpoint, error: str) -> str:
    if "refused" in error:
        return f"nothing listens there: start the apiserver, or correct `server` in {endpoint.origin}"
    return f"check firewalls, routes and the machine, or correct `server` in {endpoint.origin}"


def _trust_failure(contact: ContactResult, leaf: x509.Certificate, facts: Facts) -> tuple[str, str]:
    """Return why a certificate is not trusted, and what to do."""
    endpoint = contact.endpoint
    what = f"{endpoint.host_and_port} presents an untrusted certificate ({contact.error}): {described(leaf)}"
    if other := _server_of(endpoint, facts):
        same_server = f"{endpoint.host_and_port} is the server of {other} in this topology"
        return what, f"{same_server}: correct `server` in {endpoint.origin}"
    if leaf.not_valid_after_utc < facts.now:
        return what, "renew the apiserver's certificate; with kubeadm: kubeadm certs renew apiserver"
    if leaf.not_valid_before_utc > facts.now:
        return what, "set the clock of this machine, or of the one that made the certificate"
    if "mismatch" in contact.error:
        names = names_of(leaf)
        other = f"tls-server-name: {names[0]} in {endpoint.origin}" if names else "a `server` that it names"
        return (
            what,
            f"it is not for {endpoint.name}: set {other}, or have the apiserver's certificate made for {endpoint.name}",
        )
    authorities = (
        ", ".join(each.subject.rfc4514_string() for each in certificates_in(endpoint.authority)) or "the system's"
    )
    issuer = leaf.issuer.rfc4514_string()
    return what, (
        f"the CA in {endpoint.origin} is {authorities}, and the certificate is by {issuer}: put that CA there; with "
        "a kubeconfig that works for that cluster, this prints it: kubectl --kubeconfig WORKING -n kube-system get "
        "configmap kube-root-ca.crt -o jsonpath='{.data.ca\\.crt}'; with kubeadm it is "
        "/etc/kubernetes/pki/ca.crt of its control plane"
    )


def _server_of(endpoint: ServerEndpoint, facts: Facts) -> str:
    """Return the cluster that is reached at the address of a way, with its own kubeconfig; "" for none."""
    contacts = {
        cluster.name: cluster.contact
        for cluster in facts.clusters()
        if cluster.contact and cluster.contact.endpoint != endpoint
    }
    address = (endpoint.host_and_port, endpoint.name)
    matching = (
        name
        for name, one in contacts.items()
        if (one.endpoint.host_and_port, one.endpoint.name) == address and one.stage == Stage.DONE
    )
    return next(map(shown, matching), "")


def _login_failure(endpoint: ServerEndpoint, facts: Facts) -> tuple[str, str]:
    """Return the likely reason why the credentials are not accepted, and what to do."""
    refused = f"the credential in {endpoint.origin} is not accepted"
    if other := _server_of(endpoint, facts):
        return (
            f"{refused}: {endpoint.host_and_port} is the server of {other} in this topology",
            f"correct `server` in {endpoint.origin}",
        )
    if endpoint.token.expiry is not None and endpoint.token.expiry < facts.now:
        return f"{refused}: its token expired on {date_of(endpoint.token.expiry)}", renew_token(endpoint)
    for certificate in certificates_in(endpoint.certificate)[:1]:
        subject = certificate.subject.rfc4514_string()
        advice = (
            f"have the cluster's CA sign a new one, and put it into {endpoint.origin}; "
            f"with kubeadm: {_signed(certificate)}"
        )
        if certificate.not_valid_after_utc < facts.now:
            return f"{refused}: the client certificate of {subject} expired on {_expiry_date(certificate)}", advice
        authorities = [each.subject for each in certificates_in(endpoint.authority)]
        signer = certificate.issuer.rfc4514_string()
        advice = f"have one signed by the CA in the apiserver's --client-ca-file, and put it into {endpoint.origin}"
        if authorities and certificate.issuer not in authorities:
            return f"{refused}: its client certificate is by {signer}, and the cluster's CA is another", advice
        return f"{refused}: the apiserver does not know the client certificate of {subject} by {signer}", advice
    return f"{refused}: the token is damaged, of another cluster, or revoked", renew_token(endpoint)


def _signed(certificate: x509.Certificate) -> str:
    """Return kubeadm's command for a new certificate of the same user and groups."""
    names = {attribute.oid: str(attribute.value) for attribute in certificate.subject}
    groups = [str(one.value) for one in certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)]
    organizations = "".join(f" --org={quote(group)}" for group in groups)
    return f"kubeadm kubeconfig user --client-name={quote(names.get(NameOID.COMMON_NAME, 'NAME'))}{organizations}"


def renew_token(endpoint: ServerEndpoint) -> str:
    """Return advice on how to get a new token."""
    if endpoint.token.subject.startswith(_POD_ACCOUNT):
        namespace, _, name = endpoint.token.subject.removeprefix(_POD_ACCOUNT).partition(":")
        command = f"kubectl -n {quote(namespace)} create token {quote(name)} --duration=8760h"
    else:
        command = "kubectl -n NAMESPACE create token SERVICEACCOUNT --duration=8760h"
    return (
        f"replace the token in {endpoint.origin}; as an administrator of that cluster, where the ServiceAccount has to "
        f"exist: {command}"
    )


def _version(cluster: ClusterFacts, contact: ContactResult, facts: Facts) -> Finding:
    minor, upper_minor = minor_of(contact.version), minor_of(_upper_version(facts))
    version_text = contact.version or "unknown"
    if minor is None:
        return Finding(cluster.name, "version", Level.SKIP, f"its version is {version_text}")
    if minor < OLDEST:
        advice = f"upgrade the cluster: {_dotted(OLDEST)} is the oldest that has every API the engine uses"
        return Finding(cluster.name, "version", Level.FAIL, f"{version_text} is too old", advice)
    if cluster.name == UPPER and minor < _RECORDS_EVICTIONS and facts.topology.descheduler.recreate_bare_pods:
        what = f"{version_text} is too old for descheduler.recreateBarePods: evicted pods would be lost"
        advice = (
            f"upgrade the cluster to {_dotted(_RECORDS_EVICTIONS)} or newer, or set descheduler.recreateBarePods: false"
        )
        return Finding(cluster.name, "version", Level.FAIL, what, advice)
    if (
        cluster.name != UPPER
        and upper_minor is not None
        and not upper_minor[1] - _MOST_MINORS <= minor[1] <= upper_minor[1]
    ):
        what = f"{version_text}, and the upper cluster has {_upper_version(facts)}"
        advice = (
            f"bring the lower cluster to the upper one's version, or at most {_MOST_MINORS} minor versions behind it: "
            "its node is a kubelet of the lower's version, and Kubernetes supports no other distance"
        )
        return Finding(cluster.name, "version", Level.WARN, what, advice)
    if cluster.name == UPPER and minor < _HAS_SLEEP and facts.in_configmap:
        what = (
            f"{version_text} is not tested with this release, and rejects `preStop.sleep`, which the Deployment of "
            "`tensile manifests` has"
        )
        advice = f'write exec: {{command: [sleep, "5"]}} in its place, or upgrade the cluster to {_dotted(_HAS_SLEEP)}'
        return Finding(cluster.name, "version", Level.WARN, what, advice)
    if minor != TRIED:
        advice = f"no action needed if everything works; tested is Kubernetes {_dotted(TRIED)}"
        return Finding(cluster.name, "version", Level.WARN, f"{version_text} is not tested with this release", advice)
    return Finding(cluster.name, "version", Level.OK, version_text)


def _clock(cluster: ClusterFacts, ahead: float) -> Finding:
    if abs(ahead) <= MOST_SECONDS:
        return Finding(cluster.name, "clock", Level.OK, "within seconds of this machine's")
    direction = "ahead of" if ahead > 0 else "behind"
    advice = (
        "set both by NTP (chronyc tracking, timedatectl): leases of nodes, tokens and certificates are good at certain "
        "times only"
    )
    return Finding(
        cluster.name,
        "clock",
        Level.WARN,
        f"the cluster's clock is {_duration_text(abs(ahead))} {direction} ours",
        advice,
    )


def _duration_text(seconds: float) -> str:
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


def _expiry_date(certificate: x509.Certificate) -> str:
    return date_of(certificate.not_valid_after_utc)


def _dotted(version: tuple[int, int]) -> str:
    return ".".join(map(str, version))


def check_rights(cluster: ClusterFacts, facts: Facts) -> Iterator[Finding]:
    """Yield the missing rights; those that the engine requires come in one finding, optional ones by what they cost."""
    if not cluster.is_accessible:
        return
    if cluster.missing is None:
        error = cluster.answers["rights"].error if "rights" in cluster.answers else "no answer in time"
        advice = "let the user create selfsubjectaccessreviews, as ClusterRole system:basic-user does for everybody"
        yield Finding(cluster.name, CHECK, Level.WARN, f"its permissions cannot be read ({error})", advice)
        return
    needed = [right for right in cluster.missing if not right.lost]
    optional = [right for right in cluster.missing if right.lost]
    if needed:
        yield Finding(cluster.name, CHECK, Level.FAIL, f"missing: {_listed(needed)}", _granted(cluster, needed, facts))
    for lost, rights in groupby(optional, lambda right: right.lost):
        missing = list(rights)
        what = f"missing: {_listed(missing)}: without it there is none of this: {lost}"
        yield Finding(cluster.name, CHECK, Level.WARN, what, _granted(cluster, missing, facts))
    if not cluster.missing:
        yield Finding(cluster.name, CHECK, Level.OK, "all permissions that this topology needs")


def _listed(rights: Iterable[Permission]) -> str:
    """Return the missing rights, each with its purpose."""
    return "; ".join(f"{', '.join(right.verbs)} {_object(right)} ({right.purpose})" for right in rights)


def _granted(cluster: ClusterFacts, rights: list[Permission], facts: Facts) -> str:
    """Return the commands that grant rights; rights with the same verbs share a role.

    kubectl resolves the resources, so it cannot create a role for the metrics API while no server provides that.
    """
    name, subject = f"tensile-{facts.topology.name}-{cluster.name or 'upper'}", _subject(cluster.user)
    cluster_text = "the upper cluster" if cluster.name == UPPER else f"cluster {cluster.name}"
    prerequisite = ", once metrics-server is installed" * any(right.kind.api == NODE_METRICS.api for right in rights)
    lines = [f"as an administrator of {cluster_text}{prerequisite}:"]
    for (namespace, resource_name, verbs), group in groupby(sorted(rights, key=_group), _group):
        resources = ",".join(quote(_resource(right)) for right in group)
        rules = f"--verb={','.join(verbs)} --resource={resources}"
        rules += f" --resource-name={quote(resource_name)}" if resource_name else ""
        role, kind = f"{name}-{_digest(rules, subject)}", "role" if namespace else "clusterrole"
        scope = f"-n {quote(namespace)} " if namespace else ""
        lines.append(f"kubectl {scope}create {kind} {role} {rules}")
        lines.append(f"kubectl {scope}create {kind}binding {role} --{kind}={role} {subject}")
    return "\n".join(lines)


def _digest(*parts: str) -> str:
    """Return a short hash of what a role grants to whom.

    It makes role names distinct: a role that was created for other rights already exists, and stays.
    """
    return sha256("\0".join(parts).encode()).hexdigest()[:_DIGITS]


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
    subresource = f"/{right.subresource}" if right.subresource else ""
    return f"{right.kind.plural}{group}{subresource}"


def _subject(user: str) -> str:
    """Return kubectl's option for the user or account that gets a right."""
    if user.startswith(_ACCOUNT):
        return f"--serviceaccount={quote(user.removeprefix(_ACCOUNT))}"
    return f"--user={quote(user)}" if user else "--user=USER"
