"""The Secret in which a pod is kept while it moves."""

from base64 import b64encode
from typing import Any

import orjson
import pytest
from worldkit import A, B, decided, marked, put, upper_pod, world, written

from tensile.descheduling.drain import DrainRule, key_of
from tensile.names import OWNER, PLACE_TAKEN, REPLACES, UPPER_UID, WITHDRAWN
from tensile.objects import SECRET, UPPER, Manifest, Ref, annotations, labels
from tensile.policy.safekeeping import PREFIX, kept_in, kept_of, noted, of_pod, present, ref_of
from tensile.reconcile.desired import Present
from tensile.world import World

META = {"name": "web", "namespace": "default", "annotations": {REPLACES: "Pod-web"}}
SPEC = {"containers": [{"name": "main", "image": "app:1"}]}
SUCCESSOR = {"apiVersion": "v1", "kind": "Pod", "metadata": META, "spec": SPEC}


def kept(here: World, **meta: Any) -> Manifest:
    """Make the Secret that keeps the pod of lower-a, as it is stored."""
    pod = here.lowers[A].upper_pods.get("default", "web") or put(here.lowers[A].upper_pods, upper_pod())
    wanted = present(SUCCESSOR, pod, here.owner, "it moves").manifest
    given = {**wanted["metadata"], "uid": "secret", **meta}
    return written({**wanted, "metadata": given})


def test_it_says_whose_it_is_and_what_is_to_be_made() -> None:
    """In the pod's namespace, by the pod's UID; nobody can change it by mistake; refused, it holds up nobody else."""
    here = world()
    pod = put(here.lowers[A].upper_pods, upper_pod())
    wanted = present(SUCCESSOR, pod, here.owner, "it moves")
    assert isinstance(wanted, Present)
    assert wanted.apart
    assert wanted.ref == ref_of("default", "Pod-web") == Ref(UPPER, SECRET, "default", PREFIX + "Pod-web")
    assert labels(wanted.manifest)[OWNER] == here.owner.mark
    assert annotations(wanted.manifest)[UPPER_UID] == "Pod-web"
    assert (wanted.manifest["type"], wanted.manifest["immutable"]) == ("tensile-kube.io/pod", True)


def test_it_is_read_as_it_was_written() -> None:
    """By the pod's UID, which names it."""
    here = world()
    entry = put(here.upper.secrets, kept(here))
    found = kept_in(entry, here.owner)
    assert found is not None
    assert (found.uid, found.pod, found.taken, found.withdrawn, found.is_safe) == (
        "Pod-web",
        SUCCESSOR,
        False,
        None,
        True,
    )
    pod = here.lowers[A].upper_pods.get("default", "web")
    assert pod is not None
    assert kept_of(pod, here) == found
    assert [one.uid for one in of_pod(entry, here.lowers[A])] == ["Pod-web"]
    assert not list(of_pod(entry, here.lowers[B]))


def test_notes_on_it_are_read() -> None:
    """A moment that is none says nothing."""
    here = world()
    marks = annotations(kept(here))
    for notes, taken, withdrawn in (
        ({PLACE_TAKEN: "true"}, True, False),
        ({WITHDRAWN: "2026-03-01T12:00:00Z"}, False, True),
        ({WITHDRAWN: "lately"}, False, False),
    ):
        found = kept_in(put(here.upper.secrets, kept(here, annotations=marks | notes)), here.owner)
        assert found is not None
        assert (found.taken, bool(found.withdrawn), found.is_safe) == (taken, withdrawn, not withdrawn)


@pytest.mark.parametrize(
    "meta",
    [
        pytest.param({"name": "other"}, id="another name"),
        pytest.param({"labels": {OWNER: "f" * 16}}, id="another owner"),
        pytest.param({"managedFields": []}, id="another hand"),
    ],
)
def test_what_is_not_ours_is_not_read(meta: Manifest) -> None:
    """Whatever it says."""
    here = world()
    secret = kept(here)
    entry = put(here.upper.secrets, {**secret, "metadata": {**secret["metadata"], **meta}})
    assert kept_in(entry, here.owner) is None


def encoded(content: Any) -> str:
    """Encode what such a Secret holds."""
    return b64encode(orjson.dumps(content)).decode()


@pytest.mark.parametrize(
    "content",
    [
        None,
        "no base64!",
        b64encode(b"no JSON").decode(),
        *map(encoded, ([], {}, None, 7, "pod")),
        *(encoded({**SUCCESSOR, "metadata": {**META, "namespace": other}}) for other in ("other", None, 7)),
        *(encoded({**SUCCESSOR, "metadata": {**META, "name": name}}) for name in ("", None, 7, ["web"], {"web": 1})),
        *(encoded({**SUCCESSOR, "metadata": {**META, "annotations": notes}}) for notes in ({}, None, [], "x", 7)),
        encoded({**SUCCESSOR, "metadata": {**META, "annotations": {REPLACES: "another"}}}),
        encoded({"metadata": META}),
        *(encoded({**SUCCESSOR, "spec": spec}) for spec in ({}, None, 7, ["containers"], "containers")),
        *(encoded({**SUCCESSOR, "spec": {"containers": of}}) for of in (None, 7, {}, "main")),
    ],
)
def test_what_is_no_pod_of_its_namespace_is_none(content: str | None) -> None:
    """Nobody gets a pod made elsewhere by writing so; and nobody's pod leaves for it."""
    here = world()
    data = {} if content is None else {"pod.json": content}
    found = kept_in(put(here.upper.secrets, {**kept(here), "data": data}), here.owner)
    assert found is not None
    assert (found.pod, found.is_safe) == (None, False)


def test_a_pod_does_not_leave_for_one_of_another_name() -> None:
    """What would be made is not that pod."""
    here = world()
    pod = put(here.lowers[A].upper_pods, upper_pod())
    other = {**SUCCESSOR, "metadata": {**META, "name": "other"}}
    put(here.upper.secrets, {**kept(here), "data": {"pod.json": encoded(other)}})
    found = kept_of(pod, here)
    assert found is not None
    assert not found.is_safe


def test_a_note_is_written_only_on_the_secret_as_it_was_read() -> None:
    """Two engines that see the same do not undo each other."""
    here = world()
    entry = put(here.upper.secrets, kept(here))
    wanted = noted(entry, WITHDRAWN, "now", "because")
    fence = {"uid": "secret", "resourceVersion": str(entry.version)}
    assert wanted.patch.body == {"metadata": {**fence, "annotations": {WITHDRAWN: "now"}}}
    assert wanted.ref == ref_of("default", "Pod-web")


def test_a_drain_hears_of_the_secret() -> None:
    """It is what the pod waits for."""
    here = world(f"name: {A}, maintenance: drain", f"name: {B}")
    heard: list[object] = []
    route = DrainRule().routes()[2]
    assert route.cache == "upper.secrets"
    here.upper.secrets.subscribe(lambda delta: heard.extend(route.keys(here, A, delta)))
    here.upper.secrets.subscribe(lambda delta: heard.extend(route.keys(here, B, delta)))
    put(here.upper.secrets, kept(here))
    put(here.upper.secrets, marked(kept(here, name="other"), "x"))
    assert heard == [key_of(A, "default", "web")]
    assert decided(DrainRule(), key_of(B, "default", "web"), here)[1].steps == ()
