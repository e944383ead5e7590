"""What a connection trusts and shows: a TLS context out of PEM.

Python's ssl takes a client's certificate from a file only, so it passes through one that never touches a disk where the
system has such files.
"""

import os
import ssl
import tempfile
from typing import BinaryIO, NamedTuple, cast

from tensile.errors import AccessError


class Papers(NamedTuple):
    """What a TLS context is made of, in PEM: the cluster's CA ("": the system's), our certificate and key ("": none).

    Holds a private key: never print it.
    """

    authority: bytes = b""
    certificate: bytes = b""
    key: bytes = b""

    def __repr__(self) -> str:
        return "Papers(...)"


def context(papers: Papers, origin: str) -> ssl.SSLContext:
    """Make the TLS context, which always checks the server's certificate and name.

    `origin` says in the AccessError where the papers are from.
    """
    made = ssl.create_default_context(cadata=_authority(papers.authority, origin))
    made.minimum_version = ssl.TLSVersion.TLSv1_2
    made.options |= ssl.OP_NO_RENEGOTIATION
    # Newer Pythons demand extensions that the CAs of many clusters do not have.
    made.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if papers.certificate:
        _show_certificate(made, papers.certificate + b"\n" + papers.key, origin)
    return made


def _authority(pem: bytes, origin: str) -> str | None:
    """Give the CA's certificates as text, None when the system's are meant."""
    if not pem:
        return None
    text = pem.decode("ascii", errors="ignore")  # what is written between certificates may be in any language
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError):
        raise AccessError(f"{origin}: certificate-authority holds no certificate", "give PEM") from None
    return text


def _show_certificate(made: ssl.SSLContext, pem: bytes, origin: str) -> None:
    """Let a TLS context show a client certificate; certificate and key are in `pem`."""

    def no_password() -> str:
        """Refuse to ask for a password."""
        raise AccessError(f"{origin}: client-key is encrypted", "give it without a password")

    with _scratch() as file:
        file.write(pem)
        file.flush()
        try:
            made.load_cert_chain(_path(file), password=no_password)
        except ssl.SSLError:
            raise AccessError(f"{origin}: client-certificate and client-key are no pair in PEM", "check both") from None


def _scratch() -> BinaryIO:
    """Make a file for a moment: in memory, or with rights for nobody else."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("papers", os.MFD_CLOEXEC), "w+b")
    return cast("BinaryIO", tempfile.NamedTemporaryFile())


def _path(file: BinaryIO) -> str:
    """Give the name by which a file can be opened once more."""
    return file.name if isinstance(file.name, str) else f"/proc/self/fd/{file.fileno()}"
