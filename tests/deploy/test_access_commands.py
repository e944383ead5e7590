"""Tests of the commands in the head of a lower cluster's file: their result, and the secrecy of credentials.

A stand-in for kubectl answers each command and records its arguments; tests/e2e runs the same commands with the real
kubectl.
"""

import subprocess
from base64 import b64encode
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from setupkit import lower, setup

from tensile.deploy.manifests import manifest_files
from tensile.kube.kubeconfig import parse

TOKEN, SERVER, AUTHORITY = "eyJ.the-token", "https://lower:6443", b64encode(b"an authority").decode()
SERVER_NAME = "kubernetes.default"
KUBECTL = """\
#!/bin/sh
echo "$*" >> "$NOTES/calls"
case "$*" in *"$BREAK"*) eval "$HOW";; esac
case "$*" in
*" config view "*tls-server-name*) printf %s "$SERVER_NAME";;
*" config view "*) printf %s "$SERVER";;
*"{.data.token}"*) [ "$(grep -c "{.data.token}" "$NOTES/calls")" = 1 ] || printf %s "$TOKEN";;
*"ca\\.crt"*) printf %s "$AUTHORITY";;
*base64decode*) printf %s "$TOKEN";;
*" create secret "*) cat /dev/stdin > "$NOTES/kubeconfig"; echo a Secret;;
*" apply --server-side "*) cat > "$NOTES/applied";;
esac
"""
STEPS = ["apply -k", "{.data.token}", "cluster.server}", "tls-server-name", "ca\\.crt", "base64decode"]
HERE = "lower-a.kubeconfig"
SLEEP = '#!/bin/sh\necho "slept $*" >> "$NOTES/calls"\n'


class CommandsResult(NamedTuple):
    """How the commands ended, and what they wrote."""

    code: int
    err: str
    notes: Path

    @property
    def kubeconfig(self) -> dict[str, Any]:
        """The kubeconfig that was put into the Secret."""
        found: dict[str, Any] = yaml.safe_load((self.notes / "kubeconfig").read_text())
        return found


def ran(
    place: Path, broken: str = "nothing", how: str = "", name: str = "lower-a", **given: str | None
) -> CommandsResult:
    """Run the commands in a directory as a user would paste them, without shell options.

    Kubectl runs `how` if its arguments contain the words `broken`. Upper-case keywords are variables of the shell
    (None: unset), the others are fields of the lower cluster in the topology.
    """
    fields = {key: value for key, value in given.items() if key.islower()}
    text = manifest_files(setup(lowers=[lower(name, **fields)]))[f"lowers/{name}/access.yaml"]
    script = "\n".join(line.removeprefix("#   ") for line in text.splitlines() if line.startswith("#   "))
    programs, notes, here = (place / name for name in ("programs", "notes", "here"))
    for folder in (programs, notes, here):
        folder.mkdir(exist_ok=True)
    for program, content in (("kubectl", KUBECTL), ("sleep", SLEEP)):
        (programs / program).write_text(content)
        (programs / program).chmod(0o755)
    mine = {"LOWER": HERE, "UPPER": "upper.kubeconfig", **{key: given[key] for key in given if key.isupper()}}
    cluster = {"SERVER": SERVER, "SERVER_NAME": SERVER_NAME, "AUTHORITY": AUTHORITY}
    answers = {**cluster, "TOKEN": TOKEN, "BREAK": broken, "HOW": how}
    variables = {"PATH": f"{programs}:/usr/bin:/bin", "NOTES": str(notes), **answers, **mine}
    kept = {key: value for key, value in variables.items() if value is not None}
    done = subprocess.run(
        ["/bin/sh", "-c", script], cwd=here, env=kept, capture_output=True, text=True, timeout=30, check=False
    )
    return CommandsResult(done.returncode, done.stderr, notes)


def test_the_kubeconfig_in_the_secret_is_that_of_the_engines_account(tmp_path: Path) -> None:
    """It has the server and server name of the user's kubeconfig, and the authority and token of the account."""
    done = ran(tmp_path)
    assert (done.code, done.err) == (0, "")
    assert done.kubeconfig == {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {
                "name": "lower-a",
                "cluster": {
                    "server": SERVER,
                    "tls-server-name": SERVER_NAME,
                    "certificate-authority-data": AUTHORITY,
                },
            }
        ],
        "users": [{"name": "tensile", "user": {"token": TOKEN}}],
        "contexts": [{"name": "tensile", "context": {"cluster": "lower-a", "user": "tensile"}}],
        "current-context": "tensile",
    }
    assert (done.notes / "applied").read_text() == "a Secret\n"


