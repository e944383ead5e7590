"""Options that several commands share, and the input that they name: topology files, pods, stdin, ConfigMaps.

Every error about an input contains its name. As in the modules of commands, imports happen when they are needed.
"""

import errno
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import tensile
from tensile.cli.help import GLOBAL
from tensile.errors import TensileError

if TYPE_CHECKING:
    from tensile.deploy.tensile_kube_input import Source
    from tensile.engine.lower import ClusterAccess
    from tensile.engine.topology_reader import ConfigMapKey
    from tensile.reconcile.report import Lines
    from tensile.topology import Topology

STANDARD_INPUT = "standard input"
_LEVELS = ("debug", "info", "warn", "error")
_FORMS = ("text", "json")


def _print_version(value: bool) -> None:  # noqa: FBT001 - the form that typer calls
    if value:
        typer.echo(f"tensile {tensile.__version__}")
        raise typer.Exit


def one_of(*values: str) -> Callable[[typer.Context, typer.CallbackParam, str | None], str | None]:
    """Return a callback that limits an option to some words.

    A value given before the command's name applies to the command too.
    """

    def checked(context: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
        """Return the option's value, None if it was not given."""
        if value is not None and value not in values:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(values)}")
        given: dict[str, str] = context.meta.setdefault("tensile", {})
        name = str(param.name).removeprefix("_")
        return given.get(name) if value is None else given.setdefault(name, value)

    return checked


def _file_option(what: str) -> Any:
    """Return the option -f of a topology file."""
    help_text = f"{what}. Default: $TENSILE_TOPOLOGY, else ./topology.yaml."
    return typer.Option("-f", "--file", metavar="FILE", help=help_text, show_default=False)


_FILE = _file_option("The topology file; - for standard input")
FileOption = Annotated[str | None, _FILE]
LogLevel = Annotated[
    str | None,
    typer.Option(
        "--log-level",
        metavar="LEVEL",
        help="debug, info, warn or error.",
        callback=one_of(*_LEVELS),
        autocompletion=lambda: _LEVELS,
        show_default=False,
        rich_help_panel=GLOBAL,
    ),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        metavar="FORMAT",
        help="text or json. Default: text on a terminal, else json.",
        callback=one_of(*_FORMS),
        autocompletion=lambda: _FORMS,
        show_default=False,
        rich_help_panel=GLOBAL,
    ),
]
Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, hidden=True, rich_help_panel=GLOBAL)
]
"""Every command takes it, and only the help of the program shows it."""
ShownVersion = Annotated[
    bool,
    typer.Option(
        "--version",
        help="Print the version and exit.",
        callback=_print_version,
        is_eager=True,
        rich_help_panel=GLOBAL,
    ),
]
ExecPlugins = Annotated[
    bool, typer.Option("--allow-exec-plugins", help="Let kubeconfigs run programs for credentials, by absolute path.")
]
ConfigMapOption = Annotated[
    str | None,
    typer.Option(
        "--configmap",
        metavar="NAMESPACE/NAME",
        help="Read the topology from this ConfigMap of the upper cluster instead of a file.",
        show_default=False,
    ),
]
KeyOption = Annotated[
    str | None,
    typer.Option("--key", metavar="KEY", help="The key in the ConfigMap. Default: topology.yaml.", show_default=False),
]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        metavar="FILE",
        help="Kubeconfig of the upper cluster, with --configmap. Default: the in-cluster credentials.",
        show_default=False,
    ),
]
ContextOption = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="The context in that kubeconfig.", show_default=False),
]
DirectoryOption = Annotated[Path, typer.Option("--dir", metavar="DIR", help="The directory of the sandbox's files.")]
RealNode = Annotated[
    bool, typer.Option("--real-node", help="Replace lower-a's nodes by one that runs containers. Requires root.")
]
AskExtender = Annotated[
    bool, typer.Option("--extender", help="Configure the upper scheduler to use tensile's scheduler extender.")
]
BareSandbox = Annotated[
    bool, typer.Option("--bare", help="Only control planes and nodes: no StorageClasses and no metrics API.")
]


def output_option(*forms: str) -> Any:
    """Return the option -o, which takes one of some formats; the text lists them."""
    help_text = f"{', '.join(forms[:-1])} or {forms[-1]}."
    return typer.Option(
        "-o", "--output", metavar="FORMAT", help=help_text, callback=one_of(*forms), autocompletion=lambda: forms
    )


Output = Annotated[str, output_option("text", "json", "markdown")]
TextOrJson = Annotated[str, output_option("text", "json")]
TextWideOrJson = Annotated[str, output_option("text", "wide", "json")]
YamlOrJson = Annotated[str, output_option("yaml", "json")]


