"""The commands of `tensile sandbox`: their arguments and exit codes.

As in `tensile.cli.commands`, each command imports what it needs when it runs.
"""

from pathlib import Path
from typing import Annotated

import typer

from tensile.cli.options import AskExtender, DirectoryOption, LogFormat, LogLevel, RealNode, Version

sandbox = typer.Typer(no_args_is_help=True)
_SANDBOX = Path(".tensile-sandbox")


@sandbox.callback()
def _sandbox(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Run real control planes on loopback, to try things out."""


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
    """Start the clusters. They run until `down`."""
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
    """Show which clusters and processes run."""
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
    """Stop the clusters and delete their files."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.down(directory))


@sandbox.command(hidden=True)
def prepare() -> None:
    """Find the binaries of the control planes, or build them."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.prepare())
