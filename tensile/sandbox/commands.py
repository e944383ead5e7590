"""`tensile sandbox up`, `status` and `down`: they print for a person and return the exit code.

Results go to stdout, progress and errors to stderr. An interrupted start cleans up before it ends.
"""

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from types import FrameType

import msgspec

from tensile.errors import INTERRUPTED
from tensile.names import SANDBOX_DIRECTORY
from tensile.sandbox import binaries, start, stop
from tensile.sandbox.credentials import ADDONS
from tensile.sandbox.processes import running
from tensile.sandbox.real_node import IMAGE
from tensile.sandbox.state import FILE, Options, SandboxError, State, cluster_names, load
from tensile.text import progress_to

REAL_LOWER = cluster_names(1)[start.REAL]
DEFAULT_DIRECTORY = Path(SANDBOX_DIRECTORY)
FLAGS = {"addons": "bare"}
"""The flags of options that have another name on the command line."""
_TOLERATIONS = '{"spec": {"tolerations": [{"key": "virtual-kubelet.io/provider", "operator": "Exists"}]}}'
"""Let a pod tolerate the taint that virtual nodes have by default."""


def prepare() -> int:
    """Find, download or build the binaries, start nothing, and return 0, or 1 if they cannot be built."""
    try:
        found = binaries.find_or_build(progress_to(sys.stderr))
    except (SandboxError, OSError) as error:
        return _failed(error)
    _print_result("\n".join(sorted(msgspec.structs.asdict(found).values())))
    return 0


def up(
    lowers: int | None = None,
    nodes: int | None = None,
    directory: Path = DEFAULT_DIRECTORY,
    *,
    real_node: bool = False,
    extender: bool = False,
    bare: bool = False,
) -> int:
    """Start a sandbox that runs until `down`, or report that one already runs.

    Args:
        lowers: the number of lower clusters, 0-26; None: 2, or as many as already run.
        nodes: the number of nodes of each lower cluster; None: 3, or as many as already run.
        directory: the directory for its files.
        real_node: replace the nodes of the first lower cluster with one that runs containers.
        bare: no StorageClass, no provisioner and no metrics API.
        extender: configure the upper scheduler to use the engine's extender, which the topology file enables.

    Returns:
        0; 1 if it could not be started, or a sandbox with other options runs there; 130 if it was interrupted.
        After an interrupt or a failed start nothing is left of it.
    """
    arguments = {
        "lowers": lowers,
        "nodes": nodes,
        "real_node": real_node or None,
        "extender": extender or None,
        "addons": False if bare else None,
    }
    requested = {key: value for key, value in arguments.items() if value is not None}
    directory = directory.resolve()
    start_time = time.monotonic()
    try:
        with _interruptible():
            options = msgspec.structs.replace(Options(addons=True), **requested)
            started = start.bring_up(directory, options, progress_to(sys.stderr))
    except (SandboxError, OSError) as error:
        return _failed(error)
    except KeyboardInterrupt:
        if (directory / FILE).exists():
            _print_error(f"interrupted: `{_command('status', directory)}` shows what runs")
        else:
            _print_error("interrupted: the sandbox was removed")
        return INTERRUPTED
    if started.found:
        return _report_running(directory, started.state, requested)
    _print_result(f"ready in {time.monotonic() - start_time:.1f} s\n\n{_guide(directory, started.state)}")
    return 0


def status(directory: Path = DEFAULT_DIRECTORY) -> int:
    """Print the processes of a sandbox, and return 0 if all of them run, 1 if one does not or there is no sandbox."""
    directory = directory.resolve()
    try:
        state = load(directory)
    except (SandboxError, OSError) as error:
        return _failed(error)
    if state is None:
        _print_result(f"no sandbox in {directory}")
        return 1
    rows = _rows(state)
    _print_result("\n".join(f"{name:10} {component:24} {description}" for name, component, description, _ in rows))
    all_run = state.ready and all(runs for *_, runs in rows)
    restart = _command("up", directory)
    _print_result(
        f"{directory}: {'all processes run' if all_run else f'some processes do not run: `{restart}` restarts them'}"
    )
    return 0 if all_run else 1


def down(directory: Path = DEFAULT_DIRECTORY) -> int:
    """Stop the sandbox and delete its files, and return 0, also if there is none."""
    directory = directory.resolve()
    try:
        kept = stop.end(directory)
    except (SandboxError, OSError) as error:
        return _failed(error)
    if kept is None:
        _print_result(f"no sandbox in {directory}")
        return 0
    _print_result(f"stopped and removed: {directory}")
    if kept:
        _print_result(f"kept, not created by the sandbox: {', '.join(kept)}")
    return 0


