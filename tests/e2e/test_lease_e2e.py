"""Tests of values that another client may write into a topology's Lease, and of the engines' reactions."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import uuid4

import pytest
from electionkit import leading
from sitekit import Manifest, Refused, Site

from tensile.engine.leader_election import Election, LeaseTimings, lease_ref
from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.names import owner_of
from tensile.objects import UPPER
from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

PACE = LeaseTimings(lease_duration=2.0, renew_deadline=1.4, retry_period=0.2, request_timeout=0.6)
MOST = 2147483647


class SharedLease:
    """An upper cluster, the Lease of a topology of its own, and engines that compete for it."""

    def __init__(self, site: Site, upper: HttpCluster) -> None:
        self.site = site
        self.ref = lease_ref(f"lease-{uuid4().hex[:8]}")
        self._upper = upper

    def engine(self, name: str) -> Election:
        """Return a candidate for the leadership."""
        owner = owner_of("uid", self.ref.name)
        return Election(self._upper, self.ref, lambda: owner, name, lambda: datetime.now(UTC), timings=PACE)

    async def write(self, spec: Manifest) -> Manifest:
        """Write to the lease as a client with the right to do so."""
        return await self.site.patch(self.ref.path(), {"spec": spec})

    async def lease(self) -> Manifest:
        """Return the lease's spec."""
        spec: Manifest = (await self.site.read(self.ref.path()))["spec"]
        return spec


@pytest.fixture
async def shared_lease(sandbox: Sandbox) -> AsyncIterator[SharedLease]:
    """Connect to the upper cluster, and delete the lease afterwards."""
    upper = HttpCluster(UPPER, await from_kubeconfig(sandbox.directory / "upper.kubeconfig"))
    made = SharedLease(Site(sandbox.clusters["upper"]), upper)
    yield made
    await made.site.delete(made.ref.path())
    await made.site.close()
    await upper.close()


async def test_the_api_accepts_extreme_values_in_a_lease_but_no_invalid_durations(shared_lease: SharedLease) -> None:
    """It accepts a duration of 68 years or none, any renewTime, and any holder.

    It rejects negative durations, zero, and numbers out of range.
    """
    await shared_lease.engine("one").acquire()
    for spec in ({"leaseDurationSeconds": -1}, {"leaseDurationSeconds": 0}, {"leaseDurationSeconds": "15"}):
        with pytest.raises(Refused):
            await shared_lease.write(spec)
    with pytest.raises(Refused):
        await shared_lease.write({"leaseTransitions": MOST + 1})
    for spec in (
        {"leaseDurationSeconds": MOST},
        {"leaseDurationSeconds": None},
        {"leaseTransitions": MOST},
        {"renewTime": "2999-01-01T00:00:00.000000Z"},
        {"holderIdentity": "anybody"},
    ):
        await shared_lease.write(spec)


@pytest.mark.parametrize("spec", [{"leaseDurationSeconds": MOST}, {"leaseTransitions": MOST}])
async def test_a_forged_lease_is_acquired_in_the_end(shared_lease: SharedLease, spec: Manifest) -> None:
    """Its holder has stopped, and the API accepts the values that the new leader writes."""
    async with leading(shared_lease.engine("one")):
        await shared_lease.write(spec)
    async with asyncio.timeout(20 * PACE.lease_duration):
        await shared_lease.engine("two").acquire()
    found = await shared_lease.lease()
    assert (found["holderIdentity"], found["leaseDurationSeconds"]) == ("two", int(PACE.lease_duration))
