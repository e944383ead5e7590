"""What a sandbox consists of: paths, ports, addresses and processes of its clusters, in one file; and its errors.

A cluster's place (0 is the upper one) keeps the address ranges of all clusters apart, since pods of different clusters
share one flat network.

The file is replaced atomically after every started process, so that any later command can find the sandbox and end it.
`down` does not rely on it to find processes, which carry the sandbox's identity in their environment; but it says which
files belong to the sandbox. The lock of the directory is a kernel lock on the directory itself: it leaves no lock file
behind, and ends with its holder.

All errors derive from one class, so that commands print them without a traceback, and tests can tell a failed sandbox
from a failed test.
"""

import errno
import fcntl
import os
import string
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tensile.errors import TensileError

UPPER = "upper"
LOOPBACK = "127.0.0.1"
MAX_LOWERS = len(string.ascii_lowercase)
FILE = "state.json"
NEW_FILE = ".state.json.new"
_TRIES = 100


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


class Binaries(msgspec.Struct, frozen=True):
    """The binaries of a sandbox, as absolute paths."""

    etcd: str
    apiserver: str
    controller_manager: str
    scheduler: str
    kubectl: str
    kwok: str
    endpoint: str


class Runtime(msgspec.Struct, frozen=True):
    """The container runtime of a real node.

    Attributes:
        path: the search path of containerd, its shim, ctr and runc.
        plugins: the folder of CNI plugins.
        busybox: the static program that the images are made of.
    """

    path: str
    plugins: str
    busybox: str


class NodePrograms(msgspec.Struct, frozen=True):
    """The binaries of a real node, as absolute paths, and its container runtime."""

    kubelet: str
    node: str
    runtime: Runtime


class Options(msgspec.Struct, frozen=True):
    """The options of a sandbox.

    Attributes:
        lowers: the number of lower clusters, 0-26.
        nodes: the number of nodes of each lower cluster.
        compressed_eviction: the upper cluster marks a silent node as dead after 12 s and evicts its pods 5 s later,
            instead of after 40 s and 5 minutes. It then has one cordoned node of its own that stays alive, since
            Kubernetes evicts no pods while every node of a cluster is silent.
        real_node: the first lower cluster has one node that runs containers, instead of its kwok nodes.
        addons: the lower clusters have a default StorageClass that provisions volumes, the upper one a class that leads
            there, and all have a metrics API.
        extender: the upper scheduler uses the engine's extender, which the topology file then enables.
        verify_kubelet: apiservers accept only kubelets whose certificate is signed by the cluster's CA.
        kubernetes: the release of Kubernetes, such as "v1.35.2"; "" for that of $TENSILE_KUBERNETES_VERSION, else the
            pinned one.
    """

    lowers: int = 2
    nodes: int = 3
    compressed_eviction: bool = False
    real_node: bool = False
    verify_kubelet: bool = True
    extender: bool = False
    addons: bool = False
    kubernetes: str = ""


class Process(msgspec.Struct, frozen=True):
    """A started process; `started` (clock ticks since boot) tells it from a later one with the same pid."""

    pid: int
    started: int
    arguments: list[str]
    output: str


class SandboxCluster(msgspec.Struct):
    """One cluster: its layout, and its processes by component."""

    layout: Layout
    processes: dict[str, Process] = {}


class State(msgspec.Struct):
    """One sandbox.

    Attributes:
        identity: the value that every process carries in its environment.
        options: the requested options.
        entries: the names in its directory that belong to the sandbox.
        made: the directories that were created for it, deepest first.
        ready: whether everything has been ready once; before, the sandbox must not be used.
        binaries: its binaries, None until they are found.
        node: the binaries of its real node, None if it has none or until they are found.
        clusters: by name, the upper one first.
    """

    identity: str
    options: Options
    entries: list[str]
    made: list[str]
    ready: bool = False
    binaries: Binaries | None = None
    node: NodePrograms | None = None
    clusters: dict[str, SandboxCluster] = {}


@dataclass(frozen=True)
class DirectoryLock:
    """A locked directory: its file descriptor, and the directories that were created for it (deepest first)."""

    descriptor: int
    created: list[str]


def load(directory: Path) -> State | None:
    """Return the state of the sandbox in the directory, None if there is none.

    Raises:
        SandboxError: the file is not a sandbox's state.
    """
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise SandboxError(
            f"{path}: not the state of a sandbox ({error}); use another --dir, or remove the file"
        ) from error


def save(directory: Path, state: State) -> None:
    """Write the state atomically."""
    new = directory / NEW_FILE
    new.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    new.replace(directory / FILE)


@contextmanager
def claimed(directory: Path) -> Iterator[DirectoryLock]:
    """Create the directory if it is missing, and hold its lock inside the block.

    Raises:
        SandboxError: it cannot be created or opened.
    """
    try:
        claim = _claim(directory)
    except OSError as error:
        raise SandboxError(f"{error.filename}: {error.strerror}; use another directory with --dir") from error
    try:
        yield claim
    finally:
        os.close(claim.descriptor)


def _claim(directory: Path) -> DirectoryLock:
    """Create, open and lock the directory; starts over if another command deleted it meanwhile."""
    for attempts_left in reversed(range(_TRIES)):
        try:
            created = _make(directory)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            if not attempts_left:  # some file systems, such as /proc, refuse a new directory with this error
                raise
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if directory.exists() and os.path.samestat(directory.stat(), os.fstat(descriptor)):
            return DirectoryLock(descriptor, created)
        os.close(descriptor)
    raise OSError(errno.EBUSY, os.strerror(errno.EBUSY), str(directory))


def _make(directory: Path) -> list[str]:
    """Create the directory and its missing parents, and return the created ones, deepest first."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o755, exist_ok=True)
    return [str(path) for path in missing]
