"""Who reaches the engine: Services for the upper cluster's apiserver and scheduler and for Prometheus, and a policy.

The virtual nodes need no Service: their addresses are that of the pod that drives.
"""

from tensile.manifests.setup import NAME, Setup
from tensile.manifests.turning import EXTENDER, METRICS, WEBHOOK
from tensile.manifests.yamlout import Piece
from tensile.names import LEADS
from tensile.objects import Manifest

_HTTPS = 443


def exposure(setup: Setup) -> list[Piece]:
    """Give the Services and the NetworkPolicy."""
    topology = setup.topology
    found = [Piece(_service(setup, METRICS, topology.telemetry.port, "metrics", clusterIP="None"), _METRICS)]
    if topology.webhook.enabled:
        named = topology.webhook.service
        found.append(Piece(_service(setup, named.name if named else WEBHOOK, _HTTPS, "webhook"), _WEBHOOK))
    if topology.extender.enabled:
        service = _service(setup, EXTENDER, topology.extender.port, "extender")
        service["spec"]["selector"] = {**setup.selector, LEADS: topology.name}
        found.append(Piece(service, _EXTENDER))
    return [*found, Piece(_policy(setup), _POLICY)]


_METRICS = "Metrics of each pod by itself: tensile_leads says which one drives."
_WEBHOOK = "The upper apiserver's way to the webhook, which both pods serve."
_EXTENDER = "The upper scheduler's way to the extender: the pod that drives has the label, and no other."
_POLICY = (
    "Who may call: anybody, but at these ports only. Each asks callers who they are, but for metrics and probes. The "
    "upper's apiserver and scheduler call from hosts, whose addresses are not known here. The ports of virtual nodes "
    "have room for more lower clusters. What the pods call is left open: the lower clusters may be anywhere."
)


def _service(setup: Setup, name: str, port: int, target: str, **fields: str) -> Manifest:
    ports = [{"name": target, "port": port, "targetPort": target}]
    return setup.object("v1", "Service", name, spec={**fields, "selector": setup.selector, "ports": ports})


def _policy(setup: Setup) -> Manifest:
    rows = [*((port, port) for port in (*setup.servers.values(), setup.probed)), *setup.kubelets]
    spec = {
        "podSelector": {"matchLabels": setup.selector},
        "policyTypes": ["Ingress"],
        "ingress": [{"ports": [_row(*row) for row in rows]}],
    }
    return setup.object("networking.k8s.io/v1", "NetworkPolicy", NAME, spec=spec)


def _row(first: int, last: int) -> Manifest:
    return {"protocol": "TCP", "port": first, **({"endPort": last} if last > first else {})}
