"""What a sequence is played with: the topology file, who the tenants are, and where the hostile lower tenant writes.

Where an upper namespace is below is worked out here by hand and not by the engine's code, so that a defect there cannot
hide itself: the name itself, or the topology's name before it. A name too long for that is learned from the Namespace
that the engine makes for it.
"""

from itertools import product
from typing import Any, NamedTuple

import orjson

from bench.model.sequences.model import LOWERS
from tensile.names import prefixed
from tensile.topology import Topology, parse

LONGEST = 50
"""Names that are longer are not worked out by hand: how they are cut is the engine's to decide."""
GROUNDS = ("unmapped", "tenant", "victim", "prefixed", "squatted")
"""The namespace in which the hostile lower tenant writes: `aaa`, that of the upper one, the victim's, `demo-aaa`, or
one with the name of an honest tenant's that was there before the engine.

In the victim's, its pods of that lower cluster are in his hands; its pods elsewhere and its Secrets are not. With a
prefix, nothing goes into a namespace that the engine did not make: there the tenant has no place.
"""
_PREFIXED = ("prefixed", "squatted")
GUARD = {"maxDeletes": 6, "maxDeletePercent": 10}
"""As many as honest tenants have pods: all of them may be ended at once while no engine runs."""
_IDENTITIES = ("upper", "lower", "none")


class Setting(NamedTuple):
    """One way of playing.

    `identity` is that of pods, "none" without controllers. The hostile lower tenant writes in `ground`, one of
    `GROUNDS`, of `lower` alone. With `is_cut` the victim's name is too long for a prefix, and the hostile upper
    tenant's namespace is called like what becomes of it. `topology` is the topology's name, `tag` the end of every
    namespace's; without `has_driver` nobody makes volumes.
    """

    mapping: str = "same"
    identity: str = "upper"
    conflict: str = "fail"
    ground: str = "unmapped"
    lower: str = LOWERS[1]
    is_cut: bool = False
    topology: str = "demo"
    tag: str = ""
    has_driver: bool = True

    def __str__(self) -> str:
        cut = " cut" if self.is_cut else ""
        return f"{self.mapping} {self.identity} {self.conflict}, {self.ground} ground in {self.lower}{cut}"

    @property
    def has_controllers(self) -> bool:
        """Whether Services, accounts, rights and claims go down."""
        return self.identity != "none"

    @property
    def bank(self) -> str:
        """The victim's upper namespace."""
        return "bank-" + 56 * "v" if self.is_cut else f"bank{self.tag}"

    @property
    def hostile(self) -> str:
        """The hostile upper tenant's namespace."""
        if self.is_cut:
            return prefixed(self.topology, self.bank).removeprefix(f"{self.topology}-")
        return f"mallory-up{self.tag}"

    @property
    def honest(self) -> tuple[str, ...]:
        """The upper namespaces of everybody else."""
        return (self.bank, f"shop{self.tag}")

    @property
    def spaces(self) -> tuple[str, ...]:
        """Every tenant's upper namespace."""
        return (*self.honest, self.hostile)

    @property
    def mapped(self) -> str:
        """The upper namespace to which the ground belongs, "" for none."""
        return {"tenant": self.hostile, "victim": self.bank}.get(self.ground, "")

    def in_hand(self, namespace: str, lower: str) -> bool:
        """Report whether pods of an upper namespace are in the hostile lower tenant's hands: he writes where they run.

        What he can do to those alone is admitted: under `mapping: same` that namespace is the same tenant's. Where he
        has their place before the engine does, they never run.
        """
        return lower == self.lower and namespace in {self.mapped, self.squatted} - {""}

    @property
    def squatted(self) -> str:
        """The upper namespace whose lower name is taken in the hostile tenant's lower cluster, "" for none."""
        return self.honest[1] if self.ground == "squatted" else ""

    def file(self) -> dict[str, Any]:
        """Return the fields of a topology file that are as this setting says."""
        return {
            "controllers": ["PV", "Service", "RBAC", "ServiceAccount"] if self.has_controllers else [],
            "onConflict": self.conflict,
            "serviceAccounts": {"identity": self.identity if self.has_controllers else "lower"},
            "lowerDefaults": {"namespaces": {"mapping": self.mapping}},
        }

    def read(self) -> Topology:
        """Return a topology of two lowers."""
        lowers = [{"name": name, "kubeconfig": name} for name in LOWERS]
        head = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": self.topology}
        return parse(orjson.dumps({**head, **self.file(), "lowers": lowers, "guard": GUARD}).decode())


def _settings() -> tuple[Setting, ...]:
    """Return every setting; the first is the plainest."""
    every = product(("same", "prefix"), _IDENTITIES, ("fail", "adopt"), GROUNDS, LOWERS[::-1])
    plain = [Setting(*one) for one in every if one[0] == "prefix" or one[3] not in _PREFIXED]
    cut = [one._replace(is_cut=True) for one in plain if one.mapping == "prefix" and one.ground == "tenant"]
    return (*plain, *cut)


SETTINGS = _settings()


class Places:
    """Where upper namespaces are below."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._learned: dict[tuple[str, str], str] = {}

    def learn(self, lower: str, below: str, above: str) -> str:
        """Note that the engine made a namespace below for one above; return in words what is wrong with that."""
        by_hand = self.of(above, lower)
        if by_hand and by_hand != below:
            return f"namespace {below} in {lower} was made for {above}, whose place is {by_hand}"
        other = self.above(lower, below)
        if other not in ("", above):
            return f"namespace {below} in {lower} was made for {above} and for {other}"
        self._learned[lower, above] = below
        return ""

    def of(self, namespace: str, lower: str) -> str:
        """Return the lower namespace for an upper one, "" where it has none: its name is taken, or not known yet."""
        if self._setting.mapping == "same":
            return namespace
        if (namespace, lower) == (self._setting.squatted, self._setting.lower):
            return ""
        by_hand = f"{self._setting.topology}-{namespace}"
        return by_hand if len(by_hand) < LONGEST else self._learned.get((lower, namespace), "")

    def above(self, lower: str, below: str) -> str:
        """Return the tenant's upper namespace for one below, "" for none."""
        found = (one for one in self._setting.spaces if self.of(one, lower) == below)
        return next(found, "") if below else ""

    def ground(self) -> str:
        """Return the namespace below in which the hostile lower tenant writes, "" while it is not there."""
        if self._setting.mapped:
            return self.of(self._setting.mapped, self._setting.lower)
        alone = self._setting.squatted or f"aaa{self._setting.tag}"
        return f"{self._setting.topology}-{alone}" if self._setting.ground in _PREFIXED else alone
