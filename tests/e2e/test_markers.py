"""Tests that values of Secrets are in lower Secrets while pods need them, and nowhere else at any time."""

import asyncio
import sys
import tarfile
from base64 import b64encode
from collections.abc import AsyncIterator

import aiohttp
import orjson
import pytest
import pytest_asyncio
from enginekit import A, run_command
from mapkit import STATUS, MapProgram
from markerkit import OPAQUE, Markers, joined_spec, secret_uses
from programkit import running_program
from sitekit import Manifest, Refused, Site, condition_of, is_ready, phase_of

from tensile.names import MIRRORED
from tensile.reconcile.redaction import OMITTED
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

CHANGED = "volume"
DEBUGGING = "env-debug"
"""A Secret to which a container refers that is added to the running pod later."""
POLICIES = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"
BINDINGS = f"{POLICIES[: -len('policies')]}policybindings"
SEEN = ("pods", "configmaps", "serviceaccounts", "persistentvolumeclaims", "services", "resourcequotas")


class VerboseProgram(MapProgram):
    """A program that logs at its most verbose level."""

    def command(self, word: str, name: str = "topo") -> list[str]:
        """Add the log level debug to a command."""
        return [*super().command(word, name), "--log-level", "debug"]


class MarkerHarness:
    """The program, the markers, and all output so far."""

    def __init__(self, program: VerboseProgram) -> None:
        self.program = program
        self.markers = Markers(program.mark)
        self.output: dict[str, str] = {}
        self.secret_uses = secret_uses()

    @property
    def lower_namespace(self) -> Site:
        """The lower cluster to which the pods are bound."""
        return self.program.sites[A]

    async def write(self, name: str) -> None:
        """Create an upper Secret with new values, or update its values."""
        kind = self.secret_uses[name].type if name in self.secret_uses else OPAQUE
        body: Manifest = {"metadata": {"name": name}, "type": kind, "data": self.markers.data(kind, name)}
        path = self.program.path("secrets", name)
        if await self.program.upper.read(path):
            await self.program.upper.patch(path, {"data": body["data"]})
        elif name == "applied":
            document = orjson.dumps({"apiVersion": "v1", "kind": "Secret", **body}).decode()
            done = await self.program.kubectl("apply", "-f", "-", stdin=document)
            assert done.code == 0, done
        else:
            await self.program.upper.create(self.program.path("secrets"), body | {"immutable": name == "immutable"})

    async def plan(self, moment: str) -> None:
        """Record the output of a plan in every format."""
        path = self.program.directory / "by-secret.yaml"
        path.write_text(self.program.text(lambda file: file.update(upper={"kubeconfig": "upper.kubeconfig"})))
        command = [sys.executable, "-m", "tensile", "plan", "-f", str(path), "--log-level", "debug", "-o"]
        forms = ("text", "json", "markdown")
        for form, done in zip(
            forms, await asyncio.gather(*(run_command([*command, form]) for form in forms)), strict=True
        ):
            assert done.code == 2, done
            self.output[f"plan {moment} {form}"] = done.out + done.err

    async def bundle(self) -> None:
        """Record the content of a support bundle."""
        archive = self.program.directory / "bundle.tar.gz"
        path = self.program.directory / "by-secret.yaml"
        done = await run_command([sys.executable, "-m", "tensile", "bundle", "-f", str(path), "-o", str(archive)])
        assert done.code == 0, done
        with tarfile.open(archive) as parts:
            for part in parts.getmembers():
                content = parts.extractfile(part)
                assert content is not None
                self.output[part.name] = content.read().decode()

    async def listen(self, moment: str) -> None:
        """Record the engine's output, and the objects of the namespace in all clusters."""
        program, port = self.program, self.program.file()["telemetry"]["port"]
        self.output["log"] = program.log.read_text()
        async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
            for path in ("/metrics", "/status", "/readyz", "/"):
                async with session.get(path) as answer:
                    self.output[f"{path} {moment}"] = await answer.text()
        done = await run_command(program.command("status"))
        assert done.code == 0, done
        self.output[f"status {moment}"] = done.out + done.err
        for name, site in program.sites.items():
            for plural in (*SEEN, "events"):
                self.output[f"{name} {plural} {moment}"] = orjson.dumps(await site.read(program.path(plural))).decode()
            self.output[f"{name} nodes {moment}"] = orjson.dumps(await site.read("/api/v1/nodes")).decode()

    def leaked(self) -> dict[str, list[str]]:
        """Return the markers in the recorded output, by their source."""
        found = {where: self.markers.found_in(text) for where, text in self.output.items()}
        return {where: values for where, values in found.items() if values}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def harness(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MarkerHarness]:
    """Start the program at level debug, with the lowers' kubeconfigs in Secrets, whose keys are markers too."""
    async with running_program(sandbox, tmp_path_factory.mktemp("markers"), VerboseProgram) as program:
        made = MarkerHarness(program)
        for name in (A, "lower-b"):
            text = (program.directory / f"{name}.kubeconfig").read_text()
            made.markers.values += [
                line.split(": ", 1)[1][40:120] for line in text.splitlines() if "client-key-data" in line
            ]
        yield made


