"""What is taken for a server's address, and in how many parts."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from yarl import URL

from tensile.errors import AccessError
from tensile.kube.dial import ServerAddress, check_server_name, read_server

GOOD = {
    "https://a.example:6443": ServerAddress("a.example", 6443, ""),
    "https://a.example/": ServerAddress("a.example", 443, ""),
    "https://a_b": ServerAddress("a_b", 443, ""),
    "https://a.example.:443": ServerAddress("a.example.", 443, ""),
    "https://10.0.0.1:6443/": ServerAddress("10.0.0.1", 6443, ""),
    "https://[::1]:6443/k8s/clusters/c-1": ServerAddress("::1", 6443, "/k8s/clusters/c-1"),
    "https://rancher/k8s/c~1": ServerAddress("rancher", 443, "/k8s/c~1"),
}


@pytest.mark.parametrize("server", GOOD)
def test_a_server_address_is_taken_apart(server: str) -> None:
    """Host, port and path are told apart, for IPv6 too, with HTTPS' port as the default."""
    assert read_server(server, "f") == GOOD[server]


@given(st.text(alphabet=st.sampled_from("ab.:/@[]%?#\\ \t\n-_0189x"), max_size=20))
def test_every_reader_of_urls_agrees_with_what_is_accepted(rest: str) -> None:
    """An address is refused, or its host and port are those that the HTTP library connects to."""
    server = f"https://{rest}"
    try:
        found = read_server(server, "f")
    except AccessError:
        return
    url = URL(server, encoded=True)
    assert (found.host.lower(), found.port) == (url.raw_host, url.port)
    assert url.path.rstrip("/") == found.path


@pytest.mark.parametrize("name", ["", "kubernetes", "a.b-c.example", "10.0.0.1", "::1", "a_b"])
def test_names_of_certificates_are_names_or_addresses(name: str) -> None:
    """A DNS name, an IP address, or none given."""
    check_server_name(name, "f")
    with pytest.raises(AccessError, match="f: tls-server-name is neither"):
        check_server_name(f"{name} x", "f")
