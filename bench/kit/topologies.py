"""Topology files with their own names and ports for a sandbox's clusters, and kubeconfigs for separate users.

They let several engines run side by side on the same clusters.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from bench.kit.faultproxy.tls import signer_of
from tensile.sandbox import credentials
from tensile.sandbox.credentials import ADMINISTRATORS
from tensile.sandbox.state import LOOPBACK, UPPER

if TYPE_CHECKING:
    from tensile.sandbox.sandbox import ClusterProcesses


def topology_of(name: str, nodes: Mapping[str, str], ports: Sequence[int], **fields: Any) -> dict[str, Any]:
    """Return a topology of these lowers, each with its node's name; `fields` are further fields of every lower.

    `ports` has one for each lower's node, and at its end kubelet.port and telemetry.port. The kubeconfigs and the
    kubelet's certificate are beside the file.
    """
    lowers = [
        {"name": lower, "kubeconfig": f"{lower}.kubeconfig", "node": {"name": node, "kubeletPort": port}, **fields}
        for (lower, node), port in zip(nodes.items(), ports, strict=False)
    ]
    kubelet = {"bind": LOOPBACK, "port": ports[-2], "nodeAddress": LOOPBACK}
    return {
        "apiVersion": "tensile-kube.io/v1alpha1",
        "kind": "Topology",
        "name": name,
        "upper": {"kubeconfig": f"{UPPER}.kubeconfig"},
        "lowers": lowers,
        "kubelet": {**kubelet, "tlsCertFile": "kubelet.crt", "tlsKeyFile": "kubelet.key"},
        "telemetry": {"bind": LOOPBACK, "port": ports[-1]},
    }


def by_secrets(topology: Mapping[str, Any], lowers: Iterable[str], namespace: str) -> dict[str, Any]:
    """Return a topology for a ConfigMap: without files, and each lower's kubeconfig in a Secret of its name."""
    found = {field: value for field, value in topology.items() if field != "upper"}
    entries = [{"name": name, "kubeconfigSecret": {"namespace": namespace, "name": name}} for name in lowers]
    return {**found, "kubelet": _own_certificate(topology), "lowers": entries}


def by_files(topology: Mapping[str, Any], files: Mapping[str, Path]) -> dict[str, Any]:
    """Return a topology with the kubeconfigs of all clusters in these files."""
    entries = [{"name": name, "kubeconfig": str(path)} for name, path in files.items() if name != UPPER]
    upper = {"kubeconfig": str(files[UPPER])}
    return {**topology, "upper": upper, "kubelet": _own_certificate(topology), "lowers": entries}


def _own_certificate(topology: Mapping[str, Any]) -> dict[str, Any]:
    """Return the kubelet section of a topology whose engine makes its own certificate."""
    return {**topology["kubelet"], "tlsCertFile": None, "tlsKeyFile": None}


def save(topology: Mapping[str, Any], directory: Path) -> Path:
    """Write DIRECTORY/topology.yaml atomically, as editors do, and return its path."""
    path = directory / "topology.yaml"
    written = path.with_suffix(".new")
    written.write_bytes(orjson.dumps(topology))
    written.rename(path)
    return path


def kubeconfig(
    cluster: "ClusterProcesses",
    user: str,
    groups: Sequence[str] = (ADMINISTRATORS,),
    *,
    server: str = "",
    ago: timedelta | None = None,
) -> str:
    """Return a kubeconfig of a cluster for a user, an administrator unless `groups` are set.

    `server` is another URL than the cluster's own. The certificate is issued as if so long `ago`.
    """
    pki = cluster.audit_log.parent / "pki"
    signer = signer_of(pki)
    pair = replace(signer, now=signer.now - (ago or timedelta())).issue(user, groups)
    return credentials.render(cluster.name, server or cluster.server, user, (pki / "ca.crt").read_bytes(), pair)
