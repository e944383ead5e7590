"""Tests of the output of `tensile list`, and of its errors if the objects cannot be listed."""

from pathlib import Path

import orjson
import pytest
from clikit import Files, run_failing

from tensile.diagnostics.inventory import Inventory, Item, as_json, as_text

SPACE = Item("lower-a", "Namespace", "", "demo-shop", "shop", "2026-03-01T12:00:00Z")
POD = Item("lower-a", "Pod", "demo-shop", "web", "", "2026-03-01T12:00:00Z")
NODE = Item("upper", "Node", "", "lower-a", "", "2026-03-01T12:00:00Z")


def test_the_table_ends_with_the_number_of_objects_of_each_cluster() -> None:
    """A namespace shows the upper namespace that it mirrors."""
    assert as_text(Inventory((NODE, SPACE, POD), ())) == (
        "CLUSTER   KIND        NAMESPACE   NAME        UPPER NAMESPACE   CREATED\n"
        "upper     Node        -           lower-a     -                 2026-03-01T12:00:00Z\n"
        "lower-a   Namespace   -           demo-shop   shop              2026-03-01T12:00:00Z\n"
        "lower-a   Pod         demo-shop   web         -                 2026-03-01T12:00:00Z\n"
        "\n"
        "upper: 1 object\n"
        "lower-a: 2 objects"
    )


def test_an_empty_inventory_is_one_line() -> None:
    """The line replaces an empty table."""
    assert as_text(Inventory((), ())) == "No objects."


def test_json_contains_what_could_not_be_listed() -> None:
    """A program can see that the list of objects is incomplete."""
    found = orjson.loads(as_json(Inventory((POD,), ("lower-b: pods: forbidden",))))
    assert found == {"formatVersion": "1.0", "items": [POD._asdict()], "unread": ["lower-b: pods: forbidden"]}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "127.0.0.1:{port}"),
        (("other",), "list other: no lower cluster of that name; there are below"),
    ],
)
def test_list_fails_without_the_upper_or_a_known_lower(
    tmp_path: Path, arguments: tuple[str, ...], message: str
) -> None:
    """The error names the address of the upper apiserver, or the existing lowers."""
    files = Files(tmp_path)
    error = run_failing("list", *arguments, "-f", files.save())
    assert message.format(port=files.ports[0]) in error
