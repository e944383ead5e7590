"""The kinds whose changes a saved plan contains, and the ways in which a plan for one of them is made stale.

Each case has its own object, the subject, and a pod that needs it. All subjects are prepared together: those of the
first group are not yet mirrored, those of the second have changed in the upper cluster since they were mirrored, those
of the third are no longer needed, and the copies of the fourth are up to date. A case then changes one thing.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from bench.conformance.stale.setup import LOWERS, PlanClusters
from bench.kit.sites import Manifest
from tensile.sandbox.state import UPPER

ACTION, STATE, IDENTITY, CONTENT = "action", "state", "identity", "content"
WORDS: Mapping[str, str] = {
    ACTION: r"from (create|update|delete|replace|nothing) to (create|update|delete|replace|nothing)",
    STATE: r"changed, from resourceVersion \d+ to \d+",
    IDENTITY: r"from UID [-0-9a-f]{36} to UID [-0-9a-f]{36}",
    CONTENT: r"its new content has changed",
}
"""The message of `apply` on an object, for each reason for which a plan is stale."""
CREATE, UPDATE, DELETE, KEEP = GROUPS = ("create", "update", "delete", "keep")
EXTRA = {"metadata": {"labels": {"added": "later"}}}
NOTED = {"metadata": {"annotations": {"added": "later"}}}
ROBOT = "robot"


@dataclass(frozen=True, eq=False)
class KindOfObject:
    """A kind: its name and collection, three bodies that differ, another client's edit of a copy, and its users.

    `user` returns the part of a pod's spec that refers to an object by its name. It is empty for an object that all
    pods of the namespace need.
    """

    kind: str
    collection: str
    body: Manifest
    second: Manifest
    third: Manifest
    edited: Manifest
    user: Callable[[str], dict[str, Any]] = field(default=lambda _name: {})
    has_user: bool = False


def _environment(kind: str) -> Callable[[str], dict[str, Any]]:
    return lambda name: {"container": {"envFrom": [{kind: {"name": name}}]}}


def _port(number: int) -> Manifest:
    return {"spec": {"ports": [{"port": number, "protocol": "TCP", "targetPort": 80}]}}


def _rules(verb: str) -> Manifest:
    return {"rules": [{"apiGroups": [""], "resources": ["configmaps"], "verbs": [verb]}]}


def _endpoints(address: str) -> Manifest:
    return {"endpoints": [{"addresses": [address], "conditions": {"ready": True}}]}


def _noted(word: str) -> Manifest:
    return {"metadata": {"annotations": {"version": word}}}


_SLICE = {
    "metadata": {"labels": {"kubernetes.io/service-name": "front"}},
    "addressType": "IPv4",
    "ports": [{"port": 80}],
}
_CONTAINER = {"name": "main", "image": "app:1"}
KINDS: tuple[KindOfObject, ...] = (
    KindOfObject(
        "ConfigMap",
        "/api/v1/namespaces/{}/configmaps",
        {"data": {"level": "1"}},
        {"data": {"level": "2"}},
        {"data": {"level": "3"}},
        {"data": {"level": "theirs"}},
        _environment("configMapRef"),
        has_user=True,
    ),
    KindOfObject(
        "Secret",
        "/api/v1/namespaces/{}/secrets",
        {"data": {"key": "MQ=="}},
        {"data": {"key": "Mg=="}},
        {"data": {"key": "Mw=="}},
        {"data": {"key": "dGhlaXJz"}},
        _environment("secretRef"),
        has_user=True,
    ),
    KindOfObject(
        "ServiceAccount",
        "/api/v1/namespaces/{}/serviceaccounts",
        _noted("1"),
        _noted("2"),
        _noted("3"),
        {"metadata": {"annotations": {"version": "theirs"}}},
        lambda name: {"serviceAccountName": name},
        has_user=True,
    ),
    KindOfObject("Service", "/api/v1/namespaces/{}/services", _port(81), _port(82), _port(83), _port(84)),
    KindOfObject(
        "EndpointSlice",
        "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices",
        {**_SLICE, **_endpoints("10.200.0.1")},
        _endpoints("10.200.0.2"),
        _endpoints("10.200.0.3"),
        _endpoints("10.200.0.4"),
    ),
    KindOfObject(
        "Role",
        "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
        _rules("get"),
        _rules("list"),
        _rules("watch"),
        _rules("delete"),
        lambda _name: {"serviceAccountName": ROBOT},
    ),
    KindOfObject(
        "Pod",
        "/api/v1/namespaces/{}/pods",
        _noted("1"),
        _noted("2"),
        _noted("3"),
        _noted("theirs"),
    ),
)


class Subject(NamedTuple):
    """The object of one case: its kind, its group, its name, and the lower that its copy is in."""

    sort: KindOfObject
    group: str
    name: str
    lower: str

    @property
    def namespace(self) -> str:
        """The namespace of its kind and group."""
        return f"{self.sort.kind.lower()}-{self.group}"

    @property
    def path(self) -> str:
        """The path of the object and of its copy."""
        return f"{self.sort.collection.format(self.namespace)}/{self.name}"

    @property
    def user(self) -> str:
        """The path of the pod that needs the object."""
        return f"/api/v1/namespaces/{self.namespace}/pods/{self.user_name}"

    @property
    def user_name(self) -> str:
        """The name of the pod that needs the object, or of the pod for which the whole namespace is copied."""
        if self.sort.kind == "Pod":
            return self.name
        return f"u-{self.name}" if self.sort.has_user else f"anchor-{self.lower}"


Way = Callable[[PlanClusters, Subject], Awaitable[None]]


class Change(NamedTuple):
    """A way to make a plan stale, and the reasons of which the message on the subject has to contain one."""

    way: Way
    reasons: tuple[str, ...]
    is_for: Callable[[KindOfObject], bool] = lambda _sort: True


async def content(clusters: PlanClusters, subject: Subject) -> None:
    """Change the upper object again."""
    await clusters.patch(UPPER, subject.path, subject.sort.third)


async def label(clusters: PlanClusters, subject: Subject) -> None:
    """Label the upper object."""
    await clusters.patch(UPPER, subject.path, EXTRA)


async def annotation(clusters: PlanClusters, subject: Subject) -> None:
    """Annotate the upper object."""
    await clusters.patch(UPPER, subject.path, NOTED)


async def back(clusters: PlanClusters, subject: Subject) -> None:
    """Undo the change of the upper object."""
    await clusters.patch(UPPER, subject.path, subject.sort.body)


async def deleted(clusters: PlanClusters, subject: Subject) -> None:
    """Delete the upper object."""
    await clusters.delete(UPPER, subject.path)


async def recreated(clusters: PlanClusters, subject: Subject) -> None:
    """Delete the upper object, and create it again as it was."""
    await clusters.recreate(UPPER, subject.path)


async def taken(clusters: PlanClusters, subject: Subject) -> None:
    """Create a lower object of that name as another client."""
    body = {**subject.sort.body, **({"spec": {"containers": [_CONTAINER]}} if subject.sort.kind == "Pod" else {})}
    await clusters.below(subject.lower, subject.namespace)
    await clusters.create(subject.lower, subject.sort.collection.format(subject.namespace), subject.name, body)


async def unneeded(clusters: PlanClusters, subject: Subject) -> None:
    """Delete the pod that needs the object."""
    await clusters.delete(UPPER, subject.user)


async def copy_label(clusters: PlanClusters, subject: Subject) -> None:
    """Label the copy."""
    await clusters.patch(subject.lower, subject.path, EXTRA)


async def copy_annotation(clusters: PlanClusters, subject: Subject) -> None:
    """Annotate the copy."""
    await clusters.patch(subject.lower, subject.path, NOTED)


async def copy_content(clusters: PlanClusters, subject: Subject) -> None:
    """Change the content of the copy."""
    await clusters.patch(subject.lower, subject.path, subject.sort.edited)


async def copy_gone(clusters: PlanClusters, subject: Subject) -> None:
    """Delete the copy."""
    await clusters.delete(subject.lower, subject.path)


async def copy_recreated(clusters: PlanClusters, subject: Subject) -> None:
    """Delete the copy, and create it again with the same marks and content."""
    await clusters.recreate(subject.lower, subject.path)


async def copy_taken(clusters: PlanClusters, subject: Subject) -> None:
    """Delete the copy, and create an object of that name without this topology's marks."""
    await clusters.recreate(subject.lower, subject.path, marked=False)


