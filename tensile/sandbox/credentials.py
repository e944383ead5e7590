"""Writes a cluster's certificates, keys and kubeconfigs to its folder.

One authority a cluster signs clients, servers and kubelets alike, as `kubeadm` does with all but etcd: what the
apiserver trusts for callers (`client-ca-file`) and for kubelets (`--kubelet-certificate-authority`) is then one file.
"""

from datetime import datetime
from pathlib import Path

from tensile.sandbox import certificates, kubeconfig
from tensile.sandbox.certificates import Authority, Pair
from tensile.sandbox.layout import LOOPBACK, Layout

ADMINISTRATORS = "system:masters"
NODES = "system:nodes"
KUBELET_CLIENT = "kube-apiserver-kubelet-client"
FRONT_PROXY_CLIENT = "front-proxy-client"
SCHEDULER = "kube-scheduler"
COMPONENT_USERS = {
    "kube-controller-manager": ("system:kube-controller-manager", ()),
    SCHEDULER: ("system:kube-scheduler", ()),
    "kwok": ("kwok", (ADMINISTRATORS,)),
    "endpoint": ("endpoint", (ADMINISTRATORS,)),
}
APISERVER_NAMES = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")


def write(layout: Layout, now: datetime) -> Authority:
    """Write everything that the cluster's processes and its users present or trust; return its authority."""
    for directory in (layout.pki, layout.output, layout.logs, layout.work):
        directory.mkdir(parents=True, exist_ok=True)
    signer = certificates.authority(f"{layout.name}-ca", now)
    write_pair(layout.pki / "ca", signer.pair)
    _write_servers(layout, signer)
    _write_clients(layout, signer)
    _write_front_proxy(layout, now)
    _write_account_keys(layout)
    if layout.network:
        _write_node(layout, signer)
    return signer


def write_pair(stem: Path, pair: Pair) -> None:
    """Write STEM.crt and STEM.key."""
    write_secret(stem.with_suffix(".crt"), pair.certificate)
    write_secret(stem.with_suffix(".key"), pair.key)


def write_secret(path: Path, content: bytes) -> None:
    """Write a file that only its owner can read."""
    path.touch(mode=0o600)
    path.write_bytes(content)


def kubelet_pair(signer: Authority) -> Pair:
    """Return a serving certificate for a kubelet API on loopback."""
    return signer.issue("system:node:sandbox", (NODES,), hosts=("localhost",), addresses=(LOOPBACK,))


def _write_servers(layout: Layout, signer: Authority) -> None:
    """Write what the apiserver and the kubelet API show."""
    addresses = (LOOPBACK, layout.service_address, *([layout.gateway] if layout.network else ()))
    pair = signer.issue("kube-apiserver", hosts=APISERVER_NAMES, addresses=addresses)
    write_pair(layout.pki / "apiserver", pair)
    write_pair(layout.pki / "kubelet", kubelet_pair(signer))


def _write_node(layout: Layout, signer: Authority) -> None:
    """Write what a real node shows to the apiserver, as a server and as a client that may touch what is its own."""
    name = f"system:node:{layout.node_names[0]}"
    pair = signer.issue(name, (NODES,), addresses=(layout.node_address,))
    write_pair(layout.pki / "node-serving", pair)
    server = f"https://{layout.gateway}:{layout.ports.apiserver}"
    text = kubeconfig.render(layout.name, server, name, signer.pair.certificate, signer.issue(name, (NODES,)))
    write_secret(layout.pki / "node.kubeconfig", text.encode())


def _write_clients(layout: Layout, signer: Authority) -> None:
    """Write what the apiserver shows to kubelets and the scheduler to an extender, and everybody's kubeconfigs."""
    write_pair(layout.pki / "kubelet-client", signer.issue(KUBELET_CLIENT))
    admin = signer.issue("kubernetes-admin", (ADMINISTRATORS,))
    write_pair(layout.pki / "admin", admin)
    _write_kubeconfig(layout, layout.kubeconfig, f"{layout.name}-admin", signer, admin)
    for component, (user, groups) in COMPONENT_USERS.items():
        path, pair = layout.pki / f"{component}.kubeconfig", signer.issue(user, groups)
        _write_kubeconfig(layout, path, component, signer, pair)
        if component == SCHEDULER:
            write_pair(layout.pki / component, pair)


def _write_kubeconfig(layout: Layout, path: Path, user: str, signer: Authority, pair: Pair) -> None:
    """Write a kubeconfig that only its owner can read."""
    text = kubeconfig.render(layout.name, layout.server, user, signer.pair.certificate, pair)
    write_secret(path, text.encode())


def _write_front_proxy(layout: Layout, now: datetime) -> None:
    """The authority of those who may speak for a user is never the one that signs users."""
    signer = certificates.authority(f"{layout.name}-front-proxy-ca", now)
    write_pair(layout.pki / "front-proxy-ca", signer.pair)
    write_pair(layout.pki / "front-proxy", signer.issue(FRONT_PROXY_CLIENT))


def _write_account_keys(layout: Layout) -> None:
    """Write both halves of the key that signs the tokens of service accounts."""
    key = certificates.new_key()
    write_secret(layout.pki / "accounts.key", certificates.private_pem(key))
    write_secret(layout.pki / "accounts.pub", certificates.public_pem(key))
