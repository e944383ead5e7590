"""Tests of what is shown of a pod whose fields may contain secret values."""

from tensile.reconcile.redaction import without_secrets
from tensile.text import HIDDEN

SECRET = "hunter2-do-not-show"
POD = {
    "metadata": {"name": "web", "labels": {"app": "web"}, "annotations": {"example.com/token": SECRET}},
    "spec": {
        "nodeName": "lower-a",
        "containers": [
            {
                "name": "main",
                "image": "app:1",
                "command": ["serve", SECRET],
                "args": [SECRET],
                "env": [{"name": "PASSWORD", "value": SECRET}, {"name": "REF", "valueFrom": {"secretKeyRef": {}}}],
                "livenessProbe": {
                    "httpGet": {"httpHeaders": [{"name": "Authorization", "value": SECRET}]},
                    "exec": {"command": [SECRET]},
                },
            }
        ],
        "volumes": [
            {"name": "a", "csi": {"driver": "d", "volumeAttributes": {"password": SECRET}}},
            {"name": "b", "flexVolume": {"driver": "d", "options": {"key": SECRET}}},
        ],
    },
    "status": {"message": SECRET},
}


def test_values_of_a_pod_that_may_be_secret_are_replaced_and_the_rest_is_kept() -> None:
    """Names of variables and keys of annotations are kept; the status is omitted because no author writes it."""
    found = without_secrets(POD)
    assert SECRET not in str(found)
    assert found["metadata"] == {"labels": {"app": "web"}, "annotations": {"example.com/token": HIDDEN}}
    main = found["spec"]["containers"][0]
    assert (main["name"], main["image"], main["args"]) == ("main", "app:1", [HIDDEN])
    assert main["env"] == [{"name": "PASSWORD", "value": HIDDEN}, {"name": "REF", "valueFrom": {"secretKeyRef": {}}}]
    assert found["spec"]["volumes"][0]["csi"] == {"driver": "d", "volumeAttributes": {"password": HIDDEN}}


def test_redaction_does_not_change_the_original_pod() -> None:
    """The original is shared with the cache."""
    before = str(POD)
    without_secrets(POD)
    assert str(POD) == before
    assert without_secrets({}) == {"metadata": {"labels": {}, "annotations": {}}, "spec": None}
