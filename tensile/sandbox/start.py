"""Starts a sandbox: files, processes, nodes; and waits until all of it is ready.

All clusters start together, component by component, since most of the time is spent waiting for apiservers. The state
is saved after every started process, and a guard cleans up if this process is killed before the end.
"""

import os
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import tenacity

from tensile.sandbox import apiserver, binaries, credentials, flags, processes, real_node
from tensile.sandbox.apiserver import Api
from tensile.sandbox.state import (
    LOOPBACK,
    MAX_LOWERS,
    NEW_FILE,
    DirectoryLock,
    Layout,
    Options,
    Ports,
    PortTakenError,
    SandboxCluster,
    SandboxError,
    State,
    claimed,
    cluster_names,
    load,
    save,
)
from tensile.sandbox.stop import (
    PACKAGE_ROOT,
    CleanupGuard,
    begin,
    cleanup_on_failure,
    end_processes,
    remove_entries,
    tear_down,
)
from tensile.text import Progress, listed

STAGES = Path(__file__).parent / "stages"
TRIES = 3
PORTS_OF_A_CLUSTER = len(Ports.__struct_fields__)
SPARE_KUBELET_PORTS = 8
SHOWN = 3
"""How many files an error names."""
MEMORY_OF_A_CLUSTER = 650
"""MiB, with three nodes and few pods (measured)."""
SECONDS_OF_A_CLUSTER = 20.0
"""The time limit of a start, for each cluster: on two cores, many clusters take minutes."""
FIRST = ("etcd", "kube-apiserver")
REAL = 1
"""The place of the cluster with the real node."""


@dataclass(frozen=True)
class Started:
    """The result of `bring_up`.

    Attributes:
        state: the state of the sandbox.
        found: whether it already ran.
        guard: ends the sandbox with this process; None: it runs until it is stopped.
    """

    state: State
    found: bool = False
    guard: CleanupGuard | None = None


def bring_up(directory: Path, options: Options, progress: Progress, *, bound: bool = False) -> Started:
    """Start a sandbox in the directory; of one that already runs, only processes that have ended are started.

    Args:
        directory: an absolute path; created if missing.
        options: what to start.
        progress: called with lines for a person.
        bound: end the sandbox when this process ends for any reason, by the returned guard.

    Raises:
        SandboxError: it could not be started; no process and no file of it is left.
    """
    check(options, directory)
    with claimed(directory) as claim:
        found = load(directory)
        if found is not None and found.ready:
            return Started(restart_ended(directory, found), found=True)
        if found is None:
            return _guarded(directory, options, progress, claim, bound=bound)
        progress("removing an incomplete sandbox first")
        tear_down(directory, found)
    return bring_up(directory, options, progress, bound=bound)


def check(options: Options, directory: Path) -> None:
    """Raise SandboxError for options that cannot work, before anything is changed."""
    if not 0 <= options.lowers <= MAX_LOWERS:
        raise SandboxError(f"--lowers {options.lowers}: use a number from 0 to {MAX_LOWERS}")
    if options.nodes < 0:
        raise SandboxError(f"--nodes {options.nodes}: use 0 or more")
    if not Path("/proc/self/environ").exists():
        raise SandboxError("the sandbox needs Linux: it finds its processes in /proc")
    if options.real_node:
        _check_real_node(options, directory)


def _check_real_node(options: Options, directory: Path) -> None:
    """Raise SandboxError if this machine cannot run a real node."""
    if not options.lowers:
        raise SandboxError("--real-node: the node belongs to a lower cluster; use --lowers 1 or more")
    obstacle = real_node.obstacle((directory, binaries.cache_directory(os.environ)), os.environ)
    if obstacle:
        raise SandboxError(f"--real-node: this machine cannot run a real node: {obstacle}")


def nodes_of(index: int, options: Options) -> int:
    """Return the number of nodes of the cluster at a place.

    The upper cluster has none, or with compressed eviction one that is always alive.
    """
    if index == REAL and options.real_node:
        return 1
    return options.nodes if index else int(options.compressed_eviction)


def entries(names: Sequence[str]) -> list[str]:
    """Return the names that a sandbox of these clusters creates in its directory, except its state file."""
    kubeconfigs = [f"{name}.kubeconfig" for name in names]
    return [*names, *kubeconfigs, "topology.yaml", "kubelet.crt", "kubelet.key"]


