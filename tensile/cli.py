"""Arguments to calls, results to exit codes; nothing else is decided here.

What a command needs is imported when it runs, so that `--version` and `validate` answer in a fraction of a second.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

import tensile
from tensile.errors import TensileError

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
    except Exception as error:
        if not hasattr(error, "format_message"):
            raise
        code = _fail(f"{error.format_message()} (see: tensile --help)")
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


def _read(file: str) -> tuple[str, bytes]:
    name = file or os.environ.get("TENSILE_TOPOLOGY") or "topology.yaml"
    if name == "-":
        return "standard input", sys.stdin.buffer.read()
    return name, Path(name).read_bytes()


def _fail(message: str) -> int:
    typer.echo(message, err=True)
    return 1
