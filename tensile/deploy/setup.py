"""What the manifests are rendered from: the topology, its options and the engine's rights; and if a pod can use them.

People read the rendered text, keep it in Git and apply it: it looks like `kubectl get -o yaml`, with reasons as
comments.

Roles grant the rights that tensile/engine/permissions.py lists, and no others. They are named after the account's
namespace and the topology. So several topologies can have roles in one lower cluster, even topologies of one name from
different upper clusters, as long as each has its own namespace there.

A ConfigMap contains no files and a pod has none of the addresses of a machine: kubeconfigs come from Secrets, the upper
cluster is the one around the pod, and servers listen on all addresses. The manifests contain the text of the file as it
is, so people make these changes themselves, and get all of them at once. A setting that works in a pod, but perhaps not
as intended, gets a warning.
"""

from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from itertools import chain, count
from textwrap import wrap
from typing import Any, NamedTuple

import tensile
from tensile.engine.permissions import Permission, lower_rights, upper_rights
from tensile.engine.topology_reader import ConfigMapKey
from tensile.names import CANDIDATE_SUFFIX, PLAN_SUFFIX
from tensile.objects import Manifest
from tensile.topology import Lower, SecretRef, Topology, TopologyErrors, TopologyProblem, parse
from tensile.topology.models import SecretEntry, Section
from tensile.topology.validation import TopologyFault, located, low
from tensile.yaml_document import Path, compose, document, flow, plain

ACCOUNT = "tensile"
"""The name of the engine's ServiceAccount in each cluster."""
CI_ACCOUNT = f"{ACCOUNT}-ci"
"""The name of the ServiceAccount, and its Role, that may have candidates planned."""
CONFIGMAP = "topology"
"""The default name of the ConfigMap that holds the topology."""
_GROUP = "rbac.authorization.k8s.io"
NAME = ACCOUNT
"""The name of the engine's objects, or their prefix."""
WEBHOOK = f"{NAME}-webhook"
"""The name of the webhook's Service, unless the topology names one."""
METRICS, EXTENDER = f"{NAME}-metrics", f"{NAME}-extender"
"""The names of the other Services."""
_LAST = 65535
_FIRST_PROBED = 8081
_WIDTH = 120
_LONGEST_FLOW = 90


def upper_roles(topology: Topology, *, namespace: str, configmap: str = CONFIGMAP) -> list[Manifest]:
    """Return the engine's ServiceAccount in the upper cluster, and roles with exactly the rights that it needs there.

    Args:
        topology: the topology that the engine applies.
        namespace: the namespace of the engine, its account and the topology's ConfigMap.
        configmap: the name of that ConfigMap.
    """
    rights = upper_rights(topology, place=ConfigMapKey(namespace, configmap), takes_turns=True, namespace=namespace)
    return [_account(topology.name, namespace), *_roles(rights, topology.name, namespace)]


def lower_roles(lower: Lower, *, topology: str, namespace: str) -> list[Manifest]:
    """Return the engine's ServiceAccount in a lower cluster, and roles with exactly the rights that it needs there.

    No pod runs as that account, so its token is never mounted automatically.

    Args:
        lower: the lower cluster.
        topology: the name of its topology.
        namespace: the namespace of the account.
    """
    account = {**_account(topology, namespace), "automountServiceAccountToken": False}
    return [account, *_roles(lower_rights(lower), topology, namespace)]


def candidate_roles(topology: str, *, namespace: str, configmap: str = CONFIGMAP) -> list[Manifest]:
    """Return a ServiceAccount for CI in the upper cluster, and a Role with what it needs to have a candidate planned.

    A server-side apply creates an object under a name that is known, so even `create` is limited to one name.

    Args:
        topology: the name of the topology.
        namespace: the namespace of the engine and of the topology's ConfigMap.
        configmap: the name of that ConfigMap.
    """
    meta = {"name": CI_ACCOUNT, "namespace": namespace, "labels": _labels(topology)}
    written = _rule("", ("create", "patch", "delete"), configmap + CANDIDATE_SUFFIX, ["configmaps"])
    read = _rule("", ("get",), configmap + PLAN_SUFFIX, ["configmaps"])
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{_GROUP}/v1", "kind": "Role", "metadata": meta, "rules": [written, read]},
        {
            "apiVersion": f"{_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": _GROUP, "kind": "Role", "name": CI_ACCOUNT},
            "subjects": [{"kind": "ServiceAccount", "name": CI_ACCOUNT, "namespace": namespace}],
        },
    ]


