"""Writes a kubeconfig with its certificates inline.

Inline, so that the one file can be copied and handed on; the text is a template because its shape never changes and a
person may well read it.
"""

from base64 import b64encode

from tensile.sandbox.certificates import Pair

TEMPLATE = """\
apiVersion: v1
kind: Config
current-context: {name}
clusters:
- name: {name}
  cluster:
    server: {server}
    certificate-authority-data: {authority}
users:
- name: {user}
  user:
    client-certificate-data: {certificate}
    client-key-data: {key}
contexts:
- name: {name}
  context:
    cluster: {name}
    user: {user}
"""


def render(name: str, server: str, user: str, authority: bytes, pair: Pair) -> str:
    """Return a kubeconfig whose one context is called as the cluster is.

    Args:
        name: of the cluster and of the context.
        server: URL of the apiserver.
        user: what the user entry is called.
        authority: the certificate authority as PEM.
        pair: the user's certificate and key.
    """
    return TEMPLATE.format(
        name=name,
        server=server,
        user=user,
        authority=b64encode(authority).decode(),
        certificate=b64encode(pair.certificate).decode(),
        key=b64encode(pair.key).decode(),
    )
