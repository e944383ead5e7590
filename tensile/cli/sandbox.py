"""The arguments of `tensile sandbox`, as `tensile.cli.commands` has those of the other commands."""

from pathlib import Path
from typing import Annotated

import typer

from tensile.cli.options import AskExtender, DirectoryOption, LogFormat, LogLevel, RealNode, Version

sandbox = typer.Typer(no_args_is_help=True)
_SANDBOX = Path(".tensile-sandbox")


@sandbox.callback()
def _sandbox(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Real control planes on loopback, to try things on."""


@sandbox.command()
def up(
    lowers: Annotated[int | None, typer.Option(help="How many lower clusters. Default: 2.")] = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes in each. Default: 3.")] = None,
    directory: DirectoryOption = _SANDBOX,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    real_node: RealNode = False,
    extender: AskExtender = False,
    _version: Version = False,
) -> None:
    """Start the clusters; they live until `down`."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.up(lowers, nodes, directory, real_node=real_node, extender=extender))


@sandbox.command()
def status(
    directory: DirectoryOption = _SANDBOX,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Say what runs."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.status(directory))


@sandbox.command()
def down(
    directory: DirectoryOption = _SANDBOX,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Stop the clusters and remove what they left."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.down(directory))


@sandbox.command(hidden=True)
def prepare() -> None:
    """Find the control planes' programs, or build them."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.prepare())