def role_name(topology: str, namespace: str) -> str:
    """Return the name of the roles of a topology's engine.

    Names of namespaces and topologies contain no colons, so two different pairs never get the same name.
    """
    return f"{ACCOUNT}:{namespace}:{topology}"


def rules(rights: Iterable[Permission]) -> list[Manifest]:
    """Return the RBAC rules of rights in one namespace, or of cluster-wide rights, in the order of the rights.

    Resources of one API group with the same verbs share a rule; a right on one named object has its own rule.
    """
    found: dict[tuple[str, tuple[str, ...], str], list[str]] = {}
    for right in rights:
        found.setdefault((right.group, right.verbs, right.name), []).append(right.resource)
    return [_rule(*key, resources) for key, resources in found.items()]


def _rule(group: str, verbs: tuple[str, ...], name: str, resources: list[str]) -> Manifest:
    names = {"resourceNames": [name]} if name else {}
    return {"apiGroups": [group], "resources": resources, **names, "verbs": list(verbs)}


def _account(topology: str, namespace: str) -> Manifest:
    meta = {"name": ACCOUNT, "namespace": namespace, "labels": _labels(topology)}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}


def _roles(rights: Iterable[Permission], topology: str, namespace: str) -> Iterator[Manifest]:
    """Yield a ClusterRole and its binding, and a Role and its binding for each namespace with rights of its own."""
    by_namespace: dict[str, list[Permission]] = {}
    for right in rights:
        by_namespace.setdefault(right.namespace, []).append(right)
    for role_namespace, found in by_namespace.items():
        kind = "Role" if role_namespace else "ClusterRole"
        namespace_field = {"namespace": role_namespace} if role_namespace else {}
        meta = {"name": role_name(topology, namespace), **namespace_field, "labels": _labels(topology)}
        yield {"apiVersion": f"{_GROUP}/v1", "kind": kind, "metadata": meta, "rules": rules(found)}
        yield {
            "apiVersion": f"{_GROUP}/v1",
            "kind": f"{kind}Binding",
            "metadata": meta,
            "roleRef": {"apiGroup": _GROUP, "kind": kind, "name": meta["name"]},
            "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": namespace}],
        }


def _labels(topology: str) -> dict[str, str]:
    return {"app.kubernetes.io/name": ACCOUNT, "app.kubernetes.io/instance": topology}


class Setup(NamedTuple):
    """An engine in the upper cluster; `text` is the text of its topology file."""

    topology: Topology
    text: str
    namespace: str
    image: str

    @property
    def selector(self) -> dict[str, str]:
        """The labels of the engine's pods."""
        return {"app.kubernetes.io/name": NAME, "app.kubernetes.io/instance": self.topology.name}

    @property
    def configmap(self) -> str:
        """The topology's ConfigMap in the form that `tensile run --configmap` takes."""
        return f"{self.namespace}/{CONFIGMAP}"

    @property
    def servers(self) -> dict[str, int]:
        """The ports of the engine by name, without those of virtual nodes."""
        found = self.topology.server_ports
        return {"metrics": found.pop("telemetry"), **found}

    @property
    def kubelets(self) -> list[tuple[int, int]]:
        """The ports of the virtual nodes, as ranges of first and last port.

        The first range has room for lowers that are added later, so that the NetworkPolicy need not change for each of
        them.
        """
        usual = self.topology.kubelet_ports
        configured = (lower.node.kubelet_port for lower in self.topology.lowers)
        additional = {port for port in configured if port and port not in usual}
        return [(usual[0], usual[-1]), *((port, port) for port in sorted(additional))]

    @property
    def probed(self) -> int:
        """The port of the engine's probes: one that the topology does not use, even after lowers are added."""
        used = {*self.servers.values(), *(port for first, last in self.kubelets for port in range(first, last + 1))}
        return next(port for port in range(_FIRST_PROBED, _LAST) if port not in used)

    def object(self, api: str, kind: str, name: str, **fields: object) -> Manifest:
        """Return an object in the engine's namespace, with its labels."""
        meta = {"name": name, "namespace": self.namespace, "labels": self.selector}
        return {"apiVersion": api, "kind": kind, "metadata": meta, **fields}