def _report_running(directory: Path, state: State, requested: dict[str, int]) -> int:
    """Print the sandbox that already runs, and return 1 if its options differ from the requested ones."""
    existing = state.options
    real = ", the first with one real node" if existing.real_node else ""
    _print_result(
        f"already running: {existing.lowers} lower clusters with {existing.nodes} nodes each{real}\n\n"
        f"{_guide(directory, state)}"
    )
    differing = [
        FLAGS.get(key, key.replace("_", "-")) for key, value in requested.items() if getattr(existing, key) != value
    ]
    if not differing:
        return 0
    return _failed(
        SandboxError(
            f"the sandbox in {directory} runs with other options (--{', --'.join(differing)}): "
            f"run `{_command('down', directory)}` first, or use another --dir"
        )
    )


def _guide(directory: Path, state: State) -> str:
    """Return the files that a user needs, and the next commands."""
    lowers = "\n".join(f"  {directory / name}.kubeconfig" for name in state.clusters)
    real = f"containers of {REAL_LOWER}: image {IMAGE}, imagePullPolicy: IfNotPresent\n"
    return (
        f"clusters:\n{lowers}\n"
        f"{real if state.options.real_node else ''}"
        f"start the engine, which runs until Ctrl-C:\n"
        f"  {program()} run -f {quote(str(directory / 'topology.yaml'))}\n"
        f"in another terminal:\n"
        f"  export KUBECONFIG={quote(str(directory / 'upper.kubeconfig'))}\n"
        f"  {quote(_kubectl(state))} get nodes\n"
        f"  {quote(_kubectl(state))} run hello --image=nginx --overrides={quote(_TOLERATIONS)}\n"
        f"at the end:\n"
        f"  {_command('down', directory)}"
    )


def _command(verb: str, directory: Path) -> str:
    """Return a command for this sandbox, quoted for a shell."""
    return f"{program()} sandbox {verb} --dir {quote(str(directory))}"


def program() -> str:
    """Return the command of this program, quoted for a shell: its name if a shell finds it there, else its path.

    Without an installed command, as in a checkout, it is run by its interpreter.
    """
    script = Path(sys.executable).with_name("tensile")
    found = shutil.which("tensile")
    if found and Path(found).resolve() == script.resolve():
        return "tensile"
    return quote(str(script)) if os.access(script, os.X_OK) else f"{quote(sys.executable)} -m tensile"


def _kubectl(state: State) -> str:
    """Return the command for kubectl: its name if a shell finds one that works, else the path of the sandbox's own."""
    found = shutil.which("kubectl")
    if not state.binaries or (found and binaries.runs(Path(found))):
        return "kubectl"
    return state.binaries.kubectl


def _rows(state: State) -> list[tuple[str, str, str, bool]]:
    """Return cluster, component, description and whether it runs, for every process."""
    rows = []
    for name, cluster in state.clusters.items():
        ports = _ports(cluster.layout.ports)
        for component, process in cluster.processes.items():
            runs = running(process)
            port = f"  port {ports[component]}" if component in ports else ""
            description = f"pid {process.pid}{port}" if runs else f"does not run; see {process.output}"
            rows.append((name, component, description, runs))
    return rows


def _ports(ports: object) -> dict[str, int]:
    """Return the ports that the status shows, by component."""
    fields = {"etcd": "etcd", "kube-apiserver": "apiserver", "endpoint": "endpoint", ADDONS: "addons"}
    fields |= {"kube-controller-manager": "controller_manager", "kube-scheduler": "scheduler"}
    return {component: getattr(ports, field) for component, field in fields.items()}


@contextmanager
def _interruptible() -> Iterator[None]:
    """Make SIGTERM raise KeyboardInterrupt inside the block, so that the same cleanup runs."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    previous_handler = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _failed(error: SandboxError | OSError) -> int:
    """Print an error and return exit code 1."""
    _print_error(f"error: {error.filename}: {error.strerror}" if isinstance(error, OSError) else f"error: {error}")
    return 1


def _print_result(text: str) -> None:
    """Print a result to stdout."""
    sys.stdout.write(f"{text}\n")


def _print_error(line: str) -> None:
    """Print progress or an error to stderr."""
    sys.stderr.write(f"{line}\n")
