"""Tests that a namespace is checked for content before it is deleted, because its deletion removes everything in it."""

from typing import Any

import orjson
import pytest
from worldkit import NOW, A, config_map, make_namespace, make_object, make_service_account

from tensile.errors import Denied, NotFound, Unreachable
from tensile.kube.cluster import Listing, Read, Selection
from tensile.objects import (
    CONFIG_MAP,
    ENDPOINT_SLICE,
    EVENT,
    NAMESPACE,
    POD,
    SECRET,
    SERVICE,
    SERVICE_ACCOUNT,
    Kind,
    Manifest,
    Ref,
)
from tensile.reconcile.apply import carry_out, check_empty, first_foreign_object, name_of
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.plan import Step

TEAM = Ref(A, NAMESPACE, "", "team")
WIDGET = Kind("example.com/v1", "Widget", "widgets", namespaced=True)
METRICS = Kind("metrics.k8s.io/v1beta1", "PodMetrics", "pods", namespaced=True)
NEWS = Kind("events.k8s.io/v1", "Event", "events", namespaced=True)
ROOT = config_map("kube-root-ca.crt", namespace="team")


class ClusterWithKinds(DryRunCluster):
    """A cluster with additional kinds that denies the listing of some.

    `listed_kinds` are the names of the kinds that were listed, in order.
    """

    def __init__(self, *more: Kind, refuses: dict[str, Exception] | None = None) -> None:
        super().__init__(A, now=lambda: NOW)
        self.more = more
        self.refuses = refuses or {}
        self.listed_kinds: list[str] = []
        self.place(NAMESPACE, make_namespace("team", uid="team"))
        self.place(CONFIG_MAP, ROOT)

    async def kinds(self) -> tuple[Kind, ...]:
        """Return the usual kinds and the additional ones."""
        return (CONFIG_MAP, EVENT, POD, SECRET, SERVICE_ACCOUNT, SERVICE, ENDPOINT_SLICE, *self.more)

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """List objects, or raise the error of the kind."""
        assert selection == Selection("team")
        self.listed_kinds.append(kind.name)
        if kind.name in self.refuses:
            raise self.refuses[kind.name]
        return await super().list(kind, selection, read)


async def objection(cluster: ClusterWithKinds) -> str:
    """Return the reason why the namespace must not be deleted, "" if it may be."""
    try:
        await check_empty(cluster, TEAM)
    except Denied as error:
        found = error
    else:
        return ""
    assert (found.reason, found.cluster) == ("NamespaceNotEmpty", A)
    return found.message


async def test_objects_that_kubernetes_creates_in_each_namespace_do_not_count() -> None:
    """The default ServiceAccount and the ConfigMap with the root certificate do not keep the namespace."""
    cluster = ClusterWithKinds()
    cluster.place(SERVICE_ACCOUNT, make_service_account("team"))
    assert await objection(cluster) == ""
    assert set(cluster.listed_kinds) == {"Pod", "ConfigMap", "Secret", "ServiceAccount", "Service", "EndpointSlice"}


@pytest.mark.parametrize(
    ("kind", "manifest"),
    [
        (POD, make_object("Pod", "web", "team")),
        (CONFIG_MAP, config_map(namespace="team")),
        (SERVICE_ACCOUNT, make_service_account("team", "robot")),
        (SERVICE, make_object("Service", "web", "team")),
        (WIDGET, make_object("Widget", "web", "team")),
    ],
    ids=lambda one: one.name if isinstance(one, Kind) else "",
)
async def test_any_other_object_prevents_the_deletion_of_the_namespace(kind: Kind, manifest: Manifest) -> None:
    """Objects of every kind count, including those of custom resources, and the message names the object."""
    cluster = ClusterWithKinds(WIDGET)
    cluster.place(kind, manifest)
    name = manifest["metadata"]["name"]
    assert await objection(cluster) == (
        f"Namespace team in lower-a is not needed any more, but it contains {kind.name} {name}: it is not deleted"
    )