async def unmarked(clusters: PlanClusters, subject: Subject) -> None:
    """Remove the owner label from the copy."""
    await clusters.unmark(subject.lower, subject.path)


async def needed_again(clusters: PlanClusters, subject: Subject) -> None:
    """Bind another pod that needs the object."""
    name = f"again-{subject.name}"
    await clusters.run_in(subject.namespace, name, subject.lower, **subject.sort.user(subject.name))


def _has_labels(sort: KindOfObject) -> bool:
    """Report whether labels of the original are copied."""
    return sort.kind != "EndpointSlice"


def _has_annotations(sort: KindOfObject) -> bool:
    """Report whether annotations of the original are copied."""
    return sort.kind not in ("Service", "EndpointSlice")


def _is_shown(sort: KindOfObject) -> bool:
    """Report whether a plan shows updates of a kind: those of endpoints follow pods by themselves."""
    return sort.kind != "EndpointSlice"


def _has_user(sort: KindOfObject) -> bool:
    return sort.has_user


def _is_pod(sort: KindOfObject) -> bool:
    return sort.kind == "Pod"


def _is_no_pod(sort: KindOfObject) -> bool:
    return sort.kind != "Pod"


ANY = (ACTION, STATE, IDENTITY, CONTENT)
CHANGES: Mapping[str, Mapping[str, Change]] = {
    CREATE: {
        "content": Change(content, (CONTENT,)),
        "label": Change(label, (CONTENT,), _has_labels),
        "annotation": Change(annotation, (CONTENT,), _has_annotations),
        "deleted": Change(deleted, (ACTION,)),
        "recreated": Change(recreated, (CONTENT,)),
        "taken": Change(taken, (ACTION,)),
        "unneeded": Change(unneeded, (ACTION,), _has_user),
    },
    UPDATE: {
        "content": Change(content, (CONTENT,), _is_shown),
        "label": Change(label, (CONTENT,), _is_shown),
        "annotation": Change(annotation, (CONTENT,), _has_annotations),
        "back": Change(back, (ACTION,), _is_shown),
        "deleted": Change(deleted, (ACTION,), _is_shown),
        "recreated": Change(recreated, (CONTENT, ACTION), _is_shown),
        "copy-label": Change(copy_label, (STATE,), _is_shown),
        "copy-annotation": Change(copy_annotation, (STATE,), _is_shown),
        "copy-content": Change(copy_content, (STATE,), _is_shown),
        "copy-gone": Change(copy_gone, (ACTION,), _is_shown),
        "copy-recreated": Change(copy_recreated, (IDENTITY,), _is_shown),
        "copy-taken": Change(copy_taken, (ACTION,), _is_shown),
        "unmarked": Change(unmarked, (ACTION,), _is_shown),
        "unneeded": Change(unneeded, (ACTION,), _has_user),
    },
    DELETE: {
        "copy-label": Change(copy_label, (STATE,)),
        "copy-annotation": Change(copy_annotation, (STATE,)),
        "copy-content": Change(copy_content, (STATE,)),
        "copy-gone": Change(copy_gone, (ACTION,)),
        "copy-recreated": Change(copy_recreated, (IDENTITY,)),
        "unmarked": Change(unmarked, (ACTION,)),
        "needed-again": Change(needed_again, (ACTION,), _is_no_pod),
    },
    KEEP: {
        "content": Change(content, (ACTION,), _is_shown),
        "label": Change(label, (ACTION,), _is_shown),
        "copy-content": Change(copy_content, (ACTION,), _is_shown),
        "copy-gone": Change(copy_gone, (ACTION,), _is_no_pod),
        "unneeded": Change(unneeded, (ACTION,), _has_user),
        "deleted": Change(deleted, (ACTION,), _is_pod),
    },
}
"""The changes by group and name."""


