"""Tests of the JSON output of a plan, which programs read."""

import pytest
from msgspec.structs import replace
from previewkit import (
    A,
    B,
    change,
    config,
    create,
    decoded,
    delete,
    node,
    observed_object,
    pod,
    previewed,
)

from tensile.reconcile.desired import PodMove
from tensile.reconcile.report import as_json, as_text
from tensile.reconcile.world import Key, Problem

RECORDED = """\
{
  "formatVersion": "1.5",
  "topology": "demo",
  "changes": [
    {
      "cluster": "upper",
      "action": "delete",
      "kind": "Node",
      "apiVersion": "v1",
      "namespace": "",
      "name": "lower-z",
      "reason": "its lower cluster was removed from the topology",
      "fields": [],
      "operations": [
        {
          "op": "remove",
          "path": ""
        }
      ]
    },
    {
      "cluster": "lower-a",
      "action": "update",
      "kind": "ConfigMap",
      "apiVersion": "v1",
      "namespace": "shop",
      "name": "settings",
      "reason": "because",
      "fields": [
        "data.level"
      ],
      "operations": [
        {
          "op": "replace",
          "path": "/data/level",
          "value": "debug"
        }
      ]
    }
  ],
  "problems": [
    {
      "lower": "lower-b",
      "rule": "pod",
      "namespace": "shop",
      "name": "web",
      "reason": "QuotaExceeded",
      "message": "exceeded quota"
    }
  ],
  "unreached": [
    {
      "lower": "lower-c",
      "message": "out of reach: no answer"
    }
  ],
  "only": [],
  "onlyNamespaces": [],
  "onlyKinds": [],
  "summary": {
    "add": 0,
    "change": 1,
    "delete": 1,
    "clusters": {
      "upper": {
        "add": 0,
        "change": 0,
        "delete": 1
      },
      "lower-a": {
        "add": 0,
        "change": 1,
        "delete": 0
      },
      "lower-b": {
        "add": 0,
        "change": 0,
        "delete": 0
      }
    }
  }
}"""


def test_the_json_of_a_plan_has_the_recorded_form() -> None:
    """Every field keeps its place, because programs depend on the format for years."""
    old = observed_object({"data": {"level": "info"}})
    found = previewed(
        change(config(), old, {"data": {"level": "debug"}}),
        delete(node("lower-z"), "its lower cluster was removed from the topology"),
        seen={config(): old},
        problems={Key("pod", B, "shop", "web"): Problem("QuotaExceeded", "exceeded quota")},
        unreached={"lower-c": "out of reach: no answer"},
    )
    assert as_json(found).decode() == RECORDED


def test_a_plan_without_changes_has_empty_lists() -> None:
    """All fields are present."""
    found = decoded(as_json(previewed()))
    nothing = {"add": 0, "change": 0, "delete": 0}
    assert found["changes"] == found["problems"] == []
    assert found["summary"] == {**nothing, "clusters": {"upper": nothing, A: nothing, B: nothing}}


@pytest.mark.parametrize(
    ("steps", "action", "operation"),
    [
        ([create(pod(), {"spec": {"x": 1}})], "create", {"op": "add", "path": "", "value": {"spec": {"x": 1}}}),
        ([delete(pod())], "delete", {"op": "remove", "path": ""}),
        ([delete(pod()), create(pod(), {"a": 1})], "replace", {"op": "replace", "path": "", "value": {"a": 1}}),
    ],
)
def test_creating_deleting_and_replacing_are_operations_on_the_root(steps: list, action: str, operation: dict) -> None:
    """In RFC 6902, the empty path is that of the whole document."""
    (found,) = decoded(as_json(previewed(*steps)))["changes"]
    assert (found["action"], found["operations"]) == (action, [operation])


def test_a_pod_that_moves_has_its_old_node_and_the_possible_new_ones() -> None:
    """The virtual nodes with capacity are in order, with the real node of the first one.

    Other changes have no such field.
    """
    steps = replace(delete(pod()), moving=PodMove("vk-a", ("vk-b", "vk-c"), "b-1")), delete(pod("other"))
    other, moved = decoded(as_json(previewed(*steps)))["changes"]
    assert moved["move"] == {"from": "vk-a", "to": ["vk-b", "vk-c"], "node": "b-1"}
    assert "move" not in other
    (replaced,) = decoded(as_json(previewed(steps[0], create(pod(), {"a": 1}))))["changes"]
    assert (replaced["action"], replaced["move"]) == ("replace", moved["move"])


def test_each_change_is_listed_even_if_many_are_equal() -> None:
    """Only the text output combines equal changes, in the same order."""
    found = previewed(*(create(pod(f"web-{place}")) for place in range(30)))
    names = [change["name"] for change in decoded(as_json(found))["changes"]]
    assert names == [f"web-{place}" for place in range(30)]
    assert "30 x Pod" in as_text(found, colour=False)
