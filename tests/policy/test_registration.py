"""What the apiserver is told of the webhook, and how trust in its certificates overlaps."""

from base64 import b64decode
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from typing import Any

import jsonpatch
import pytest

from tensile.kube.tls import self_signed
from tensile.names import owner_of
from tensile.policy.webhook.registration import (
    address_of,
    bundle,
    bundle_in,
    certificates_in,
    change,
    configuration,
    names_of,
    ref_of,
    trusting,
)
from tensile.topology import Topology, parse

Manifest = dict[str, Any]

NOW = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
OWNER = owner_of("11111111-upper", "demo")
SERVICE, URL = "service: {namespace: hooks, name: webhook}", "url: 'https://10.0.0.1:8443/mutate'"


def topology(webhook: str = URL, more: str = "") -> Topology:
    """Read a topology whose webhook is reached that way."""
    text = f"apiVersion: tensile-kube.io/v1alpha1\nkind: Topology\nname: demo\nlowers: []\nwebhook: {{{webhook}}}\n"
    return parse(text + more)


def certificate(days: float = 30, begun: float = 0) -> bytes:
    """Make a certificate that began some days ago and ends in some."""
    begin = NOW - timedelta(days=begun)
    return self_signed("tensile", "x", ["x"], begin, timedelta(days=days + begun)).certificate


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


def held(pem: bytes) -> set[bytes]:
    """Tell certificates apart."""
    return {one.tbs_certificate_bytes for one in certificates_in(pem)}


def test_the_next_certificate_is_trusted_beside_the_one_that_is_shown() -> None:
    """And the last one goes once it is shown no more."""
    shown, following = certificate(), certificate()
    both = bundle([shown, following], shown, [], NOW)
    assert held(both) == held(shown) | held(following)
    assert held(bundle([following], both, [shown], NOW)) == held(following)


def test_what_others_show_stays_trusted_as_long_as_it_holds() -> None:
    """Another engine behind the same Service; what has ended goes, and of very many the oldest."""
    mine, other, ended = certificate(), certificate(begun=1), certificate(days=-1, begun=40)
    assert held(bundle([mine], other + ended, [], NOW)) == held(mine) | held(other)
    many = [certificate(begun=day) for day in range(1, 18)]
    assert held(bundle([mine], b"".join(many), [], NOW)) == held(b"".join([mine, *many[:15]]))


def test_two_engines_come_to_rest() -> None:
    """Each finds its certificate in what the other wrote, and writes nothing, whatever the order."""
    first, second = certificate(), certificate()
    written = bundle([second], bundle([first], b"", [], NOW), [], NOW)
    assert bundle([first], written, [], NOW) == bundle([second], written, [], NOW) == written


def test_a_chain_is_trusted_whole_and_what_is_shared_stays() -> None:
    """The authority's certificate in a file is the next file's, too."""
    authority, old, new = certificate(), certificate(), certificate()
    assert held(bundle([new + authority], old + authority, [old + authority], NOW)) == held(new + authority)


def test_trust_can_come_alone() -> None:
    """Where the apiserver asks already, all else waits for the call."""
    seen = stored(configuration(topology(), OWNER, certificate()))
    seen["webhooks"][0]["clientConfig"]["url"] = "https://elsewhere/"
    both = bundle([certificate()], bundle_in(seen), [], NOW)
    found = trusting(seen, both)
    assert found is not None
    client = found.body["webhooks"][0]["clientConfig"]
    assert (client["url"], b64decode(client["caBundle"])) == ("https://elsewhere/", both)
    assert found.body["metadata"] == {"uid": "u-1", "resourceVersion": "7"}
    assert trusting(seen, bundle_in(seen)) is None
    assert trusting({**seen, "webhooks": []}, both) is None


def test_a_bundle_that_cannot_be_read_is_none() -> None:
    """Somebody else's writing is no reason to fail."""
    for client in ({}, {"caBundle": "?"}, {"caBundle": None}):
        assert bundle_in({"webhooks": [{"clientConfig": client}]}) == b""
    assert bundle_in({}) == b""
    assert certificates_in(b"nothing") == []
    mine = certificate()
    assert held(bundle([mine], b"nothing", [], NOW)) == held(mine)
