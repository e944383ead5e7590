"""The line of the topology file that causes a change, where that is certain.

A plan compares the file with the clusters, and does not know the previous file. So a line is named only if the change
follows from the text there, whatever was edited: a field of the Node that the file gives, the maintenance that cordons
or drains, the entry of a lower cluster that is new. Other changes, such as those that follow from pods, from capacity,
or from what is not in the file any more, have no line.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace

from tensile.objects import NODE, POD, UPPER
from tensile.reconcile.report.changes import Change, Preview
from tensile.reconcile.report.values import Difference
from tensile.topology import Lower, Topology
from tensile.yaml_document import Path, YAMLNode, compose, find, locate

Lines = Callable[[Preview], Preview]
"""Adds the lines of a file to the changes that they cause."""


def lines_of(name: str, text: str, topology: Topology) -> Lines:
    """Return what adds the lines of a topology file, by its name for people, to a preview.

    `topology` is the one that the text was parsed to.
    """
    root = compose(text).root

    def added(found: Preview) -> Preview:
        """Return the preview with lines."""
        if root is None:
            return found
        clusters = {
            name: tuple(replace(change, line=line_of(change, root, topology)) for change in changes)
            for name, changes in found.clusters.items()
        }
        return replace(found, clusters=clusters, file=name)

    return added


def line_of(change: Change, root: YAMLNode, topology: Topology) -> int:
    """Return the line that causes a change, counted from 1, 0 if it is not certain."""
    lines = (_line(path, root) for path in _paths(change, topology))
    return next((line for line in lines if line), 0)


def _line(path: Path, root: YAMLNode) -> int:
    """Return the line of a path, or of the same field in `lowerDefaults`, 0 if the file has neither."""
    inherited = ("lowerDefaults", *path[2:])
    for one in (path, inherited) if len(path) > 2 else (path,):  # noqa: PLR2004 - lowers and the index
        if find(root, one) is not None:
            return locate(root, one, key=True).line
    return 0


def _paths(change: Change, topology: Topology) -> Iterator[Path]:
    """Yield the paths whose values a change follows from."""
    if change.ref.cluster != UPPER:
        return
    if change.ref.kind == NODE:
        for place, spec in enumerate(topology.lowers):
            if spec.node.name == change.ref.name:
                yield from _of_node(change, ("lowers", place), spec)
    elif change.ref.kind == POD and change.action == "delete":
        for place, spec in enumerate(topology.lowers):
            if spec.maintenance == "drain" and change.reason == f"lower cluster {spec.name} is being drained":
                yield ("lowers", place, "maintenance")


def _of_node(change: Change, lower: Path, spec: Lower) -> Iterator[Path]:
    if change.action == "create":
        yield lower
    elif change.action == "update":
        for one in change.differences:
            yield from _of_field(one, lower, spec)


def _of_field(one: Difference, lower: Path, spec: Lower) -> Iterator[Path]:
    """Yield the field of the file that a field of the Node is given by."""
    if one.path[:2] == ("spec", "taints"):
        yield (*lower, "node", "taints")
    elif one.path == ("spec", "unschedulable") and one.new is True and spec.maintenance != "none":
        yield (*lower, "maintenance")
    elif len(one.path) == 3 and one.path[0] == "metadata":  # noqa: PLR2004 - metadata, section, key
        section, key = one.path[1:]
        given = {"labels": spec.node.labels, "annotations": spec.node.annotations}.get(section, {})
        if one.new is not None and given.get(key) == one.new:
            yield (*lower, "node", section, key)
