"""The reference of permissions: the rights of the engine, written from the list itself.

Write it with `PYTHONPATH=tests/kit .venv/bin/python -m rightstable`.
"""

from collections.abc import Iterator
from pathlib import Path

import orjson

from tensile.engine.permissions import Permission, lower_rights, upper_rights
from tensile.engine.topology_reader import ConfigMapKey
from tensile.topology import Topology, parse

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "reference" / "permissions.md"
BEGIN, END = "<!-- rights -->", "<!-- end of rights -->"
EVERYTHING = {
    "apiVersion": "tensile-kube.io/v1alpha1",
    "kind": "Topology",
    "name": "demo",
    "lowers": [{"name": "a", "kubeconfig": "a"}],
    "controllers": ["PV", "Service", "RBAC", "ServiceAccount"],
    "serviceAccounts": {"identity": "upper"},
    "webhook": {"enabled": True},
    "descheduler": {"enabled": True, "recreateBarePods": True},
    "extender": {"enabled": True},
}
"""A topology that enables every feature."""
PLACE = ConfigMapKey("of the topology's ConfigMap", "topology")
INSIDE = "of the engine"


def topology() -> Topology:
    """Parse that topology."""
    return parse(orjson.dumps(EVERYTHING).decode(), name="topology.yaml")


def table() -> str:
    """Return the tables of both sides."""
    whole = topology()
    upper = upper_rights(whole, place=PLACE, takes_turns=True, namespace=INSIDE)
    return "\n".join([*_side("In the upper cluster", upper), "", *_side("In each lower cluster", _below(whole))])


def _below(whole: Topology) -> list[Permission]:
    return lower_rights(whole.lowers[0])


def _side(title: str, rights: list[Permission]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| resource | verbs | for | lost without it |"
    yield "|---|---|---|---|"
    for right in rights:
        group = f" of `{right.group}`" if right.group and right.resource != "*" else ""
        where = f", in the namespace {right.namespace}" if right.namespace else ""
        which = f", only `{right.name}`" if right.name else ""
        what = f"`{right.resource}`{group}{which}{where}"
        yield f"| {what} | {', '.join(right.verbs)} | {right.purpose} | {right.lost} |"


def rewritten(text: str) -> str:
    """Return a text with the tables between its marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(rewritten(DOCUMENT.read_text()))
