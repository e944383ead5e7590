"""Tests of some broken set-ups of `bench.conformance.diagnoses`: doctor reports cause and remedy of each."""

import asyncio
from datetime import UTC, datetime, timedelta
from pathlib import Path
from shlex import split
from typing import Any

import orjson
import pytest

from bench.conformance.diagnoses.__main__ import MOST_SECONDS, recognised
from bench.conformance.diagnoses.other_setups import allowed, behind_a_service, own_address, reachable, read
from bench.conformance.diagnoses.setup import SETUPS, Setup
from bench.conformance.diagnoses.topology_under_test import LOWERS, Diagnosis, TopologyUnderTest
from bench.kit.sites import Refused, Site, until
from tensile.diagnostics.doctor.facts import CHECKS
from tensile.diagnostics.doctor.networks import dry_run_command
from tensile.kube.tls import self_signed
from tensile.policy.webhook.server import WebhookListener
from tensile.sandbox.processes import choose
from tensile.sandbox.sandbox import Sandbox
from tensile.sandbox.state import UPPER

HOOKS = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations"
SHORT = (
    "wrong CA",
    "expired client certificate",
    "wrong token",
    "closed port",
    "unknown name",
    "wrong name in the certificate",
    "clock skew",
    "old version",
    "wrong context",
    "missing kubeconfig secret",
    "missing right above",
    "missing right for services",
    "key of another certificate",
    "serving certificate for another address",
    "two lowers that are one",
    "taken name of a node",
    "metrics API without a server",
    "overlapping networks",
    "pod that waits for its claim",
    "webhook out of reach",
    "telemetry for everybody",
    "lower that is shared",
    "tokens in a lower that is shared",
    "rights in a lower that is shared",
    "account where pods go",
)
ENGINE = (
    "kubelet port out of reach",
    "serving certificate that the apiserver refuses",
    "webhook that the apiserver does not reach",
)
"""Set-ups with an engine or a webhook on an address to which an apiserver proxies."""