async def test_objects_in_another_namespace_do_not_count() -> None:
    """Each namespace is checked separately."""
    cluster = ClusterWithKinds()
    cluster.place(NAMESPACE, make_namespace("other"))
    cluster.place(CONFIG_MAP, config_map(namespace="other"))
    assert await objection(cluster) == ""


async def test_events_and_metrics_do_not_count() -> None:
    """They only describe other objects, and are not listed."""
    cluster = ClusterWithKinds(METRICS, NEWS)
    cluster.place(EVENT, make_object("Event", "web.1", "team"))
    assert await objection(cluster) == ""
    assert "PodMetrics" not in cluster.listed_kinds
    assert "Event" not in cluster.listed_kinds


async def test_a_kind_that_must_not_be_listed_counts_as_present() -> None:
    """If the engine may not list a kind, it cannot be sure that the namespace is empty."""
    cluster = ClusterWithKinds(refuses={"Service": Denied("services is forbidden", status=403, reason="Forbidden")})
    assert "the engine cannot list its services: services is forbidden" in await objection(cluster)


@pytest.mark.parametrize("error", [Unreachable("gone"), NotFound("no such kind", status=404)])
async def test_an_error_of_a_list_that_is_not_a_denial_is_raised(error: Any) -> None:
    """The namespace is checked again later."""
    with pytest.raises(type(error)):
        await check_empty(ClusterWithKinds(refuses={"Secret": error}), TEAM)


class Retiring(ClusterWithKinds):
    """A cluster that stops serving a kind during the check of a namespace. `left` are its kinds afterwards."""

    def __init__(self, left: tuple[Kind, ...]) -> None:
        super().__init__(WIDGET, refuses={WIDGET.name: NotFound("404 page not found", status=404)})
        self.left = left

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """List objects, and replace the additional kinds from now on."""
        self.more = self.left
        return await super().list(kind, selection, read)


async def test_a_kind_that_is_removed_during_the_check_has_no_objects() -> None:
    """The namespace may be deleted.

    A kind that the cluster still serves, in any version, has to be listed.
    """
    assert await objection(Retiring(())) == ""
    for left in (WIDGET, WIDGET._replace(api="example.com/v2")):
        with pytest.raises(NotFound):
            await check_empty(Retiring((left,)), TEAM)


async def test_the_most_common_kinds_are_listed_first() -> None:
    """Pods, ConfigMaps and Secrets come first, so the check of a used namespace needs one request."""
    cluster = ClusterWithKinds()
    cluster.place(POD, make_object("Pod", "web", "team"))
    await objection(cluster)
    assert cluster.listed_kinds == ["Pod"]


def test_the_first_object_that_kubernetes_did_not_create_is_named() -> None:
    """The name kube-root-ca.crt only counts for kinds other than ConfigMap."""
    names = [name_of(orjson.dumps(one)) for one in (ROOT, config_map("one"), config_map("two"))]
    assert first_foreign_object(CONFIG_MAP, names) == "one"
    assert first_foreign_object(CONFIG_MAP, names[:1]) == ""
    assert first_foreign_object(SECRET, names[:1]) == "kube-root-ca.crt"


async def test_a_namespace_with_objects_is_not_deleted() -> None:
    """No delete is sent until the namespace is empty."""
    cluster = ClusterWithKinds()
    cluster.place(SECRET, make_object("Secret", "theirs", "team"))
    space_now = cluster.find(NAMESPACE, "", "team")
    assert space_now is not None
    step = Step("delete", TEAM, "unused", uid=space_now["metadata"]["uid"], only_if_empty=True)
    with pytest.raises(Denied):
        await carry_out(step, cluster, None)
    assert cluster.find(NAMESPACE, "", "team") == space_now
    cluster.vanish(Ref(A, SECRET, "team", "theirs"))
    await carry_out(step, cluster, None)
    ending = cluster.find(NAMESPACE, "", "team")
    assert ending is not None
    assert "deletionTimestamp" in ending["metadata"]
