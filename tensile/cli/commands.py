"""The commands: their arguments, the calls they make, and their exit codes.

Each command imports what it needs when it runs, so that `--version` and `validate` answer in a fraction of a second.
"""

import os
import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from tensile.cli.options import (
    STANDARD_INPUT,
    AskExtender,
    ConfigMapOption,
    ContextOption,
    DirectoryOption,
    ExecPlugins,
    FileOption,
    FollowedFile,
    KeyOption,
    KubeconfigOption,
    LogFormat,
    LogLevel,
    Output,
    RealNode,
    TextOrJson,
    Version,
    file_name,
    map_of,
    one_of,
    pod_in,
    read,
    sources,
    topology_of,
)
from tensile.errors import TensileError
from tensile.text import harmless, takes_colour

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
sandbox = typer.Typer(no_args_is_help=True)
app.add_typer(sandbox, name="sandbox")
explain = typer.Typer(no_args_is_help=True)
app.add_typer(explain, name="explain")
_SANDBOX = Path(".tensile-sandbox")
_DRAIN_PLAN = "Required: this command only previews a drain. To drain, set `maintenance: drain` in the topology."


@app.callback()
def _root(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """One upper Kubernetes cluster sees several lower clusters as nodes, declared by one topology file."""


@app.command()
def validate(
    file: FileOption = None, _log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False
) -> None:
    """Check a topology file. Opens no other file and contacts no cluster."""
    from tensile.topology import cautions, decode, parse  # noqa: PLC0415 - see the module's docstring

    name, data = read(file)
    text = decode(data, name=name)
    topology = parse(text, name=name)
    for caution in cautions(text, topology):
        typer.echo(f"warning: {caution.line(name)}", err=True)
    typer.echo(f"{name}: valid: topology {topology.name} with {len(topology.lowers)} lower clusters")


@app.command()
def run(
    file: FollowedFile = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    leader_elect: Annotated[
        bool | None,
        typer.Option(
            "--leader-elect/--no-leader-elect",
            help="Enable leader election. Default: enabled when running in-cluster.",
            show_default=False,
        ),
    ] = None,
    probes: Annotated[
        int | None,
        typer.Option(
            "--probes",
            min=1,
            max=65535,
            metavar="PORT",
            help="Serve /healthz and /readyz on this port from process start.",
            show_default=False,
        ),
    ] = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Run the engine. It reloads the topology file, or ConfigMap, when it changes."""
    from tensile.engine import run as running  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "info", log_format)
    found = map_of(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    manner = running.RunOptions(leader_elect, probes)
    if found is not None:
        running.run_map(*found, manner=manner)
        return
    name = file_name(file)
    if name == "-":
        raise TensileError("run follows a file: standard input cannot be followed; give its name with -f")
    running.run(Path(name).absolute(), allow_exec_plugins=allow_exec_plugins, manner=manner)


@app.command()
def plan(
    file: FileOption = None,
    output: Output = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Show what the engine would change in every cluster, and why. Read-only. Exits with 2 if anything would change."""
    from tensile.cli import plan as planning  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    topology, directory = topology_of(file)
    found = planning.plan(
        topology,
        directory,
        output,
        colour=takes_colour(sys.stdout),
        allow_exec_plugins=allow_exec_plugins,
        progress=_tell if sys.stderr.isatty() else None,
    )
    typer.echo(found.text)
    if found.unreached:
        raise TensileError(found.unreached)
    raise typer.Exit(2 if found.changes else 0)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


@app.command()
def drain(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="The lower cluster, as the topology names it.", show_default=False)
    ],
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    plan: Annotated[bool, typer.Option("--plan", help=_DRAIN_PLAN)] = False,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Preview a drain: list the pods that would be evicted, and where they would go. Exits with 2 if any pod would go.

    To drain a lower cluster, set `maintenance: drain` for it in the topology file.
    """
    from tensile.cli import plan as planning  # noqa: PLC0415 - see the module's docstring

    if not plan:
        raise TensileError(f"drain {name}: set maintenance: drain for it in the topology file; --plan says what comes")
    _configure_logs(log_level or "warn", log_format)
    topology, directory = topology_of(file)
    text, leaves = planning.drain_plan(topology, directory, name, output, allow_exec_plugins=allow_exec_plugins)
    typer.echo(text)
    raise typer.Exit(2 if leaves else 0)


@app.command()
def apply(
    file: FileOption = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    force: Annotated[bool, typer.Option("--force", help="Carry out deletions that the guard blocks.")] = False,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Apply the topology once and exit. May run beside the engine."""
    from tensile.cli import plan as planning  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "info", log_format)
    topology, directory = topology_of(file)
    typer.echo(planning.apply(topology, directory, forced=force, allow_exec_plugins=allow_exec_plugins))


