"""From facts to findings: every check on every cluster, in the order in which they are told."""

from collections.abc import Callable, Iterator

from tensile.doctor.facts import Facts, Side
from tensile.doctor.finding import CHECKS, Finding, Level
from tensile.doctor.hook import hooked
from tensile.doctor.networks import networked
from tensile.doctor.nodes import called, identified, noded
from tensile.doctor.papers import papers
from tensile.doctor.permission import permitted
from tensile.doctor.ports import bound
from tensile.doctor.reach import reached
from tensile.doctor.supplies import measured, stored
from tensile.doctor.tenants import tenanted, unprotected

Check = Callable[[Side, Facts], Iterator[Finding]]
_CHECKS: tuple[Check, ...] = (
    reached,
    papers,
    identified,
    permitted,
    noded,
    called,
    measured,
    stored,
    hooked,
    bound,
    tenanted,
    unprotected,
)


def diagnosed(facts: Facts) -> list[Finding]:
    """Give all findings, cluster by cluster."""
    of_all = list(networked(facts))
    return [finding for side in facts.sides() for finding in _of(side, facts, of_all)]


def _of(side: Side, facts: Facts, of_all: list[Finding]) -> list[Finding]:
    found = [finding for check in _CHECKS for finding in check(side, facts)]
    found += [finding for finding in of_all if finding.cluster == side.name]
    return sorted(found, key=lambda finding: CHECKS.index(finding.check))


def worst(findings: list[Finding]) -> Level:
    """Give the worst level of some findings."""
    order = list(Level)
    return max((finding.level for finding in findings), key=order.index, default=Level.SKIP)