async def test_secret_values_are_in_no_output_and_are_deleted_with_their_pods(harness: MarkerHarness) -> None:
    """Plans, logs, status, metrics, events, conditions and errors contain none.

    This holds also if a Secret is changed, or refused by the lower cluster.
    """
    program, lower_site = harness.program, harness.lower_namespace
    await program.stop()
    for name in (*harness.secret_uses, DEBUGGING):
        await harness.write(name)
    account = {
        "metadata": {"name": "robot"},
        "imagePullSecrets": [{"name": "account-pull"}],
        "secrets": [{"name": "env"}],
    }
    await program.upper.create(program.path("serviceaccounts"), account)
    await program.bind("all", joined_spec(way.spec for way in harness.secret_uses.values()))
    await harness.plan("new")
    assert [name for name in harness.secret_uses if f'"{name}"' not in harness.output["plan new json"]] == []
    await program.launch_from_configmap()
    found = await lower_site.until_all(program.path("secrets"), lambda one: set(harness.secret_uses) <= set(one))
    content = orjson.dumps(list(found.values())).decode()
    assert len(set(harness.markers.values)) >= 50
    assert len(harness.markers.found_in(content)) >= 47, "they are in the lower cluster; three are encoded twice"
    await program.upper.until(program.pod_path("all"), is_ready)
    await debugged(harness)
    await harness.listen("running")
    await harness.bundle()
    assert harness.output["tensile-bundle/errors.txt"] == ""
    await changed(harness)
    await refused(harness)
    await harness.listen("refused")
    await program.end_pods("all", "quoted")
    await lower_site.until_all(program.path("secrets"), lambda one: not one)
    await harness.listen("gone")
    assert harness.leaked() == {}
    left = [
        orjson.dumps(await lower_site.read(f"/api/v1/{plural}")).decode() for plural in (*SEEN, "secrets", "events")
    ]
    assert harness.markers.found_in(*left) == []
    assert "Secret" in harness.output["log"], "the log mentions Secrets"
    assert STATUS in harness.output["upper configmaps running"]


async def debugged(harness: MarkerHarness) -> None:
    """Add a debug container that refers to one more Secret to the running pod."""
    program, lower_site = harness.program, harness.lower_namespace
    variable = {"name": "V", "valueFrom": {"secretKeyRef": {"name": DEBUGGING, "key": "one"}}}
    added = {"name": "debugger", "image": "app:1", "command": ["true"], "env": [variable]}
    path = program.pod_path("all")
    await program.upper.patch(f"{path}/ephemeralcontainers", {"spec": {"ephemeralContainers": [added]}}, "strategic")
    await lower_site.until(path, lambda one: one["spec"].get("ephemeralContainers"))
    found = orjson.dumps(await lower_site.read(program.path("secrets", DEBUGGING))).decode()
    assert len(harness.markers.found_in(found)) == 2


