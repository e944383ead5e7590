"""Tests of how long token reviews of a real upper cluster are cached, and of revoked and forged tokens."""

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING
from uuid import uuid4

import orjson
import pytest
from kubelet_lab import RecordingLogger
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
    """An account of the upper cluster in its own namespace, and an authenticator with a clock that the test sets."""

    def __init__(self, sandbox: "Sandbox") -> None:
        self.name = f"lifetime-{uuid4().hex[:8]}"
        self.time = 1000.0
        self.site = Site(sandbox.clusters["upper"])
        self._kubeconfig = sandbox.directory / "upper.kubeconfig"

    async def open(self) -> None:
        """Create the account, and connect."""
        self.upper = HttpCluster(UPPER, await from_kubeconfig(self._kubeconfig))
        self.authenticator = Authenticator(self.upper, RecordingLogger(), lambda: self.time)
        await self.site.create("/api/v1/namespaces", {"metadata": {"name": self.name}})
        await self.site.until(f"{ACCOUNTS.format(self.name)}/default", bool)
        await self.site.create(ACCOUNTS.format(self.name), {"metadata": {"name": "scraper"}})

    async def close(self) -> None:
        """Delete the created objects."""
        await self.upper.close()
        await self.site.delete(f"/api/v1/namespaces/{self.name}")
        await self.site.close()

    async def token(self, **spec: object) -> str:
        """Request a token for the account."""
        path = f"{ACCOUNTS.format(self.name)}/scraper/token"
        token_request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        token: str = (await self.site.create(path, token_request))["status"]["token"]
        return token

    async def who(self, token: str) -> User | int:
        """Return a token's user, or the status with which the token is rejected."""
        try:
            return await self.authenticator.user({}, (("authorization", f"Bearer {token}"),), "10.0.0.1")
        except HTTPError as refused:
            return int(refused.status)

    async def forgotten(self, token: str) -> None:
        """Wait until the cluster itself no longer accepts a token, which it caches for ten seconds."""
        review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": token}}
        path = "/apis/authentication.k8s.io/v1/tokenreviews"
        while (await self.site.create(path, review))["status"].get("authenticated"):  # noqa: ASYNC110 - no watch for it
            await asyncio.sleep(0.2)


@pytest.fixture
async def reviewed_account(sandbox: "Sandbox") -> AsyncIterator[ReviewedAccount]:
    """Create an account of the upper cluster."""
    made = ReviewedAccount(sandbox)
    await made.open()
    yield made
    await made.close()


def altered(token: str) -> dict[str, str]:
    """Return forgeries of a token, by the kind of change."""
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
async def test_a_deleted_accounts_token_is_accepted_for_two_minutes(reviewed_account: ReviewedAccount) -> None:
    """A cached token expires after that, as with a kubelet; an unused token of the account is refused at once."""
    first, second = await reviewed_account.token(), await reviewed_account.token(expirationSeconds=1000)
    user = await reviewed_account.who(first)
    assert isinstance(user, User)
    assert user.name == f"system:serviceaccount:{reviewed_account.name}:scraper"
    assert user.uid
    assert "system:authenticated" in user.groups
    assert user.extra
    path = f"{ACCOUNTS.format(reviewed_account.name)}/scraper"
    await reviewed_account.site.delete(path)
    await reviewed_account.site.gone(path)
    assert await reviewed_account.who(second) == 401
    reviewed_account.time += TOKEN_SECONDS - 1
    assert await reviewed_account.who(first) == user
    await reviewed_account.forgotten(first)
    reviewed_account.time += 1
    assert await reviewed_account.who(first) == 401


async def test_forged_tokens_and_tokens_for_another_audience_get_401(reviewed_account: ReviewedAccount) -> None:
    """They are rejected even while the token that they were made from is cached."""
    token = await reviewed_account.token()
    assert isinstance(await reviewed_account.who(token), User)
    for forgery, text in altered(token).items():
        assert await reviewed_account.who(text) == 401, forgery
    assert await reviewed_account.who(await reviewed_account.token(audiences=["vault"])) == 401
