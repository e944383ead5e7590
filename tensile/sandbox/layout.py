"""The paths, ports and address ranges of a cluster, and the errors of the sandbox.

Every other module takes them from here. A cluster's place (0 is the upper one) keeps the address ranges of all clusters
apart, since pods of different clusters share one flat network.

All errors derive from one class, so that commands print them without a traceback, and tests can tell a failed sandbox
from a failed test.
"""

import string
from pathlib import Path

import msgspec

from tensile.errors import TensileError

UPPER = "upper"
LOOPBACK = "127.0.0.1"
MAX_LOWERS = len(string.ascii_lowercase)


class SandboxError(TensileError):
    """The sandbox could not start, stop or reach a component; the message says what to do."""


class PortTakenError(SandboxError):
    """Another program took a port before the sandbox's server listened on it; retry with other ports."""


class Ports(msgspec.Struct, frozen=True):
    """The ports of one cluster's processes, all on loopback."""

    apiserver: int
    etcd: int
    peer: int
    controller_manager: int
    scheduler: int
    endpoint: int
    addons: int = 0


class Layout(msgspec.Struct, frozen=True):
    """One cluster: `root` is the sandbox's directory, `place` 0 for the upper cluster and 1, 2, … for the lowers.

    `network` is "" for kwok nodes, else the first three octets of the real node's network.
    """

    root: str
    name: str
    place: int
    nodes: int
    ports: Ports
    network: str = ""

    @property
    def directory(self) -> Path:
        """The directory of files that only this cluster's processes need."""
        return Path(self.root) / self.name

    @property
    def pki(self) -> Path:
        """The directory of certificates, keys and the components' kubeconfigs."""
        return self.directory / "pki"

    @property
    def output(self) -> Path:
        """The directory of the output of processes."""
        return self.directory / "output"

    @property
    def logs(self) -> Path:
        """The directory of container logs: NAMESPACE/POD/CONTAINER.log in CRI format."""
        return self.directory / "logs"

    @property
    def work(self) -> Path:
        """The directory in which exec commands run, each in NAMESPACE/POD/CONTAINER."""
        return self.directory / "work"

    @property
    def node_folder(self) -> Path:
        """The directory of a real node's configuration."""
        return self.directory / "node"

    @property
    def gateway(self) -> str:
        """The address of this machine in the real node's network."""
        return f"{self.network}.1"

    @property
    def node_address(self) -> str:
        """The address of the real node."""
        return f"{self.network}.2"

    @property
    def audit_log(self) -> Path:
        """The apiserver's audit log: one JSON object per line, level Metadata."""
        return self.directory / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, with inline certificates."""
        return Path(self.root) / f"{self.name}.kubeconfig"

    @property
    def server(self) -> str:
        """The URL of the apiserver."""
        return f"https://{LOOPBACK}:{self.ports.apiserver}"

    @property
    def service_range(self) -> str:
        """The CIDR of Service addresses."""
        return f"10.{96 + self.place}.0.0/16"

    @property
    def service_address(self) -> str:
        """The address of Service `kubernetes`: the first one of the range."""
        return f"10.{96 + self.place}.0.1"

    @property
    def pod_range(self) -> str:
        """The first pod address with the prefix length, in kwok's notation."""
        return f"10.{160 + self.place}.0.1/16"

    @property
    def node_names(self) -> list[str]:
        """The names of the cluster's nodes."""
        return [f"{self.name}-node-{number}" for number in range(1, self.nodes + 1)]


def cluster_names(lowers: int) -> list[str]:
    """Return the names of the upper cluster and of the lowers: lower-a, lower-b, … (at most 26)."""
    return [UPPER, *(f"lower-{letter}" for letter in string.ascii_lowercase[:lowers])]