def test_without_a_server_name_the_kubeconfig_has_an_empty_one(tmp_path: Path) -> None:
    """Most kubeconfigs have none, and an empty one means the same."""
    done = ran(tmp_path, SERVER_NAME="")
    assert (done.code, done.kubeconfig["clusters"][0]["cluster"]["tls-server-name"]) == (0, "")
    entry = parse((done.notes / "kubeconfig").read_text(), None, "made")
    assert (entry.server, entry.server_name) == (SERVER, "")


def test_an_administrators_kubeconfig_in_the_directory_is_neither_changed_nor_used(tmp_path: Path) -> None:
    """Its file name does not matter, LOWER may name it, and no other file is left in the directory."""
    here = tmp_path / "here"
    here.mkdir()
    mine = "users: [{name: admin, user: {token: of-the-administrator}}]\n"
    (here / HERE).write_text(mine)
    (here / "lower-a.ca").write_text(mine)
    assert ran(tmp_path).code == 0
    assert {path.name: path.read_text() for path in here.iterdir()} == {HERE: mine, "lower-a.ca": mine}
    assert "of-the-administrator" not in (tmp_path / "notes" / "kubeconfig").read_text()


def test_the_commands_wait_for_the_token(tmp_path: Path) -> None:
    """A cluster fills the Secret a moment after its creation; if it never does, the commands fail."""
    calls = (ran(tmp_path).notes / "calls").read_text().splitlines()
    polls = [call for call in calls if "{.data.token}" in call or call == "slept 1"]
    assert polls == [polls[0], "slept 1", polls[0]]
    empty = ran(tmp_path, TOKEN="")
    assert (empty.code, (empty.notes / "calls").read_text().count("slept 1")) == (2, 31)
    assert "not in tensile-token" in empty.err


def test_the_token_is_no_argument_of_a_program(tmp_path: Path) -> None:
    """All users of a machine can see the arguments."""
    assert TOKEN not in (ran(tmp_path).notes / "calls").read_text()


@pytest.mark.parametrize("step", STEPS)
def test_a_failed_step_is_the_last_one(tmp_path: Path, step: str) -> None:
    """No Secret is made or overwritten, and the shell exits with the error."""
    done = ran(tmp_path, step, "echo broken >&2; exit 3")
    assert (done.code, done.err) == (3, "broken\n")
    assert {path.name for path in done.notes.iterdir()} == {"calls"}
    assert step in (done.notes / "calls").read_text().splitlines()[-1]


@pytest.mark.parametrize(
    ("step", "message"),
    [
        ("config view", "server: LOWER has no server"),
        ("ca\\.crt", "authority: not in tensile-token"),
        ("base64decode", "token: not in tensile-token"),
    ],
)
def test_an_empty_answer_is_named_and_not_used(tmp_path: Path, step: str, message: str) -> None:
    """Kubectl exits successfully even if it prints nothing."""
    done = ran(tmp_path, step, "exit 0")
    assert done.code != 0
    assert message in done.err
    assert {path.name for path in done.notes.iterdir()} == {"calls"}


def test_a_secret_that_cannot_be_created_is_not_overwritten(tmp_path: Path) -> None:
    """The last command gets no input, which kubectl refuses."""
    done = ran(tmp_path, "create secret", "exit 3")
    assert (done.notes / "applied").read_text() == ""


@pytest.mark.parametrize("value", [None, ""])
@pytest.mark.parametrize("variable", ["LOWER", "UPPER"])
def test_without_the_users_kubeconfig_kubectl_is_not_called(tmp_path: Path, variable: str, value: str | None) -> None:
    """With an empty path kubectl would use any cluster that it finds."""
    done = ran(tmp_path, "nothing", "", "lower-a", **{variable: value})
    assert done.code != 0
    assert variable in done.err
    assert not list(done.notes.iterdir())


@pytest.mark.parametrize("context", ["the one", "a'b\"c", "$HOME `id` \\$x \\", "null", "ü \U0001f600\u2028kubectl"])
def test_the_context_of_the_kubeconfig_is_that_of_the_topology(tmp_path: Path, context: str) -> None:
    """Otherwise the engine would not find it; special characters have no effect on the shell."""
    done = ran(tmp_path, context=context)
    assert (done.code, done.err) == (0, "")
    assert done.kubeconfig["current-context"] == done.kubeconfig["contexts"][0]["name"] == context


def test_a_cluster_name_that_looks_like_a_number_stays_a_string(tmp_path: Path) -> None:
    """A lower cluster may have such a name."""
    assert ran(tmp_path, name="012").kubeconfig["clusters"][0]["name"] == "012"
