"""Defines a broken setup: how to create it, and what doctor has to report of it."""

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from bench.conformance.diagnoses.topology_under_test import Diagnosis, TopologyUnderTest

Prepare = Callable[[TopologyUnderTest], Awaitable[None]]


class Setup(NamedTuple):
    """A setup with one fault: the cluster and check of the finding, and words of its cause and its remedy.

    `level` is "fail" or "warn"; if it is "fail", nothing may fail in any other cluster, and if it is "warn", nothing
    may fail at all.
    """

    name: str
    cluster: str
    check: str
    cause: str
    remedy: str
    prepare: Prepare
    level: str = "fail"

    def judge(self, found: Diagnosis) -> str:
        """Return what is wrong with a diagnosis, "" if it is right."""
        findings = [one for one in found.findings(self.level) if one[:2] == (self.cluster, self.check)]
        if not any(self.cause in what and self.remedy in advice for _, _, what, advice in findings):
            return f"not reported: {found.findings('fail') + found.findings('warn')}"
        elsewhere = [one for one in found.findings("fail") if one[0] != self.cluster or self.level == "warn"]
        if elsewhere:
            return f"reported although it works: {elsewhere}"
        code = 1 if self.level == "fail" else 0
        return "" if found.code == code else f"exit code {found.code}, not {code}"


SETUPS: dict[str, Setup] = {}


def setup(cluster: str, check: str, *, cause: str, remedy: str, level: str = "fail") -> Callable[[Prepare], Prepare]:
    """Register a function as the preparation of a setup; the function's name is the name of the setup."""

    def known(prepare: Prepare) -> Prepare:
        """Register the function, and return it."""
        name = prepare.__name__.replace("_", " ")
        SETUPS[name] = Setup(name, cluster, check, cause, remedy, prepare, level)
        return prepare

    return known