def restart_ended(directory: Path, state: State) -> State:
    """Restart the processes of a ready sandbox that have ended."""
    for cluster in state.clusters.values():
        for name, process in cluster.processes.items():
            if not processes.running(process):
                start_process(directory, state, cluster, name, process.arguments)
    _wait_for_all(list(state.clusters.values()))
    return state


def with_other_ports(attempt: Callable[[], None], clean_up: Callable[[], None]) -> None:
    """Call `attempt`, up to three times if a port was taken meanwhile; `clean_up` cleans up before each retry."""
    tenacity.Retrying(
        retry=tenacity.retry_if_exception_type(PortTakenError),
        stop=tenacity.stop_after_attempt(TRIES),
        before_sleep=lambda _: clean_up(),
        reraise=True,
    )(attempt)


def start_process(directory: Path, state: State, cluster: SandboxCluster, name: str, command: Sequence[str]) -> None:
    """Start one process of a cluster and save it in the state."""
    variables = processes.environment(state.identity, cluster.layout.directory)
    if name == credentials.ADDONS:
        variables["PYTHONPATH"] = str(PACKAGE_ROOT)
    output = cluster.layout.output / f"{name}.log"
    cluster.processes[name] = processes.spawn(command, variables, output)
    save(directory, state)


def _guarded(directory: Path, options: Options, progress: Progress, claim: DirectoryLock, *, bound: bool) -> Started:
    """Start a new sandbox with a guard."""
    names = cluster_names(options.lowers)
    _refuse_foreign(directory)
    check_machine(len(names), progress)
    state = State(uuid.uuid4().hex, options, entries(names), claim.created)
    guard = begin(directory, state.identity, claim.created, claim.descriptor)
    with cleanup_on_failure(guard, bound=bound):
        save(directory, state)
        _launch(directory, state, progress)
    return Started(state, guard=guard if bound else None)


def _refuse_foreign(directory: Path) -> None:
    """Raise SandboxError if the directory has files, which are not the sandbox's."""
    found = sorted(path.name for path in directory.iterdir() if path.name != NEW_FILE)
    if found:
        raise SandboxError(
            f"{directory} is not empty ({listed(found, SHOWN)}), and the sandbox needs its own directory: "
            "choose a new or empty one with --dir, or remove these files"
        )


def check_machine(clusters: int, progress: Progress) -> None:
    """Check that this machine can run so many clusters; too little memory is only reported, as there may be swap.

    Raises:
        SandboxError: it permits too few inotify instances.
    """
    error = processes.inotify_shortage(clusters, processes.inotify_used(), processes.inotify_limit())
    if error:
        raise SandboxError(error)
    if warning := memory_shortage(clusters, processes.available_memory()):
        progress(warning)


def memory_shortage(clusters: int, available: int) -> str:
    """Return that so many clusters need more than the available memory, "" if they do not.

    `available` is in MiB, 0 if it is not known.
    """
    needed = clusters * MEMORY_OF_A_CLUSTER
    if not available or needed <= available:
        return ""
    return (
        f"{clusters} clusters need about {needed / 1024:.1f} GB of memory, and {available / 1024:.1f} GB are "
        "available: if processes are killed, use a smaller --lowers"
    )


def _launch(directory: Path, state: State, progress: Progress) -> None:
    """Find the binaries and start everything; only then mark the sandbox as ready."""

    def clean_up() -> None:
        progress("another program uses a port: trying other ports")
        end_processes(state)
        remove_entries(directory, state.entries)

    mark = {processes.MARK: state.identity}
    state.binaries = binaries.find_or_build(progress, mark, state.options.kubernetes)
    if state.options.real_node:
        state.node = binaries.find_or_build_node(progress, mark, state.options.kubernetes)
    with_other_ports(lambda: _launch_once(directory, state, progress), clean_up)
    state.ready = True
    save(directory, state)


