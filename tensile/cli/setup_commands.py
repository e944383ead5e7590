"""The commands for an installation, and for a try on this machine: manifests, import, sandbox, demo and others.

A command's docstring is what `--help` prints: `tensile.cli.help` gives its form, and `tensile.cli.program` the options
that commands share. Each command imports what it needs when it runs, so that `--version` and `validate` answer in a
fraction of a second.
"""

import json
from pathlib import Path
from typing import Annotated

import typer

import tensile
from tensile.cli.help import SET_UP, SHELLS, TRY, print_script, whole_number
from tensile.cli.options import (
    AskExtender,
    BareSandbox,
    DirectoryOption,
    FileOption,
    RealNode,
    TextOrJson,
    one_of,
    read,
    sources,
)
from tensile.cli.program import LogOptions, add, sandbox
from tensile.errors import TensileError
from tensile.names import SANDBOX_DIRECTORY
from tensile.text import harmless

_SANDBOX = Path(SANDBOX_DIRECTORY)


@add(SET_UP)
def manifests(
    file: FileOption = None,
    *,
    image: Annotated[
        str | None,
        typer.Option(
            metavar="IMAGE", help="The engine's image. Default: tensile-kube of this version.", show_default=False
        ),
    ] = None,
    namespace: Annotated[
        str,
        typer.Option(metavar="NAMESPACE", help="The namespace of the engine, and of its account in lower clusters."),
    ] = "tensile",
    lower: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Print the manifests of this lower cluster instead of the upper.", show_default=False
        ),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "--dir",
            metavar="DIR",
            help="Write kustomizations into this directory, for `kubectl apply -k`.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Print manifests that install the engine.

    Prints what to apply in the upper cluster, or with --lower what grants the engine access to a lower cluster.

    Examples:
        tensile manifests -f topology.yaml | kubectl apply -f -

        # The engine's account and permissions in lower-a
        tensile manifests --lower lower-a | kubectl --context lower-a apply -f -

        # Files to keep in Git
        tensile manifests --dir deploy/
        kubectl apply -k deploy/
    """
    from tensile.deploy import manifests  # noqa: PLC0415 - see the module's docstring

    if lower is not None and directory is not None:
        raise TensileError("--lower and --dir exclude each other: a directory has all lower clusters")
    if directory == "":
        raise TensileError("--dir is empty: name a directory, or omit the option")
    name, data = read(file)
    render_options = manifests.RenderOptions(namespace, image)
    setup = manifests.rendering(data, name, render_options, for_lower=lower is not None)
    lines = manifests.warnings(setup, name) if lower is None else []
    if directory is None:
        typer.echo(manifests.printed(setup, lower, file, render_options), nl=False)
    else:
        lines += manifests.written(setup, Path(directory), name)
    for line in lines:
        typer.echo(harmless(line), err=True)


@add(SET_UP, "import")
def import_installation(
    command: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[-- COMMAND LINE]",
            help="A command line of tensile-kube, such as `-- virtual-node --nodename a`.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[
        list[str] | None,
        typer.Option(
            "-f",
            "--file",
            help="Manifests, or a script with command lines; - for standard input; can be repeated.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="Write the topology to this file. Default: standard output."
        ),
    ] = None,
    *,
    name: Annotated[
        str | None, typer.Option(help="The name of the topology. Default: a placeholder.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of -o if it exists.")] = False,
) -> None:
    """Convert an installation of tensile-kube.

    Prints a topology file, and explains on stderr what became of every setting. Contacts no cluster.

    Examples:
        tensile import -f manifests.yaml -o topology.yaml

        # What runs in a cluster
        kubectl -n vk get deploy,configmap -o yaml | tensile import -f -

        # One command line
        tensile import -- virtual-node --nodename lower-a
    """
    from tensile.deploy import importing, manifests  # noqa: PLC0415 - see the module's docstring

    found = importing.imported(sources(file or []), command or [], name)
    if output in (None, "-"):
        typer.echo(found.text, nl=False)
    else:
        manifests.write_topology(Path(output), found.text, force=force)
    for line in found.lines():
        typer.echo(harmless(line), err=True)


@add("", "up", group=sandbox)
def sandbox_up(
    lowers: Annotated[
        int | None,
        typer.Option(metavar="N", parser=whole_number(0, 26), help="The number of lower clusters. Default: 2."),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", parser=whole_number(0), help="The number of nodes in each. Default: 3.")
    ] = None,
    directory: DirectoryOption = _SANDBOX,
    *,
    real_node: RealNode = False,
    extender: AskExtender = False,
    bare: BareSandbox = False,
) -> None:
    """Start the clusters.

    Starts an upper cluster and lower clusters on 127.0.0.1. They run until `tensile sandbox down`. They provision
    volumes, and have a metrics API for kubectl top and autoscalers.

    Examples:
        tensile sandbox up
        tensile sandbox up --lowers 3 --nodes 10 --dir /tmp/sandbox
    """
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.up(lowers, nodes, directory, real_node=real_node, extender=extender, bare=bare))


@add("", "status", group=sandbox)
def sandbox_status(
    directory: DirectoryOption = _SANDBOX,
) -> None:
    """Show the processes of the clusters.

    Exits with 1 if one of them does not run.

    Examples:
        tensile sandbox status
    """
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.status(directory))


@add("", "down", group=sandbox)
def sandbox_down(
    directory: DirectoryOption = _SANDBOX,
) -> None:
    """Stop and delete the clusters.

    Deletes only the files that the sandbox made.

    Examples:
        tensile sandbox down
        tensile sandbox down --dir /tmp/sandbox
    """
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.down(directory))


@add("", "prepare", group=sandbox, hidden=True)
def sandbox_prepare() -> None:
    """Find the binaries of the control planes, or build them."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.prepare())


