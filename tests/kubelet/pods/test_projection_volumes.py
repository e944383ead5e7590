"""Tests of generic ephemeral volumes: they are copied unchanged, except for the name of their storage class."""

from copy import deepcopy

from podkit import lower_context, pod
from worldkit import token_volume

from tensile.kubelet.pods.projection import to_lower_pod, with_lower_classes
from tensile.objects import Manifest

MAPPED = lower_context(storage_classes={"goes": "disk"})


def ephemeral(name: str = "scratch", storage_class: str | None = "goes") -> Manifest:
    """Return a volume with a claim template."""
    spec: Manifest = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    if storage_class is not None:
        spec["storageClassName"] = storage_class
    return {"name": name, "ephemeral": {"volumeClaimTemplate": {"metadata": {"labels": {"a": "b"}}, "spec": spec}}}


def test_the_storage_class_of_a_template_is_mapped() -> None:
    """The rest of the template and other volumes are unchanged, and so is the upper pod."""
    claimed = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    given = pod({"volumes": [claimed, ephemeral()]})
    before = deepcopy(given)
    assert to_lower_pod(given, MAPPED)["spec"]["volumes"] == [claimed, ephemeral(storage_class="disk")]
    assert given == before


def test_an_unmapped_storage_class_keeps_its_name() -> None:
    """A template without a class uses the lower's default."""
    spec = {"volumes": [ephemeral(storage_class="other"), ephemeral("b", None), {"name": "c", "emptyDir": {}}]}
    assert with_lower_classes(spec, MAPPED) is spec
    assert with_lower_classes({}, MAPPED) == {}


def test_the_token_volume_is_removed_with_ephemeral_volumes_present() -> None:
    """Both rewritings process the same list of volumes."""
    token = token_volume()
    found = to_lower_pod(pod({"volumes": [token, ephemeral()]}), MAPPED)["spec"]["volumes"]
    assert found == [ephemeral(storage_class="disk")]
