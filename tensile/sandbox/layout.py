"""Where everything of one cluster is: its folders, its ports, its address ranges.

Every other module asks here, so that a path or a range is decided once. A cluster's place (0 is the upper one) keeps
the address ranges of all clusters apart, as pods of different clusters must be able to share one flat network.

What the sandbox says when it cannot do what was asked.

One family, so that commands print them without a traceback and tests can tell a sandbox that failed from a test that
did.
"""

import string
from pathlib import Path

import msgspec

from tensile.errors import TensileError

UPPER = "upper"
LOOPBACK = "127.0.0.1"
MAX_LOWERS = len(string.ascii_lowercase)


class Ports(msgspec.Struct, frozen=True):
    """The ports of one cluster's processes, all on loopback."""

    apiserver: int
    etcd: int
    peer: int
    controller_manager: int
    scheduler: int
    endpoint: int


class Layout(msgspec.Struct, frozen=True):
    """One cluster: `root` is the sandbox's directory, `place` 0 for the upper cluster and 1, 2, … for the lowers.

    `network` is "" where nodes exist in name only, else the first three numbers of the real node's network.
    """

    root: str
    name: str
    place: int
    nodes: int
    ports: Ports
    network: str = ""

    @property
    def directory(self) -> Path:
        """The folder of what only this cluster's processes need."""
        return Path(self.root) / self.name

    @property
    def pki(self) -> Path:
        """The folder of certificates, keys and the components' kubeconfigs."""
        return self.directory / "pki"

    @property
    def output(self) -> Path:
        """The folder of what the processes print."""
        return self.directory / "output"

    @property
    def logs(self) -> Path:
        """The folder of the containers' logs: NAMESPACE/POD/CONTAINER.log in CRI format."""
        return self.directory / "logs"

    @property
    def work(self) -> Path:
        """The folder in which commands run: NAMESPACE/POD/CONTAINER is where one starts."""
        return self.directory / "work"

    @property
    def node_folder(self) -> Path:
        """The folder of what a real node is told."""
        return self.directory / "node"

    @property
    def gateway(self) -> str:
        """The machine's address in the network of the real node."""
        return f"{self.network}.1"

    @property
    def node_address(self) -> str:
        """The real node's address."""
        return f"{self.network}.2"

    @property
    def audit_log(self) -> Path:
        """The apiserver's audit log: a JSON object per line, level Metadata."""
        return self.directory / "audit.log"

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig, certificates inline."""
        return Path(self.root) / f"{self.name}.kubeconfig"

    @property
    def server(self) -> str:
        """The apiserver's URL."""
        return f"https://{LOOPBACK}:{self.ports.apiserver}"

    @property
    def service_range(self) -> str:
        """The CIDR of Service addresses."""
        return f"10.{96 + self.place}.0.0/16"

    @property
    def service_address(self) -> str:
        """The address of Service `kubernetes`: the first of the range."""
        return f"10.{96 + self.place}.0.1"

    @property
    def pod_range(self) -> str:
        """The first pod address and the mask, as kwok wants it."""
        return f"10.{160 + self.place}.0.1/16"

    @property
    def node_names(self) -> list[str]:
        """The names of the nodes that the sandbox makes here."""
        return [f"{self.name}-node-{number}" for number in range(1, self.nodes + 1)]


def cluster_names(lowers: int) -> list[str]:
    """Name the upper cluster and that many lowers: lower-a, lower-b, … (at most 26)."""
    return [UPPER, *(f"lower-{letter}" for letter in string.ascii_lowercase[:lowers])]


class SandboxError(TensileError):
    """The sandbox could not start, stop or reach something; the text says what to do."""


class PortTakenError(SandboxError):
    """Another program took a port between choosing it and listening on it: choose others."""
