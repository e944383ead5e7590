"""What is applied in one lower cluster, and the commands that make a kubeconfig of it for the engine."""

import shlex

from tensile.manifests.roles import lower_roles
from tensile.manifests.setup import NAME, Setup
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
        *(f"  {command}" for command in (apply, *_commands(setup, lower))),
    ]
    return "\n".join(lines)


def _commands(setup: Setup, lower: Lower) -> list[str]:
    """Give the commands after that one, each on a line of its own for a shell."""
    secret = lower.kubeconfig_secret
    assert secret is not None, "there are no paths in a ConfigMap"
    file, authority, context = f"{lower.name}.kubeconfig", f"{lower.name}.ca", shlex.quote(lower.context or NAME)
    below, above = 'kubectl --kubeconfig "$LOWER"', f'kubectl --kubeconfig "$UPPER" -n {secret.namespace}'
    mine = f"kubectl --kubeconfig {file} config"
    token = f"{below} -n {setup.namespace} get secret {TOKEN} -o jsonpath='{{.data.token}}'"
    server = f"{below} config view --minify -o jsonpath='{{.clusters[0].cluster.server}}'"
    made = f"{above} create secret generic {secret.name} --from-file={secret.key}={file} --dry-run=client -o yaml"
    return [
        f"until {token} | grep -q .; do sleep 1; done",
        "umask 077",
        f"{below} -n {setup.namespace} get secret {TOKEN} -o jsonpath='{{.data.ca\\.crt}}' | base64 -d > {authority}",
        f'{mine} set-cluster {lower.name} --embed-certs --certificate-authority {authority} --server "$({server})"',
        f'{mine} set-credentials {NAME} --token "$({token} | base64 -d)"',
        f"{mine} set-context {context} --cluster {lower.name} --user {NAME}",
        f"{mine} use-context {context}",
        f"{made} | {above} apply --server-side -f -",
        f"rm {authority} {file}",
    ]