def subjects() -> list[tuple[Subject, Change]]:
    """Return every case of a mirrored kind; the lowers alternate."""
    found: list[tuple[Subject, Change]] = []
    for group, changes in CHANGES.items():
        for sort in KINDS:
            for way, change in changes.items():
                if change.is_for(sort):
                    found.append((Subject(sort, group, way, LOWERS[len(found) % len(LOWERS)]), change))
    return found


async def prepare(clusters: PlanClusters, cases: list[Subject]) -> None:
    """Bring all clusters to the state in which the cases begin."""
    for namespace in dict.fromkeys(one.namespace for one in cases):
        await clusters.namespace(namespace)
    for group in GROUPS:
        if group == CREATE:
            continue
        await _make(clusters, [one for one in cases if one.group == group])
    await clusters.converge()
    for one in cases:
        if one.group == UPDATE:
            await clusters.patch(UPPER, one.path, one.sort.second)
        elif one.group == DELETE:
            await clusters.delete(UPPER, one.user)
            if one.sort.kind != "Pod":  # what a lower pod still uses is not deleted in the plan that deletes that pod
                await clusters.delete(one.lower, one.user)
    await _make(clusters, [one for one in cases if one.group == CREATE])


async def _make(clusters: PlanClusters, cases: list[Subject]) -> None:
    """Create upper objects, with the pods that need them."""
    for sort, namespace in dict.fromkeys((one.sort, one.namespace) for one in cases):
        if sort.kind == "EndpointSlice":
            await clusters.create(UPPER, f"/api/v1/namespaces/{namespace}/services", "front", _port(80))
        if sort.kind == "Role":
            await clusters.create(UPPER, f"/api/v1/namespaces/{namespace}/serviceaccounts", ROBOT, {})
    done: set[str] = set()
    for one in cases:
        if one.sort.kind == "Pod":
            await clusters.run_in(one.namespace, one.name, one.lower)
            await clusters.patch(UPPER, one.path, one.sort.body)
            continue
        await clusters.create(UPPER, one.sort.collection.format(one.namespace), one.name, one.sort.body)
        if one.sort.kind == "Role":
            await _bind(clusters, one)
        if one.user not in done:
            done.add(one.user)
            await clusters.run_in(one.namespace, one.user_name, one.lower, **one.sort.user(one.name))


async def _bind(clusters: PlanClusters, role: Subject) -> None:
    """Bind a Role to the ServiceAccount of the namespace's pods."""
    body = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": role.name},
        "subjects": [{"kind": "ServiceAccount", "name": ROBOT, "namespace": role.namespace}],
    }
    collection = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{role.namespace}/rolebindings"
    await clusters.create(UPPER, collection, role.name, body)
