"""Objects of strangers that have a name which the engine needs: of every kind, in every form, at every moment.

A situation is a form (what the stranger's object looks like) and a moment (what happens around it). A kind that is
added to `SUBJECTS` meets all of them.
"""

from collections.abc import Callable, Mapping
from itertools import product
from typing import NamedTuple

from bench.sites import Manifest
from tensile.names import LEGACY, OWNER, OWNER_NAME, UPPER_UID, VIRTUAL_POD, Owner, owner_of

SPACE = "default"
A, B = "lower-a", "lower-b"
OTHER_UID = "00000000-0000-4000-8000-000000000000"
OTHER_UPPER = "11111111-0000-4000-8000-000000000000"
FORMS = ("plain", "forged", "copied", "rival", "legacy")
"""Without any mark; with ours and a UID that nobody has; with all of ours, the UID too, by another hand; with those of
another upper's engine, by an engine's hand; with tensile-kube's."""
MOMENTS = ("stands", "edited", "given-up", "asked-anew", "took-place")
"""Just there; edited by its owner; the object above is deleted; deleted and made anew; ours was there before, and was
removed by hand while the engine was down."""


class Place(NamedTuple):
    """Where an object is: its cluster, the path of its collection, and its name."""

    cluster: str
    collection: str
    name: str

    @property
    def path(self) -> str:
        """The object's path."""
        return f"{self.collection}/{self.name}"


class Made(NamedTuple):
    """An object that is made above."""

    collection: str
    body: Manifest

    @property
    def path(self) -> str:
        """The object's path."""
        return f"{self.collection}/{self.body['metadata']['name']}"


class Subject(NamedTuple):
    """One kind: where a stranger of a name stands, with what content, and what is made above so that it is needed.

    The first object above is the one that ours would be made for, the last one the pod that waits. `lower` is where
    that pod is bound. A subject without objects above is a Node: its lower comes into the topology.
    """

    stranger: Callable[[str], Place]
    content: Manifest
    above: Callable[[str], tuple[Made, ...]]
    lower: str = A


class Case(NamedTuple):
    """One canary."""

    kind: str
    form: str
    moment: str

    @property
    def name(self) -> str:
        """Its name, and that of what is made for it."""
        return f"{self.kind}-{self.form}-{self.moment}".lower()

    @property
    def place(self) -> Place:
        """Where it stands."""
        return SUBJECTS[self.kind].stranger(self.name)


def cases(kinds: tuple[str, ...], forms: tuple[str, ...] = FORMS) -> list[Case]:
    """Give every case of some kinds."""
    return [Case(*one) for one in product(kinds, forms, MOMENTS)]


def marks(form: str, ours: Owner, upper_uid: str) -> Manifest:
    """Give labels and annotations of a form; `upper_uid` is that of the object above, "" where there is none."""
    rival = owner_of(OTHER_UPPER, ours.name)
    label, name = {OWNER: ours.mark, VIRTUAL_POD: "true"}, {OWNER_NAME: ours.name}
    found: Mapping[str, Manifest] = {
        "plain": {},
        "forged": {"labels": label, "annotations": name},
        "copied": {"labels": label, "annotations": name | {UPPER_UID: upper_uid or ours.upper}},
        "rival": {
            "labels": {OWNER: rival.mark, VIRTUAL_POD: "true"},
            "annotations": {OWNER_NAME: rival.name, UPPER_UID: OTHER_UID},
        },
        "legacy": {"labels": {VIRTUAL_POD: "true"}, "annotations": {LEGACY: "true"}},
    }
    return found[form]


def _collection(plural: str, space: str = SPACE) -> str:
    return f"/api/v1/namespaces/{space}/{plural}"


def _pod(name: str, lower: str = A, space: str = SPACE, **spec: object) -> Made:
    body = {"nodeName": lower, "containers": [{"name": "main", "image": "none"}], **spec}
    return Made(_collection("pods", space), {"metadata": {"name": name}, "spec": body})


def _in_space(plural: str) -> Callable[[str], Place]:
    return lambda name: Place(A, _collection(plural), name)


def _config_map(name: str) -> tuple[Made, ...]:
    made = Made(_collection("configmaps"), {"metadata": {"name": name}, "data": {"key": "ours"}})
    return (made, _pod(name, volumes=[{"name": "c", "configMap": {"name": name}}]))


def _secret(name: str) -> tuple[Made, ...]:
    made = Made(_collection("secrets"), {"metadata": {"name": name}, "data": {"key": "b3Vycw=="}})
    return (made, _pod(name, volumes=[{"name": "s", "secret": {"secretName": name}}]))


def _space(name: str) -> tuple[Made, ...]:
    return (Made("/api/v1/namespaces", {"metadata": {"name": name}}), _pod(name, B, name))


SUBJECTS: dict[str, Subject] = {
    "Pod": Subject(
        _in_space("pods"),
        {
            "spec": {
                "containers": [{"name": "main", "image": "theirs"}],
                "schedulingGates": [{"name": "example.com/never"}],
            }
        },
        lambda name: (_pod(name),),
    ),
    "ConfigMap": Subject(_in_space("configmaps"), {"data": {"key": "theirs"}}, _config_map),
    "Secret": Subject(_in_space("secrets"), {"data": {"key": "dGhlaXJz"}}, _secret),
    "Namespace": Subject(lambda name: Place(B, "/api/v1/namespaces", f"sandbox-{name}"), {}, _space, B),
    "Node": Subject(lambda name: Place("upper", "/api/v1/nodes", name), {}, lambda _name: ()),
}
"""The kinds. lower-b calls namespaces by a prefix, so that one of that name is a conflict there."""
