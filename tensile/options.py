"""The options that several commands share: their names, help, and which values they take."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

import tensile

_LEVELS = ("debug", "info", "warn", "error")
_FORMS = ("text", "json")
_OUTPUTS = ("text", "json", "markdown")


def _print_version(value: bool) -> None:  # noqa: FBT001 - the form that typer calls
    if value:
        typer.echo(f"tensile {tensile.__version__}")
        raise typer.Exit


def one_of(*words: str) -> Callable[[typer.Context, typer.CallbackParam, str | None], str | None]:
    """Make the check of an option that takes one of some words; given before the command, it holds for the command."""

    def checked(context: typer.Context, param: typer.CallbackParam, value: str | None) -> str | None:
        """Give the option's value, None where it is given nowhere."""
        if value is not None and value not in words:
            raise typer.BadParameter(f"{value!r}: take one of {', '.join(words)}")
        given: dict[str, str] = context.meta.setdefault("tensile", {})
        name = str(param.name).removeprefix("_")
        return given.get(name) if value is None else given.setdefault(name, value)

    return checked


FileOption = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--file",
        help="The topology file; - for standard input. Default: $TENSILE_TOPOLOGY, else ./topology.yaml.",
        show_default=False,
    ),
]
FollowedFile = Annotated[
    str | None,
    typer.Option(
        "-f",
        "--file",
        help="The topology file, which is followed. Default: $TENSILE_TOPOLOGY, else ./topology.yaml.",
        show_default=False,
    ),
]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", help="debug, info, warn or error.", callback=one_of(*_LEVELS), show_default=False),
]
LogFormat = Annotated[
    str | None,
    typer.Option(
        "--log-format",
        help="text or json. Default: text on a terminal, else json.",
        callback=one_of(*_FORMS),
        show_default=False,
    ),
]
Output = Annotated[str, typer.Option("-o", "--output", help="text, json or markdown.", callback=one_of(*_OUTPUTS))]
Version = Annotated[
    bool, typer.Option("--version", help="Print the version and exit.", callback=_print_version, is_eager=True)
]
ExecPlugins = Annotated[
    bool, typer.Option("--allow-exec-plugins", help="Let kubeconfigs run programs for credentials, by absolute path.")
]
ConfigMapOption = Annotated[
    str | None,
    typer.Option(
        "--configmap",
        help="NAMESPACE/NAME of the ConfigMap of the upper cluster that holds the topology, in place of a file.",
        show_default=False,
    ),
]
KeyOption = Annotated[str | None, typer.Option("--key", help="Its key. Default: topology.yaml.", show_default=False)]
KubeconfigOption = Annotated[
    str | None,
    typer.Option(
        "--kubeconfig",
        help="Kubeconfig of the upper cluster, with --configmap. Default: that of the pod this runs in.",
        show_default=False,
    ),
]
ContextOption = Annotated[str | None, typer.Option("--context", help="Context of that kubeconfig.", show_default=False)]
DirectoryOption = Annotated[Path, typer.Option("--dir", help="Where the sandbox keeps its files.")]
RealNode = Annotated[
    bool, typer.Option("--real-node", help="Give lower-a one node that runs containers, in place of its others: root.")
]
AskExtender = Annotated[
    bool, typer.Option("--extender", help="Have the upper scheduler ask the engine where below a pod fits.")
]
TextOrJson = Annotated[str, typer.Option("-o", "--output", help="text or json.", callback=one_of("text", "json"))]
