"""What the apiserver is told of the webhook, and where its certificate is kept."""

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
    change,
    configuration,
    names_of,
    ref_of,
    secret_ref,
)
from tensile.topology import Topology, parse

Manifest = dict[str, Any]

OWNER = owner_of("11111111-upper", "demo")
SERVICE, URL = "service: {namespace: hooks, name: webhook}", "url: 'https://10.0.0.1:8443/mutate'"


def topology(webhook: str = URL, more: str = "") -> Topology:
    """Read a topology whose webhook is reached that way."""
    text = f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\nwebhook: {{{webhook}}}\n"
    return parse(text + more)


def stored(wanted: Manifest) -> Manifest:
    """Return a configuration as the apiserver would have stored it."""
    return {**wanted, "metadata": {**wanted["metadata"], "uid": "u-1", "resourceVersion": "7", "generation": 1}}


def test_creations_never_fail_or_wait_for_long_because_of_it() -> None:
    """It is asked about pods that opted in only, outside of namespaces that are left alone, and may stay away."""
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


def test_it_is_marked_as_ours_and_has_the_topologys_name() -> None:
    """Two topologies in one upper cluster have one each."""
    found = configuration(topology(), OWNER, b"")
    assert found["metadata"]["name"] == ref_of(topology()).name == "tensile-demo"
    assert found["metadata"]["labels"] == {"tensile-kube.io/owner": OWNER.mark}
    assert found["metadata"]["annotations"]["tensile-kube.io/upper-uid"] == "11111111-upper"


def test_the_service_or_the_url_says_where_it_is() -> None:
    """As the apiserver calls it, which is also the name that its certificate is for."""
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


def test_what_is_as_it_should_be_is_not_written() -> None:
    """Also with what a cloud, or a person, added to it."""
    wanted = configuration(topology(), OWNER, b"trusted")
    assert change(stored(wanted), wanted) is None
    seen = stored(deepcopy(wanted))
    seen["metadata"]["labels"]["team"] = "platform"
    seen["webhooks"][0]["namespaceSelector"]["matchExpressions"].append({"key": "cloud", "operator": "DoesNotExist"})
    seen["webhooks"][0]["matchConditions"] = [{"name": "newer"}]
    assert change(seen, wanted) is None


@pytest.mark.parametrize(
    "path",
    ["/webhooks/0/failurePolicy", "/webhooks/0/clientConfig/caBundle", "/metadata/labels/tensile-kube.io~1owner"],
)
def test_what_differs_is_written_under_its_preconditions(path: str) -> None:
    """Only while it is the very object that was seen."""
    wanted = configuration(topology(), OWNER, b"trusted")
    seen = jsonpatch.apply_patch(stored(wanted), [{"op": "replace", "path": path, "value": "else"}])
    found = change(seen, wanted)
    assert found is not None
    assert found.body["webhooks"] == wanted["webhooks"]
    meta = found.body["metadata"]
    assert (meta["uid"], meta["resourceVersion"], meta["labels"]) == ("u-1", "7", wanted["metadata"]["labels"])


def test_what_others_added_stays_when_something_is_written() -> None:
    """Namespaces that a cloud excludes, too: it would add them again."""
    wanted = configuration(topology(), OWNER, b"trusted")
    seen = stored(deepcopy(wanted))
    added = {"key": "cloud", "operator": "DoesNotExist"}
    seen["webhooks"][0] |= {"failurePolicy": "Fail", "namespaceSelector": {"matchExpressions": [added]}}
    found = change(seen, wanted)
    assert found is not None
    (hook,) = found.body["webhooks"]
    assert hook["failurePolicy"] == "Ignore"
    assert hook["namespaceSelector"]["matchExpressions"][1:] == [added]


def test_a_bundle_that_cannot_be_read_is_none() -> None:
    """Somebody else's writing is no reason to fail."""
    for client in ({}, {"caBundle": "?"}, {"caBundle": None}):
        assert bundle_in({"webhooks": [{"clientConfig": client}]}) == b""
    assert bundle_in({}) == b""


def test_the_secret_is_where_the_service_leads() -> None:
    """Else where the engine runs, and nowhere for one outside of a cluster; each topology has one of its own."""
    by_service, by_url = topology(SERVICE), topology(URL)
    assert [secret_ref(by_service), secret_ref(by_service, "engine")] == 2 * [
        Ref(UPPER, SECRET, "hooks", "tensile-webhook-demo")
    ]
    assert secret_ref(by_url, "engine") == Ref(UPPER, SECRET, "engine", "tensile-webhook-demo")
    assert secret_ref(by_url) is None
