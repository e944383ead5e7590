"""The commands: their arguments, the calls they make, and their exit codes.

A command's docstring is what `--help` prints: `tensile.cli.help` gives its form. Each command imports what it needs
when it runs, so that `--version` and `validate` answer in a fraction of a second.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import tensile
from tensile.cli.help import INSPECT, PLAN, RUN, SET_UP, SHELLS, TRY, TensileCommand, TensileGroup, print_script, whole
from tensile.cli.options import (
    AskExtender,
    BareSandbox,
    ConfigMapOption,
    ContextOption,
    DirectoryOption,
    EngineFile,
    ExecPlugins,
    FileOption,
    FollowedFile,
    KeyOption,
    KubeconfigOption,
    LogFormat,
    LogLevel,
    Output,
    RealNode,
    ShownVersion,
    TextOrJson,
    TextWideOrJson,
    Version,
    YamlOrJson,
    directory_of,
    file_name,
    followed,
    given_topology,
    map_of,
    one_of,
    pod_in,
    read,
    sources,
    topology_of,
)
from tensile.errors import TensileError
from tensile.names import SANDBOX_DIRECTORY
from tensile.text import harmless, takes_colour

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
_LONG = 1.0
"""Seconds after which a command on a terminal prints what it waits for."""
_READING = "reading the clusters of the topology, 20 s at most"
_SANDBOX = Path(SANDBOX_DIRECTORY)


Command = Callable[..., None]


def _command(panel: str, name: str | None = None) -> Callable[[Command], Command]:
    """Return the decorator of a command; `panel` is the title of its group in the help."""
    return app.command(name, cls=TensileCommand, rich_help_panel=panel)


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


def _warn(name: str, text: str) -> None:
    """Write the warnings about a valid topology to stderr; `name` is that of its file."""
    from tensile.topology import cautions, parse  # noqa: PLC0415 - see the module's docstring

    for caution in cautions(text, parse(text, name=name)):
        typer.echo(f"warning: {caution.line(name)}", err=True)


@_command(PLAN)
def validate(
    file: FileOption = None, _log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False
) -> None:
    """Check a topology file.

    Reports every error with its line. Opens no other file and contacts no cluster.

    Examples:
        tensile validate
        tensile validate -f topology.yaml

        # The version that is committed
        git show HEAD:topology.yaml | tensile validate -f -
    """
    from tensile.topology import decode, parse  # noqa: PLC0415 - see the module's docstring

    name, data = read(file)
    text = decode(data, name=name)
    topology = parse(text, name=name)
    _warn(name, text)
    count = len(topology.lowers)
    typer.echo(f"{name}: valid: topology {topology.name} with {count} lower {'cluster' if count == 1 else 'clusters'}")


@_command(RUN)
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
            parser=whole(1, 65535),
            metavar="PORT",
            help="Serve /healthz and /readyz on this port from process start.",
            show_default=False,
        ),
    ] = None,
    observe: Annotated[
        bool,
        typer.Option(
            "--observe",
            help="Only report what the engine would do, beside another engine such as tensile-kube. Writes nothing.",
        ),
    ] = False,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Run the engine.

    It mirrors pods to the lower clusters until SIGTERM or Ctrl-C. A change of the topology file, or ConfigMap, takes
    effect without a restart.

    Examples:
        tensile run -f topology.yaml

        # Report what the engine would do, while another one still runs
        tensile run -f topology.yaml --observe

        # With the topology in a ConfigMap of the upper cluster
        tensile run --configmap tensile/topology --kubeconfig upper.kubeconfig
    """
    from tensile.engine import run as running  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "info", log_format)
    found = map_of(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    if observe and (found is not None or leader_elect is not None or probes is not None):
        raise TensileError("--observe takes a topology file only: omit --configmap, --leader-elect and --probes")
    manner = running.RunOptions(leader_elect, probes)
    if found is not None:
        running.run_map(*found, manner=manner)
        return
    name = file_name(file)
    if name == "-":
        raise TensileError("run watches a file and cannot read standard input: name a file with -f")
    if observe:
        running.run_observing(Path(name).absolute(), allow_exec_plugins=allow_exec_plugins)
    else:
        running.run(Path(name).absolute(), allow_exec_plugins=allow_exec_plugins, manner=manner)


@_command(PLAN)
def plan(
    file: FileOption = None,
    output: Output = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    lower: Annotated[
        list[str] | None,
        typer.Option(
            "--lower",
            metavar="NAME",
            help="Show only what changes for this lower cluster. Repeatable.",
            show_default=False,
        ),
    ] = None,
    namespace: Annotated[
        list[str] | None,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAME",
            help="Show only objects of this upper namespace, in all clusters. Repeatable.",
            show_default=False,
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(
            "--kind",
            metavar="KIND",
            help="Show only objects of this kind, such as pod. Repeatable.",
            show_default=False,
        ),
    ] = None,
    drain: Annotated[
        list[str] | None,
        typer.Option(
            "--drain",
            metavar="NAME",
            help="Plan as if the topology drained this lower cluster, and show where its pods fit. Repeatable.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", metavar="PLAN", help="Save the plan in this file, for `tensile apply PLAN`.", show_default=False
        ),
    ] = None,
    drift: Annotated[
        bool, typer.Option("--drift", help="Show only what other clients changed in objects of this topology.")
    ] = False,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Show what would change, and why.

    Lists the changes that the engine would make in each cluster, with the reason of each. Changes nothing itself.
    Exits with 2 if anything that is shown would change.

    Examples:
        tensile plan -f topology.yaml

        # A comment for a pull request
        tensile plan -o markdown > comment.md

        # What changes for the pods of one namespace in lower-a?
        tensile plan --lower lower-a --namespace shop --kind pod

        # Where would the pods of lower-b go, if it were drained?
        tensile plan --drain lower-b

        # Save a plan for review, and apply it later
        tensile plan --out reviewed.plan

        # What did other clients change in the lower clusters, and who?
        tensile plan --drift
    """
    from tensile.cli import drift as drifting  # noqa: PLC0415 - see the module's docstring
    from tensile.cli import plan as planning  # noqa: PLC0415
    from tensile.reconcile.report import PlanScope  # noqa: PLC0415

    _configure_logs(log_level or "error", log_format)
    only = PlanScope(tuple(lower or ()), tuple(namespace or ()), planning.kinds_named(kind or ()))
    if out is not None and drain:
        raise TensileError("--out and --drain exclude each other: save a plan of a topology with `maintenance: drain`")
    if drift and (out is not None or drain):
        raise TensileError("--drift excludes --out and --drain: it shows what was changed, and plans nothing")
    given = given_topology(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    _warn(given.name, given.data.decode())
    target = None if out is None else (out, planning.described(given.topology, given.file, given.data))
    command = drifting.drift if drift else planning.plan
    found = command(
        given.topology,
        given.ways,
        output,
        planning.PlanOptions(tuple(drain or ()), only, target, given.lines(), given.place),
        colour=takes_colour(sys.stdout),
        progress=_progress(),
    )
    typer.echo(found.text)
    if out is not None:
        typer.echo(harmless(f"saved in {out}: make exactly these changes with: tensile apply {out}"), err=True)
    if found.unreached:
        raise TensileError(found.unreached)
    raise typer.Exit(2 if found.changes else 0)


@_command(RUN)
def apply(
    plan: Annotated[
        str | None,
        typer.Argument(metavar="PLAN", help="A plan of `tensile plan --out` to apply.", show_default=False),
    ] = None,
    file: FileOption = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Carry out deletions that the guard blocks.")] = False,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Apply the topology once.

    Shows the plan, asks on a terminal whether to go on, makes the changes, and ends. Without a terminal it does
    not ask. A saved plan is applied exactly as it was saved, or refused if anything that it rests on has moved. May run
    beside the engine.

    Examples:
        tensile apply -f topology.yaml

        # Without a question
        tensile apply -f topology.yaml --yes

        # Exactly what was reviewed
        tensile plan -f topology.yaml --out reviewed.plan
        tensile apply reviewed.plan

        # Also make deletions that the guard holds back
        tensile apply -f topology.yaml --force
    """
    from tensile.cli import apply as applying  # noqa: PLC0415 - see the module's docstring
    from tensile.engine import plan_and_apply  # noqa: PLC0415

    _configure_logs(log_level or "info", log_format)
    if plan is not None and force:
        raise TensileError("--force and a saved plan exclude each other: a saved plan has exactly its steps")
    reviewed = None if plan is None else applying.read_plan(plan)
    if reviewed is not None and configmap is None:
        file = applying.topology_file(reviewed, file)
    check = None if reviewed is None else partial(applying.check_topology, reviewed)
    given = given_topology(
        file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins, check=check
    )
    ask = None if yes or sys.stdin is None else applying.question(sys.stdin, sys.stderr, sys.stdout)
    options = applying.ApplyOptions(forced=force, ask=ask, plan=reviewed, lines=given.lines())
    opening = partial(plan_and_apply.opened, given.topology, given.ways, _progress())
    if warning := applying.beside_engine(given.topology, given.data):
        typer.echo(warning, err=True)
    typer.echo(applying.apply(opening, options, applying.shown_on(sys.stdout)))


@_command(RUN)
def approve(
    digest: Annotated[
        str,
        typer.Argument(
            metavar="HASH",
            help="The SHA-256 of the edit, at least 12 digits, as `tensile status` shows it.",
            show_default=False,
        ),
    ],
    file: EngineFile = None,
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
    """Approve an edit that waits.

    An edit that affects more running pods than guard.approveOver waits for this. The approval is for exactly one text.

    Examples:
        # What waits, and what would it change?
        tensile status --configmap tensile/topology

        tensile approve 3f1c9a52e0b7 --configmap tensile/topology
    """
    from tensile.cli import rollback as deciding  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    found = map_of(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    where = deciding.location(file, found, allow_exec_plugins=allow_exec_plugins)
    typer.echo(harmless(deciding.approve(where, digest)))


@_command(RUN)
def rollback(
    file: EngineFile = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="HASH",
            help="The SHA-256 of the topology to put back, at least 12 digits. Default: the one before the last edit.",
            show_default=False,
        ),
    ] = None,
    show_list: Annotated[bool, typer.Option("--list", help="Show the topologies that can be put back.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Put an earlier topology back.

    Writes one of the last ten accepted topologies into the file, or the ConfigMap. Shows what changes, and asks on a
    terminal whether to go on; without a terminal, it does not ask. The engine then follows it as any edit. By default,
    the last edit is undone: one that was refused or waits for an approval, else the one in force.

    Examples:
        tensile rollback --list -f topology.yaml

        # Undo the last edit
        tensile rollback -f topology.yaml

        # Another one, in a ConfigMap, without a question
        tensile rollback --configmap tensile/topology --to 3f1c9a52e0b7 --yes
    """
    from tensile.cli import apply as applying  # noqa: PLC0415 - see the module's docstring
    from tensile.cli import rollback as deciding  # noqa: PLC0415

    _configure_logs(log_level or "error", log_format)
    if show_list and (to is not None or yes):
        raise TensileError("--list shows topologies only: omit --to and --yes")
    found = map_of(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    where = deciding.location(file, found, allow_exec_plugins=allow_exec_plugins)
    if show_list:
        typer.echo(deciding.listed(where))
        return
    plan = deciding.planned(where, to)
    if plan.is_needed:
        for line in plan.lines:
            typer.echo(harmless(line))
    ask = None if yes or sys.stdin is None else applying.question(sys.stdin, sys.stderr, sys.stdout)
    typer.echo(harmless(deciding.roll_back(where, plan, ask)))


@_command(RUN)
def uninstall(
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    show_plan: Annotated[bool, typer.Option("--plan", help="Show what would be deleted, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before deleting.")] = False,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Delete what the topology owns.

    Deletes virtual nodes, copies, mirrored namespaces that are empty, and registrations, in all clusters. Objects of
    others stay, and so do claims with data. First drain the lower clusters, then stop the engine. With --plan, exits
    with 2 if anything would be deleted.

    Examples:
        # What would be deleted, and what has to be done before?
        tensile uninstall --plan -f topology.yaml

        tensile uninstall -f topology.yaml
    """
    from tensile.cli import uninstall as removal  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or ("error" if show_plan else "info"), log_format)
    given = given_topology(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    if not (show_plan or yes or sys.stdin.isatty()):
        raise TensileError(
            "uninstall: there is no terminal to ask on: read `tensile uninstall --plan`, then give --yes"
        )
    found = removal.plan(given.topology, given.ways, progress=_progress())
    typer.echo(
        removal.plan_json(found) if output == "json" else removal.plan_text(found, colour=takes_colour(sys.stdout))
    )
    if show_plan:
        if found.unknown:
            raise TensileError(found.unknown)
        raise typer.Exit(2 if found.refs else 0)
    removal.check(found)
    if not found.refs:
        return
    if not yes and not typer.confirm("Delete these objects?", err=True):
        raise TensileError("not uninstalled: nothing was deleted")
    closing = removal.uninstall(given.topology, given.ways, found, progress=_progress())
    typer.echo(closing)


@_command(PLAN)
def mutate(
    file: Annotated[
        str,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="A file with Pods, or objects with a pod template; - for standard input.",
            show_default=False,
        ),
    ],
    topology: Annotated[
        str | None,
        typer.Option(
            "--topology",
            metavar="FILE",
            help="The topology file. Default: $TENSILE_TOPOLOGY, else ./topology.yaml, else one lower cluster.",
            show_default=False,
        ),
    ] = None,
    output: YamlOrJson = "yaml",
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Show what the webhook would change.

    Prints the pod as given, as the webhook changes it, and as it would be created in a lower cluster. Works offline.

    Examples:
        tensile mutate -f pod.yaml

        # Every workload of a chart
        helm template shop | tensile mutate -f -

        # With the settings of a topology, as JSON
        tensile mutate -f pod.yaml --topology topology.yaml -o json
    """
    from tensile.cli import mutate as mutation  # noqa: PLC0415 - see the module's docstring

    given = topology is not None or os.environ.get("TENSILE_TOPOLOGY") or Path("topology.yaml").exists()
    name, data = pod_in(file, topology)
    terms = topology_of(topology, "--topology")[0] if given else mutation.default_topology()
    found = [mutation.mutation(pod, terms) for pod in mutation.read_pods(data, name)]
    for line in mutation.told(found):
        typer.echo(harmless(line), err=True)
    typer.echo(mutation.written(found, output))


@explain.callback()
def _explain(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Explain the state of a resource.

    Kinds may be named as in kubectl: pvc, svc, pod/web-0.

    Examples:
        tensile explain pod shop/web-0
        tensile explain node lower-a
    """


@explain.command("pod", cls=TensileCommand)
def explain_pod(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A pod in the upper cluster, as NAME or NAMESPACE/NAME.", show_default=False
        ),
    ],
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAMESPACE",
            help="The namespace of the pod. Default: that of the upper kubeconfig's context.",
            show_default=False,
        ),
    ] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show when each step happened, in both clusters, and what took longest.")
    ] = False,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Explain where a pod runs, and why.

    Shows the first obstacle, the result of every check on every node, and what to do. With --timeline, shows the steps
    of the pod from its creation on instead, with their times.

    Examples:
        tensile explain pod web-0
        tensile explain pod web-0 -n shop
        tensile explain pod shop/web-0 -f topology.yaml -o json

        # How long each step took
        tensile explain pod shop/web-0 --timeline
    """
    from tensile.diagnostics import commands  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    given = given_topology(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    explained = commands.explain_timeline if timeline else commands.explain
    with _waiting(_READING):
        text = explained(given.topology, given.ways, name, namespace, output)
    typer.echo(text)


@explain.command("node", cls=TensileCommand)
def explain_node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A virtual node.", show_default=False)],
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
    """Explain the state of a node.

    Names what keeps new pods off a virtual node. Shows the conditions of the node, its latest events, and what to do.

    Examples:
        tensile explain node lower-a
        tensile explain node lower-a -f topology.yaml -o json
    """
    from tensile.diagnostics import commands  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    given = given_topology(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    with _waiting(_READING):
        text = commands.explain_node(given.topology, given.ways, name, output)
    typer.echo(text)


@explain.command("claim", cls=TensileCommand)
def explain_claim(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="A PersistentVolumeClaim in the upper cluster, as NAME or NAMESPACE/NAME.",
            show_default=False,
        ),
    ],
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAMESPACE",
            help="The namespace of the claim. Default: that of the upper kubeconfig's context.",
            show_default=False,
        ),
    ] = None,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Explain what a claim waits for.

    Names the first obstacle, or where its data is. Shows the claim in each lower cluster, its latest events, and what
    to do.

    Examples:
        tensile explain claim data-db-0 -n shop
        tensile explain claim shop/data-db-0 -f topology.yaml -o json
    """
    from tensile.diagnostics import commands  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    given = given_topology(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    with _waiting(_READING):
        text = commands.explain_claim(given.topology, given.ways, name, namespace, output)
    typer.echo(text)


@explain.command("service", cls=TensileCommand)
def explain_service(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A Service in the upper cluster, as NAME or NAMESPACE/NAME.", show_default=False
        ),
    ],
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    namespace: Annotated[
        str | None,
        typer.Option(
            "-n",
            "--namespace",
            metavar="NAMESPACE",
            help="The namespace of the service. Default: that of the upper kubeconfig's context.",
            show_default=False,
        ),
    ] = None,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Explain the endpoints of a Service.

    Names what keeps pods from using it. Shows the endpoints in each cluster, its latest events, and what to do.

    Examples:
        tensile explain service web -n shop
        tensile explain service shop/web -f topology.yaml -o json
    """
    from tensile.diagnostics import commands  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    given = given_topology(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    with _waiting(_READING):
        text = commands.explain_service(given.topology, given.ways, name, namespace, output)
    typer.echo(text)


@_command(PLAN)
def simulate(
    pod: Annotated[
        str | None,
        typer.Option(
            "-f",
            "--file",
            metavar="FILE",
            help="A file with Pods, or objects with a pod template; - for standard input.",
        ),
    ] = None,
    topology_file: Annotated[
        str | None,
        typer.Option(
            "--topology", metavar="FILE", help="The topology file. Default: $TENSILE_TOPOLOGY, else ./topology.yaml."
        ),
    ] = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    replicas: Annotated[
        int | None,
        typer.Option(metavar="N", parser=whole(1), help="The number of pods. Default: the replicas in the file."),
    ] = None,
    without: Annotated[
        list[str] | None, typer.Option(metavar="LOWER", help="Assume that this lower cluster is lost. Repeatable.")
    ] = None,
    add_nodes: Annotated[
        list[str] | None,
        typer.Option(
            metavar="LOWER=N", help="Add N nodes to a lower cluster; LOWER/NODE=N: nodes like NODE. Repeatable."
        ),
    ] = None,
    snapshot: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Use a saved snapshot instead of the clusters.")
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save a snapshot of the clusters for later use.")
    ] = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Show how many pods fit, and where.

    Counts the pods of a template that have room in each lower cluster, or places the pods of a cluster that is lost.
    Exits with 2 if fewer pods fit than are asked for.

    Examples:
        # Do 20 pods of this Deployment fit?
        tensile simulate -f deployment.yaml --replicas 20

        # Do the pods of lower-a fit elsewhere, if lower-b gets 2 nodes?
        tensile simulate --without lower-a --add-nodes lower-b=2

        # Save the state of the clusters, and ask later without them
        tensile simulate --save state.json
        tensile simulate --snapshot state.json -f deployment.yaml
    """
    from tensile.diagnostics import commands, podfile  # noqa: PLC0415 - see the module's docstring
    from tensile.engine.lower import ClusterAccess  # noqa: PLC0415

    _configure_logs(log_level or "error", log_format)
    if pod is None and not without and save is None:
        raise TensileError("simulate: name a file with a pod with -f, or a lost lower cluster with --without")
    case = commands.case_of(replicas, without or (), add_nodes or ())
    name, data = ("", b"") if pod is None else pod_in(pod, topology_file)
    wanted = [] if pod is None else podfile.templates(data, name)
    topology, directory = topology_of(topology_file, "--topology")
    with _waiting(_READING):
        picture = commands.pictured(topology, ClusterAccess(directory, allow_exec_plugins), snapshot)
    if save is not None:
        save.write_bytes(picture.to_bytes())
    text, enough = commands.simulate(picture, wanted, case, output)
    typer.echo(text)
    raise typer.Exit(0 if enough else 2)


@_command(INSPECT, "status")
def show_status(
    file: FileOption = None,
    output: TextWideOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Continue to show the state as it changes, until Ctrl-C.")
    ] = False,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Show the state of each lower cluster.

    Also shows whether the engine uses the latest topology. Asks the engine that runs on this machine, or reads the
    status ConfigMap with --configmap. With --watch, a cluster or an engine that does not answer is asked again.

    Examples:
        tensile status

        # With the nodes, the version and the problem of each cluster, until Ctrl-C
        tensile status -o wide --watch

        # Of an engine that runs in the upper cluster
        tensile status --configmap tensile/topology --kubeconfig upper.kubeconfig
    """
    from tensile.cli import status  # noqa: PLC0415 - see the module's docstring
    from tensile.engine.status import query  # noqa: PLC0415

    _configure_logs(log_level or "warn", log_format)
    found = map_of(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    if watch:
        status.watch(query.follow_map(*found) if found else query.follow_engine(followed(file)), output)
        return
    if found is None:
        name, data = read(file, of_engine=True)
        answer = query.ask_engine(data, name)
    else:
        answer = query.ask_map(*found)
    typer.echo(status.rendered(answer.document, output, colour=takes_colour(sys.stdout)))
    if answer.trouble:
        raise TensileError(answer.trouble)


@_command(INSPECT)
def doctor(
    file: FileOption = None,
    output: TextOrJson = "text",
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    every: Annotated[bool, typer.Option("--all", help="Show every check, also those that are ok.")] = False,
    configmap: ConfigMapOption = None,
    key: KeyOption = None,
    kubeconfig: KubeconfigOption = None,
    context: ContextOption = None,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Check every cluster and suggest fixes.

    Checks connections, credentials, permissions, versions, certificates and networks, and prints failures first.
    Changes nothing. Exits with 1 if a check fails.

    Examples:
        tensile doctor -f topology.yaml

        # Also what is ok, such as the dates on which credentials expire
        tensile doctor --all

        # The worst result, for a script
        tensile doctor -o json | jq -r .level
    """
    from tensile.diagnostics.doctor import run as commands  # noqa: PLC0415 - see the module's docstring
    from tensile.engine.lower import ClusterAccess  # noqa: PLC0415

    _configure_logs(log_level or "error", log_format)
    found = map_of(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    with _waiting("checking the clusters, 12 s at most"):
        if found is None:
            topology, directory = topology_of(file)
            ways = ClusterAccess(directory, allow_exec_plugins)
            text, is_well = commands.examine(topology, ways, output, colour=takes_colour(sys.stdout), every=every)
        else:
            text, is_well = commands.examine_map(*found, output, colour=takes_colour(sys.stdout), every=every)
    typer.echo(text)
    raise typer.Exit(0 if is_well else 1)


@_command(INSPECT, "list")
def list_objects(
    lowers: Annotated[
        list[str] | None, typer.Argument(metavar="[LOWER]...", help="Only these lower clusters.", show_default=False)
    ] = None,
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
    """List what the topology owns.

    Lists every object with the mark of the topology, in the upper cluster and in all lower clusters. Changes nothing.
    Exits with 1 if a cluster or a kind cannot be listed.

    Examples:
        tensile list

        # One lower cluster
        tensile list lower-a -f topology.yaml
    """
    from tensile.diagnostics import inventory  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    given = given_topology(file, configmap, key, kubeconfig, context, allow_exec_plugins=allow_exec_plugins)
    found = inventory.inventory(given.topology, given.ways, lowers or ())
    typer.echo(inventory.as_json(found) if output == "json" else inventory.as_text(found))
    if found.unread:
        raise TensileError("\n".join(f"not listed: {words}" for words in found.unread))


@_command(INSPECT)
def bundle(
    file: FileOption = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The archive to create. Default: tensile-bundle-TIME.tar.gz."
        ),
    ] = None,
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    allow_exec_plugins: ExecPlugins = False,
    _version: Version = False,
) -> None:
    """Collect what a bug report needs.

    Changes nothing, and leaves values of Secrets and credentials out. The archive has the topology file, metrics, the
    output of doctor, plan and status, and a snapshot of what placement depends on. Names of objects, nodes and images
    are in it: look through it before you share it.

    Examples:
        tensile bundle
        tensile bundle -f topology.yaml -o report.tar.gz
    """
    from tensile.cli import bundle as bundling  # noqa: PLC0415 - see the module's docstring

    _configure_logs(log_level or "error", log_format)
    name, data = read(file)
    target = archive or Path(f"tensile-bundle-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    parts = bundling.collect(name, data, directory_of(name), allow_exec_plugins=allow_exec_plugins)
    bundling.write(parts, target)
    for line in parts[bundling.ERRORS].decode().splitlines():
        typer.echo(harmless(f"not collected: {line}"), err=True)
    typer.echo(f"{target}: {len(parts)} files; look through them before you share it")


@_command(SET_UP)
def manifests(
    file: FileOption = None,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
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
    _version: Version = False,
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
    wishes = manifests.RenderOptions(namespace, image)
    setup = manifests.rendering(data, name, wishes, for_lower=lower is not None)
    lines = manifests.warnings(setup, name) if lower is None else []
    if directory is None:
        typer.echo(manifests.printed(setup, lower, file, wishes), nl=False)
    else:
        lines += manifests.written(setup, Path(directory), name)
    for line in lines:
        typer.echo(harmless(line), err=True)


@_command(SET_UP, "import")
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
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    name: Annotated[
        str | None, typer.Option(help="The name of the topology. Default: a placeholder.", show_default=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the file of -o if it exists.")] = False,
    _version: Version = False,
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


@sandbox.callback()
def _sandbox(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Run real control planes on this machine.

    Examples:
        tensile sandbox up --lowers 2
        tensile sandbox down
    """


@sandbox.command("up", cls=TensileCommand)
def sandbox_up(
    lowers: Annotated[
        int | None, typer.Option(metavar="N", parser=whole(0, 26), help="The number of lower clusters. Default: 2.")
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(metavar="N", parser=whole(0), help="The number of nodes in each. Default: 3.")
    ] = None,
    directory: DirectoryOption = _SANDBOX,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    real_node: RealNode = False,
    extender: AskExtender = False,
    bare: BareSandbox = False,
    _version: Version = False,
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


@sandbox.command("status", cls=TensileCommand)
def sandbox_status(
    directory: DirectoryOption = _SANDBOX,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Show the processes of the clusters.

    Exits with 1 if one of them does not run.

    Examples:
        tensile sandbox status
    """
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.status(directory))


@sandbox.command("down", cls=TensileCommand)
def sandbox_down(
    directory: DirectoryOption = _SANDBOX,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Stop and delete the clusters.

    Deletes only the files that the sandbox made.

    Examples:
        tensile sandbox down
        tensile sandbox down --dir /tmp/sandbox
    """
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.down(directory))


@sandbox.command("prepare", cls=TensileCommand, hidden=True)
def sandbox_prepare() -> None:
    """Find the binaries of the control planes, or build them."""
    from tensile.sandbox import commands  # noqa: PLC0415 - see the module's docstring

    raise typer.Exit(commands.prepare())


@_command(TRY)
def demo(
    log_level: LogLevel = None,
    log_format: LogFormat = None,
    *,
    engine_log: Annotated[bool, typer.Option("--engine-log", help="Show the engine's log at the end.")] = False,
    no_pause: Annotated[bool, typer.Option("--no-pause", help="Do not wait for Enter between the steps.")] = False,
    _version: Version = False,
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

    _configure_logs(log_level or "info", log_format)
    raise typer.Exit(
        shown(
            DemoOptions(
                engine_log=engine_log,
                pause=not no_pause,
                log_level=log_level or "info",
                log_format=log_format or "text",
            )
        )
    )


@_command(SET_UP)
def schema(_log_level: LogLevel = None, _log_format: LogFormat = None, *, _version: Version = False) -> None:
    """Print the topology's JSON schema.

    Editors use it to check and complete a topology file.

    Examples:
        tensile schema > topology.schema.json
    """
    import orjson  # noqa: PLC0415 - see the module's docstring

    from tensile.topology import schema as schema_of  # noqa: PLC0415

    typer.echo(orjson.dumps(schema_of(), option=orjson.OPT_INDENT_2).decode())


@_command(SET_UP)
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
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
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


@_command(SET_UP)
def version(
    output: TextOrJson = "text",
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Print the version of tensile.

    Examples:
        tensile version
        tensile version -o json
    """
    found = tensile.__version__
    typer.echo(json.dumps({"version": found}) if output == "json" else f"tensile {found}")


@_command(SET_UP, "help")
def show_help(
    context: typer.Context,
    words: Annotated[
        list[str] | None, typer.Argument(metavar="COMMAND", help="The command.", show_default=False)
    ] = None,
    _log_level: LogLevel = None,
    _log_format: LogFormat = None,
    *,
    _version: Version = False,
) -> None:
    """Show help for a command.

    Examples:
        tensile help plan
        tensile help sandbox up
    """
    root = context.find_root()
    root.command.main([*(words or ()), "--help"], prog_name=root.info_name, standalone_mode=False)


def _tell(line: str) -> None:
    typer.echo(line, err=True)


def _progress() -> Callable[[str], None] | None:
    """Return what shows a line of progress, None without a terminal."""
    return _tell if sys.stderr.isatty() else None


@contextmanager
def _waiting(line: str) -> Iterator[None]:
    """Show a line of progress if the block takes more than a second."""
    from threading import Timer  # noqa: PLC0415 - see the module's docstring

    show = _progress()
    timer = Timer(_LONG, show or _tell, [line])
    if show:
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _configure_logs(level: str, form: str | None) -> None:
    from tensile.engine.logging import configure  # noqa: PLC0415 - see the module's docstring

    configure(level, form or ("text" if sys.stderr.isatty() else "json"), sys.stderr)
