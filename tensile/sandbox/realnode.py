"""A real node of a lower cluster: a kubelet over containerd, in a network of its own on this machine.

The kubelet refuses a loopback address, and all it starts must be found again after a kill; so the program `node` gives
it namespaces in which it is alone. Here is what it is told: the addresses, and the configuration of each part. The
settings that look odd are those without which it does not run on a machine that is not made for it: both forms of
cgroups, swap, no systemd, no iptables.
"""

import hashlib
import json
import socket
import subprocess
from pathlib import Path
from typing import Any

from tensile.sandbox import images, remains
from tensile.sandbox.errors import SandboxError
from tensile.sandbox.layout import LOOPBACK, Layout
from tensile.sandbox.state import NodePrograms

KUBELET_PORT = 10250
NETWORKS = 512
CRI = "io.containerd.grpc.v1.cri"
CONTAINERD = """\
version = 2
[plugins."{cri}"]
  sandbox_image = "{pause}"
  restrict_oom_score_adj = true
  stream_server_address = "{loopback}"
  [plugins."{cri}".cni]
    bin_dir = "{plugins}"
    conf_dir = "{networks}"
"""


def network(identity: str) -> str:
    """Choose the first three numbers of a network that this machine has no address in.

    The networks are those kept for benchmarks, which are routed nowhere; the identity chooses among them.

    Raises:
        SandboxError: all of them are in use.
    """
    first = int(hashlib.sha256(identity.encode()).hexdigest(), 16)
    for number in range(first, first + NETWORKS):
        chosen = f"198.{18 + number // 256 % 2}.{number % 256}"
        if not _is_here(f"{chosen}.1"):
            return chosen
    raise SandboxError("no network for the real node: this machine has an address in each of 198.18.0.0/15")


def write(layout: Layout, programs: NodePrograms) -> None:
    """Write the configuration of all parts, and the images, into the node's folder."""
    networks = layout.node_folder / "networks"
    networks.mkdir(parents=True, exist_ok=True)
    text = CONTAINERD.format(
        cri=CRI, pause=images.PAUSE, loopback=LOOPBACK, plugins=programs.runtime.plugins, networks=networks
    )
    (layout.node_folder / "containerd.toml").write_text(text)
    (networks / "10-pods.conflist").write_text(json.dumps(pod_network(layout)))
    (layout.node_folder / "kubelet.json").write_text(json.dumps(kubelet_configuration(layout)))
    (layout.node_folder / "images.tar").write_bytes(_images(programs.runtime.busybox))


def command(layout: Layout, identity: str, programs: NodePrograms) -> list[str]:
    """Return the command line of the node."""
    folder = layout.node_folder
    return [
        programs.node,
        f"--device={remains.device(identity)}",
        f"--gateway={layout.gateway}/24",
        f"--address={layout.node_address}/24",
        f"--api={LOOPBACK}:{layout.ports.apiserver}",
        f"--cgroup={remains.cgroup(identity)}",
        f"--path={programs.runtime.path}",
        f"--containerd-config={folder / 'containerd.toml'}",
        f"--images={folder / 'images.tar'}",
        f"--kubelet={programs.kubelet}",
        "--",
        f"--config={folder / 'kubelet.json'}",
        f"--kubeconfig={layout.pki / 'node.kubeconfig'}",
        f"--hostname-override={layout.node_names[0]}",
        f"--node-ip={layout.node_address}",
        "--root-dir=/run/kubelet",
        "--cert-dir=/run/kubelet/pki",
    ]


def pod_network(layout: Layout) -> dict[str, Any]:
    """Return the plugins' configuration: pods are neighbours of the node on its bridge, and have no way out."""
    addresses = {"subnet": f"{layout.network}.0/24", "rangeStart": f"{layout.network}.10", "gateway": layout.gateway}
    return {
        "cniVersion": "0.4.0",
        "name": "pods",
        "plugins": [
            {
                "type": "bridge",
                "bridge": "cni0",
                "isGateway": False,
                "ipMasq": False,
                "hairpinMode": True,
                "ipam": {"type": "host-local", "ranges": [[addresses]], "dataDir": "/run/networks"},
            }
        ],
    }


def kubelet_configuration(layout: Layout) -> dict[str, Any]:
    """Return the KubeletConfiguration: guarded as in production, content with any machine."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": layout.node_address,
        "port": KUBELET_PORT,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(layout.pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(layout.pki / "node-serving.crt"),
        "tlsPrivateKeyFile": str(layout.pki / "node-serving.key"),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "volumePluginDir": "/run/kubelet/volume-plugins",
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": True,
        "enforceNodeAllocatable": [],
        "failCgroupV1": False,
        "failSwapOn": False,
        "localStorageCapacityIsolation": False,
        "makeIPTablesUtilChains": False,
        "resolvConf": "",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "0%"},
        "shutdownGracePeriod": "0s",
    }


def _images(busybox: str) -> bytes:
    """Return the archive of images made of the machine's busybox."""
    listed = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True)
    return images.archive(Path(busybox).read_bytes(), listed.stdout.split())


def _is_here(address: str) -> bool:
    """Tell whether an address is one of this machine's."""
    with socket.socket() as probe:
        try:
            probe.bind((address, 0))
        except OSError:
            return False
    return True
