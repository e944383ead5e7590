"""What is applied in one lower cluster, and the commands that make a kubeconfig of it for the engine."""

import re

import yaml

from tensile.manifests.roles import lower_roles
from tensile.manifests.setup import NAME, Setup
from tensile.manifests.turning import sharing
from tensile.manifests.upper import namespace
from tensile.manifests.yamlout import Piece
from tensile.topology import Lower

TOKEN = f"{NAME}-token"
"""The Secret in which the lower cluster puts the token of the engine's account."""


def of_lower(setup: Setup, lower: Lower) -> list[Piece]:
    """Give the account of the engine, its rights and its token, all in a namespace of its own."""
    first, *roles = lower_roles(lower, topology=setup.topology.name, namespace=setup.namespace)
    token = setup.object("v1", "Secret", TOKEN, type="kubernetes.io/service-account-token")
    token["metadata"]["annotations"] = {"kubernetes.io/service-account.name": first["metadata"]["name"]}
    return [
        namespace(setup.namespace, "Of the engine's account alone; no pod runs here."),
        Piece(first, "The account as which the engine comes, and what it may do here: what it does, and nothing else."),
        *(Piece(role) for role in roles),
        Piece(token, "The cluster fills in a token for the account. It holds until this Secret is deleted."),
    ]


def head(setup: Setup, lower: Lower, apply: str) -> str:
    """Say what this is, and how it is applied (by the command `apply`) and becomes a kubeconfig."""
    topology = setup.topology.name
    lines = [
        f"The engine's access to lower cluster {lower.name} of topology {topology}.",
        "Apply it, and put a kubeconfig of it into a Secret of the upper; LOWER and UPPER are kubeconfigs of your own:",
        *(f"  {command}" for command in _commands(setup, lower, apply)),
    ]
    if others := sharing(setup.topology, lower):
        lines.insert(1, f"The Secret is that of {', '.join(others)} too: what is there goes when this is put there.")
    return "\n".join(lines)


def _commands(setup: Setup, lower: Lower, apply: str) -> list[str]:
    """Give the lines for a shell: one subshell, which ends where a step fails, before a Secret is made of nothing.

    The kubeconfig is in no file and the token in no argument: neither others on the machine nor whatever is in the
    directory come near it. kubectl does what pipes would do, as a shell takes no notice where their left side fails;
    it waits for no field that only has to be there, as older ones do not know how.
    """
    secret = lower.kubeconfig_secret
    assert secret is not None, "there are no paths in a ConfigMap"
    below, above = 'kubectl --kubeconfig "$LOWER"', f'kubectl --kubeconfig "$UPPER" -n {secret.namespace}'
    view = f"{below} config view --minify -o jsonpath"
    token = f"{below} -n {setup.namespace} get secret {TOKEN} -o"
    made = f"{above} create secret generic {secret.name} --from-file={secret.key}=/dev/stdin --dry-run=client -o yaml"
    return [
        '(set -eu; : "${LOWER:?}" "${UPPER:?}"',
        apply,
        f"for _ in $(seq 30); do found=$({token} jsonpath='{{.data.token}}')",
        '[ -z "$found" ] || break; sleep 1; done',
        f"server=$({view}='{{.clusters[0].cluster.server}}')",
        f"name=$({view}='{{.clusters[0].cluster.tls-server-name}}')",
        f"authority=$({token} jsonpath='{{.data.ca\\.crt}}')",
        f"token=$({token} go-template='{{{{.data.token|base64decode}}}}')",
        f': "${{server:?LOWER names none}}" "${{authority:?none in {TOKEN}}}" "${{token:?none in {TOKEN}}}"',
        f"{made} <<END | {above} apply --server-side -f -",
        *_kubeconfig(lower).splitlines(),
        "END",
        ")",
    ]


def _kubeconfig(lower: Lower) -> str:
    """Give the kubeconfig as a here-document, in which the shell puts what is in its variables."""
    cluster, context = _quoted(lower.name), _quoted(lower.context or NAME)
    way = 'server: "$server", tls-server-name: "$name", certificate-authority-data: "$authority"'
    return f"""\
apiVersion: v1
kind: Config
clusters: [{{name: {cluster}, cluster: {{{way}}}}}]
users: [{{name: {NAME}, user: {{token: "$token"}}}}]
contexts: [{{name: {context}, context: {{cluster: {cluster}, user: {NAME}}}}}]
current-context: {context}"""


def _quoted(text: str) -> str:
    """Write a text for YAML within a here-document, on one line in ASCII; the shell leaves it as it is."""
    written = yaml.safe_dump(text, default_style='"', width=float("inf")).strip()
    return re.sub(r"([\\$`])", r"\\\1", written)
