"""Every rule there is, in the order in which they are asked which keys they have."""

from tensile.descheduling.clearing import ClearingRule
from tensile.descheduling.drain import DrainRule
from tensile.descheduling.remaking import RemakingRule
from tensile.descheduling.rule import DeschedulerRule
from tensile.kubelet.issuance import TokenRule
from tensile.kubelet.lifecycle import PodRule
from tensile.kubelet.node import NodeRule
from tensile.kubelet.orphans import OrphanRule
from tensile.kubelet.waiting import WaitingRule
from tensile.reconcile.accounts import AccountRule
from tensile.reconcile.claimorphans import ClaimOrphanRule
from tensile.reconcile.dependencies import DependencyRule
from tensile.reconcile.desired import Rule
from tensile.reconcile.namespaces import NamespaceRule
from tensile.reconcile.policies import PolicyRule
from tensile.reconcile.provisioning import VolumeRule
from tensile.reconcile.rightorphans import RightsOrphanRule
from tensile.reconcile.roles import RightsRule
from tensile.reconcile.services import ServiceRule
from tensile.reconcile.slices import SliceRule
from tensile.reconcile.storage import ClaimRule
from tensile.reconcile.strays import StrayRule
from tensile.reconcile.vacancies import VacancyRule


def rules() -> tuple[Rule, ...]:
    """Give every rule: all that this program knows how to decide."""
    spaces = (NamespaceRule(), VacancyRule())
    identities = (AccountRule(), RightsRule(), RightsOrphanRule(), TokenRule())
    services = (ServiceRule(), SliceRule(), StrayRule(), PolicyRule())
    storage = (ClaimRule(), VolumeRule(), ClaimOrphanRule())
    pods = (PodRule(), OrphanRule(), WaitingRule(), DrainRule(), DeschedulerRule())
    bare = (ClearingRule(), RemakingRule())
    return (NodeRule(), *spaces, DependencyRule(), *identities, *services, *storage, *pods, *bare)