def _launch_once(directory: Path, state: State, progress: Progress) -> None:
    """Choose ports, write the files and start the processes."""
    names = cluster_names(state.options.lowers)
    port_ranges = processes.choose([PORTS_OF_A_CLUSTER] * len(names) + [len(names) + SPARE_KUBELET_PORTS, 2])
    state.clusters = {
        name: SandboxCluster(_layout(directory, state, name, index, Ports(*ports)))
        for index, (name, ports) in enumerate(zip(names, port_ranges, strict=False))
    }
    telemetry, extender = port_ranges[-1]
    _write_files(directory, state, port_ranges[-2][0], telemetry, extender if state.options.extender else 0)
    progress(f"starting {len(names)} control planes on {LOOPBACK}: {', '.join(names)}")
    _start(directory, state)


def _layout(directory: Path, state: State, name: str, index: int, ports: Ports) -> Layout:
    """Return the layout of a cluster."""
    network = real_node.network(state.identity) if state.node and index == REAL else ""
    return Layout(str(directory), name, index, nodes_of(index, state.options), ports, network)


def _write_files(directory: Path, state: State, kubelet_port: int, telemetry_port: int, extender_port: int) -> None:
    """Write credentials and configuration of all clusters, and the topology file; extender port 0 means no extender."""
    now = datetime.now(UTC)
    for cluster in state.clusters.values():
        signer = credentials.write(cluster.layout, now)
        (cluster.layout.directory / "audit-policy.yaml").write_text(flags.AUDIT_POLICY)
        if state.node and cluster.layout.network:
            real_node.write(cluster.layout, state.node)
        if not cluster.layout.place:
            credentials.write_pair(directory / "kubelet", credentials.kubelet_pair(signer))
            if extender_port:
                text = flags.configuration(cluster.layout, extender_port)
                (cluster.layout.directory / flags.FILE).write_text(text)
    lowers = [name for name, cluster in state.clusters.items() if cluster.layout.place]
    text = apiserver.topology(lowers, kubelet_port, telemetry_port, extender_port)
    (directory / "topology.yaml").write_text(text)


def _start(directory: Path, state: State) -> None:
    """Start the servers, and the other components once the apiservers respond."""
    clusters = list(state.clusters.values())
    waiting = [(cluster, _commands(state, cluster)) for cluster in clusters]
    for name in FIRST:
        for cluster, commands in waiting:
            start_process(directory, state, cluster, name, commands.pop(name))
    apiserver.wait(clusters, apiserver.component("kube-apiserver"), "kube-apiserver", _limit(clusters))
    for cluster, commands in waiting:
        for name, command in commands.items():
            start_process(directory, state, cluster, name, command)
    for cluster in clusters:
        _populate(cluster, state.options)
    _wait_for_all(clusters)


def _commands(state: State, cluster: SandboxCluster) -> dict[str, list[str]]:
    """Return the command lines of a cluster's components."""
    assert state.binaries is not None
    stages = sorted(map(str, STAGES.glob("*.yaml")))
    found = flags.commands(cluster.layout, state.binaries, state.options, stages)
    if state.node and cluster.layout.network:
        found["node"] = real_node.command(cluster.layout, state.identity, state.node)
    return found


def _populate(cluster: SandboxCluster, options: Options) -> None:
    """Create the initial objects of a cluster: the role binding of the kubelet client, its kwok nodes, and addons.

    These report the release of the cluster, which may have been found and not built.
    """
    api = Api(cluster.layout)
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    api.create(bindings, apiserver.kubelet_binding())
    version = str(api.get("/version").get("gitVersion", binaries.KUBERNETES))
    for name in () if cluster.layout.network else cluster.layout.node_names:
        api.create("/api/v1/nodes", apiserver.node(name, cluster.layout, version))
    for path, manifest in apiserver.addons(cluster.layout) if options.addons else ():
        api.create(path, manifest)


def _wait_for_all(clusters: Sequence[SandboxCluster]) -> None:
    """Wait until every component is ready and pods can run."""
    limit = _limit(clusters)
    for name in apiserver.PROBES:
        present = [cluster for cluster in clusters if name in cluster.processes]
        apiserver.wait(present, apiserver.component(name), name, limit)
    if any(credentials.ADDONS in cluster.processes for cluster in clusters):
        apiserver.wait(clusters, apiserver.metrics_available, "metrics API", limit)
    apiserver.wait(clusters, apiserver.cluster_ready, "nodes and the default service account", limit)


def _limit(clusters: Sequence[SandboxCluster]) -> float:
    """Return the seconds after which a component counts as not starting."""
    return max(apiserver.LIMIT, SECONDS_OF_A_CLUSTER * len(clusters))
