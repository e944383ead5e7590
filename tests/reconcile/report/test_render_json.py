"""What a program reads of a plan."""

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
    pod,
    previewed,
    seen_as,
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


def test_a_plan_is_written_as_recorded() -> None:
    """Every field in its place: programs read them for years."""
    old = seen_as({"data": {"level": "info"}})
    found = previewed(
        change(config(), old, {"data": {"level": "debug"}}),
        delete(node("lower-z"), "its lower cluster was removed from the topology"),
        seen={config(): old},
        problems={Key("pod", B, "shop", "web"): Problem("QuotaExceeded", "exceeded quota")},
        unreached={"lower-c": "out of reach: no answer"},
    )
    assert as_json(found).decode() == RECORDED


def test_nothing_to_do_is_an_empty_list() -> None:
    """The fields are there all the same."""
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
def test_whole_objects_are_operations_on_the_root(steps: list, action: str, operation: dict) -> None:
    """RFC 6902 says all of a document with the empty path."""
    (found,) = decoded(as_json(previewed(*steps)))["changes"]
    assert (found["action"], found["operations"]) == (action, [operation])


def test_a_pod_that_moves_says_where_to() -> None:
    """The node that has room first, and the real one behind it; others have no such field."""
    steps = replace(delete(pod()), moving=PodMove("vk-a", ("vk-b", "vk-c"), "b-1")), delete(pod("other"))
    other, moved = decoded(as_json(previewed(*steps)))["changes"]
    assert moved["move"] == {"from": "vk-a", "to": ["vk-b", "vk-c"], "node": "b-1"}
    assert "move" not in other
    (replaced,) = decoded(as_json(previewed(steps[0], create(pod(), {"a": 1}))))["changes"]
    assert (replaced["action"], replaced["move"]) == ("replace", moved["move"])


def test_each_change_is_told_however_many_are_alike() -> None:
    """Only the text tells equal changes as one, in the same order."""
    found = previewed(*(create(pod(f"web-{place}")) for place in range(30)))
    names = [change["name"] for change in decoded(as_json(found))["changes"]]
    assert names == [f"web-{place}" for place in range(30)]
    assert "30 x Pod" in as_text(found, colour=False)