class Piece(NamedTuple):
    """An object to apply, and the reason for it ("" where that is obvious)."""

    manifest: Manifest
    reason: str = ""


def default_image() -> str:
    """Return the default image: that of this version, from the registry that the cluster's nodes use by default."""
    return f"tensile-kube:{tensile.__version__}"


def stream(pieces: Iterable[Piece], head: str = "") -> str:
    """Return objects as one stream of documents, each after its reason; `head` is a comment at the top."""
    written = [comment(piece.reason) + document(piece.manifest) for piece in pieces]
    return (comment(head) if head else "") + "---\n".join(written)


def comment(text: str) -> str:
    """Return a text as YAML comments; a line that begins with a space is a command and is not wrapped."""
    return "".join(f"# {part}".rstrip() + "\n" for line in text.splitlines() for part in _wrapped(line))


def _wrapped(line: str) -> list[str]:
    return [line] if line.startswith(" ") else wrap(line, _WIDTH - 2) or [""]


def commented(data: Mapping[str, Any], comments: Mapping[Path, str], order: Iterable[str]) -> Iterator[str]:
    """Yield the lines of a topology: its keys in an order, and comments on the lines of their paths.

    A comment on a key that the topology does not have is a line of its own.
    """
    for key in order:
        if key in data:
            yield from ("",) if isinstance(data[key], dict | list) else ()
            yield from _entry(key, data[key], (key,), comments)
        elif (key,) in comments:
            yield from ("", f"# {key}: {comments[(key,)]}")


def _entry(key: str, value: Any, path: Path, comments: Mapping[Path, str]) -> Iterator[str]:
    """Yield the lines of one key: one line for a short value without comments inside, else a block."""
    ending = f"  # {comments[path]}" if path in comments else ""
    line = f"{key}: {flow(value)}"
    if _is_one_line(value, line, path, comments):
        yield line + ending
        return
    yield f"{key}:{ending}"
    if isinstance(value, dict):
        for inner, content in value.items():
            yield from (f"  {text}" for text in _entry(inner, content, (*path, inner), comments))
        return
    for place, item in enumerate(value):
        inside = (text for inner in item for text in _entry(inner, item[inner], (*path, place, inner), comments))
        yield from (f"{'  ' if number else '- '}{text}" for number, text in enumerate(inside))


def _is_one_line(value: Any, line: str, path: Path, comments: Mapping[Path, str]) -> bool:
    """Report whether a value is written on the line of its key. Sections of the topology are blocks."""
    is_plain = not isinstance(value, dict | list) or not value
    if is_plain or (isinstance(value, list) and not any(isinstance(item, dict) for item in value)):
        return True
    has_inner = any(other[: len(path)] == path and other != path for other in comments)
    return len(path) > 1 and not has_inner and len(line) <= _LONGEST_FLOW


class _Change(NamedTuple):
    """A setting that an engine in a pod cannot use: what is wrong, what to write ("": leave it out), and why."""

    path: Path
    problem: str
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
        yield TopologyFault(change.path, f"{change.problem}; {instead}{change.reason}")


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
        problem = f"a pod does not have the file {upper.kubeconfig} and uses its ServiceAccount"
        is_called = "Service" in topology.enabled or "upper" in identities
        hint = ", or set advertiseURL there if lower pods call the upper apiserver"
        yield _Change(
            ("upper", "kubeconfig"), problem, reason=hint if is_called and upper.advertise_url is None else ""
        )
    if upper.context is not None:
        yield _Change(("upper", "context"), "a pod uses its ServiceAccount instead of a kubeconfig")


