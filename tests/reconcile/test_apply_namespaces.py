"""A namespace is looked into before it is deleted: everything in it would go with it."""

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
from tensile.reconcile.apply import carry_out, first_of_somebody, look_into, name_in
from tensile.reconcile.dryrun.cluster import DryRunCluster
from tensile.reconcile.plan import Step

TEAM = Ref(A, NAMESPACE, "", "team")
WIDGET = Kind("example.com/v1", "Widget", "widgets", namespaced=True)
METRICS = Kind("metrics.k8s.io/v1beta1", "PodMetrics", "pods", namespaced=True)
NEWS = Kind("events.k8s.io/v1", "Event", "events", namespaced=True)
ROOT = config_map("kube-root-ca.crt", namespace="team")


class Site(DryRunCluster):
    """A cluster that knows some kinds more, and refuses to list some; `asked` is what was listed, in order."""

    def __init__(self, *more: Kind, refuses: dict[str, Exception] | None = None) -> None:
        super().__init__(A, now=lambda: NOW)
        self.more = more
        self.refuses = refuses or {}
        self.asked: list[str] = []
        self.place(NAMESPACE, space("team", uid="team"))
        self.place(CONFIG_MAP, ROOT)

    async def kinds(self) -> tuple[Kind, ...]:
        """Return the usual kinds, and these."""
        return (CONFIG_MAP, EVENT, POD, SECRET, SERVICE_ACCOUNT, SERVICE, ENDPOINT_SLICE, *self.more)

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """List, or refuse."""
        assert selection == Selection("team")
        self.asked.append(kind.name)
        if kind.name in self.refuses:
            raise self.refuses[kind.name]
        return await super().list(kind, selection, read)


async def objection(site: Site) -> str:
    """Return why the namespace may not go, "" when it may."""
    try:
        await look_into(site, TEAM)
    except Denied as error:
        found = error
    else:
        return ""
    assert (found.reason, found.cluster) == ("NamespaceNotEmpty", A)
    return found.message


async def test_what_kubernetes_itself_puts_into_each_namespace_does_not_count() -> None:
    """Its account and its root certificate."""
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
async def test_anything_else_keeps_the_namespace(kind: Kind, manifest: Manifest) -> None:
    """Of whatever kind, also one that no release of Kubernetes knows; it is named."""
    site = Site(WIDGET)
    site.place(kind, manifest)
    name = manifest["metadata"]["name"]
    assert await objection(site) == (
        f"Namespace team in lower-a is not needed any more, but it contains {kind.name} {name}: it is not deleted"
    )


async def test_what_is_in_another_namespace_does_not_count() -> None:
    """Each is looked into by itself."""
    site = Site()
    site.place(NAMESPACE, space("other"))
    site.place(CONFIG_MAP, config_map(namespace="other"))
    assert await objection(site) == ""


async def test_events_and_measurements_do_not_count() -> None:
    """They tell of other objects, and are not asked for."""
    site = Site(METRICS, NEWS)
    site.place(EVENT, thing("Event", "web.1", "team"))
    assert await objection(site) == ""
    assert "PodMetrics" not in site.asked
    assert "Event" not in site.asked


async def test_what_may_not_be_listed_may_be_there() -> None:
    """Then nobody can be sure."""
    site = Site(refuses={"Service": Denied("services is forbidden", status=403, reason="Forbidden")})
    assert "the engine cannot list its services: services is forbidden" in await objection(site)


@pytest.mark.parametrize("error", [Unreachable("gone"), NotFound("no such kind", status=404)])
async def test_a_cluster_that_gives_no_answer_is_asked_again_later(error: Any) -> None:
    """Its error is told as it is."""
    with pytest.raises(type(error)):
        await look_into(Site(refuses={"Secret": error}), TEAM)


class Retiring(Site):
    """A cluster from which a kind is removed while a namespace is examined; `left` are its kinds from then on."""

    def __init__(self, left: tuple[Kind, ...]) -> None:
        super().__init__(WIDGET, refuses={WIDGET.name: NotFound("404 page not found", status=404)})
        self.left = left

    async def list(self, kind: Kind, selection: Selection, read: Read = bytes) -> Listing:
        """List, with other kinds from now on."""
        self.more = self.left
        return await super().list(kind, selection, read)


async def test_a_kind_that_is_removed_meanwhile_has_no_objects() -> None:
    """The namespace may go; a kind that the cluster still serves, in whatever version, has to be listed."""
    assert await objection(Retiring(())) == ""
    for left in (WIDGET, WIDGET._replace(api="example.com/v2")):
        with pytest.raises(NotFound):
            await look_into(Retiring((left,)), TEAM)


async def test_where_something_is_most_often_is_looked_first() -> None:
    """Pods, ConfigMaps, Secrets: so that a namespace in use costs one question."""
    site = Site()
    site.place(POD, thing("Pod", "web", "team"))
    await objection(site)
    assert site.asked == ["Pod"]


def test_the_first_name_is_given() -> None:
    """Of what counts."""
    names = [name_in(orjson.dumps(one)) for one in (ROOT, config_map("one"), config_map("two"))]
    assert first_of_somebody(CONFIG_MAP, names) == "one"
    assert first_of_somebody(CONFIG_MAP, names[:1]) == ""
    assert first_of_somebody(SECRET, names[:1]) == "kube-root-ca.crt"


async def test_a_namespace_with_something_in_it_is_not_deleted() -> None:
    """No request for it is sent; empty, it is."""
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
