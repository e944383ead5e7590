"""Tests that a namespace is checked for content before it is deleted, because its deletion removes everything in it."""

from typing import Any

import orjson
import pytest
from worldkit import NOW, A, account, config_map, space, thing

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


class Site(DryRunCluster):
    """A cluster with additional kinds that denies the listing of some.

    `asked` are the names of the kinds that were listed, in order.
    """

    def __init__(self, *more: Kind, refuses: dict[str, Exception] | None = None) -> None:
        super().__init__(A, now=lambda: NOW)
        self.more = more
        self.refuses = refuses or {}
        self.asked: list[str] = []
        self.place(NAMESPACE, space("team", uid="team"))
        self.place(CONFIG_MAP, ROOT)

    async def kinds(self) -> tuple[Kind, ...]:
        """Return the usual kinds and the additional ones."""
        return (CONFIG_MAP, EVENT, POD, SECRET, SERVICE_ACCOUNT, SERVICE, ENDPOINT_SLICE, *self.more)

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """List objects, or raise the error of the kind."""
        assert selection == Selection("team")
        self.asked.append(kind.name)
        if kind.name in self.refuses:
            raise self.refuses[kind.name]
        return await super().list(kind, selection, read)


async def objection(site: Site) -> str:
    """Return the reason why the namespace must not be deleted, "" if it may be."""
    try:
        await check_empty(site, TEAM)
    except Denied as error:
        found = error
    else:
        return ""
    assert (found.reason, found.cluster) == ("NamespaceNotEmpty", A)
    return found.message


async def test_objects_that_kubernetes_creates_in_each_namespace_do_not_count() -> None:
    """The default ServiceAccount and the ConfigMap with the root certificate do not keep the namespace."""
    site = Site()
    site.place(SERVICE_ACCOUNT, account("team"))
    assert await objection(site) == ""
    assert set(site.asked) == {"Pod", "ConfigMap", "Secret", "ServiceAccount", "Service", "EndpointSlice"}


@pytest.mark.parametrize(
    ("kind", "manifest"),
    [
        (POD, thing("Pod", "web", "team")),
        (CONFIG_MAP, config_map(namespace="team")),
        (SERVICE_ACCOUNT, account("team", "robot")),
        (SERVICE, thing("Service", "web", "team")),
        (WIDGET, thing("Widget", "web", "team")),
    ],
    ids=lambda one: one.name if isinstance(one, Kind) else "",
)
async def test_any_other_object_prevents_the_deletion_of_the_namespace(kind: Kind, manifest: Manifest) -> None:
    """Objects of every kind count, including those of custom resources, and the message names the object."""
    site = Site(WIDGET)
    site.place(kind, manifest)
    name = manifest["metadata"]["name"]
    assert await objection(site) == (
        f"Namespace team in lower-a is not needed any more, but it contains {kind.name} {name}: it is not deleted"
    )


async def test_objects_in_another_namespace_do_not_count() -> None:
    """Each namespace is checked separately."""
    site = Site()
    site.place(NAMESPACE, space("other"))
    site.place(CONFIG_MAP, config_map(namespace="other"))
    assert await objection(site) == ""


async def test_events_and_metrics_do_not_count() -> None:
    """They only describe other objects, and are not listed."""
    site = Site(METRICS, NEWS)
    site.place(EVENT, thing("Event", "web.1", "team"))
    assert await objection(site) == ""
    assert "PodMetrics" not in site.asked
    assert "Event" not in site.asked


async def test_a_kind_that_must_not_be_listed_counts_as_present() -> None:
    """If the engine may not list a kind, it cannot be sure that the namespace is empty."""
    site = Site(refuses={"Service": Denied("services is forbidden", status=403, reason="Forbidden")})
    assert "the engine cannot list its services: services is forbidden" in await objection(site)


@pytest.mark.parametrize("error", [Unreachable("gone"), NotFound("no such kind", status=404)])
async def test_an_error_of_a_list_that_is_not_a_denial_is_raised(error: Any) -> None:
    """The namespace is checked again later."""
    with pytest.raises(type(error)):
        await check_empty(Site(refuses={"Secret": error}), TEAM)


class Retiring(Site):
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
    site = Site()
    site.place(POD, thing("Pod", "web", "team"))
    await objection(site)
    assert site.asked == ["Pod"]


def test_the_first_object_that_kubernetes_did_not_create_is_named() -> None:
    """The name kube-root-ca.crt only counts for kinds other than ConfigMap."""
    names = [name_of(orjson.dumps(one)) for one in (ROOT, config_map("one"), config_map("two"))]
    assert first_foreign_object(CONFIG_MAP, names) == "one"
    assert first_foreign_object(CONFIG_MAP, names[:1]) == ""
    assert first_foreign_object(SECRET, names[:1]) == "kube-root-ca.crt"


async def test_a_namespace_with_objects_is_not_deleted() -> None:
    """No delete is sent until the namespace is empty."""
    site = Site()
    site.place(SECRET, thing("Secret", "theirs", "team"))
    space_now = site.find(NAMESPACE, "", "team")
    assert space_now is not None
    step = Step("delete", TEAM, "unused", uid=space_now["metadata"]["uid"], only_if_empty=True)
    with pytest.raises(Denied):
        await carry_out(step, site, None)
    assert site.find(NAMESPACE, "", "team") == space_now
    site.vanish(Ref(A, SECRET, "team", "theirs"))
    await carry_out(step, site, None)
    ending = site.find(NAMESPACE, "", "team")
    assert ending is not None
    assert "deletionTimestamp" in ending["metadata"]