def _kubeconfigs(topology: Topology, namespace: str) -> Iterator[_Change]:
    for index, lower in enumerate(topology.lowers):
        if lower.kubeconfig is not None:
            secret = secret_for(topology, lower, namespace)
            reason = "" if secret.name == lower.name else f" (another lower uses Secret {lower.name})"
            problem = f"a pod does not have the file {lower.kubeconfig}"
            yield _Change(("lowers", index, "kubeconfig"), problem, f"write {secret_field(secret)}", reason)


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
    """Yield the servers that listen on an address which a pod does not have, or where no client reaches it."""
    servers = [("kubelet", topology.kubelet.bind)]
    servers += [("webhook", topology.webhook.bind)] if topology.webhook.enabled else []
    servers += [("extender", topology.extender.bind)] if topology.extender.enabled else []
    for server, bind in servers:
        if not ip_address(bind).is_unspecified:
            instead = f"write {_wildcard_address(bind)}" if ":" in bind else ""
            yield _Change((server, "bind"), f"other hosts cannot reach a pod at {bind}", instead)
    if topology.kubelet.node_address is not None:
        yield _Change(("kubelet", "nodeAddress"), "the nodes have the address of the leader's pod")
    bind = topology.telemetry.bind
    if not (ip_address(bind).is_unspecified or ip_address(bind).is_loopback):
        yield _Change(
            ("telemetry", "bind"), f"a pod does not have the address {bind}", f"write {_wildcard_address(bind)}"
        )


def _wildcard_address(bind: str) -> str:
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
        problem = f"the Service is in {service.namespace}, but the engine runs in {namespace}"
        instead = f"write namespace: {namespace}, or use --namespace {service.namespace}"
        yield _Change(("webhook", "service", "namespace"), problem, instead)
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
    other_lowers = [one for one in topology.lowers if one.name != lower.name]
    secrets = [one.kubeconfig_secret for one in other_lowers if one.kubeconfig_secret is not None]
    used_names = {one.name for one in other_lowers} | {one.name for one in secrets if one.namespace == namespace}
    names = chain((lower.name,), (f"{lower.name}-{number}" for number in count(2)))
    inherited = topology.lower_defaults.kubeconfig_secret or SecretEntry()
    free = next(name for name in names if name not in used_names)
    return SecretRef(namespace=namespace, name=free, key=inherited.key)


def secret_field(secret: SecretRef) -> str:
    """Return the field of a lower that names a Secret, as people write it into the topology."""
    return f"kubeconfigSecret: {flow({'namespace': secret.namespace, 'name': secret.name})}"


def sharing(topology: Topology, lower: Lower) -> list[str]:
    """Return the names of the other lowers whose kubeconfigs are in the same Secret, under another key or context."""
    other_lowers = [other for other in topology.lowers if other.name != lower.name]
    return [
        other.name
        for other in other_lowers
        if _secret_key_of(lower) is not None and _secret_key_of(other) == _secret_key_of(lower)
    ]


def _secret_key_of(lower: Lower) -> tuple[str, str] | None:
    secret = lower.kubeconfig_secret
    return None if secret is None else (secret.namespace, secret.name)


def cautions(text: str, topology: Topology) -> tuple[TopologyProblem, ...]:
    """Return the warnings about a topology that an engine in a pod can use. `text` is its source."""
    return located(text, _caution_faults(text, topology))


def _caution_faults(text: str, topology: Topology) -> Iterator[TopologyFault]:
    """Yield each setting that works in a pod, but perhaps not as intended."""
    bind = topology.telemetry.bind
    if ip_address(bind).is_loopback:
        message = f"metrics at {bind} are reachable only inside the pod; write {_wildcard_address(bind)} to serve them"
        yield TopologyFault(("telemetry", "bind"), message)
    if topology.webhook.enabled and topology.webhook.url is not None:
        message = (
            f"must resolve to Service {WEBHOOK}; to make the upper apiserver call that Service, use webhook.service"
        )
        yield TopologyFault(("webhook", "url"), message)
    root, _ = compose(text)
    for path in low(plain(root)) if root is not None else ():
        service_note = ": its Service listens on 443 in any case" if path == ("webhook", "port") else ""
        message = "an unprivileged pod can listen below 1024 only if its container runtime allows it; remove it"
        yield TopologyFault(path, message + service_note)
    for index, lower in enumerate(topology.lowers):
        if others := sharing(topology, lower):
            message = (
                f"{', '.join(others)} uses the same Secret, and the rendered commands replace the whole Secret; "
                "store all its kubeconfigs by hand, or use another Secret"
            )
            yield TopologyFault(("lowers", index, "kubeconfigSecret"), message)
