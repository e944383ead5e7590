"""Arguments to calls, results to exit codes; nothing else is decided here.

What a command needs is imported when it runs, so that `--version` and `validate` answer in a fraction of a second.
"""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import tensile
from tensile.errors import TensileError

if TYPE_CHECKING:
    from tensile.topology import Topology

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
sandbox = typer.Typer(no_args_is_help=True, help="Real control planes on loopback, to try things on.")
app.add_typer(sandbox, name="sandbox")

FileOption = Annotated[
    str,
    typer.Option(
        "-f",
        "--file",
        help="The topology file; - for standard input. Default: $TENSILE_TOPOLOGY, else ./topology.yaml.",
    ),
]
LogLevel = Annotated[str, typer.Option("--log-level", help="debug, info, warn or error.")]
LogFormat = Annotated[
    str | None, typer.Option("--log-format", help="text or json. Default: text on a terminal, else json.")
]
ExecPlugins = Annotated[
    bool, typer.Option("--allow-exec-plugins", help="Let kubeconfigs run programs for credentials, by absolute path.")
]
DirectoryOption = Annotated[Path, typer.Option("--dir", help="Where the sandbox keeps its files.")]
_SANDBOX = Path(".tensile-sandbox")


def main() -> None:
    """Run the program; a usage error and an error that is ours both exit with 1, without a traceback."""
    try:
        code = app(standalone_mode=False)
    except (typer.Exit, typer.Abort) as ended:
        code = getattr(ended, "exit_code", 1)
    except TensileError as error:
        code = _fail(str(error))
    except OSError as error:
        code = _fail(f"{error.filename or 'input/output'}: {error.strerror or error}")
    except Exception as error:  # noqa: BLE001 - a user never meets a traceback
        code = _fail(_words(error))
    sys.exit(code or 0)


@app.callback(invoke_without_command=True)
def _root(
    *, version: Annotated[bool, typer.Option("--version", help="Print the version and exit.", is_eager=True)] = False
) -> None:
    """One upper Kubernetes cluster sees several lower clusters as nodes, declared by one topology file."""
    if version:
        typer.echo(f"tensile {tensile.__version__}")
        raise typer.Exit


@app.command()
def validate(file: FileOption = "") -> None:
    """Check a topology file; open nothing but the file itself."""
    from tensile.topology import decode, not_yet, parse  # noqa: PLC0415 - see the module's docstring

    name, data = _read(file)
    topology = parse(decode(data, name=name), name=name)
    for notice in not_yet(topology):
        typer.echo(str(notice), err=True)
    typer.echo(f"{name}: valid: topology {topology.name} with {len(topology.lowers)} lower clusters")


@app.command()
def run(
    file: FileOption = "",
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    *,
    allow_exec_plugins: ExecPlugins = False,
) -> None:
    """Run the engine; it reloads the topology file when it changes."""
    from tensile import running  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level, log_format)
    name = _file_name(file)
    if name == "-":
        raise TensileError("run follows a file: standard input cannot be followed; give its name with -f")
    running.run(Path(name).absolute(), allow_exec_plugins=allow_exec_plugins)


@app.command()
def plan(
    file: FileOption = "",
    output: Annotated[str, typer.Option("-o", "--output", help="text, json or markdown.")] = "text",
    log_level: LogLevel = "warn",
    log_format: LogFormat = None,
    *,
    allow_exec_plugins: ExecPlugins = False,
) -> None:
    """Print what the engine would change in every cluster, and why; change nothing. Exits with 2 when it would."""
    from tensile import planning  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level, log_format)
    topology, directory = _topology(file)
    text, changed = planning.plan(
        topology, directory, output, colour=sys.stdout.isatty(), allow_exec_plugins=allow_exec_plugins
    )
    typer.echo(text)
    raise typer.Exit(2 if changed else 0)


@app.command()
def apply(
    file: FileOption = "",
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Carry out deletions that the guard holds back.")] = False,
    allow_exec_plugins: ExecPlugins = False,
) -> None:
    """Converge once and end; may run beside the engine."""
    from tensile import planning  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level, log_format)
    topology, directory = _topology(file)
    typer.echo(planning.apply(topology, directory, forced=force, allow_exec_plugins=allow_exec_plugins))


@app.command()
def demo(
    log_level: LogLevel = "info",
    log_format: LogFormat = None,
    *,
    engine_log: Annotated[bool, typer.Option("--engine-log", help="Show the engine's log at the end.")] = False,
) -> None:
    """Start clusters, the engine and a workload, and show them; leave nothing behind."""
    from tensile.demo import Wishes  # noqa: PLC0415 - see the module's docstring
    from tensile.demo import demo as shown  # noqa: PLC0415

    _configure_logs(log_level, log_format)
    raise typer.Exit(shown(Wishes(engine_log=engine_log, log_level=log_level, log_format=log_format or "text")))


@app.command()
def schema() -> None:
    """Print the JSON schema of the topology file."""
    import orjson  # noqa: PLC0415 - see the module's docstring

    from tensile.topology import schema as schema_of  # noqa: PLC0415

    typer.echo(orjson.dumps(schema_of(), option=orjson.OPT_INDENT_2).decode())


@sandbox.command()
def up(
    lowers: Annotated[int | None, typer.Option(help="How many lower clusters. Default: 2.")] = None,
    nodes: Annotated[int | None, typer.Option(help="How many nodes in each. Default: 3.")] = None,
    directory: DirectoryOption = _SANDBOX,
) -> None:
    """Start the clusters; they live until `down`."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.up(lowers, nodes, directory))


@sandbox.command()
def status(directory: DirectoryOption = _SANDBOX) -> None:
    """Say what runs."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.status(directory))


@sandbox.command()
def down(directory: DirectoryOption = _SANDBOX) -> None:
    """Stop the clusters and remove what they left."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.down(directory))


@sandbox.command(hidden=True)
def prepare() -> None:
    """Find the control planes' programs, or build them."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.prepare())


def _file_name(file: str) -> str:
    return file or os.environ.get("TENSILE_TOPOLOGY") or "topology.yaml"


def _read(file: str) -> tuple[str, bytes]:
    name = _file_name(file)
    if name == "-":
        return "standard input", sys.stdin.buffer.read()
    return name, Path(name).read_bytes()


def _topology(file: str) -> "tuple[Topology, Path]":
    """Read a topology; gives with it the directory that paths in it start from."""
    from tensile.topology import decode, not_yet, parse  # noqa: PLC0415 - see the module's docstring

    name, data = _read(file)
    topology = parse(decode(data, name=name), name=name)
    for notice in not_yet(topology):
        typer.echo(str(notice), err=True)
    return topology, Path.cwd() if name == "standard input" else Path(name).absolute().parent


def _configure_logs(level: str, form: str | None) -> None:
    from tensile.telemetry import configure  # noqa: PLC0415 - see the module's docstring

    configure(level, form or ("text" if sys.stderr.isatty() else "json"), sys.stderr)


def _words(error: Exception) -> str:
    """Say what is wrong with the arguments, or, for anything else, that the program is at fault."""
    if hasattr(error, "format_message"):
        return f"{error.format_message()} (see: tensile --help)"
    from tensile.telemetry import described  # noqa: PLC0415 - see the module's docstring

    return f"unexpected error, a defect of tensile: please report this line: {described(error)}"


def _fail(message: str) -> int:
    typer.echo(message, err=True)
    return 1
