"""The program: its groups of commands, what every command takes, and how commands report progress.

typer builds a command's options from the parameters of a function. `add` completes them: each command takes the global
options, and a command with a parameter `source` takes the options that name a topology. So a command's function has
only the parameters that are its own.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple

import typer

from tensile.cli.help import INSPECT, TRY, TensileCommand, TensileGroup
from tensile.cli.options import (
    ConfigMapOption,
    ContextOption,
    ExecPlugins,
    KeyOption,
    KubeconfigOption,
    LogFormat,
    LogLevel,
    ShownVersion,
    TopologyOptions,
    Version,
)

app = typer.Typer(
    cls=TensileGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
explain = typer.Typer(cls=TensileGroup, no_args_is_help=True)
app.add_typer(explain, name="explain", rich_help_panel=INSPECT)
sandbox = typer.Typer(cls=TensileGroup, no_args_is_help=True)
app.add_typer(sandbox, name="sandbox", rich_help_panel=TRY)

Command = Callable[..., None]
_GLOBAL = {"log_level": LogLevel, "log_format": LogFormat, "version": Version}
_CONFIGMAP = {
    "configmap": ConfigMapOption,
    "key": KeyOption,
    "kubeconfig": KubeconfigOption,
    "context": ContextOption,
    "allow_exec_plugins": ExecPlugins,
}
_FLAGS = ("version", "allow_exec_plugins")
"""The flags among these options."""
READING = "reading the clusters of the topology, 20 s at most"
"""What a command waits for that reads all clusters."""
_PROGRESS_DELAY = 1.0
"""Seconds after which a command on a terminal prints what it waits for."""


class LogOptions(NamedTuple):
    """The values of --log-level and --log-format, None if not given. A command takes them as its parameter `logs`."""

    level: str | None
    form: str | None

    def configure(self, level: str) -> None:
        """Write logs to stderr from now on; `level` is the command's default."""
        from tensile.engine.logging import configure  # noqa: PLC0415 - loaded only by commands that log

        configure(self.level or level, self.form or ("text" if sys.stderr.isatty() else "json"), sys.stderr)


def add(
    panel: str, name: str | None = None, *, group: typer.Typer = app, hidden: bool = False
) -> Callable[[Command], Command]:
    """Return the decorator that adds a command to a group.

    `panel` is the title under which the help lists it, "" for a group without titles.
    """

    def added(command: Command) -> Command:
        """Add it."""
        group.command(name, cls=TensileCommand, rich_help_panel=panel or None, hidden=hidden)(_completed(command))
        return command

    return added


def _completed(command: Command) -> Command:
    """Return the command with options in place of its parameters `source` and `logs`, and with the global options."""
    own = signature(command).parameters
    source = own.get("source")
    shared: dict[str, Any] = dict(_GLOBAL)
    if source is not None:
        (file,) = source.annotation.__metadata__
        shared = {"file": Annotated[str | None, file], **_CONFIGMAP, **_GLOBAL}

    @wraps(command)
    def called(**given: Any) -> None:
        level, form, _ = (given.pop(option) for option in _GLOBAL)
        if "logs" in own:
            given["logs"] = LogOptions(level, form)
        if source is not None:
            given["source"] = TopologyOptions(**{option: given.pop(option) for option in TopologyOptions._fields})
        command(**given)

    own_parameters = [
        one.replace(kind=Parameter.KEYWORD_ONLY) for one in own.values() if one.name not in ("source", "logs")
    ]
    added_parameters = [
        Parameter(option, Parameter.KEYWORD_ONLY, default=False if option in _FLAGS else None, annotation=annotation)
        for option, annotation in shared.items()
    ]
    first = 0 if source is None else 1
    parameters = [*added_parameters[:first], *own_parameters, *added_parameters[first:]]
    called.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in parameters}
    return called


@app.callback()
def _root(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: ShownVersion = False) -> None:
    """Make lower Kubernetes clusters appear as nodes of one upper cluster.

    One topology file declares the clusters.

    Examples:
        # Try it: clusters on this machine, and a tour with kubectl
        tensile demo

        # Check a topology, see what it would change, and run the engine
        tensile validate -f topology.yaml
        tensile plan -f topology.yaml
        tensile run -f topology.yaml
    """


@explain.callback()
def _explain(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Explain the state of a resource.

    Kinds may be named as in kubectl: pvc, svc, pod/web-0.

    Examples:
        tensile explain pod shop/web-0
        tensile explain node lower-a
    """


@sandbox.callback()
def _sandbox(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Run real control planes on this machine.

    Examples:
        tensile sandbox up --lowers 2
        tensile sandbox down
    """


def progress() -> Callable[[str], None] | None:
    """Return what shows a line of progress, None without a terminal."""
    return _print_progress if sys.stderr.isatty() else None


@contextmanager
def waiting(line: str) -> Iterator[None]:
    """Show a line of progress if the block takes more than a second."""
    from threading import Timer  # noqa: PLC0415 - loaded only by commands that wait

    show = progress()
    timer = Timer(_PROGRESS_DELAY, show or _print_progress, [line])
    if show:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _print_progress(line: str) -> None:
    typer.echo(line, err=True)
