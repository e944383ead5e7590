"""How long answers of a real upper cluster about tokens count, and what for: revoked ones and forgeries."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from uuid import uuid4

import orjson
import pytest
from kubelet_lab import Notes
from sitekit import Site

from tensile.kube.client import HttpCluster
from tensile.kube.credentials import from_kubeconfig
from tensile.kubelet.api.auth import TOKEN_SECONDS, Authenticator, User
from tensile.kubelet.api.routes import HTTPError
from tensile.objects import UPPER

if TYPE_CHECKING:
    from tensile.sandbox.sandbox import Sandbox

pytestmark = pytest.mark.real

ACCOUNTS = "/api/v1/namespaces/{}/serviceaccounts"


class ReviewedAccount:
    """An account of the upper cluster in a namespace of its own, and who judges it; time stands until it is moved."""

    def __init__(self, sandbox: "Sandbox") -> None:
        self.name = f"lifetime-{uuid4().hex[:8]}"
        self.time = 1000.0
        self.site = Site(sandbox.clusters["upper"])
        self._kubeconfig = sandbox.directory / "upper.kubeconfig"

    async def open(self) -> None:
        """Make the account, and connect."""
        self.upper = HttpCluster(UPPER, await from_kubeconfig(self._kubeconfig))
        self.authenticator = Authenticator(self.upper, Notes(), lambda: self.time)
        await self.site.create("/api/v1/namespaces", {"metadata": {"name": self.name}})
        await self.site.until(f"{ACCOUNTS.format(self.name)}/default", bool)
        await self.site.create(ACCOUNTS.format(self.name), {"metadata": {"name": "scraper"}})

    async def close(self) -> None:
        """Remove what was made."""
        await self.upper.close()
        await self.site.delete(f"/api/v1/namespaces/{self.name}")
        await self.site.close()

    async def token(self, **spec: object) -> str:
        """Request a token for the account."""
        path = f"{ACCOUNTS.format(self.name)}/scraper/token"
        asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = (await self.site.create(path, asked))["status"]["token"]
        return token

    async def who(self, token: str) -> User | int:
        """Return a token's user, or the status with which it is turned away."""
        try:
            return await self.authenticator.user({}, (("authorization", f"Bearer {token}"),), "10.0.0.1")
        except HTTPError as refused:
            return int(refused.status)

    async def forgotten(self, token: str) -> None:
        """Wait until the cluster itself does not know a token any more: it remembers it for ten seconds."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        while (await self.site.create(path, review))["status"].get("authenticated"):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.2)


@pytest.fixture
async def ground(sandbox: "Sandbox") -> AsyncIterator[ReviewedAccount]:
    """Return an account of the upper cluster."""
    made = ReviewedAccount(sandbox)
    await made.open()
    yield made
    await made.close()


def altered(token: str) -> dict[str, str]:
    """Make forgeries of a token by what was done to it."""
    head, claims, signature = token.split(".")
    plain = orjson.loads(base64.urlsafe_b64decode(claims + "=" * (-len(claims) % 4)))
    other = base64.urlsafe_b64encode(orjson.dumps({**plain, "sub": "system:serviceaccount:kube-system:x"})).decode()
    none = base64.urlsafe_b64encode(b'{"alg":"none"}').decode()
    return {
        "longer": f"{token}x",
        "unsigned": f"{none.rstrip('=')}.{claims}.",
        "another's": f"{head}.{other.rstrip('=')}.{signature}",
        "shorter": f"{head}.{claims}",
        "twice": f"{token}.{token}",
    }


@pytest.mark.slow  # the apiserver remembers tokens for ten seconds
async def test_a_deleted_account_is_known_for_two_minutes_more(ground: ReviewedAccount) -> None:
    """As by a kubelet, and no longer; another token of it that was not shown before is refused at once."""
    first, second = await ground.token(), await ground.token(expirationSeconds=1000)
    user = await ground.who(first)
    assert isinstance(user, User)
    assert user.name == f"system:serviceaccount:{ground.name}:scraper"
    assert user.uid
    assert "system:authenticated" in user.groups
    assert user.extra
    path = f"{ACCOUNTS.format(ground.name)}/scraper"
    await ground.site.delete(path)
    await ground.site.gone(path)
    assert await ground.who(second) == 401
    ground.time += TOKEN_SECONDS - 1
    assert await ground.who(first) == user
    await ground.forgotten(first)
    ground.time += 1
    assert await ground.who(first) == 401


async def test_forged_tokens_and_those_for_others_are_nobodys(ground: ReviewedAccount) -> None:
    """Also while the one that they were made of is remembered; one for another audience is as good as forged."""
    token = await ground.token()
    assert isinstance(await ground.who(token), User)
    for forgery, text in altered(token).items():
        assert await ground.who(text) == 401, forgery
    assert await ground.who(await ground.token(audiences=["vault"])) == 401
