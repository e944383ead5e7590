"""Tests of kubeconfigs in Secrets: changes are used while the engine runs, and an invalid one breaks no connection."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from enginekit import A, B, CommandResult, edit_lower, run_command
from mapkit import MapProgram
from programkit import running_program
from sitekit import Manifest, condition_of, is_ready, is_true

from bench.kit import audit
from tensile.names import UNREACHABLE_TAINT
from tensile.sandbox.sandbox import Sandbox

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]

SOON = 30.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def program(sandbox: Sandbox, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[MapProgram]:
    """Start the program, with one pod that runs in the first lower."""
    async with running_program(sandbox, tmp_path_factory.mktemp("secrets"), MapProgram) as harness:
        await harness.run_pod("web")
        yield harness


def has_reachability_message(message: str) -> Callable[[Manifest], bool]:
    """Return the predicate that a reachable node has these words in its LowerReachable condition."""

    def holds(node: Manifest) -> bool:
        """Report whether the node has them."""
        return is_true(node, "LowerReachable") and message in condition_of(node, "LowerReachable")["message"]

    return holds


def is_open(node: Manifest) -> bool:
    """Report whether a node has no taint of an unreachable lower cluster.

    The taint is removed after the condition has changed.
    """
    return all(taint["key"] != UNREACHABLE_TAINT for taint in node["spec"].get("taints", ()))


async def works(program: MapProgram, name: str) -> None:
    """Run a pod in the first lower and delete it."""
    await program.bind(name)
    await program.upper.until(program.pod_path(name), is_ready, SOON)
    await program.end_pods(name)


def kubeconfig(program: MapProgram, lower: str) -> bytes:
    """Return the original kubeconfig of a lower."""
    return (program.directory / f"{lower}.kubeconfig").read_bytes()


async def callers(program: MapProgram, cluster: str, since: int) -> set[str]:
    """Return the users as which the program called a cluster since a position of its audit log."""
    records = audit.read(program.sites[cluster].audit_log, since)
    ours = (one for one in records if one.get("userAgent", "").startswith("tensile/"))
    return {one["user"]["username"] for one in ours if program.user in one["user"]["username"]}


async def test_a_changed_secret_is_used(program: MapProgram) -> None:
    """The lower cluster is called as the new user, and its pods are not touched."""
    node = f"/api/v1/nodes/{program.nodes[A]}"
    lower_object = await program.sites[A].read(program.pod_path("web"))
    position = program.log.stat().st_size
    await program.mark_audit_logs()
    await program.put_secret(A, program.kubeconfig(A, f"{program.user}-next").encode())
    await program.wait_for_log("kubeconfig changed, reconnecting", position)
    since = audit.position(program.sites[A].audit_log)
    await works(program, "second")
    assert await callers(program, A, since) == {f"{program.user}-next"}
    after = await program.sites[A].read(program.pod_path("web"))
    assert after["metadata"]["uid"] == lower_object["metadata"]["uid"]
    assert is_ready(await program.upper.read(program.pod_path("web")))
    assert is_true(await program.upper.read(node), "LowerReachable")
    await program.put_secret(A, kubeconfig(program, A))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"clusters: [", "not valid YAML"),
        (b"\xff\xfe", "not UTF-8 text"),
        (b"", "the key is missing or empty"),
    ],
    ids=["half", "binary", "empty"],
)
async def test_an_invalid_secret_is_reported_and_the_last_good_connection_is_kept(
    program: MapProgram, text: bytes, message: str
) -> None:
    """The node reports what is wrong until the Secret is valid again, and pods are still run and deleted."""
    node = f"/api/v1/nodes/{program.nodes[A]}"
    await program.put_secret(A, text)
    await program.upper.until(node, has_reachability_message(f"{message}"), SOON)
    await program.status(state="Accepted")
    await works(program, "meanwhile")
    await program.put_secret(A, kubeconfig(program, A))
    await program.upper.until(node, has_reachability_message(f"lower cluster {A}"), SOON)


@pytest.mark.parametrize(
    "line",
    [
        "    tokenFile: /etc/hostname",
        "    client-certificate: /etc/hostname",
        "    exec: {command: /bin/true, apiVersion: client.authentication.k8s.io/v1}",
    ],
)
async def test_a_kubeconfig_secret_that_refers_to_files_or_programs_is_refused(program: MapProgram, line: str) -> None:
    """Users who may write Secrets must not control the engine's machine."""
    node = f"/api/v1/nodes/{program.nodes[A]}"
    kept = [one for one in kubeconfig(program, A).decode().splitlines() if "client-" not in one]
    place = kept.index("  user:")
    await program.put_secret(A, "\n".join([*kept[: place + 1], line, *kept[place + 1 :]]).encode())
    await program.upper.until(node, has_reachability_message("; the last good connection is kept"), SOON)
    await program.put_secret(A, kubeconfig(program, A))
    await program.upper.until(node, has_reachability_message(f"lower cluster {A}"), SOON)


async def test_a_deleted_secret_does_not_close_the_connection(program: MapProgram) -> None:
    """The node reports the absence until the Secret is created again."""
    node = f"/api/v1/nodes/{program.nodes[A]}"
    await program.upper.delete(program.path("secrets", A))
    await program.upper.until(node, has_reachability_message("the Secret does not exist"), SOON)
    await works(program, "orphaned")
    await program.put_secret(A, kubeconfig(program, A))
    await program.upper.until(node, has_reachability_message(f"lower cluster {A}"), SOON)


async def test_an_edit_that_refers_to_a_missing_secret_keeps_the_connection(program: MapProgram) -> None:
    """The node reports it until the edit is reverted, although the Secret in use is valid, and it is logged once."""
    node = f"/api/v1/nodes/{program.nodes[A]}"
    position = program.log.stat().st_size
    await program.reload(edit_lower(A, kubeconfigSecret={"name": "absent"}))
    await program.upper.until(node, has_reachability_message("the Secret does not exist"), SOON)
    for name in ("one", "two", "three"):
        await works(program, name)
    assert has_reachability_message("/absent of the upper cluster")(await program.upper.read(node))
    assert program.log.read_text()[position:].count("kubeconfig refused") == 1
    await program.reload()
    await program.upper.until(node, has_reachability_message(f"lower cluster {A}"), SOON)


async def test_plan_validate_and_apply_read_kubeconfigs_from_secrets(program: MapProgram) -> None:
    """They find no change, as the engine does, and a plan names a missing Secret."""
    path = program.directory / "by-secret.yaml"
    path.write_text(program.text(lambda file: file.update(upper={"kubeconfig": "upper.kubeconfig"})))
    await program.upper.until(f"/api/v1/nodes/{program.nodes[A]}", is_open)
    done = await tried("plan", path)
    assert (done.code, done.err) == (0, ""), done
    assert (await tried("validate", path)).code == 0
    applied = await tried("apply", path)
    assert (applied.code, "Applied: 0 to add" in applied.out) == (0, True), applied
    await program.upper.delete(program.path("secrets", B))
    done = await tried("plan", path)
    assert (done.code, done.err) == (1, f"not planned: {B}: the plan says why\n")
    assert f"{B}: Secret {program.namespace}/{B} of the upper cluster, key kubeconfig: the Secret does not" in done.out
    await program.put_secret(B, kubeconfig(program, B))


async def tried(command: str, path: Path) -> CommandResult:
    """Run a command on a file to its end."""
    import sys  # noqa: PLC0415

    return await run_command([sys.executable, "-m", "tensile", command, "-f", str(path)])
