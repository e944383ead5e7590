"""The commands about clusters and pods as they are: explain, mutate, simulate, status, doctor, list, bundle.

A command's docstring is what `--help` prints: `tensile.cli.help` gives its form, and `tensile.cli.program` the options
that commands share. Each command imports what it needs when it runs, so that `--version` and `validate` answer in a
fraction of a second.
"""

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tensile.cli.help import INSPECT, PLAN, whole_number
from tensile.cli.options import (
    ExecPlugins,
    FileOption,
    FileSource,
    TextOrJson,
    TextWideOrJson,
    TopologyOptions,
    YamlOrJson,
    directory_of,
    followed,
    pod_in,
    read,
    topology_of,
)
from tensile.cli.program import READING, LogOptions, add, explain, waiting
from tensile.errors import TensileError
from tensile.text import harmless, takes_colour


def _name_argument(noun: str) -> Any:
    """Return the argument that names an object of a namespace, such as "A pod"."""
    help_text = f"{noun} in the upper cluster, as NAME or NAMESPACE/NAME."
    return typer.Argument(metavar="NAME", help=help_text, show_default=False)


def _namespace_option(noun: str) -> Any:
    """Return the option -n, the namespace of an object such as "pod"."""
    help_text = f"The namespace of the {noun}. Default: that of the upper kubeconfig's context."
    return typer.Option("-n", "--namespace", metavar="NAMESPACE", help=help_text, show_default=False)


def _print_explanation(
    source: TopologyOptions, logs: LogOptions, explained: Callable[..., str], *arguments: str | None
) -> None:
    """Print what `explained` returns for the arguments, in the clusters of a topology."""
    logs.configure("error")
    given = source.topology()
    with waiting(READING):
        text = explained(given.topology, given.access, *arguments)
    typer.echo(text)


@add("", "pod", group=explain)
def explain_pod(
    name: Annotated[str, _name_argument("A pod")],
    output: TextOrJson = "text",
    *,
    source: FileSource,
    logs: LogOptions,
    namespace: Annotated[str | None, _namespace_option("pod")] = None,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="Show when each step happened, in both clusters, and what took longest.")
    ] = False,
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

    explained = commands.explain_timeline if timeline else commands.explain
    _print_explanation(source, logs, explained, name, namespace, output)


@add("", "node", group=explain)
def explain_node(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A virtual node.", show_default=False)],
    output: TextOrJson = "text",
    *,
    source: FileSource,
    logs: LogOptions,
) -> None:
    """Explain the state of a node.

    Names what keeps new pods off a virtual node. Shows the conditions of the node, its latest events, and what to do.

    Examples:
        tensile explain node lower-a
        tensile explain node lower-a -f topology.yaml -o json
    """
    from tensile.diagnostics import commands  # noqa: PLC0415 - see the module's docstring

    _print_explanation(source, logs, commands.explain_node, name, output)


@add("", "claim", group=explain)
def explain_claim(
    name: Annotated[str, _name_argument("A PersistentVolumeClaim")],
    output: TextOrJson = "text",
    *,
    source: FileSource,
    logs: LogOptions,
    namespace: Annotated[str | None, _namespace_option("claim")] = None,
) -> None:
    """Explain what a claim waits for.

    Names the first obstacle, or where its data is. Shows the claim in each lower cluster, its latest events, and what
    to do.

    Examples:
        tensile explain claim data-db-0 -n shop
        tensile explain claim shop/data-db-0 -f topology.yaml -o json
    """
    from tensile.diagnostics import commands  # noqa: PLC0415 - see the module's docstring

    _print_explanation(source, logs, commands.explain_claim, name, namespace, output)


@add("", "service", group=explain)
def explain_service(
    name: Annotated[str, _name_argument("A Service")],
    output: TextOrJson = "text",
    *,
    source: FileSource,
    logs: LogOptions,
    namespace: Annotated[str | None, _namespace_option("service")] = None,
) -> None:
    """Explain the endpoints of a Service.

    Names what keeps pods from using it. Shows the endpoints in each cluster, its latest events, and what to do.

    Examples:
        tensile explain service web -n shop
        tensile explain service shop/web -f topology.yaml -o json
    """
    from tensile.diagnostics import commands  # noqa: PLC0415 - see the module's docstring

    _print_explanation(source, logs, commands.explain_service, name, namespace, output)