@pytest.mark.real
@pytest.mark.parametrize("name", SHORT)
async def test_doctor_recognizes_a_broken_set_up(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    """Cause and remedy are reported for the right cluster and in time, and no other check fails."""
    assert (await recognised(SETUPS[name], sandbox, tmp_path))["wrong"] == ""


@pytest.mark.real
@pytest.mark.parametrize("name", ENGINE)
async def test_doctor_has_the_apiserver_connect_to_a_port(sandbox: Sandbox, tmp_path: Path, name: str) -> None:
    """The error of the apiserver decides which cause doctor reports."""
    if not own_address():
        pytest.skip("this machine has no address but loopback, to which an apiserver does not proxy")
    assert (await recognised(SETUPS[name], sandbox, tmp_path))["wrong"] == ""


@pytest.mark.real
async def test_doctor_reports_no_failure_for_a_healthy_engine(sandbox: Sandbox, tmp_path: Path) -> None:
    """The upper apiserver reaches its virtual nodes, and the webhook responds at its registered address.

    The engine ends before its registrations are removed, because it would otherwise register them again.
    """
    if not own_address():
        pytest.skip("this machine has no address but loopback, to which an apiserver does not proxy")
    async with TopologyUnderTest(sandbox, tmp_path) as stage:
        ((port,),) = choose([1])
        url = f"https://127.0.0.1:{port}/mutate"
        stage.topology["webhook"] = {"enabled": True, "bind": "127.0.0.1", "port": port, "url": url}
        hook = f"{HOOKS}/tensile-{stage.user}"
        stage.open.push_async_callback(stage.upper.delete, hook)
        await reachable(stage)
        await until(lambda: _is_there(stage.upper, hook), "the webhook is registered", 30.0)
        found = await stage.diagnosed()
        probe = await asyncio.create_subprocess_exec(
            *sandbox.kubectl_command(*split(dry_run_command(read(stage)).splitlines()[1])[1:]),
            stdout=asyncio.subprocess.PIPE,
        )
        printed, _ = await probe.communicate()
    assert orjson.loads(printed)["nodeSelector"] == {"probe": "probe"}
    well = {one[:2]: one[2] for one in found.findings("ok")}
    assert (found.code, found.findings("fail")) == (0, [])
    assert well["upper", "webhook"] == f"it answers at {url}, called from here"
    for lower in LOWERS:
        assert well[lower, "node"].startswith(f"Node {stage.nodes[lower]} exists, and engine ")
        assert well[lower, "node"].endswith(" renews its lease")
        assert well[lower, "kubelet"].startswith(f"the upper's apiserver reaches Node {stage.nodes[lower]} at ")


@pytest.mark.real
async def test_doctor_tests_a_webhook_behind_a_service_through_the_upper_apiserver(
    sandbox: Sandbox, tmp_path: Path
) -> None:
    """Without the permission for that, doctor reports how the user can test it.

    The server is closed before the Service that leads to it, so that the apiserver's connection has ended when the test
    does.
    """
    if not own_address():
        pytest.skip("this machine has no address but loopback, to which an apiserver does not proxy")
    pair = self_signed("x", "hooks", ["hooks"], datetime.now(UTC), timedelta(days=1))
    server = WebhookListener(pair, lambda body: body)
    await server.start(own_address(), 0)
    async with TopologyUnderTest(sandbox, tmp_path) as stage:
        await behind_a_service(stage, server.port)
        stage.open.push_async_callback(server.close)
        found = await stage.diagnosed()
        await allowed(stage, UPPER, without=("patch", "pods/status"))
        limited = await stage.diagnosed()
    (well,) = (one for one in found.findings("ok") if one[1] == "webhook")
    assert (found.code, well[2]) == (0, f"the upper's apiserver reaches Service default/{stage.user}")
    (skipped,) = (one for one in limited.findings("skipped") if one[1] == "webhook")
    assert "the call from the upper apiserver was not tested" in skipped[2]
    assert "kubectl -n NAMESPACE run probe" in skipped[3]


@pytest.mark.real
async def test_doctor_skips_certificate_requests_that_the_engine_may_not_list(sandbox: Sandbox, tmp_path: Path) -> None:
    """A request waits for approval, but the engine's role cannot list it; doctor has the command to list it."""
    async with TopologyUnderTest(sandbox, tmp_path) as stage:
        await SETUPS["unapproved certificate"].prepare(stage)
        await allowed(stage, UPPER, without=("patch", "pods/status"))
        found = await stage.diagnosed()
    (skipped,) = (one for one in found.findings("skipped") if one[1] == "certificates")
    assert "requests for serving certificates cannot be read" in skipped[2]
    assert skipped[3].endswith("kubectl get csr")


async def _is_there(site: Site, path: str) -> bool:
    """Report whether an object exists."""
    try:
        return bool(await site.call("GET", path))
    except Refused:
        return False


def test_there_are_at_least_forty_set_ups_and_some_for_every_check() -> None:
    """The set-ups of the short form exist too."""
    assert len(SETUPS) >= 40
    assert {setup.check for setup in SETUPS.values()} == set(CHECKS)
    assert {*SHORT, *ENGINE} <= SETUPS.keys()


# Tests of the judgement of a diagnosis.


async def _nothing(_stage: object) -> None:
    """Break nothing."""


SETUP = Setup("one", "lower-a", "rights", "cause", "remedy", _nothing)


def diagnosis(*found: tuple[str | None, str, str, str, str], code: int = 1) -> Diagnosis:
    """Return a diagnosis with findings: cluster, check, level, message, and advice."""
    clusters: list[dict[str, Any]] = [
        {"name": name, "findings": [{"check": check, "level": level, "what": what, "advice": [advice]}]}
        for name, check, level, what, advice in found
    ]
    return Diagnosis(code, {"clusters": clusters}, 1.0)


TOLD = ("lower-a", "rights", "fail", "the cause", "the remedy")


@pytest.mark.parametrize(
    ("found", "is_right"),
    [
        (diagnosis(TOLD), True),
        (diagnosis(), False),
        (diagnosis(TOLD, code=0), False),
        (diagnosis(("lower-b", *TOLD[1:])), False),
        (diagnosis(("lower-a", "reach", *TOLD[2:])), False),
        (diagnosis(("lower-a", "rights", "warn", *TOLD[3:])), False),
        (diagnosis((*TOLD[:3], "nothing", "the remedy")), False),
        (diagnosis((*TOLD[:3], "the cause", "nothing")), False),
        (diagnosis(TOLD, (None, "reach", "fail", "x", "y")), False),
        (diagnosis(TOLD, (None, "reach", "warn", "x", "y")), True),
    ],
)
def test_a_set_up_is_recognized_if_its_only_failure_has_cause_and_remedy(found: Diagnosis, *, is_right: bool) -> None:
    """Cluster, check, level and exit code must match too, and no other cluster may fail."""
    assert (SETUP.judge(found) == "") == is_right


def test_a_warning_is_recognized_only_if_no_check_fails() -> None:
    """The exit code is 0 then."""
    warning = SETUP._replace(level="warn")
    finding = ("lower-a", "rights", "warn", "the cause", "the remedy")
    assert warning.judge(diagnosis(finding, code=0)) == ""
    assert warning.judge(diagnosis(finding, code=1))
    assert warning.judge(diagnosis(finding, ("lower-a", "reach", "fail", "x", "y"), code=1))
    assert MOST_SECONDS == 15.0
