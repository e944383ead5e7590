"""Tests that no output of a plan contains a value of a Secret, whatever the changes and the format."""

from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from previewkit import (
    change,
    config,
    create,
    decoded,
    delete,
    json_patch,
    merge,
    observed_object,
    plan_lines,
    previewed,
    secret,
)
from properties import examples

from tensile.names import OWNER_NAME
from tensile.objects import CONFIG_MAP, NODE, POD, VOLUME, Kind, Manifest
from tensile.reconcile.plan import Step
from tensile.reconcile.redaction import REDACTED, concealed
from tensile.reconcile.report import Preview, as_json, as_markdown, as_text
from tensile.reconcile.report.values import differences
from tensile.text import HIDDEN

KEPT = ("kubectl.kubernetes.io/last-applied-configuration", "kapp.k14s.io/original")
"""Annotations in which tools store the object that they applied, with its values."""
MARK = "c2VjcmV0LQ"
"""The prefix of every secret value in these tests, and of nothing else."""
VALUES = st.text(max_size=30).map(lambda text: MARK + text)
KEYS = st.from_regex(r"[-._a-zA-Z0-9]{1,5}", fullmatch=True)
MAPS = st.dictionaries(KEYS, VALUES, max_size=4)
SECTIONS = st.sampled_from(["data", "stringData"])
MEDIA = st.sampled_from(["merge-patch", "strategic-merge-patch"])


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Return a Secret with values in every field that may contain one."""
    applied = {draw(st.sampled_from(KEPT)): draw(VALUES)} if draw(st.booleans()) else {}
    meta: Manifest = {"annotations": {OWNER_NAME: "x", **applied}, "labels": {"a": "b"}}
    return {"metadata": meta, "type": "Opaque", **{draw(SECTIONS): draw(MAPS) for _ in range(2)}}


@st.composite
def steps(draw: st.DrawFn, seen: Manifest) -> Step:
    """Return a step that creates, deletes or changes a Secret in one of many ways."""
    new = draw(manifests())
    sections = ("data", "stringData", "metadata.annotations")
    key = draw(KEYS)
    whole: dict[str, Any] = {name: content for name, content in new.items() if name != "metadata"}
    ways = [
        create(secret(), new),
        delete(secret()),
        change(secret(), seen, new, *sections),
        merge(secret(), draw(MEDIA), data={key: draw(VALUES)}),
        json_patch(secret(), {"op": "add", "path": "/data", "value": draw(MAPS)}),
        json_patch(secret(), {"op": "replace", "path": f"/stringData/{key}", "value": draw(VALUES)}),
        json_patch(secret(), {"op": "replace", "path": "/metadata", "value": new["metadata"]}),
        json_patch(secret(), {"op": "add", "path": "", "value": whole}),
        json_patch(secret(), {"op": "test", "path": f"/data/{key}", "value": draw(VALUES)}),
        json_patch(secret(), {"op": "replace", "path": "/data", "value": draw(VALUES)}),
    ]
    return draw(st.sampled_from(ways))


@examples(200, derandomize=True)
@given(st.data())
def test_no_value_of_a_secret_is_in_any_output(data: st.DataObject) -> None:
    """Neither an output format nor the data that it is rendered from contains one."""
    seen = data.draw(manifests())
    found = previewed(
        *data.draw(st.lists(steps(seen), min_size=1, max_size=4)),
        seen={secret(): observed_object(seen)} if data.draw(st.booleans()) else None,
    )
    for written in _forms(found):
        assert MARK not in written


@examples(50, derandomize=True)
@given(manifests())
def test_the_same_values_in_a_config_map_are_shown(manifest: Manifest) -> None:
    """This proves that the previous test would find a value."""
    found = previewed(create(config(), manifest))
    values = [value for section in ("data", "stringData") for value in manifest.get(section, {}).values()]
    assert (MARK in as_json(found).decode()) == bool(values or len(manifest["metadata"]["annotations"]) > 1)


OLD: Manifest = {
    "metadata": {"labels": {"app": "web"}},
    "spec": {
        "nodeName": "a",
        "containers": [
            {"name": "main", "image": "app:1", "command": ["old"], "env": [{"name": "TOKEN", "value": "old"}]}
        ],
        "csi": {"driver": "old", "volumeAttributes": {"key": "old"}},
        "tolerations": [{"key": "only", "value": "old"}],
    },
    "data": {"key": "old"},
}


def test_fields_that_may_be_secret_are_named_without_values() -> None:
    """The dashboard's page of a pod hides the same fields.

    They are hidden in new list elements too, and if they are the only difference.
    """
    new = deepcopy(OLD)
    new["metadata"] = {"labels": {"app": "other"}, "annotations": {"note": MARK}}
    main, sidecar = new["spec"]["containers"][0], {"name": "side", "image": "app:2", "args": [MARK]}
    main |= {"image": "app:2", "command": [MARK], "env": [{"name": "TOKEN", "value": MARK}]}
    new["spec"] |= {"containers": [main, sidecar], "csi": {"driver": "new", "volumeAttributes": {"key": MARK}}}
    new["data"] = {"key": MARK}
    concealed_by_kind = {kind: _concealed(kind, new) for kind in (POD, VOLUME, CONFIG_MAP, NODE)}
    for kind in (POD, VOLUME):
        assert MARK not in str(concealed_by_kind[kind])
        assert concealed_by_kind[kind]["spec.containers[main].command"] == (REDACTED, REDACTED)
        assert concealed_by_kind[kind]["spec.containers[main].env[TOKEN].value"] == (REDACTED, REDACTED)
        assert concealed_by_kind[kind]["spec.containers[side]"] == (
            None,
            {"name": "side", "image": "app:2", "args": [HIDDEN]},
        )
        assert concealed_by_kind[kind]["spec.csi.volumeAttributes.key"] == (REDACTED, REDACTED)
        assert concealed_by_kind[kind]["spec.csi.driver"] == ("old", "new")
    for found in concealed_by_kind.values():
        assert found["metadata.labels.app"] == ("web", "other")
        assert found["metadata.annotations.note"] == (None, REDACTED)
        assert found["data.key"] == (REDACTED, REDACTED)


def _concealed(kind: Kind, new: Manifest) -> dict[str, tuple[Any, Any]]:
    found = (concealed(kind, one) for one in differences(OLD, new))
    return {one.field: (one.old, one.new) for one in found}


def _forms(found: Preview) -> list[str]:
    texts = [as_text(found, colour=colour) for colour in (True, False)]
    return [*texts, as_markdown(found), as_json(found).decode(), repr(found)]


def test_the_text_shows_which_keys_of_a_secret_change() -> None:
    """It has their names and the kind of change, but nothing about their values."""
    old = observed_object({"data": {"gone": MARK, "level": f"{MARK}1", "same": MARK}})
    new = {"data": {"fresh": MARK, "level": f"{MARK}2\n", "same": MARK}}
    assert plan_lines(change(secret(), old, new), seen={secret(): old}) == [
        "~ Secret shop/token: because",
        "    data.fresh: (set)",
        "    data.gone: (removed)",
        "    data.level: (changed)",
    ]


def test_the_json_shows_which_keys_of_a_secret_change() -> None:
    """Values are redacted in single operations, in whole sections and objects, and in annotations of other tools."""
    meta = {"annotations": {KEPT[0]: MARK, KEPT[1]: MARK, OWNER_NAME: "demo"}}
    shown = {"annotations": {KEPT[0]: REDACTED, KEPT[1]: REDACTED, OWNER_NAME: "demo"}}
    made = create(secret("made"), {"metadata": meta, "type": "Opaque", "data": {"a": MARK, "b": ""}})
    section = json_patch(secret("section"), {"op": "add", "path": "/data", "value": {"a": MARK}})
    one = json_patch(secret("one"), {"op": "replace", "path": "/data/a", "value": MARK}, {"op": "remove", "path": "/x"})
    annotation = f"/metadata/annotations/{KEPT[0].replace('/', '~1')}"
    applied = json_patch(secret("zone"), {"op": "replace", "path": annotation, "value": MARK})
    found = decoded(as_json(previewed(made, section, one, applied)))["changes"]
    assert {change["name"]: change["operations"] for change in found} == {
        "made": [
            {
                "op": "add",
                "path": "",
                "value": {"metadata": shown, "type": "Opaque", "data": {"a": REDACTED, "b": REDACTED}},
            }
        ],
        "section": [{"op": "add", "path": "/data", "value": {"a": REDACTED}}],
        "one": [{"op": "replace", "path": "/data/a", "value": REDACTED}, {"op": "remove", "path": "/x"}],
        "zone": [{"op": "replace", "path": annotation, "value": REDACTED}],
    }


@pytest.mark.parametrize("odd", [MARK, [MARK], {"a": {"deep": MARK}}, {"a": [MARK]}, {"a": [{"name": MARK}]}])
def test_a_secret_of_an_invalid_form_is_redacted(odd: Any) -> None:
    """Redaction does not depend on a valid form, not even for keys that name list elements."""
    old = observed_object({"data": {"a": [{"name": "one"}]}})
    changed = json_patch(secret(), {"op": "add", "path": "/data", "value": odd})
    for found in (previewed(create(secret(), {"data": odd})), previewed(changed, seen={secret(): old})):
        for written in _forms(found):
            assert MARK not in written


def test_equal_changes_of_secrets_are_combined() -> None:
    """A rotation of all passwords is one change for a reader, because the values are hidden."""
    refs = [secret(f"s-{place}") for place in range(11)]
    old = observed_object({"data": {"password": MARK}})
    rotated = [change(ref, old, {"data": {"password": MARK + ref.name}}) for ref in refs]
    assert plan_lines(*rotated, seen=dict.fromkeys(refs, old)) == [
        "~ 11 x Secret: because",
        "    shop/s-0, shop/s-1, shop/s-2 and 8 more",
        "    data.password: (changed)",
    ]
