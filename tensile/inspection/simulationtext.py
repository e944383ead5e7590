"""A simulation as `tensile simulate` prints it: a table of lowers, what is lost, and one line that sums up."""

from collections.abc import Iterator
from typing import Any

from tensile.legible import aligned, joined

_HEAD = ("LOWER", "FITS", "NODES", "WHY NOT MORE")
_NAMED = 3
_LISTED = 10

Row = dict[str, Any]


def as_text(document: Row) -> str:
    """Write it as lines, without a newline at the end."""
    lines = []
    if document["pod"]:
        lines += [*aligned([_HEAD, *map(_cells, document["lowers"])]), ""]
    lines += [f"{one['name']}: not looked at: {what}" for one in document["lowers"] for what in one["unread"]]
    lines += _moved(document["moved"], [one["name"] for one in document["lowers"] if one["lost"]])
    return joined([*lines, _sum(document)] if document["pod"] else lines or ["Nothing was asked."]).rstrip("\n")


def _cells(row: Row) -> tuple[str, ...]:
    if row["lost"] or row["trouble"]:
        return row["name"], "0", "-", "lost" if row["lost"] else row["trouble"]
    names = [f"{one['name']} {one['fits']}" for one in row["nodes"]]
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    fits = f"{row['fits']} or more" if row["more"] else str(row["fits"])
    return row["name"], fits, ", ".join(names[:_NAMED]) + more or "-", row["why"]


def _moved(moved: list[Row], lost: list[str]) -> Iterator[str]:
    """Tell what becomes of the pods of lost lowers."""
    if not lost:
        return
    left = [one for one in moved if not one["lower"]]
    if moved:
        yield f"{len(moved) - len(left)} of {len(moved)} pods of what is lost find another place."
    else:
        yield f"No pod has to leave {', '.join(lost)}."
    yield from (f"  {one['namespace']}/{one['name']} finds none: {one['why']}" for one in left[:_LISTED])
    if len(left) > _LISTED:
        yield f"  and {len(left) - _LISTED} more find none."
    yield ""


def _sum(document: Row) -> str:
    name = f"{document['pod']['namespace']}/{document['pod']['name']}"
    more = " or more" if any(one["more"] for one in document["lowers"]) else ""
    if document["asked"] is None:
        return f"{document['fits']}{more} of {name} fit."
    short = document["asked"] - document["fits"]
    return (
        f"All {document['asked']} of {name} fit."
        if short <= 0
        else f"{document['fits']} of {document['asked']} of {name} fit: {short} do not."
    )
