"""Checks that an engine in a pod of the upper cluster can use a topology, and says what to write where it cannot.

A ConfigMap contains no files and a pod has none of the addresses of a machine: kubeconfigs come from Secrets, the upper
cluster is the one around the pod, and servers listen on all addresses. The manifests contain the text of the file as it
is, so people make these changes themselves, and get all of them at once. A setting that works in a pod, but perhaps not
as intended, gets a warning.
"""

from collections.abc import Iterator
from ipaddress import ip_address
from itertools import chain, count
from typing import NamedTuple

from tensile.deploy.setup import EXTENDER, METRICS, WEBHOOK
from tensile.topology import Lower, SecretRef, Topology, TopologyErrors, TopologyProblem, parse
from tensile.topology.models import SecretEntry, Section
from tensile.topology.validation import TopologyFault, located, low
from tensile.yaml_document import Path, compose, flow, plain


class _Change(NamedTuple):
    """A setting that an engine in a pod cannot use: what is wrong, what to write ("": leave it out), and why."""

    path: Path
    wrong: str
    instead: str = ""
    reason: str = ""


def parse_in_cluster(text: str, name: str, namespace: str) -> Topology:
    """Parse the topology of an engine in `namespace` of the upper cluster; `name` is the file's name.

    Raises TopologyErrors for an invalid file, else with every setting that this engine cannot use.
    """
    topology = parse(text, name=name)
    problems = located(text, _faults(topology, [*_changes(topology, namespace)]))
    if problems:
        raise TopologyErrors(name, problems)
    return parse(text, name=name, configmap_mode=True)  # as the engine parses it


def _faults(topology: Topology, changes: list[_Change]) -> Iterator[TopologyFault]:
    """Yield a fault for each change. A section in which nothing is left is left out too, since it cannot be empty."""
    removed = {change.path for change in changes if not change.instead}
    for change in changes:
        instead = change.instead or f"remove {_emptied(topology, change.path, removed) or 'it'}"
        yield TopologyFault(change.path, f"{change.wrong}; {instead}{change.reason}")


def _emptied(topology: Topology, path: Path, removed: set[Path]) -> str:
    """Return the section of a path if nothing in it is left, else ""."""
    name = str(path[0])
    section: Section = getattr(topology, name)
    written = {(name, type(section).model_fields[field].alias) for field in section.model_fields_set}
    return name if written <= removed else ""


def _changes(topology: Topology, namespace: str) -> Iterator[_Change]:
    """Yield each setting that an engine in a pod cannot use."""
    yield from _upper(topology)
    yield from _kubeconfigs(topology, namespace)
    yield from _certificates(topology)
    yield from _addresses(topology)
    yield from _webhook_service(topology, namespace)


def _upper(topology: Topology) -> Iterator[_Change]:
    upper, identities = topology.upper, {lower.service_accounts.identity for lower in topology.lowers}
    if upper.kubeconfig is not None:
        wrong = f"a pod does not have the file {upper.kubeconfig} and uses its ServiceAccount"
        is_called = "Service" in topology.enabled or "upper" in identities
        hint = ", or set advertiseURL there if lower pods call the upper apiserver"
        yield _Change(("upper", "kubeconfig"), wrong, reason=hint if is_called and upper.advertise_url is None else "")
    if upper.context is not None:
        yield _Change(("upper", "context"), "a pod uses its ServiceAccount instead of a kubeconfig")


def _kubeconfigs(topology: Topology, namespace: str) -> Iterator[_Change]:
    for place, lower in enumerate(topology.lowers):
        if lower.kubeconfig is not None:
            secret = secret_for(topology, lower, namespace)
            reason = "" if secret.name == lower.name else f" (another lower uses Secret {lower.name})"
            wrong = f"a pod does not have the file {lower.kubeconfig}"
            yield _Change(("lowers", place, "kubeconfig"), wrong, f"write {secret_field(secret)}", reason)


def _certificates(topology: Topology) -> Iterator[_Change]:
    kubelet, webhook = topology.kubelet, topology.webhook
    files = (
        (("kubelet", "tlsCertFile"), kubelet.tls_cert_file, "the upper cluster issues one for each node"),
        (("kubelet", "tlsKeyFile"), kubelet.tls_key_file, "tlsCertFile needs it"),
        (("kubelet", "clientCAFile"), kubelet.client_ca_file, "the upper cluster publishes one"),
        (("webhook", "tlsCertFile"), webhook.tls_cert_file, "the engine makes and renews one"),
        (("webhook", "tlsKeyFile"), webhook.tls_key_file, "tlsCertFile needs it"),
    )
    for path, file, reason in files:
        if file is not None:
            yield _Change(path, f"a pod does not have the file {file}", reason=f": {reason}")


