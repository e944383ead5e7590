"""Tests of the tokens that a pod projects, and of the volumes that replace them in the lower pod."""

from copy import deepcopy
from typing import Any

import orjson
import pytest

from tensile.kube.store import Transformed
from tensile.kubelet.pods.service_account import (
    ProjectedToken,
    TokenFacts,
    entry_of,
    has_token,
    projected_tokens,
    secret_name,
    transform,
    with_secret,
    without_tokens,
)
from tensile.names import TOKEN_POD, UPPER_UID
from tensile.reconcile.ownership import Marks

Manifest = dict[str, Any]
SECRET = secret_name("uid-1")
OWN_CA = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
OWN_NAMESPACE = {
    "downwardAPI": {
        "items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]
    }
}


def token(path: str = "token", **fields: Any) -> Manifest:
    """Return a volume source with a token."""
    return {"serviceAccountToken": {"path": path, **fields}}


def volume(*sources: Manifest, name: str = "own", **fields: Any) -> Manifest:
    """Return a projected volume."""
    return {"name": name, "projected": {**fields, "sources": list(sources)}}


def out_of(*files: tuple[str, str]) -> Manifest:
    """Return a volume source with files of the Secret, given as (key, path)."""
    return {"secret": {"name": SECRET, "items": [{"key": key, "path": path} for key, path in files]}}


ADMISSION = volume(token(expirationSeconds=3607), OWN_CA, OWN_NAMESPACE, name="kube-api-access-x", defaultMode=420)
LEGACY = {"name": "default-token-x", "secret": {"secretName": "default-token-x"}}


@pytest.mark.parametrize(
    ("volumes", "found"),
    [
        ([], []),
        ([{"name": "a", "emptyDir": {}}, volume({"secret": {"name": "s"}})], []),
        ([ADMISSION], [("", 3600)]),
        ([LEGACY], [("", 3600)]),
        ([volume(token())], [("", 3600)]),
        ([volume(token(expirationSeconds=86400))], [("", 86400)]),
        ([volume(token(expirationSeconds=30))], [("", 600)]),
        ([volume(token(audience="vault", expirationSeconds=600))], [("vault", 600)]),
        ([volume(token("a", expirationSeconds=900), token("b", expirationSeconds=7200))], [("", 900)]),
        ([ADMISSION, volume(token(audience="vault")), volume(token(audience="vault"))], [("", 3600), ("vault", 3600)]),
    ],
    ids=["none", "other volumes", "admission's", "legacy", "plain", "a day", "too short", "vault", "two times", "both"],
)
def test_each_audience_of_a_pods_tokens_is_listed_once(volumes: list[Manifest], found: list[tuple[str, int]]) -> None:
    """It has the shortest time of its sources, and never 3607 seconds, for which apiservers issue tokens of a year."""
    assert projected_tokens({"volumes": volumes}) == tuple(
        ProjectedToken(entry_of(audience), audience, time) for audience, time in found
    )


def test_a_pod_without_volumes_has_no_projected_tokens() -> None:
    """The field may be missing or null."""
    assert projected_tokens({}) == projected_tokens({"volumes": None}) == ()


def test_each_audience_has_its_own_key_in_the_secret() -> None:
    """The key is valid for a Secret, whatever the audience is."""
    keys = {entry_of(audience) for audience in ("", "vault", "https://vault.example.com/x", "VAULT")}
    assert len(keys) == 4
    assert entry_of("") == "token"
    assert all(set(key) <= set("abcdefghijklmnopqrstuvwxyz0123456789-") for key in keys)


def test_the_volume_of_admission_is_filled_from_the_secret() -> None:
    """Token, CA and namespace keep their paths, and the volume keeps its name and mode for the mounts."""
    assert with_secret(ADMISSION, SECRET) == volume(
        out_of(("token", "token")),
        out_of(("ca.crt", "ca.crt")),
        out_of(("namespace", "namespace")),
        name="kube-api-access-x",
        defaultMode=420,
    )


def test_a_legacy_token_volume_has_the_same_files_from_the_secret() -> None:
    """The original is a Secret of the upper cluster, which is never copied."""
    assert with_secret(LEGACY, SECRET) == volume(
        out_of(("token", "token"), ("ca.crt", "ca.crt"), ("namespace", "namespace")), name="default-token-x"
    )


def test_other_sources_of_a_volume_are_kept() -> None:
    """They keep their order beside the tokens."""
    other = {"configMap": {"name": "settings"}}
    labels = {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}
    where = OWN_NAMESPACE["downwardAPI"]["items"][0]
    mixed = volume(other, token("t", audience="vault"), {"downwardAPI": {"items": [labels, where]}})
    assert with_secret(mixed, SECRET) == volume(
        other,
        out_of((entry_of("vault"), "t")),
        out_of(("namespace", "namespace")),
        {"downwardAPI": {"items": [labels]}},
    )


def test_the_ca_is_replaced_with_or_without_items() -> None:
    """The paths of the volume are kept; without items it is one file with the name of the key."""
    moved = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "pki/root.pem"}]}}
    whole = {"configMap": {"name": "kube-root-ca.crt"}}
    assert with_secret(volume(token(), moved, whole), SECRET)["projected"]["sources"][1:] == [
        out_of(("ca.crt", "pki/root.pem")),
        out_of(("ca.crt", "ca.crt")),
    ]


@pytest.mark.parametrize(
    "given",
    [{"name": "a", "emptyDir": {}}, volume(OWN_CA, OWN_NAMESPACE), {"name": "s", "secret": {"secretName": "s"}}],
)
def test_a_volume_without_a_token_is_unchanged(given: Manifest) -> None:
    """The CA of the lower cluster is the right one for such a volume."""
    before = deepcopy(given)
    assert with_secret(given, SECRET) == without_tokens(given) == before
    assert not has_token(given)


def test_tokens_alone_can_be_removed_from_a_volume() -> None:
    """The upper pod's own volume is not modified."""
    mixed = volume(token(), OWN_CA, token("other", audience="vault"))
    before = deepcopy(mixed)
    assert without_tokens(mixed) == volume(OWN_CA)
    assert mixed == before


def stored(name: str, **notes: str) -> bytes:
    """Return the bytes of a Secret."""
    return orjson.dumps({"metadata": {"name": name, "annotations": notes}, "data": {"token": "dA=="}})


def test_a_token_secret_is_recognized_by_its_name_and_annotations() -> None:
    """The annotations name its pod, and its bytes are kept."""
    raw = stored(SECRET, **{UPPER_UID: "uid-1", TOKEN_POD: "web"})
    assert transform(raw) == Transformed(raw, Marks(token=TokenFacts("web", "uid-1"))), "by another hand, so nobody's"


@pytest.mark.parametrize(
    "raw",
    [
        stored("password", **{UPPER_UID: "uid-1"}),
        stored("password", **{UPPER_UID: "uid-1", TOKEN_POD: "web"}),
        stored(SECRET, **{UPPER_UID: "uid-of-the-secret", TOKEN_POD: "web"}),
        stored(SECRET, **{UPPER_UID: "uid-1"}),
        orjson.dumps({"metadata": {"name": SECRET}}),
    ],
    ids=["a copy", "another name", "a copy of such a Secret above", "without the pod", "without notes"],
)
def test_a_copied_secret_is_no_token_secret(raw: bytes) -> None:
    """This includes the copy of a token Secret that another engine keeps in our upper cluster."""
    assert transform(raw).facts == Marks()