@add(TRY)
def demo(
    *,
    logs: LogOptions,
    engine_log: Annotated[bool, typer.Option("--engine-log", help="Show the engine's log at the end.")] = False,
    no_pause: Annotated[bool, typer.Option("--no-pause", help="Do not wait for Enter between the steps.")] = False,
) -> None:
    """Take a guided tour.

    Starts a sandbox, the engine and a workload, and shows them at work with kubectl. On a terminal it waits for Enter
    before each step, and stays until Ctrl-C at the end. It leaves only the cache of programs.

    Examples:
        tensile demo

        # With the engine's log at the end
        tensile demo --engine-log
    """
    from tensile.sandbox.demo import DemoOptions  # noqa: PLC0415 - see the module's docstring
    from tensile.sandbox.demo import demo as shown  # noqa: PLC0415

    logs.configure("info")
    raise typer.Exit(
        shown(
            DemoOptions(
                engine_log=engine_log,
                pause=not no_pause,
                log_level=logs.level or "info",
                log_format=logs.form or "text",
            )
        )
    )


@add(SET_UP)
def schema() -> None:
    """Print the topology's JSON schema.

    Editors use it to check and complete a topology file.

    Examples:
        tensile schema > topology.schema.json
    """
    import orjson  # noqa: PLC0415 - see the module's docstring

    from tensile.topology import schema as schema_of  # noqa: PLC0415

    typer.echo(orjson.dumps(schema_of(), option=orjson.OPT_INDENT_2).decode())


@add(SET_UP)
def completion(
    context: typer.Context,
    shell: Annotated[
        str,
        typer.Argument(
            metavar="SHELL",
            callback=one_of(*SHELLS),
            autocompletion=lambda: SHELLS,
            help="bash, zsh or fish.",
            show_default=False,
        ),
    ],
) -> None:
    """Print a shell completion script.

    The script completes commands and options of `tensile`.

    Examples:
        # For this session
        source <(tensile completion bash)

        # For every session
        tensile completion bash > ~/.local/share/bash-completion/completions/tensile
        tensile completion zsh > "${fpath[1]}/_tensile"
        tensile completion fish > ~/.config/fish/completions/tensile.fish
    """
    raise typer.Exit(print_script(context.find_root().command, shell))


@add(SET_UP)
def version(
    output: TextOrJson = "text",
) -> None:
    """Print the version of tensile.

    Examples:
        tensile version
        tensile version -o json
    """
    found = tensile.__version__
    typer.echo(json.dumps({"version": found}) if output == "json" else f"tensile {found}")


@add(SET_UP, "help")
def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="The command.", show_default=False)
    ] = None,
) -> None:
    """Show help for a command.

    Examples:
        tensile help plan
        tensile help sandbox up
    """
    root = context.find_root()
    root.command.main([*(words or ()), "--help"], prog_name=root.info_name, standalone_mode=False)