def _addresses(topology: Topology) -> Iterator[_Change]:
    """Yield the servers that listen on an address which a pod does not have, or on which nobody reaches it."""
    servers = [("kubelet", topology.kubelet.bind)]
    servers += [("webhook", topology.webhook.bind)] if topology.webhook.enabled else []
    servers += [("extender", topology.extender.bind)] if topology.extender.enabled else []
    for server, bind in servers:
        if not ip_address(bind).is_unspecified:
            instead = f"write {_everywhere(bind)}" if ":" in bind else ""
            yield _Change((server, "bind"), f"other hosts cannot reach a pod at {bind}", instead)
    if topology.kubelet.node_address is not None:
        yield _Change(("kubelet", "nodeAddress"), "the nodes have the address of the leader's pod")
    bind = topology.telemetry.bind
    if not (ip_address(bind).is_unspecified or ip_address(bind).is_loopback):
        yield _Change(("telemetry", "bind"), f"a pod does not have the address {bind}", f"write {_everywhere(bind)}")


def _everywhere(bind: str) -> str:
    """Return the setting for every address of the family of `bind`; a pod may have no address of the other one."""
    return "bind: '::'" if ":" in bind else "bind: 0.0.0.0"


def _webhook_service(topology: Topology, namespace: str) -> Iterator[_Change]:
    webhook, service = topology.webhook, topology.webhook.service
    if not webhook.enabled:
        return
    if not webhook.is_reachable:
        instead = f"write service: {flow({'namespace': namespace, 'name': WEBHOOK})}"
        yield _Change(("webhook", "service"), "missing, so the upper apiserver never calls the webhook", instead)
    if service is not None and service.namespace != namespace:
        wrong = f"the Service is in {service.namespace}, but the engine runs in {namespace}"
        instead = f"write namespace: {namespace}, or use --namespace {service.namespace}"
        yield _Change(("webhook", "service", "namespace"), wrong, instead)
    if service is not None and service.name in (METRICS, EXTENDER):
        instead = f"write name: {WEBHOOK}, or another name"
        yield _Change(("webhook", "service", "name"), f"{service.name} is another Service of the engine", instead)


def secret_for(topology: Topology, lower: Lower, namespace: str) -> SecretRef:
    """Return the Secret with a lower's kubeconfig; for a lower that has a file, the one to write in its place.

    That one is in `namespace` and named after the lower. If another lower uses a Secret of this name, it is numbered:
    otherwise the engine would connect to the cluster of the other lower.
    """
    if lower.kubeconfig_secret is not None:
        return lower.kubeconfig_secret
    others = [one for one in topology.lowers if one.name != lower.name]
    secrets = [one.kubeconfig_secret for one in others if one.kubeconfig_secret is not None]
    taken = {one.name for one in others} | {one.name for one in secrets if one.namespace == namespace}
    names = chain((lower.name,), (f"{lower.name}-{number}" for number in count(2)))
    inherited = topology.lower_defaults.kubeconfig_secret or SecretEntry()
    free = next(name for name in names if name not in taken)
    return SecretRef(namespace=namespace, name=free, key=inherited.key)


def secret_field(secret: SecretRef) -> str:
    """Return the field of a lower that names a Secret, as people write it into the topology."""
    return f"kubeconfigSecret: {flow({'namespace': secret.namespace, 'name': secret.name})}"


def sharing(topology: Topology, lower: Lower) -> list[str]:
    """Return the names of the other lowers whose kubeconfigs are in the same Secret, under another key or context."""
    others = [one for one in topology.lowers if one.name != lower.name]
    return [one.name for one in others if _place(lower) is not None and _place(one) == _place(lower)]


def _place(lower: Lower) -> tuple[str, str] | None:
    secret = lower.kubeconfig_secret
    return None if secret is None else (secret.namespace, secret.name)


def cautions(text: str, topology: Topology) -> tuple[TopologyProblem, ...]:
    """Return the warnings about a topology that an engine in a pod can use. `text` is its source."""
    return located(text, _doubts(text, topology))


def _doubts(text: str, topology: Topology) -> Iterator[TopologyFault]:
    """Yield each setting that works in a pod, but perhaps not as intended."""
    bind = topology.telemetry.bind
    if ip_address(bind).is_loopback:
        words = f"metrics at {bind} are reachable only inside the pod; write {_everywhere(bind)} to serve them"
        yield TopologyFault(("telemetry", "bind"), words)
    if topology.webhook.enabled and topology.webhook.url is not None:
        words = f"must resolve to Service {WEBHOOK}; to make the upper apiserver call that Service, use webhook.service"
        yield TopologyFault(("webhook", "url"), words)
    root, _ = compose(text)
    for path in low(plain(root)) if root is not None else ():
        anyway = ": its Service listens on 443 in any case" if path == ("webhook", "port") else ""
        words = "an unprivileged pod can listen below 1024 only if its container runtime allows it; remove it"
        yield TopologyFault(path, words + anyway)
    for place, lower in enumerate(topology.lowers):
        if others := sharing(topology, lower):
            words = (
                f"{', '.join(others)} uses the same Secret, and the rendered commands replace the whole Secret; "
                "store all its kubeconfigs by hand, or use another Secret"
            )
            yield TopologyFault(("lowers", place, "kubeconfigSecret"), words)