async def changed(harness: MarkerHarness) -> None:
    """Change every mutable Secret while no engine runs, plan, and let the engine apply the changes."""
    program, lower_site = harness.program, harness.lower_namespace
    await program.stop()
    for name in harness.secret_uses:
        if name != "immutable":
            await harness.write(name)
    await harness.plan("changed")
    assert "Secret" in harness.output["plan changed text"]
    await program.launch_from_configmap()
    newest = harness.markers.values[-1]

    def is_there(secrets: dict[str, Manifest]) -> bool:
        """Report whether the last value that was written is in the Secrets."""
        return newest in harness.markers.found_in(orjson.dumps(list(secrets.values())).decode())

    await lower_site.until_all(program.path("secrets"), is_there)


async def refused(harness: MarkerHarness) -> None:
    """Let the lower cluster refuse a Secret, and a change of another one, with messages that quote them."""
    program, lower_site = harness.program, harness.lower_namespace
    name = program.namespace
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"]}
    only = {"matchLabels": {"kubernetes.io/metadata.name": name}}
    expression = f"!(object.metadata.name in ['quoted', '{CHANGED}'])"
    quoting = {"expression": expression, "messageExpression": "'no: ' + object.data['one']"}
    spec = {"matchConstraints": {"resourceRules": [rule]}, "validations": [quoting]}
    await lower_site.create(POLICIES, {"metadata": {"name": name}, "spec": spec})
    binding = {"policyName": name, "validationActions": ["Deny"], "matchResources": {"namespaceSelector": only}}
    await lower_site.create(BINDINGS, {"metadata": {"name": name}, "spec": binding})
    try:
        await until_quoted(harness)
        data = harness.markers.data("Opaque", "quoted")
        await program.upper.create(program.path("secrets"), {"metadata": {"name": "quoted"}, "data": data})
        await program.bind("quoted", {"volumes": [{"name": "s", "secret": {"secretName": "quoted"}}]})
        pod = await program.upper.until(
            program.pod_path("quoted"), lambda one: OMITTED in condition_of(one, MIRRORED).get("message", ""), 5.0
        )
        assert (phase_of(pod), pod["status"]["reason"]) == ("Pending", condition_of(pod, MIRRORED)["reason"])
        assert OMITTED in await program.wait_for_event(pod, pod["status"]["reason"])
        await harness.write(CHANGED)
        secret = await program.upper.read(program.path("secrets", CHANGED))
        assert OMITTED in await program.wait_for_event(secret, pod["status"]["reason"])
    finally:
        await lower_site.delete(f"{BINDINGS}/{name}")
        await lower_site.delete(f"{POLICIES}/{name}")
    await program.upper.until(program.pod_path("quoted"), is_ready)


async def until_quoted(harness: MarkerHarness) -> None:
    """Wait until the lower cluster refuses such a Secret and quotes it."""
    value = b64encode(b"harmless").decode()
    body = {"metadata": {"name": "quoted"}, "data": {"one": value}}
    async with asyncio.timeout(20):
        while True:
            try:
                await harness.lower_namespace.create(harness.program.path("secrets") + "?dryRun=All", body)
            except Refused as error:
                assert value in str(error)  # noqa: PT017 - it is what the test rests on
                return
            await asyncio.sleep(0.1)


async def test_a_marker_is_found_in_plain_text_and_in_base64() -> None:
    """It is found at every base64 offset, so the test of leaks could find one."""
    markers = Markers("abc")
    value = markers.fresh()
    for offset in range(6):
        text = b64encode(b"x" * offset + value.encode() + b"yz").decode()
        assert markers.found_in(f"before {text} after") == [value]
    assert markers.found_in(f"before{value}after") == [value]
    assert markers.found_in("m4rker") == []
