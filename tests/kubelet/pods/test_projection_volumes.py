"""Generic ephemeral volumes go down as they are, but for the name of their storage class."""

from copy import deepcopy

from podkit import place, pod
from worldkit import token_volume

from tensile.kubelet.pods.projection import lower_pod, with_lower_classes
from tensile.objects import Manifest

MAPPED = place(storage_classes={"goes": "disk"})


def ephemeral(name: str = "scratch", storage_class: str | None = "goes") -> Manifest:
    """Make a volume with a claim of its own."""
    spec: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}}


def test_the_class_of_a_template_is_the_lowers() -> None:
    """And everything else in it, and the other volumes, are as above; the upper pod is not changed."""
    claimed = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    given = pod({"volumes": [claimed, ephemeral()]})
    before = deepcopy(given)
    assert lower_pod(given, MAPPED)["spec"]["volumes"] == [claimed, ephemeral(storage_class="disk")]
    assert given == before


def test_a_class_that_is_not_mapped_keeps_its_name() -> None:
    """So does one that is not named: the lower's default is used."""
    spec = {"volumes": [ephemeral(storage_class="other"), ephemeral("b", None), {"name": "c", "emptyDir": {}}]}
    assert with_lower_classes(spec, MAPPED) is spec
    assert with_lower_classes({}, MAPPED) == {}


def test_the_token_is_still_taken_out() -> None:
    """Both look at the same list of volumes."""
    token = token_volume()
    found = lower_pod(pod({"volumes": [token, ephemeral()]}), MAPPED)["spec"]["volumes"]
    assert found == [ephemeral(storage_class="disk")]
