"""What concerns a claim: which changes of claims, volumes and pods, on either side, have it looked at."""

from storagekit import RULE, above, below, bound, claim, copy, ground, settled_claim
from worldkit import A, B, changed, names

from tensile.kube.store import Delta, Entry
from tensile.objects import VOLUME, Manifest
from tensile.reconcile.rules.claim_rule import NAME
from tensile.reconcile.world import World


def heard(here: World, cache: str, before: Entry | None, after: Entry | None, lower: str = A) -> list[str]:
    """Return the names of the keys that a change in a cache concerns."""
    routes = [route for route in RULE.watches() if route.cache == cache]
    found = [key for route in routes for key in route.keys(here, lower, Delta(before, after))]
    assert all((key.rule, key.lower) == (NAME, lower) for key in found)
    return list(names(found))


def test_every_claim_that_is_used_chosen_or_copied_has_a_key() -> None:
    """Once."""
    here = ground()
    above(here, claim("chosen", node=A), claim("idle"), claim())
    bound(here)
    below(here, copy(claim()), copy(claim("left")))
    assert list(names(RULE.keys(here, A))) == ["default/chosen", "default/data", "default/left"]
    assert list(RULE.keys(here, B)) == []


def test_a_claim_above_concerns_the_lower_that_has_to_do_with_it() -> None:
    """Also the one whose node was chosen before."""
    here = ground()
    before, after = above(here, claim(node=A)), above(here, claim(node=B))
    assert heard(here, "upper.PersistentVolumeClaim", before, after) == ["default/data"]
    assert heard(here, "upper.PersistentVolumeClaim", before, after, B) == ["default/data"]
    assert heard(here, "upper.PersistentVolumeClaim", after, after) == []
    bound(here)
    assert heard(here, "upper.PersistentVolumeClaim", after, after) == ["default/data"]


def test_a_volume_above_concerns_its_claim_where_that_is_known() -> None:
    """It says where the claim lives."""
    here = ground()
    made = settled_claim(here)
    entry = here.upper.more[VOLUME].get("", "pvc-claim-data")
    assert heard(here, "upper.PersistentVolume", None, entry) == ["default/data"]
    assert heard(here, "upper.PersistentVolume", None, entry, B) == []
    bound(here, lower=B)
    assert heard(here, "upper.PersistentVolume", entry, None, B) == ["default/data"]
    assert made["metadata"]["name"] == "data"


def test_pods_concern_the_claims_that_they_begin_or_cease_to_use() -> None:
    """A pod that goes on using one concerns nothing, until it has ended."""
    here = ground()
    pod = bound(here)
    ended = changed(here.lowers[A].upper_pods, "web", _end)
    assert heard(here, "upper_pods", None, pod) == heard(here, "upper_pods", pod, None) == ["default/data"]
    assert heard(here, "upper_pods", pod, pod) == []
    assert heard(here, "upper_pods", pod, ended) == ["default/data"]
    assert heard(here, "pods", pod, None) == ["default/data"]
    assert heard(here, "pods", None, pod) == []


def _end(pod: Manifest) -> None:
    pod["status"]["phase"] = "Succeeded"


def test_a_claim_below_concerns_itself() -> None:
    """Whether it comes or goes."""
    here = ground()
    entry = below(here, copy(claim()))
    assert heard(here, "PersistentVolumeClaim", entry, None) == ["default/data"]
