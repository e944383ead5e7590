"""Tests of the syntax of server addresses: which are accepted, and how they are split into parts."""

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
def test_a_server_address_is_split_into_host_port_and_path(server: str) -> None:
    """This includes IPv6 addresses; the default port is that of HTTPS."""
    assert read_server(server, "f") == GOOD[server]


@given(st.text(alphabet=st.sampled_from("ab.:/@[]%?#\\ \t\n-_0189x"), max_size=20))
def test_an_accepted_address_has_the_same_host_and_port_in_the_http_library(rest: str) -> None:
    """URL parsers disagree about odd forms, so an address that they may read differently is rejected."""
    server = f"https://{rest}"
    try:
        found = read_server(server, "f")
    except AccessError:
        return
    url = URL(server, encoded=True)
    assert (found.host.lower(), found.port) == (url.raw_host, url.port)
    assert url.path.rstrip("/") == found.path


@pytest.mark.parametrize("name", ["", "kubernetes", "a.b-c.example", "10.0.0.1", "::1", "a_b"])
def test_tls_server_name_must_be_a_dns_name_or_an_ip_address(name: str) -> None:
    """It may also be empty."""
    check_server_name(name, "f")
    with pytest.raises(AccessError, match="f: tls-server-name is neither"):
        check_server_name(f"{name} x", "f")