@add(PLAN)
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

    has_topology = topology is not None or os.environ.get("TENSILE_TOPOLOGY") or Path("topology.yaml").exists()
    name, data = pod_in(file, topology)
    parsed = topology_of(topology, "--topology")[0] if has_topology else mutation.default_topology()
    found = [mutation.mutation(pod, parsed) for pod in mutation.read_pods(data, name)]
    for line in mutation.messages(found):
        typer.echo(harmless(line), err=True)
    typer.echo(mutation.written(found, output))


@add(PLAN)
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
    *,
    logs: LogOptions,
    replicas: Annotated[
        int | None,
        typer.Option(
            metavar="N", parser=whole_number(1), help="The number of pods. Default: the replicas in the file."
        ),
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
) -> None:
    """Show how many pods fit, and where.

    Counts the pods of a template that have room in each lower cluster, or places the pods of a cluster that is lost.
    Exits with 2 if fewer pods fit than are asked for, or not even one.

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

    logs.configure("error")
    if pod is None and not without and save is None:
        raise TensileError("simulate: name a file with a pod with -f, or a lost lower cluster with --without")
    case = commands.case_of(replicas, without or (), add_nodes or ())
    name, data = ("", b"") if pod is None else pod_in(pod, topology_file)
    wanted = [] if pod is None else podfile.templates(data, name)
    topology, directory = topology_of(topology_file, "--topology")
    with waiting(READING):
        picture = commands.pictured(topology, ClusterAccess(directory, allow_exec_plugins), snapshot)
    if save is not None:
        save.write_bytes(picture.to_bytes())
    text, is_enough = commands.simulate(picture, wanted, case, output)
    typer.echo(text)
    raise typer.Exit(0 if is_enough else 2)


@add(INSPECT, "status")
def show_status(
    output: TextWideOrJson = "text",
    *,
    source: FileSource,
    logs: LogOptions,
    watch: Annotated[
        bool, typer.Option("-w", "--watch", help="Continue to show the state as it changes, until Ctrl-C.")
    ] = False,
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

    logs.configure("warn")
    found = source.in_configmap()
    if watch:
        status.watch(query.follow_map(*found) if found else query.follow_engine(followed(source.file)), output)
        return
    if found is None:
        name, data = read(source.file, of_engine=True)
        answer = query.read_engine_status(data, name)
    else:
        answer = query.read_configmap_status(*found)
    typer.echo(status.rendered(answer.document, output, colour=takes_colour(sys.stdout)))
    if answer.problem:
        raise TensileError(answer.problem)


@add(INSPECT)
def doctor(
    output: TextOrJson = "text",
    *,
    source: FileSource,
    logs: LogOptions,
    every: Annotated[bool, typer.Option("--all", help="Show every check, also those that are ok.")] = False,
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

    logs.configure("error")
    found = source.in_configmap()
    with waiting("checking the clusters, 12 s at most"):
        if found is None:
            topology, directory = topology_of(source.file)
            access = ClusterAccess(directory, source.allow_exec_plugins)
            text, is_healthy = commands.examine(topology, access, output, colour=takes_colour(sys.stdout), every=every)
        else:
            text, is_healthy = commands.examine_map(*found, output, colour=takes_colour(sys.stdout), every=every)
    typer.echo(text)
    raise typer.Exit(0 if is_healthy else 1)


@add(INSPECT, "list")
def list_objects(
    lowers: Annotated[
        list[str] | None, typer.Argument(metavar="[LOWER]...", help="Only these lower clusters.", show_default=False)
    ] = None,
    output: TextOrJson = "text",
    *,
    source: FileSource,
    logs: LogOptions,
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

    logs.configure("error")
    given = source.topology()
    found = inventory.inventory(given.topology, given.access, lowers or ())
    typer.echo(inventory.as_json(found) if output == "json" else inventory.as_text(found))
    if found.unread:
        raise TensileError("\n".join(f"not listed: {reason}" for reason in found.unread))


@add(INSPECT)
def bundle(
    file: FileOption = None,
    archive: Annotated[
        Path | None,
        typer.Option(
            "-o", "--output", metavar="FILE", help="The archive to create. Default: tensile-bundle-TIME.tar.gz."
        ),
    ] = None,
    *,
    logs: LogOptions,
    allow_exec_plugins: ExecPlugins = False,
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

    logs.configure("error")
    name, data = read(file)
    target = archive or Path(f"tensile-bundle-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}.tar.gz")
    parts = bundling.collect(name, data, directory_of(name), allow_exec_plugins=allow_exec_plugins)
    bundling.write(parts, target)
    for line in parts[bundling.ERRORS].decode().splitlines():
        typer.echo(harmless(f"not collected: {line}"), err=True)
    typer.echo(f"{target}: {len(parts)} files; look through them before you share it")
