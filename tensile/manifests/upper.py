"""All that is applied in the upper cluster, in the order in which it is needed."""

from tensile.manifests.exposure import exposure
from tensile.manifests.roles import CONFIGMAP, upper_roles
from tensile.manifests.setup import NAME, Setup
from tensile.manifests.texts import STORAGE_CLASS
from tensile.manifests.workload import workload
from tensile.manifests.yamlout import Piece
from tensile.policy.admissionpolicy import binding, has_untainted_node, policy
from tensile.reconcile.mapsource import KEY
from tensile.topology import Lower

FILES = ("namespace.yaml", "roles.yaml", "engine.yaml", "network.yaml")
"""The files that it goes into, in this order."""
_ENFORCED = "pod-security.kubernetes.io/enforce"


def namespace(name: str, why: str) -> Piece:
    """Give a namespace for the engine alone, in which Pod Security is at its strictest."""
    meta = {"name": name, "labels": {"app.kubernetes.io/name": NAME, _ENFORCED: "restricted"}}
    return Piece({"apiVersion": "v1", "kind": "Namespace", "metadata": meta}, why)


def of_engine(setup: Setup) -> dict[str, list[Piece]]:
    """Give what the engine runs in, by the names of FILES; but for the topology."""
    roles = upper_roles(setup.topology, namespace=setup.namespace)
    sheets = (
        [namespace(setup.namespace, _NAMESPACE)],
        [Piece(role, why) for role, why in zip(roles, (_ROLES, *[""] * len(roles)), strict=False)],
        workload(setup),
        exposure(setup),
    )
    return dict(zip(FILES, sheets, strict=True))


def configmap(setup: Setup) -> Piece:
    """Give the topology's ConfigMap."""
    return Piece(setup.object("v1", "ConfigMap", CONFIGMAP, data={KEY: setup.text}), _CONFIGMAP)


def storage(setup: Setup) -> str:
    """Give the storage class as text, "" where no volumes are made below."""
    return STORAGE_CLASS if "PV" in setup.topology.enabled else ""


def admission(setup: Setup) -> list[Piece]:
    """Give the MutatingAdmissionPolicy and its binding, for those who do not let the engine register them.

    Without marks, as they hold the UID of a namespace that is not known here: the engine leaves them as they are.
    """
    topology = setup.topology
    made = policy(topology, None, all_virtual=has_untainted_node(topology), own_namespace=setup.namespace)
    return [Piece(made, _ADMISSION), Piece(binding(topology, None), "")]


def secrets(setup: Setup) -> list[tuple[Lower, str]]:
    """Give the lowers, and of each the Secret with its kubeconfig, for people."""
    return [
        (lower, f"{secret.namespace}/{secret.name}, key {secret.key}")
        for lower in setup.topology.lowers
        if (secret := lower.kubeconfig_secret) is not None
    ]


def head(setup: Setup, command: str | None = None) -> str:
    """Say before all what this is and what has to be there.

    `command` is the one that printed it; None: what is for others is in files beside it.
    """
    lines = [f"The engine of topology {setup.topology.name}, in its upper cluster."]
    if setup.topology.lowers:
        lines.append("It needs the kubeconfigs of the lower clusters in Secrets, now or later, and waits for each:")
    for lower, place in secrets(setup):
        how = f"{command} --lower {lower.name}" if command else f"lowers/{lower.name}/access.yaml"
        lines.append(f"  Secret {place}: see {how}")
    if setup.topology.extender.enabled:
        where = f"is written by `{command} --dir DIR`" if command else "is in scheduler-extender.yaml"
        lines.append(f"The upper scheduler's configuration, no object to apply, {where}.")
    return "\n".join(lines)


_NAMESPACE = "Of the engine alone: who may make pods or read Secrets here, may all that the engine may."
_ROLES = "The engine's account, and what it may do: what it does with this topology, and nothing else."
_ADMISSION = (
    "Not applied by this kustomization: the engine registers both itself and keeps them as the topology says. Apply "
    "them to an upper cluster of Kubernetes 1.36 or later in which the engine must not do so, and write and apply them "
    "again when names or taints of virtual nodes change, or the namespaces that are not mirrored."
)
_CONFIGMAP = "The topology: an edit is in force within seconds, and ConfigMap topology-status says what became of it."
