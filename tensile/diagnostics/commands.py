"""Runs `tensile explain` and `tensile simulate` and returns their output."""

from collections.abc import Sequence
from pathlib import Path

import orjson

from tensile.diagnostics.cluster_snapshot import FleetSnapshot, picture_of
from tensile.diagnostics.collect import looked, looked_around, looked_at
from tensile.diagnostics.explain import explained, explanation_text
from tensile.diagnostics.explain_objects import (
    UpperObject,
    explained_claim,
    explained_node,
    explained_service,
    object_text,
)
from tensile.diagnostics.podfile import Template
from tensile.diagnostics.simulate import Addition, Case, Document, simulated, simulation_text
from tensile.engine.clusters import own_namespace, utc_now
from tensile.engine.lower import ClusterAccess
from tensile.errors import TensileError
from tensile.objects import CLAIM, NODE, SERVICE, UPPER, Kind, Ref
from tensile.reconcile.ownership import is_ours
from tensile.topology import Topology


def explain(topology: Topology, ways: ClusterAccess, pod: str, namespace: str | None, output: str) -> str:
    """Return why a pod is in its current state, as "text" or "json".

    `pod` is its name, or NAMESPACE/NAME. Without a namespace it is in that of the upper kubeconfig's context, as for
    kubectl. Raises TensileError if the pod does not exist or the upper cluster is unreachable.
    """
    where, name = _place("pod", pod, namespace, topology, ways)
    document = explained(*looked_at(topology, ways, utc_now, where, name))
    return as_json(document) if output == "json" else explanation_text(document)


def explain_node(topology: Topology, ways: ClusterAccess, name: str, output: str) -> str:
    """Return the state of a virtual node, as "text" or "json". Raises TensileError for a Node of another owner."""
    known = {spec.node.name for spec in topology.lowers}
    picture, asked = looked_around(topology, ways, utc_now, Ref(UPPER, NODE, "", name))
    if name not in known and not is_ours(asked.manifest, picture.owner):
        what = "is not a virtual node of this topology" if asked.manifest else "does not exist"
        raise TensileError(f"explain node {name}: it {what}; there are: {', '.join(sorted(known)) or 'none'}")
    return _formatted(explained_node(name, asked, picture), output)


def explain_claim(topology: Topology, ways: ClusterAccess, claim: str, namespace: str | None, output: str) -> str:
    """Return why a PersistentVolumeClaim is in its current state; arguments and errors as in `explain`."""
    asked, picture = _found(CLAIM, claim, namespace, topology, ways)
    return _formatted(explained_claim(asked, picture), output)


def explain_service(topology: Topology, ways: ClusterAccess, service: str, namespace: str | None, output: str) -> str:
    """Return why pods can or cannot use a Service; arguments and errors as in `explain`."""
    asked, picture = _found(SERVICE, service, namespace, topology, ways)
    return _formatted(explained_service(asked, picture), output)


def _found(
    kind: Kind, given: str, namespace: str | None, topology: Topology, ways: ClusterAccess
) -> tuple[UpperObject, FleetSnapshot]:
    """Return an object of the upper cluster and what is around it. Raises TensileError if it does not exist."""
    word = "claim" if kind == CLAIM else "service"
    ref = Ref(UPPER, kind, *_place(word, given, namespace, topology, ways))
    picture, asked = looked_around(topology, ways, utc_now, ref)
    if not asked.manifest:
        raise TensileError(f"upper: there is no {word} {ref.namespace}/{ref.name}: check the name and the namespace")
    return asked, picture


def _formatted(document: Document, output: str) -> str:
    return as_json(document) if output == "json" else object_text(document)


def _place(word: str, given: str, namespace: str | None, topology: Topology, ways: ClusterAccess) -> tuple[str, str]:
    """Return the namespace and the name of an object that is given as NAME or NAMESPACE/NAME."""
    space, slash, name = given.rpartition("/")
    if not name or "/" in space or bool(slash) != bool(space):
        raise TensileError(f"explain {word} {given!r}: write NAME or NAMESPACE/NAME")
    if space and namespace not in (None, space):
        raise TensileError(
            f"explain {word} {given}: its namespace is {space}, and -n says {namespace}: omit one of them"
        )
    where = space or namespace or ways.upper_namespace(topology.upper) or own_namespace(ways.account) or "default"
    return where, name


def pictured(topology: Topology, ways: ClusterAccess, snapshot: Path | None) -> FleetSnapshot:
    """Return a snapshot of the clusters as they are now, or the one that was saved in a file."""
    if snapshot is None:
        return looked(topology, ways, utc_now)
    return picture_of(snapshot.read_bytes(), topology, utc_now(), str(snapshot))


def simulate(picture: FleetSnapshot, templates: Sequence[Template], case: Case, output: str) -> tuple[str, bool]:
    """Return a simulation as "text" or "json", and whether all pods fit: those requested and those of lost lowers.

    Templates take their room in turn. Several are sections of the text, or the `items` of one JSON object.
    """
    if case.replicas is not None and len(templates) > 1:
        raise TensileError(f"--replicas: the file has {len(templates)} pods or templates; give it one")
    found = [simulated(picture, one, case, templates[:place]) for place, one in enumerate(templates)]
    found = found or [simulated(picture, None, case)]
    whole = found[0] if len(found) == 1 else {"items": found}
    texts = (simulation_text(one, is_first=one is found[0]) for one in found)
    text = as_json(whole) if output == "json" else "\n\n".join(texts)
    return text, all(map(_fits, found))


def _fits(document: Document) -> bool:
    """Report whether a simulation finds room for all that it was asked for."""
    is_room = document["fits"] is None or document["fits"] >= (document["asked"] or 0)
    return is_room and all(one["lower"] for one in document["moved"])


def case_of(replicas: int | None, lost: Sequence[str], added: Sequence[str]) -> Case:
    """Return the case to simulate.

    `lost` are names of lowers, `added` nodes as LOWER=COUNT, or as LOWER/NODE=COUNT for nodes like NODE.
    """
    return Case(replicas, frozenset(lost), tuple(map(_addition, added)))


def as_json(document: object) -> str:
    """Return a document as indented JSON."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2).decode()


def _addition(text: str) -> Addition:
    where, _, count = text.partition("=")
    lower, _, like = where.partition("/")
    if not lower or not count.isdecimal() or not int(count):
        raise TensileError(f"--add-nodes {text!r}: write LOWER=COUNT, or LOWER/NODE=COUNT for nodes like NODE")
    return Addition(lower, int(count), like)
