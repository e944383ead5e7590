"""The commands that bring a topology into force: validate, plan, run, apply, approve, rollback, uninstall.

A command's docstring is what `--help` prints: `tensile.cli.help` gives its form, and `tensile.cli.program` the options
that commands share. Each command imports what it needs when it runs, so that `--version` and `validate` answer in a
fraction of a second.
"""

import sys
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from tensile.cli.help import PLAN, RUN, whole_number
from tensile.cli.options import (
    EngineSource,
    FileOption,
    FileSource,
    FollowedSource,
    Output,
    TextOrJson,
    file_name,
    read,
)
from tensile.cli.program import LogOptions, add, progress
from tensile.errors import TensileError
from tensile.text import harmless, takes_colour

if TYPE_CHECKING:
    from tensile.topology import Topology


def _warn(name: str, text: str, topology: "Topology") -> None:
    """Write the warnings about a valid topology to stderr; `name` is that of its file, `text` its content."""
    from tensile.topology import cautions  # noqa: PLC0415 - see the module's docstring

    for caution in cautions(text, topology):
        typer.echo(f"warning: {caution.line(name)}", err=True)


@add(PLAN)
def validate(file: FileOption = None) -> None:
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
    _warn(name, text, topology)
    count = len(topology.lowers)
    typer.echo(f"{name}: valid: topology {topology.name} with {count} lower {'cluster' if count == 1 else 'clusters'}")


@add(PLAN)
def plan(
    output: Output = "text",
    *,
    source: FileSource,
    logs: LogOptions,
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

    logs.configure("error")
    only = PlanScope(tuple(lower or ()), tuple(namespace or ()), planning.kinds_named(kind or ()))
    if out is not None and drain:
        raise TensileError("--out and --drain exclude each other: save a plan of a topology with `maintenance: drain`")
    if drift and (out is not None or drain):
        raise TensileError("--drift excludes --out and --drain: it shows what was changed, and plans nothing")
    given = source.topology()
    _warn(given.name, given.data.decode(), given.topology)
    target = None if out is None else (out, planning.described(given.topology, given.file, given.data))
    command = drifting.drift if drift else planning.plan
    found = command(
        given.topology,
        given.access,
        output,
        planning.PlanOptions(tuple(drain or ()), only, target, given.lines(), given.place),
        colour=takes_colour(sys.stdout),
        progress=progress(),
    )
    typer.echo(found.text)
    if out is not None:
        place = source.of_configmap() or ("" if given.file else "-f FILE")
        command_line = " ".join(filter(None, ("tensile apply", quote(str(out)), place)))
        typer.echo(harmless(f"saved in {out}: make exactly these changes with: {command_line}"), err=True)
    if found.unreached:
        raise TensileError(found.unreached)
    raise typer.Exit(2 if found.changes else 0)


@add(RUN)
def run(
    *,
    source: FollowedSource,
    logs: LogOptions,
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
            parser=whole_number(1, 65535),
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

    logs.configure("info")
    found = source.in_configmap()
    if observe and (found is not None or leader_elect is not None or probes is not None):
        raise TensileError("--observe takes a topology file only: omit --configmap, --leader-elect and --probes")
    options = running.RunOptions(leader_elect, probes)
    if found is not None:
        running.run_map(*found, options=options)
        return
    name = file_name(source.file)
    if name == "-":
        raise TensileError("run watches a file and cannot read standard input: name a file with -f")
    if observe:
        running.run_observing(Path(name).absolute(), allow_exec_plugins=source.allow_exec_plugins)
    else:
        running.run(Path(name).absolute(), allow_exec_plugins=source.allow_exec_plugins, options=options)


@add(RUN)
def apply(
    plan: Annotated[
        str | None,
        typer.Argument(metavar="PLAN", help="A plan of `tensile plan --out` to apply.", show_default=False),
    ] = None,
    *,
    source: FileSource,
    logs: LogOptions,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Carry out deletions that the guard blocks.")] = False,
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

    logs.configure("info")
    if plan is not None and force:
        raise TensileError("--force and a saved plan exclude each other: a saved plan has exactly its steps")
    reviewed = None if plan is None else applying.read_plan(plan)
    if reviewed is not None and source.configmap is None:
        source = source._replace(file=applying.topology_file(reviewed, source.file))
    given = source.topology(None if reviewed is None else partial(applying.check_topology, reviewed))
    ask = None if yes or sys.stdin is None else applying.question(sys.stdin, sys.stderr, sys.stdout)
    options = applying.ApplyOptions(forced=force, ask=ask, plan=reviewed, lines=given.lines())
    opening = partial(plan_and_apply.opened, given.topology, given.access, progress())
    if warning := applying.beside_engine(given.topology, given.data):
        typer.echo(warning, err=True)
    typer.echo(applying.apply(opening, options, applying.shown_on(sys.stdout)))


@add(RUN)
def approve(
    digest: Annotated[
        str,
        typer.Argument(
            metavar="HASH",
            help="The SHA-256 of the edit, at least 12 digits, as `tensile status` shows it.",
            show_default=False,
        ),
    ],
    *,
    source: EngineSource,
    logs: LogOptions,
) -> None:
    """Approve an edit that waits.

    An edit that affects more running pods than guard.approveOver waits for this. The approval is for exactly one text.

    Examples:
        # What waits, and what would it change?
        tensile status --configmap tensile/topology

        tensile approve 3f1c9a52e0b7 --configmap tensile/topology
    """
    from tensile.cli import rollback as deciding  # noqa: PLC0415 - see the module's docstring

    logs.configure("error")
    location = deciding.locate(source)
    typer.echo(harmless(deciding.approve(location, digest)))


@add(RUN)
def rollback(
    *,
    source: EngineSource,
    logs: LogOptions,
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

    logs.configure("error")
    if show_list and (to is not None or yes):
        raise TensileError("--list shows topologies only: omit --to and --yes")
    location = deciding.locate(source)
    if show_list:
        typer.echo(deciding.listed(location))
        return
    plan = deciding.planned(location, to)
    if plan.is_needed:
        for line in plan.lines:
            typer.echo(harmless(line))
    ask = None if yes or sys.stdin is None else applying.question(sys.stdin, sys.stderr, sys.stdout)
    typer.echo(harmless(deciding.roll_back(location, plan, ask)))


@add(RUN)
def uninstall(
    output: TextOrJson = "text",
    *,
    source: FileSource,
    logs: LogOptions,
    show_plan: Annotated[bool, typer.Option("--plan", help="Show what would be deleted, and delete nothing.")] = False,
    yes: Annotated[bool, typer.Option("-y", "--yes", help="Do not ask before deleting.")] = False,
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

    logs.configure("error" if show_plan else "info")
    given = source.topology()
    if not (show_plan or yes or (sys.stdin and sys.stdin.isatty())):
        raise TensileError(
            "uninstall: there is no terminal to ask on: read `tensile uninstall --plan`, then give --yes"
        )
    found = removal.plan(given.topology, given.access, progress=progress())
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
    closing = removal.uninstall(given.topology, given.access, found, progress=progress())
    typer.echo(closing)
