"""Tests of the import of aiohttp and `kubernetes`: it loads no system CAs and hides nothing from other code."""

import os
import ssl
import subprocess
import sys

import pytest

from tensile.kube.aio import without_authorities

_LOOK = """
import os
before = dict(os.environ)
import tensile.engine.engine, aiohttp.connector
print(len(aiohttp.connector._SSL_CONTEXT_VERIFIED.get_ca_certs()), before == dict(os.environ))
"""


@pytest.mark.process
def test_importing_the_engine_loads_no_system_certificate_authorities() -> None:
    """The default TLS context of aiohttp trusts no CA after the import, and the environment is unchanged."""
    done = subprocess.run([sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]


@pytest.mark.process
def test_the_engine_can_be_imported_by_a_user_without_a_home_directory() -> None:
    """A container may run as a bare user ID without HOME; the import works and leaves the environment unchanged."""
    nobody = ("unshare", "--user", "--map-user=65532", "--map-group=65532", "env", "-u", "HOME")
    done = subprocess.run([*nobody, sys.executable, "-c", _LOOK], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "True"]


_MODULES = """
import sys
import tensile.engine.engine
print(sorted({"requests", "oauthlib", "websocket", "kubernetes.client", "kubernetes.aio.stream"} & sys.modules.keys()))
from kubernetes.client import CoreV1Api
from kubernetes import config, watch
from kubernetes.aio import stream
print(CoreV1Api.__name__, config.load_kube_config.__name__, watch.Watch.__name__, stream.WsApiClient.__name__)
"""


@pytest.mark.process
def test_the_engine_does_not_import_the_synchronous_kubernetes_client() -> None:
    """The synchronous client would cost 10 MiB; code that needs it can still import it as usual afterwards."""
    done = subprocess.run([sys.executable, "-c", _MODULES], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "CoreV1Api load_kube_config Watch WsApiClient"]


@pytest.mark.parametrize("known", ["", "/somewhere"], ids=["nothing", "a file"])
def test_the_certificate_environment_variables_are_restored(known: str) -> None:
    """Credential plugins inherit SSL_CERT_FILE, and TLS contexts that are created later read it."""
    before = dict(os.environ)
    try:
        os.environ.pop("SSL_CERT_FILE", None)
        if known:
            os.environ["SSL_CERT_FILE"] = known
        with without_authorities():
            assert ssl.create_default_context().get_ca_certs() == []
        assert os.environ.get("SSL_CERT_FILE", "") == known
    finally:
        os.environ.update({name: value for name, value in before.items() if name == "SSL_CERT_FILE"})
        if "SSL_CERT_FILE" not in before:
            os.environ.pop("SSL_CERT_FILE", None)
    assert dict(os.environ) == before
