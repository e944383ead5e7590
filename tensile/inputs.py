"""What commands are given to read: topology files, pods, standard input, ConfigMaps; named in every message about them.

What a reading needs is imported when it happens, as in `tensile.cli`.
"""

import errno
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from tensile.errors import TensileError

if TYPE_CHECKING:
    from tensile.joined import Ways
    from tensile.reconcile.mapsource import Place
    from tensile.topology import Topology

STANDARD_INPUT = "standard input"


def file_name(file: str | None, option: str = "-f") -> str:
    """Give the name of the topology file that is meant by an option; raises TensileError for an empty one."""
    if file == "":
        raise TensileError(f"{option}: empty: name a topology file, or leave the option away")
    return file or os.environ.get("TENSILE_TOPOLOGY") or "topology.yaml"


def read(file: str | None, option: str = "-f") -> tuple[str, bytes]:
    """Read the topology file that is meant by an option; gives with it its name for messages."""
    return contents(file_name(file, option), "topology", f"name another with {option} or $TENSILE_TOPOLOGY")


def pod_in(file: str, topology: str | None) -> tuple[str, bytes]:
    """Read the file of a pod, beside which one of a topology is read; gives with it its name for messages."""
    if not file:
        raise TensileError("-f: empty: name the file of a pod")
    if file == file_name(topology, "--topology") == "-":
        raise TensileError("-f and --topology: only one of them can be standard input")
    return contents(file, "pod", "name another with -f")


def contents(name: str, what: str, advice: str) -> tuple[str, bytes]:
    """Read a file, never much more than one can be; gives with it its name for messages."""
    try:
        if name == "-":
            return STANDARD_INPUT, _bytes_of(_standard_input())
        return name, _bytes_of(name)
    except FileNotFoundError:
        why = f"no such file: put it there, or {advice}"
    except IsADirectoryError:
        why = f"not a file: name a {what} file"
    except OSError as error:
        why = f"cannot be read: {error.strerror}: mend that, or {advice}"
    raise TensileError(f"{STANDARD_INPUT if name == '-' else name}: {why}")


def _standard_input() -> int:
    if sys.stdin is None:  # started with it closed
        raise OSError(errno.EBADF, "closed")
    return sys.stdin.fileno()


def _bytes_of(file: str | int) -> bytes:
    from tensile.yamltext import MAX_BYTES  # noqa: PLC0415 - see the module's docstring

    with open(file, "rb", closefd=isinstance(file, str)) as stream:
        return stream.read(MAX_BYTES + 1)


def topology_of(file: str | None, option: str = "-f") -> "tuple[Topology, Path]":
    """Read the topology that is meant by an option; gives with it the directory that paths in it start from."""
    from tensile.topology import decode, parse  # noqa: PLC0415 - see the module's docstring

    name, data = read(file, option)
    topology = parse(decode(data, name=name), name=name)
    return topology, Path.cwd() if name == STANDARD_INPUT else Path(name).absolute().parent


def map_of(
    file: str | None,
    configmap: str | None,
    key: str | None,
    kubeconfig: str | None,
    context: str | None,
    *,
    allow_exec_plugins: bool,
) -> "tuple[Place, Ways] | None":
    """Say which ConfigMap is meant and how its cluster is reached; None where a file is."""
    from tensile.joined import Ways  # noqa: PLC0415 - see the module's docstring
    from tensile.reconcile.mapsource import KEY, Place  # noqa: PLC0415

    given = {"--key": key, "--kubeconfig": kubeconfig, "--context": context}
    if configmap is None:
        lonely = next((name for name, value in given.items() if value is not None), None)
        if lonely:
            raise TensileError(f"{lonely}: goes with --configmap: a topology file names its clusters itself")
        return None
    if empty := next((name for name, value in given.items() if value == ""), None):
        raise TensileError(f"{empty}: empty: give a value, or leave the option away")
    if file is not None:
        raise TensileError("--configmap and -f: give one of them")
    namespace, _, name = configmap.partition("/")
    if not namespace or not name or "/" in name:
        raise TensileError(f"--configmap {configmap!r}: write NAMESPACE/NAME")
    if context is not None and kubeconfig is None:
        raise TensileError("--context: goes with --kubeconfig")
    ways = Ways(Path.cwd(), allow_exec_plugins, kubeconfig, context, instead="name a kubeconfig with --kubeconfig")
    return Place(namespace, name, key or KEY), ways
