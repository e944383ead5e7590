"""The setting of a sequence: the topology file, the tenants, and the namespace of the hostile lower tenant.

The lower namespace of an upper namespace is computed here independently of the engine's code, so that a defect there
cannot hide itself: it is the same name, or the name with the topology's name as prefix. If the name is too long for
that, it is learned from the Namespace that the engine creates.
"""

from itertools import product
from typing import Any, NamedTuple

import orjson

from bench.model.sequences.model import LOWERS
from tensile.names import prefixed
from tensile.topology import Topology, parse

LONGEST = 50
"""Longer names are not computed by hand, because the engine decides how they are shortened."""
HOSTILE_NAMESPACES = ("unmapped", "tenant", "victim", "prefixed", "squatted")
"""The namespace in which the hostile lower tenant writes.

`unmapped` is `aaa`; `tenant` is the namespace of the hostile upper tenant, `victim` that of the victim; `prefixed` is
`demo-aaa`; `squatted` has the name of an honest tenant's lower namespace and existed before the engine.

In the victim's namespace he controls the victim's pods of that lower cluster, but not its pods in other clusters nor
its Secrets. With a prefix, the engine mirrors nothing into a namespace that it did not create: the tenant has no lower
namespace there.
"""
_PREFIXED = ("prefixed", "squatted")
GUARD = {"maxDeletes": 6, "maxDeletePercent": 10}
"""The number of pods of the honest tenants, because all of them may be ended at once while no engine runs."""
_IDENTITIES = ("upper", "lower", "none")


class Setting(NamedTuple):
    """One combination of topology and tenants that a sequence runs with.

    `identity` is the `serviceAccounts.identity` of pods; "none" means that no controllers are enabled. The hostile
    lower tenant writes in `hostile_namespace`, one of `HOSTILE_NAMESPACES`, of `lower` alone. With `is_cut` the
    victim's namespace name is too long for a prefix, and the hostile upper tenant's namespace has the shortened name
    that results. `topology` is the topology's name, `tag` the suffix of every namespace. Without `has_driver` no
    volumes are provisioned.
    """

    mapping: str = "same"
    identity: str = "upper"
    conflict: str = "fail"
    hostile_namespace: str = "unmapped"
    lower: str = LOWERS[1]
    is_cut: bool = False
    topology: str = "demo"
    tag: str = ""
    has_driver: bool = True

    def __str__(self) -> str:
        cut = " cut" if self.is_cut else ""
        return f"{self.mapping} {self.identity} {self.conflict}, {self.hostile_namespace} ground in {self.lower}{cut}"

    @property
    def has_controllers(self) -> bool:
        """Whether Services, ServiceAccounts, RBAC objects and claims are mirrored."""
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
        """The upper namespaces of the honest tenants."""
        return (self.bank, f"shop{self.tag}")

    @property
    def namespaces(self) -> tuple[str, ...]:
        """The upper namespaces of all tenants."""
        return (*self.honest, self.hostile)

    @property
    def mapped(self) -> str:
        """The upper namespace to which the hostile lower tenant's namespace belongs, "" for none."""
        return {"tenant": self.hostile, "victim": self.bank}.get(self.hostile_namespace, "")

    def is_controlled(self, namespace: str, lower: str) -> bool:
        """Report whether the hostile lower tenant can write in the namespace in which pods of an upper namespace run.

        What he can do to those pods alone is accepted: under `mapping: same` that namespace belongs to the same tenant.
        If he has the lower namespace before the engine does, those pods never run.
        """
        return lower == self.lower and namespace in {self.mapped, self.squatted} - {""}

    @property
    def squatted(self) -> str:
        """The upper namespace whose lower name is taken in the hostile tenant's lower cluster, "" for none."""
        return self.honest[1] if self.hostile_namespace == "squatted" else ""

    def file(self) -> dict[str, Any]:
        """Return the fields of the topology file that this setting determines."""
        return {
            "controllers": ["PV", "Service", "RBAC", "ServiceAccount"] if self.has_controllers else [],
            "onConflict": self.conflict,
            "serviceAccounts": {"identity": self.identity if self.has_controllers else "lower"},
            "lowerDefaults": {"namespaces": {"mapping": self.mapping}},
        }

    def read(self) -> Topology:
        """Return the topology of this setting, with two lower clusters."""
        lowers = [{"name": name, "kubeconfig": name} for name in LOWERS]
        head = {"apiVersion": "tensile-kube.io/v1alpha1", "kind": "Topology", "name": self.topology}
        return parse(orjson.dumps({**head, **self.file(), "lowers": lowers, "guard": GUARD}).decode())


def _settings() -> tuple[Setting, ...]:
    """Return all settings; the first is the plainest."""
    every = product(("same", "prefix"), _IDENTITIES, ("fail", "adopt"), HOSTILE_NAMESPACES, LOWERS[::-1])
    plain = [Setting(*one) for one in every if one[0] == "prefix" or one[3] not in _PREFIXED]
    cut = [one._replace(is_cut=True) for one in plain if one.mapping == "prefix" and one.hostile_namespace == "tenant"]
    return (*plain, *cut)


SETTINGS = _settings()


class LowerNamespaces:
    """The lower namespaces of upper namespaces."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self._learned: dict[tuple[str, str], str] = {}

    def learn(self, lower: str, below: str, above: str) -> str:
        """Note a lower namespace that the engine created; return what is wrong with it, "" for nothing."""
        by_hand = self.of(above, lower)
        if by_hand and by_hand != below:
            return f"namespace {below} in {lower} was made for {above}, whose lower namespace is {by_hand}"
        other = self.above(lower, below)
        if other not in ("", above):
            return f"namespace {below} in {lower} was made for {above} and for {other}"
        self._learned[lower, above] = below
        return ""

    def of(self, namespace: str, lower: str) -> str:
        """Return the lower namespace of an upper one, or "" if its name is taken or not known yet."""
        if self._setting.mapping == "same":
            return namespace
        if (namespace, lower) == (self._setting.squatted, self._setting.lower):
            return ""
        by_hand = f"{self._setting.topology}-{namespace}"
        return by_hand if len(by_hand) < LONGEST else self._learned.get((lower, namespace), "")

    def above(self, lower: str, below: str) -> str:
        """Return the tenant's upper namespace of a lower one, "" for none."""
        found = (one for one in self._setting.namespaces if self.of(one, lower) == below)
        return next(found, "") if below else ""

    def hostile_namespace(self) -> str:
        """Return the lower namespace in which the hostile lower tenant writes, "" while it does not exist."""
        if self._setting.mapped:
            return self.of(self._setting.mapped, self._setting.lower)
        alone = self._setting.squatted or f"aaa{self._setting.tag}"
        return f"{self._setting.topology}-{alone}" if self._setting.hostile_namespace in _PREFIXED else alone