def file_name(file: str | None, option: str = "-f") -> str:
    """Return the file name that an option stands for; raises TensileError for an empty one."""
    if file == "":
        raise TensileError(f"{option} is empty: name a topology file, or omit the option")
    return file or os.environ.get("TENSILE_TOPOLOGY") or "topology.yaml"


_HISTORY_ADVICE = (
    "an engine that runs keeps the last good topology: ConfigMap kube-system/tensile-NAME-history of the upper cluster "
    "has its text"
)


def read(file: str | None, option: str = "-f", *, of_engine: bool = False) -> tuple[str, bytes]:
    """Return the display name and the content of the topology file that an option stands for.

    If the file that an engine follows is missing (`of_engine`), the error names where the text still is.
    """
    advice = f"name another with {option} or $TENSILE_TOPOLOGY"
    return contents(file_name(file, option), "topology", f"{advice}\n{_HISTORY_ADVICE}" if of_engine else advice)


def followed(file: str | None) -> Callable[[], tuple[str, bytes]]:
    """Return what reads the topology file of -f again and again; standard input is read once.

    Raises TensileError if it cannot be read now.
    """
    first = read(file, of_engine=True)
    return (lambda: first) if first[0] == STANDARD_INPUT else partial(read, file, of_engine=True)


def pod_in(file: str, topology: str | None) -> tuple[str, bytes]:
    """Return the display name and the content of a pod's file.

    Raises TensileError if the pod and the topology would both be read from standard input.
    """
    if not file:
        raise TensileError("-f is empty: name a file with a pod")
    if file == file_name(topology, "--topology") == "-":
        raise TensileError("-f and --topology cannot both read standard input")
    return contents(file, "pod", "name another with -f")


def sources(files: list[str]) -> "list[Source]":
    """Return the files to import, each with its display name. Raises TensileError if one cannot be read."""
    from tensile.deploy.tensile_kube_input import Source  # noqa: PLC0415 - see the module's docstring

    if "" in files:
        raise TensileError("-f: empty: name a file")
    if files.count("-") > 1:
        raise TensileError("-f: only one of them can be standard input")
    return [Source(*contents(file, "manifest or script", "name another with -f")) for file in files]


def contents(name: str, what: str, advice: str) -> tuple[str, bytes]:
    """Return the display name and the content of a file, cut off just above the size limit of a YAML document.

    Raises TensileError, with `advice`, if it cannot be read.
    """
    try:
        if name == "-":
            return STANDARD_INPUT, _bytes_of(_standard_input())
        return name, _bytes_of(name)
    except FileNotFoundError:
        reason = f"no such file: create it, or {advice}"
    except IsADirectoryError:
        reason = f"not a file: name a {what} file"
    except OSError as error:
        reason = f"cannot be read: {error.strerror}: fix that, or {advice}"
    raise TensileError(f"{STANDARD_INPUT if name == '-' else name}: {reason}")


def _standard_input() -> int:
    if sys.stdin is None:  # stdin was closed at start
        raise OSError(errno.EBADF, "closed")
    return sys.stdin.fileno()


def _bytes_of(file: str | int) -> bytes:
    from tensile.yaml_document import MAX_BYTES  # noqa: PLC0415 - see the module's docstring

    with open(file, "rb", closefd=isinstance(file, str)) as stream:
        return stream.read(MAX_BYTES + 1)


def topology_of(file: str | None, option: str = "-f") -> "tuple[Topology, Path]":
    """Return the topology that an option stands for, and the directory that its relative paths start from."""
    name, data = read(file, option)
    return _topology(name, data), directory_of(name)


def _topology(name: str, data: bytes) -> "Topology":
    from tensile.topology import decode, parse  # noqa: PLC0415 - see the module's docstring

    return parse(decode(data, name=name), name=name)


class GivenTopology(NamedTuple):
    """The topology that a command is about: its text, where that is from, and the access to its clusters.

    `name` is the display name of the file or the ConfigMap. `file` is the file's absolute path, "" for standard input
    and a ConfigMap. `place` is the ConfigMap, None for a file.
    """

    topology: "Topology"
    name: str
    file: str
    data: bytes
    access: "ClusterAccess"
    place: "ConfigMapKey | None" = None

    def lines(self) -> "Lines":
        """Return what adds the lines of the text to the changes that they cause."""
        from tensile.reconcile.report import lines_of  # noqa: PLC0415 - see the module's docstring

        return lines_of(Path(self.name).name, self.data.decode(), self.topology)


