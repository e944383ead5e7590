"""An explanation as `tensile explain` prints it: one sentence, one table, the last events."""

from collections.abc import Iterable, Iterator
from typing import Any

from tensile.inspection.verdict import refusal
from tensile.legible import aligned, joined

_HEAD = ("CLUSTER", "NODE", "FITS", "CHECK", "WHY")
_NAMED = 3
_ONE_BY_ONE = 20
"""Where a cluster has more nodes, those that say the same share a line."""

Row = dict[str, Any]
Cells = tuple[str, ...]


def as_text(document: Row) -> str:
    """Write it as lines, without a newline at the end."""
    pod = document["pod"]
    where = f"on {pod['node']}" if pod["node"] else "on no node"
    lines = [f"Pod {pod['namespace']}/{pod['name']}, {pod['phase']}, {where}: {document['why'].rstrip('.')}."]
    rows = [cells for one in document["lowers"] for cells in _lower(one)]
    if rows:
        lines += ["", *aligned([_HEAD, *rows])]
    unread = [f"{one['name']}: not looked at: {what}" for one in document["lowers"] for what in one["unread"]]
    lines += ["", *unread] if unread else []
    events = [
        " ".join(("", one["time"], one["type"], f"{one['reason']}:", one["message"])) for one in document["events"]
    ]
    return joined([*lines, *(["", "Last events:", *events] if events else [])])


def _lower(row: Row) -> Iterator[Cells]:
    """Give the lines of one lower: its virtual node above, then what is below."""
    yield ("upper", row["node"], *_verdict(row["above"]))
    name = row["name"]
    if row["trouble"]:
        yield (name, "-", "?", "reach", row["trouble"])
        return
    for quota in row["quota"]:
        yield (name, "-", "no", "quota", f"{quota['name']}: {quota['message']}")
    below = row["below"]
    if below["nowhere"]:
        yield (name, "any", *_verdict({"fits": False, **below["nowhere"]}))
        return
    nodes = below["nodes"]
    yield from ((name, *cells) for cells in (_one_by_one(nodes) if len(nodes) <= _ONE_BY_ONE else _grouped(nodes)))
    if not nodes:
        yield (name, "-", "no", "node", "it has no nodes")


def _one_by_one(nodes: Iterable[Row]) -> Iterator[Cells]:
    return ((one["name"], *_verdict(one)) for one in nodes)


def _grouped(nodes: Iterable[Row]) -> Iterator[Cells]:
    """Give a line for all nodes that say the same, but for how much."""
    groups: dict[Cells, list[str]] = {}
    for one in nodes:
        groups.setdefault(_verdict({**one, "detail": ""}), []).append(one["name"])
    for cells, names in sorted(groups.items(), key=lambda group: -len(group[1])):
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        yield (", ".join(names[:_NAMED]) + more, *cells)


def _verdict(told: Row) -> Cells:
    return ("yes", "", "") if told["fits"] else ("no", told["check"], refusal(told))
