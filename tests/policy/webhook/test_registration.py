"""Tests of the webhook's configuration for the apiserver, and of the location of its certificate."""

from base64 import b64decode
from copy import deepcopy
from typing import Any

import jsonpatch
import pytest

from tensile.names import owner_of
from tensile.objects import SECRET, UPPER, Ref
from tensile.policy.webhook.registration import (
    address_of,
    bundle_in,
    configuration,
    configuration_patch,
    names_of,
    ref_of,
    secret_ref,
)
from tensile.topology import Topology, parse

Manifest = dict[str, Any]

OWNER = owner_of("11111111-upper", "demo")
SERVICE, URL = "service: {namespace: hooks, name: webhook}", "url: 'https://10.0.0.1:8443/mutate'"


def topology(webhook: str = URL, more: str = "") -> Topology:
    """Parse a topology with this webhook section."""
    text = f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\nwebhook: {{{webhook}}}\n"
    return parse(text + more)


def stored(wanted: Manifest) -> Manifest:
    """Return a configuration as the apiserver stores it."""
    return {**wanted, "metadata": {**wanted["metadata"], "uid": "u-1", "resourceVersion": "7", "generation": 1}}


def test_the_configuration_never_fails_or_delays_creations_for_long() -> None:
    """It covers only pods that opted in, outside excluded namespaces, and the failure policy is Ignore."""
    more = "excludeNamespaces: [kube-system, quiet]\n"
    (hook,) = configuration(topology(SERVICE, more), OWNER, b"trusted", "engine")["webhooks"]
    assert (hook["failurePolicy"], hook["sideEffects"]) == ("Ignore", "None")
    assert hook["timeoutSeconds"] <= 3
    assert hook["objectSelector"] == {"matchLabels": {"virtual-pod": "true"}}
    (elsewhere,) = hook["namespaceSelector"]["matchExpressions"]
    assert (elsewhere["key"], elsewhere["operator"]) == ("kubernetes.io/metadata.name", "NotIn")
    assert elsewhere["values"] == ["engine", "hooks", "kube-system", "quiet"]
    assert hook["rules"][0]["operations"] == ["CREATE"]
    assert hook["admissionReviewVersions"] == ["v1", "v1beta1"]


def test_the_configuration_has_the_owner_mark_and_the_topologys_name() -> None:
    """Two topologies of one upper cluster have different configurations."""
    found = configuration(topology(), OWNER, b"")
    assert found["metadata"]["name"] == ref_of(topology()).name == "tensile-demo"
    assert found["metadata"]["labels"] == {"tensile-kube.io/owner": OWNER.mark}
    assert found["metadata"]["annotations"]["tensile-kube.io/upper-uid"] == "11111111-upper"


def test_the_address_and_certificate_names_come_from_the_service_or_the_url() -> None:
    """The certificate is for the name that the apiserver calls."""
    by_service, by_url, by_name = topology(SERVICE), topology(URL), topology("url: 'https://hook.example.com/x'")
    (hook,) = configuration(by_service, OWNER, b"trusted")["webhooks"]
    assert hook["clientConfig"]["service"] == {"namespace": "hooks", "name": "webhook", "path": "/mutate", "port": 443}
    assert b64decode(hook["clientConfig"]["caBundle"]) == b"trusted"
    assert address_of(by_service.webhook) == "https://webhook.hooks.svc:443/mutate"
    assert names_of(by_service.webhook)[0] == "webhook.hooks.svc"
    (hook,) = configuration(by_url, OWNER, b"")["webhooks"]
    assert hook["clientConfig"]["url"] == address_of(by_url.webhook) == "https://10.0.0.1:8443/mutate"
    assert names_of(by_url.webhook) == ("10.0.0.1",)
    assert names_of(by_name.webhook) == ("hook.example.com",)
    assert by_service.webhook.is_reachable
    assert by_url.webhook.is_reachable
    assert not topology("enabled: true").webhook.is_reachable


def test_a_matching_configuration_is_not_changed() -> None:
    """Additions of a cloud provider or a user are accepted."""
    wanted = configuration(topology(), OWNER, b"trusted")
    assert configuration_patch(stored(wanted), wanted) is None
    seen = stored(deepcopy(wanted))
    seen["metadata"]["labels"]["team"] = "platform"
    seen["webhooks"][0]["namespaceSelector"]["matchExpressions"].append({"key": "cloud", "operator": "DoesNotExist"})
    seen["webhooks"][0]["matchConditions"] = [{"name": "newer"}]
    assert configuration_patch(seen, wanted) is None


@pytest.mark.parametrize(
    "path",
    ["/webhooks/0/failurePolicy", "/webhooks/0/clientConfig/caBundle", "/metadata/labels/tensile-kube.io~1owner"],
)
def test_a_different_configuration_is_patched_with_preconditions(path: str) -> None:
    """The patch has the observed UID and resourceVersion."""
    wanted = configuration(topology(), OWNER, b"trusted")
    seen = jsonpatch.apply_patch(stored(wanted), [{"op": "replace", "path": path, "value": "else"}])
    found = configuration_patch(seen, wanted)
    assert found is not None
    assert found.body["webhooks"] == wanted["webhooks"]
    meta = found.body["metadata"]
    assert (meta["uid"], meta["resourceVersion"], meta["labels"]) == ("u-1", "7", wanted["metadata"]["labels"])


def test_additions_of_other_clients_stay_in_a_patch() -> None:
    """A cloud provider would otherwise add its excluded namespaces again."""
    wanted = configuration(topology(), OWNER, b"trusted")
    seen = stored(deepcopy(wanted))
    added = {"key": "cloud", "operator": "DoesNotExist"}
    seen["webhooks"][0] |= {"failurePolicy": "Fail", "namespaceSelector": {"matchExpressions": [added]}}
    found = configuration_patch(seen, wanted)
    assert found is not None
    (hook,) = found.body["webhooks"]
    assert hook["failurePolicy"] == "Ignore"
    assert hook["namespaceSelector"]["matchExpressions"][1:] == [added]


def test_an_unreadable_ca_bundle_is_empty() -> None:
    """Another client may have written it, so it is no error."""
    for client in ({}, {"caBundle": "?"}, {"caBundle": None}):
        assert bundle_in({"webhooks": [{"clientConfig": client}]}) == b""
    assert bundle_in({}) == b""


def test_the_secret_is_in_the_namespace_of_the_service_or_of_the_engine() -> None:
    """Outside a cluster there is none; its name contains the topology's name."""
    by_service, by_url = topology(SERVICE), topology(URL)
    assert [secret_ref(by_service), secret_ref(by_service, "engine")] == 2 * [
        Ref(UPPER, SECRET, "hooks", "tensile-webhook-demo")
    ]
    assert secret_ref(by_url, "engine") == Ref(UPPER, SECRET, "engine", "tensile-webhook-demo")
    assert secret_ref(by_url) is None
