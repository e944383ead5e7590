"""What may be taken for certain: that somebody deleted a pod, that a name is empty, that a Node is ours."""

import pytest
from answering import Answering
from worldkit import A, config_map, drop, marked, put, raised, thing, upper_pod, world

from tensile.errors import ClusterError, Denied, Unreachable
from tensile.kube.tombstones import Tombstone
from tensile.objects import CONFIG_MAP, Manifest, Ref
from tensile.reconcile.apply import carry_out
from tensile.reconcile.ownership import has_node
from tensile.reconcile.plan import Step
from tensile.reconcile.pods.index import facts_of, was_deleted

REF = Ref(A, CONFIG_MAP, "default", "settings")
ENDING = {"deletionTimestamp": "2026-03-01T12:00:30Z"}
GC = {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "DeletionByPodGC"}]}


@pytest.mark.parametrize(
    ("pod", "seen", "deleted"),
    [
        (upper_pod(), True, True),
        (upper_pod(**ENDING), False, True),
        (upper_pod(), False, False),
        (upper_pod(status=GC), True, False),
        (upper_pod(status=GC, **ENDING), False, False),
    ],
    ids=["seen to go", "was ending", "found missing", "by Kubernetes", "ending by Kubernetes"],
)
def test_a_pod_was_deleted_when_somebody_was_seen_to_do_it(pod: Manifest, *, seen: bool, deleted: bool) -> None:
    """Either its end was seen, or its deletion before it; and it was not Kubernetes itself."""
    assert was_deleted(Tombstone("Pod-web", facts_of(pod), seen), "Pod-web") is deleted


def test_the_deletion_of_another_pod_says_nothing() -> None:
    """Nor does a name of which nothing else is known."""
    assert not was_deleted(Tombstone("Pod-web", facts_of(upper_pod())), "another")
    assert not was_deleted(Tombstone("", None), "")


@pytest.mark.parametrize("error", [Unreachable("broke"), Denied("no")])
async def test_an_attempt_to_create_puts_the_emptiness_of_its_name_in_doubt(error: ClusterError) -> None:
    """A request whose answer is lost may have come through, so the doubt comes before the request."""
    here = world()
    cache, cluster = here.lowers[A].config_maps, Answering()
    put(cache, config_map())
    drop(cache, "settings")
    cluster.answer("create", error)
    with pytest.raises(type(error)):
        await carry_out(Step("create", REF, "because", body=config_map()), cluster, cache)
    assert cache.tombstone("default", "settings") is None


async def test_what_we_deleted_ourselves_was_seen_to_go() -> None:
    """Nobody need be told of it again when the watch does."""
    here = world()
    cache = here.lowers[A].config_maps
    entry = put(cache, config_map())
    await carry_out(Step("delete", REF, "because", uid=entry.uid), Answering(), cache)
    departure = cache.tombstone("default", "settings")
    assert departure is not None
    assert departure.seen


def test_a_node_is_ours_by_both_marks() -> None:
    """One that is missing or another's gives us no pods."""
    here = world()
    lower = here.lowers[A]
    assert not has_node(lower, here)
    raised(here)
    assert has_node(lower, here)
    drop(here.upper.nodes, A, "")
    put(here.upper.nodes, marked(thing("Node", A, "", uid="theirs"), ""))
    assert not has_node(lower, here)