Check = Callable[[str, bytes, str], None]
"""Checks the display name and the content of a topology, with the lines about what is invalid in it ("": nothing)."""


class TopologyOptions(NamedTuple):
    """The topology that a command line names: in a file, or in a ConfigMap of the upper cluster.

    A command takes it as its parameter `source`, and with that the options for it. The values are None if not given.
    """

    file: str | None
    configmap: str | None
    key: str | None
    kubeconfig: str | None
    context: str | None
    allow_exec_plugins: bool

    def of_configmap(self) -> str:
        """Return the options that name the same ConfigMap to another command, "" for a file."""
        named = {"--configmap": self.configmap, "--key": self.key}
        named |= {"--kubeconfig": self.kubeconfig, "--context": self.context}
        found = [f"{option} {quote(value)}" for option, value in named.items() if value is not None]
        return " ".join([*found, *(["--allow-exec-plugins"] if found and self.allow_exec_plugins else [])])

    def topology(self, check: Check | None = None) -> GivenTopology:
        """Read the topology.

        Raises TensileError for options that do not go together, if the topology cannot be read, as `check` raises it,
        and if the topology is not valid.
        """
        found = self.in_configmap()
        if found is not None:
            return _topology_in_configmap(*found, check)
        from tensile.engine.lower import ClusterAccess  # noqa: PLC0415 - see the module's docstring

        name, data = read(self.file, "-f")
        with _checked(check, name, data):
            topology = _topology(name, data)
        path = "" if name == STANDARD_INPUT else str(Path(name).absolute())
        return GivenTopology(topology, name, path, data, ClusterAccess(directory_of(name), self.allow_exec_plugins))

    def in_configmap(self) -> "tuple[ConfigMapKey, ClusterAccess] | None":
        """Return the ConfigMap and the credentials of its cluster; None if the topology is in a file.

        Raises TensileError for options that do not go together.
        """
        from tensile.engine.lower import ClusterAccess  # noqa: PLC0415 - see the module's docstring
        from tensile.engine.topology_reader import CONFIGMAP_KEY, ConfigMapKey  # noqa: PLC0415

        given = {"--key": self.key, "--kubeconfig": self.kubeconfig, "--context": self.context}
        if self.configmap is None:
            unpaired = next((name for name, value in given.items() if value is not None), None)
            if unpaired:
                raise TensileError(f"{unpaired} needs --configmap: a topology file names its own clusters")
            return None
        if empty := next((name for name, value in given.items() if value == ""), None):
            raise TensileError(f"{empty} is empty: give a value, or omit the option")
        if self.file is not None:
            raise TensileError("--configmap and -f exclude each other")
        namespace, _, name = self.configmap.partition("/")
        if not namespace or not name or "/" in name:
            raise TensileError(f"--configmap {self.configmap!r}: write NAMESPACE/NAME")
        if self.context is not None and self.kubeconfig is None:
            raise TensileError("--context needs --kubeconfig")
        access = ClusterAccess(
            Path.cwd(),
            self.allow_exec_plugins,
            self.kubeconfig,
            self.context,
            instead="name a kubeconfig with --kubeconfig",
        )
        return ConfigMapKey(namespace, name, self.key or CONFIGMAP_KEY), access


FileSource = Annotated[TopologyOptions, _FILE]
FollowedSource = Annotated[TopologyOptions, _file_option("The topology file, which is watched for changes")]
EngineSource = Annotated[TopologyOptions, _file_option("The topology file that the engine follows")]


@contextmanager
def _checked(check: Check | None, name: str, data: bytes) -> Iterator[None]:
    """Check a topology that is parsed in this context, also an invalid one."""
    from tensile.topology import TopologyErrors  # noqa: PLC0415 - see the module's docstring

    try:
        yield
    except TopologyErrors as invalid:
        if check is not None:
            check(name, data, str(invalid))
        raise
    if check is not None:
        check(name, data, "")


def _topology_in_configmap(place: "ConfigMapKey", access: "ClusterAccess", check: Check | None) -> GivenTopology:
    import asyncio  # noqa: PLC0415 - see the module's docstring

    from tensile.engine.sources import text_at  # noqa: PLC0415
    from tensile.engine.topology_reader import read_configmap  # noqa: PLC0415

    found = asyncio.run(text_at(place, access))
    with _checked(check, place.file, found.data):
        topology = read_configmap(found, place)
    return GivenTopology(topology, place.file, "", found.data, access, place)


def directory_of(name: str) -> Path:
    """Return the directory that the relative paths of a topology file start from, by its display name."""
    return Path.cwd() if name == STANDARD_INPUT else Path(name).absolute().parent