@app.command()
def mutate(
    file: Annotated[
        str, typer.Option("-f", "--file", help="The file of a Pod; - for standard input.", show_default=False)
    ],
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            help="The topology file. Default: $TENSILE_TOPOLOGY, else ./topology.yaml, else one lower cluster.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[str, typer.Option("-o", "--output", help="yaml or json.", callback=one_of("yaml", "json"))] = (
        "yaml"
    ),
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Show how the webhook would mutate a pod, and the resulting pod in the lower cluster. Works offline."""
    from tensile.cli import mutate as mutation  # noqa: PLC0415 - see the module's docstring

    given = topology is not None or os.environ.get("TENSILE_TOPOLOGY") or Path("topology.yaml").exists()
    name, data = pod_in(file, topology)
    terms = topology_of(topology, "--topology")[0] if given else mutation.default_topology()
    found = mutation.mutation(mutation.read_pod(data, name), terms)
    for line in found.told:
        typer.echo(harmless(line), err=True)
    typer.echo(mutation.written(found, output))


@explain.callback()
def _explain(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Explain why a resource is in its current state."""


@explain.command("pod")
def explain_pod(
    name: Annotated[str, typer.Argument(metavar="NAMESPACE/NAME", help="A pod of the upper cluster.")],
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Explain where a pod runs and why, or why it is pending, with the result of every check on every node."""
    from tensile.diagnostics import commands  # noqa: PLC0415 - see the module's docstring
    from tensile.engine.lower import ClusterAccess  # noqa: PLC0415

    _configure_logs(log_level or "error", log_format)
    topology, directory = topology_of(file)
    typer.echo(commands.explain(topology, ClusterAccess(directory, allow_exec_plugins), name, output))


@app.command()
def simulate(
    pod: Annotated[
        str | None,
        typer.Option("-f", "--file", help="A file with a Pod or a workload with a pod template; - for standard input."),
    ] = None,
    topology_file: Annotated[
        str | None,
        typer.Option("--topology", help="The topology file. Default: $TENSILE_TOPOLOGY, else ./topology.yaml."),
    ] = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    replicas: Annotated[
        int | None, typer.Option(min=1, help="Number of pods. Default: the replicas in the file.")
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(help="Assume that this lower cluster is lost; can be repeated.")
    ] = None,
    add_nodes: Annotated[
        list[str] | None, typer.Option(help="LOWER=COUNT, or LOWER/NODE=COUNT for nodes like NODE; can be repeated.")
    ] = None,
    snapshot: Annotated[Path | None, typer.Option(help="Use a saved snapshot instead of the clusters.")] = None,
    save: Annotated[Path | None, typer.Option(help="Save a snapshot of the clusters for later use.")] = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Show how many pods of a template fit, and where. Exits with 2 when fewer fit than are requested."""
    from tensile.diagnostics import commands, podfile  # noqa: PLC0415 - see the module's docstring
    from tensile.engine.lower import ClusterAccess  # noqa: PLC0415

    _configure_logs(log_level or "error", log_format)
    if pod is None and not without and save is None:
        raise TensileError("simulate: give a pod or a workload with -f, or a lower cluster that is lost with --without")
    case = commands.case_of(replicas, without or (), add_nodes or ())
    name, data = ("", b"") if pod is None else pod_in(pod, topology_file)
    wanted = None if pod is None else podfile.template(data, name)
    topology, directory = topology_of(topology_file, "--topology")
    picture = commands.pictured(topology, ClusterAccess(directory, allow_exec_plugins), snapshot)
    if save is not None:
        save.write_bytes(picture.to_bytes())
    text, enough = commands.simulate(picture, wanted, case, output)
    typer.echo(text)
    raise typer.Exit(0 if enough else 2)


@app.command("status")
def show_status(
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Show the state of each lower cluster, and whether the latest topology was applied."""
    from tensile.cli import status  # noqa: PLC0415 - see the module's docstring
    from tensile.engine.status import query  # noqa: PLC0415

    _configure_logs(log_level or "warn", log_format)
    found = map_of(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    if found is None:
        name, data = read(file)
        answer = query.ask_engine(data, name)
    else:
        answer = query.ask_map(*found)
    typer.echo(
        status.as_json(answer.document)
        if output == "json"
        else status.as_text(answer.document, colour=takes_colour(sys.stdout))
    )
    if answer.trouble:
        raise TensileError(answer.trouble)


@app.command()
def doctor(
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Check connectivity, credentials, permissions and configuration of every cluster, and suggest fixes. Read-only.

    Exits with 1 if a check fails.
    """
    from tensile.diagnostics.doctor import run as commands  # noqa: PLC0415 - see the module's docstring
    from tensile.engine.lower import ClusterAccess  # noqa: PLC0415

    _configure_logs(log_level or "error", log_format)
    found = map_of(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    if found is None:
        topology, directory = topology_of(file)
        ways = ClusterAccess(directory, allow_exec_plugins)
        text, is_well = commands.examine(topology, ways, output, colour=takes_colour(sys.stdout))
    else:
        text, is_well = commands.examine_map(*found, output, colour=takes_colour(sys.stdout))
    typer.echo(text)
    raise typer.Exit(0 if is_well else 1)


@app.command("list")
def list_objects(
    lowers: Annotated[
        list[str] | None, typer.Argument(metavar="[LOWER]...", help="Only these lower clusters.", show_default=False)
    ] = None,
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """List the objects that the topology owns, in every cluster. Read-only.

    Exits with 1 if a cluster or a kind cannot be listed.
    """
    from tensile.diagnostics import inventory  # noqa: PLC0415 - see the module's docstring
    from tensile.engine.lower import ClusterAccess  # noqa: PLC0415

    _configure_logs(log_level or "error", log_format)
    topology, directory = topology_of(file)
    found = inventory.inventory(topology, ClusterAccess(directory, allow_exec_plugins), lowers or ())
    typer.echo(inventory.as_json(found) if output == "json" else inventory.as_text(found))
    if found.unread:
        raise TensileError("\n".join(f"not listed: {words}" for words in found.unread))


@app.command()
def bundle(
    file: FileOption = None,
    archive: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The archive to create. Default: tensile-bundle-TIME.tar.gz."),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Collect what a bug report needs, without secrets. Read-only.

    The archive has the topology file, the output of doctor, plan and status, the metrics of the engine, and a snapshot
    of what placement depends on. Names of objects, nodes and images are in it: look through it before you share it.
    """
    from tensile.cli import bundle as bundling  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    name, data = read(file)
    directory = Path.cwd() if name == STANDARD_INPUT else Path(name).absolute().parent
    target = archive or Path(f"tensile-bundle-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    parts = bundling.collect(name, data, directory, allow_exec_plugins=allow_exec_plugins)
    bundling.write(parts, target)
    for line in parts[bundling.ERRORS].decode().splitlines():
        typer.echo(harmless(f"not collected: {line}"), err=True)
    typer.echo(f"{target}: {len(parts)} files; look through them before you share it")


@app.command()
def manifests(
    file: FileOption = None,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    image: Annotated[
        str | None, typer.Option(help="The engine's image. Default: tensile-kube of this version.", show_default=False)
    ] = None,
    namespace: Annotated[
        str, typer.Option(help="The namespace of the engine, and of its account in lower clusters.")
    ] = "tensile",
    lower: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Render the manifests of this lower cluster instead of the upper.", show_default=False
        ),
    ] = None,
    directory: Annotated[
        str | None,
        typer.Option(
            "--dir", help="Write kustomizations into this directory, for `kubectl apply -k`.", show_default=False
        ),
    ] = None,
    _version: Version = False,
) -> None:
    """Render the manifests that install the engine in the upper cluster, or that grant it access to a lower cluster."""
    from tensile.deploy import write  # noqa: PLC0415 - see the module's docstring

    if lower is not None and directory is not None:
        raise TensileError("--lower and --dir: give one of them: a directory holds all lower clusters")
    if directory == "":
        raise TensileError("--dir: empty: name a directory, or leave the option away")
    name, data = read(file)
    wishes = write.RenderOptions(namespace, image)
    setup = write.rendering(data, name, wishes, for_lower=lower is not None)
    lines = write.warnings(setup, name) if lower is None else []
    if directory is None:
        typer.echo(write.printed(setup, lower, file, wishes), nl=False)
    else:
        lines += write.written(setup, Path(directory), name)
    for line in lines:
        typer.echo(harmless(line), err=True)


@app.command("import")
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
        typer.Option("-o", "--output", help="Write the topology to this file. Default: standard output."),
    ] = None,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    name: Annotated[
        str | None, typer.Option(help="The name of the topology. Default: a placeholder.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of -o if it exists.")] = False,
    _version: Version = False,
) -> None:
    """Convert an installation of tensile-kube to a topology file, and explain what became of every setting.

    The explanation is written to stderr. Works offline.
    """
    from tensile.deploy import importing, write  # noqa: PLC0415 - see the module's docstring

    found = importing.imported(sources(file or []), command or [], name)
    if output in (None, "-"):
        typer.echo(found.text, nl=False)
    else:
        write.write_topology(Path(output), found.text, force=force)
    for line in found.lines():
        typer.echo(harmless(line), err=True)


@sandbox.callback()
def _sandbox(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Run real control planes on loopback, to try things out."""


@sandbox.command("up")
def sandbox_up(
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


@sandbox.command("status")
def sandbox_status(
    directory: DirectoryOption = _SANDBOX,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Show which clusters and processes run."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.status(directory))


@sandbox.command("down")
def sandbox_down(
    directory: DirectoryOption = _SANDBOX,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Stop the clusters and delete their files."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.down(directory))


@sandbox.command("prepare", hidden=True)
def sandbox_prepare() -> None:
    """Find the binaries of the control planes, or build them."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.prepare())


@app.command()
def demo(
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    engine_log: Annotated[bool, typer.Option("--engine-log", help="Show the engine's log at the end.")] = False,
    _version: Version = False,
) -> None:
    """Start a sandbox, the engine and a workload, and show them at work. Leaves nothing behind."""
    from tensile.sandbox.demo.guide import DemoOptions  # noqa: PLC0415 - see the module's docstring
    from tensile.sandbox.demo.guide import demo as shown  # noqa: PLC0415

    _configure_logs(log_level or "info", log_format)
    raise typer.Exit(
        shown(DemoOptions(engine_log=engine_log, log_level=log_level or "info", log_format=log_format or "text"))
    )


@app.command()
def schema(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Print the JSON schema of the topology file."""
    import orjson  # noqa: PLC0415 - see the module's docstring

    from tensile.topology import schema as schema_of  # noqa: PLC0415

    typer.echo(orjson.dumps(schema_of(), option=orjson.OPT_INDENT_2).decode())


def _configure_logs(level: str, form: str | None) -> None:
    from tensile.engine.logging import configure  # noqa: PLC0415 - see the module's docstring

    configure(level, form or ("text" if sys.stderr.isatty() else "json"), sys.stderr)
