"""`tensile list`: how it prints what a topology owns, and what it says where that cannot be known."""

from pathlib import Path

import orjson
import pytest
from clikit import Files, refused

from tensile.diagnostics.inventory import Inventory, Item, as_json, as_text

SPACE = Item("lower-a", "Namespace", "", "demo-shop", "shop", "2026-03-01T12:00:00Z")
POD = Item("lower-a", "Pod", "demo-shop", "web", "", "2026-03-01T12:00:00Z")
NODE = Item("upper", "Node", "", "lower-a", "", "2026-03-01T12:00:00Z")


def test_the_table_ends_with_the_number_of_objects_of_each_cluster() -> None:
    """A namespace shows which upper namespace it mirrors."""
    assert as_text(Inventory((NODE, SPACE, POD), ())) == (
        "CLUSTER   KIND        NAMESPACE   NAME        UPPER NAMESPACE   CREATED\n"
        "upper     Node        -           lower-a     -                 2026-03-01T12:00:00Z\n"
        "lower-a   Namespace   -           demo-shop   shop              2026-03-01T12:00:00Z\n"
        "lower-a   Pod         demo-shop   web         -                 2026-03-01T12:00:00Z\n"
        "\n"
        "upper: 1 object\n"
        "lower-a: 2 objects"
    )


def test_nothing_is_one_line() -> None:
    """In place of an empty table."""
    assert as_text(Inventory((), ())) == "No objects."


def test_json_has_what_could_not_be_listed() -> None:
    """Beside the objects, so that a program does not take a part for the whole."""
    found = orjson.loads(as_json(Inventory((POD,), ("lower-b: pods: forbidden",))))
    assert found == {"formatVersion": "1.0", "items": [POD._asdict()], "unread": ["lower-b: pods: forbidden"]}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "127.0.0.1:{port}"),
        (("other",), "list other: no lower cluster of that name; there are below"),
    ],
)
def test_it_ends_with_an_error_where_nothing_is_known(tmp_path: Path, arguments: tuple[str, ...], words: str) -> None:
    """The upper cluster does not answer, or there is no such lower."""
    files = Files(tmp_path)
    said = refused("list", *arguments, "-f", files.save())
    assert words.format(port=files.ports[0]) in said
