"""What runs, kept in one file of the sandbox's directory, so that any later command can find and end it.

It is written whole and renamed into place at every start of a process. It is not what `down` relies on to find
processes (each of them carries the sandbox's identity in its environment), but it tells which files are ours.

Makes a sandbox's directory and locks it, so that two commands never work on one at a time.

The lock is the kernel's, on the directory itself: no lock file to leave behind, and it ends with its holder.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tensile.sandbox.container_runtime import Runtime
from tensile.sandbox.layout import Layout, SandboxError

FILE = "state.json"
NEW_FILE = ".state.json.new"


class Binaries(msgspec.Struct, frozen=True):
    """The programs of a sandbox, each as an absolute path."""

    etcd: str
    apiserver: str
    controller_manager: str
    scheduler: str
    kubectl: str
    kwok: str
    endpoint: str


class NodePrograms(msgspec.Struct, frozen=True):
    """The programs of a real node: absolute paths, and its container runtime."""

    kubelet: str
    node: str
    runtime: Runtime


class Options(msgspec.Struct, frozen=True):
    """What a sandbox is asked to be.

    Attributes:
        lowers: number of lower clusters, 0-26.
        nodes: nodes of each lower cluster.
        compressed_eviction: the upper cluster calls a silent node dead after 12 s and evicts 5 s later,
            instead of 40 s and 5 minutes. It then has one cordoned node of its own that stays alive:
            Kubernetes evicts nothing while every node of a cluster is silent.
        real_node: the first lower cluster has one node that runs containers, in place of those in name only.
        extender: the upper scheduler asks the engine's extender, which the topology file then enables.
        verify_kubelet: apiservers accept only kubelets whose certificate their authority signed.
    """

    lowers: int = 2
    nodes: int = 3
    compressed_eviction: bool = False
    real_node: bool = False
    verify_kubelet: bool = True
    extender: bool = False


class Process(msgspec.Struct, frozen=True):
    """A started program; `started` (clock ticks since boot) tells it from a later one with its number."""

    pid: int
    started: int
    arguments: list[str]
    output: str


class Cluster(msgspec.Struct):
    """One cluster: where it is, and its processes by component."""

    layout: Layout
    processes: dict[str, Process] = {}


class State(msgspec.Struct):
    """One sandbox.

    Attributes:
        identity: what every process of it carries in its environment.
        options: what it was asked to be.
        entries: the names in its directory that are ours.
        made: the directories that were made for it, deepest first.
        ready: everything has been ready once; until then nobody may rely on it.
        binaries: its programs, None before they are found.
        node: the programs of its real node, None when it has none or before they are found.
        clusters: by name, the upper one first.
    """

    identity: str
    options: Options
    entries: list[str]
    made: list[str]
    ready: bool = False
    binaries: Binaries | None = None
    node: NodePrograms | None = None
    clusters: dict[str, Cluster] = {}


def load(directory: Path) -> State | None:
    """Read the state of the sandbox in the directory; None: there is none.

    Raises:
        SandboxError: the file is not one of ours.
    """
    path = directory / FILE
    try:
        return msgspec.json.decode(path.read_bytes(), type=State)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except msgspec.DecodeError as error:
        raise SandboxError(
            f"{path}: not a sandbox's state ({error}); give another --dir, or remove the file"
        ) from error


def save(directory: Path, state: State) -> None:
    """Write the state in one step."""
    new = directory / NEW_FILE
    new.write_bytes(msgspec.json.format(msgspec.json.encode(state)))
    new.replace(directory / FILE)


@dataclass(frozen=True)
class Claim:
    """A locked directory: its descriptor, and which directories were made for it (deepest first)."""

    descriptor: int
    made: list[str]


@contextmanager
def claimed(directory: Path) -> Iterator[Claim]:
    """Make the directory where it is missing, and hold its lock inside the block.

    Raises:
        SandboxError: it cannot be made or opened.
    """
    try:
        claim = _claim(directory)
    except OSError as error:
        raise SandboxError(f"{error.filename}: {error.strerror}; give another directory with --dir") from error
    try:
        yield claim
    finally:
        os.close(claim.descriptor)


def _claim(directory: Path) -> Claim:
    """Make, open and lock; again from the start when another command removed the directory in between."""
    while True:
        try:
            made = _make(directory)
            descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
        except FileNotFoundError:
            continue
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        if directory.exists() and os.path.samestat(directory.stat(), os.fstat(descriptor)):
            return Claim(descriptor, made)
        os.close(descriptor)


def _make(directory: Path) -> list[str]:
    """Make the directory and those above it; return the made ones, the deepest first."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(mode=0o755, exist_ok=True)
    return [str(path) for path in missing]
