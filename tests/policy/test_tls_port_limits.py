"""Tests of which connection of a port is dropped: one of the client with most of them, never one of a small client."""

from hypothesis import given
from hypothesis import strategies as st

from tensile.policy.tls_port import PortClient, PortClients


class LimitedConnections:
    """Connections by name, and the names of those that were dropped."""

    def __init__(self, most: int = 4, content: int = 100) -> None:
        self.visitors = PortClients(most, content)
        self.named: dict[str, PortClient] = {}
        self.dropped: list[str] = []

    def enter(self, name: str, origin: str) -> None:
        """Add a connection after the others."""
        made = PortClient(origin, float(len(self.named)), lambda: self.dropped.append(name))
        self.named[name] = made
        self.visitors.add(made)


def test_the_oldest_connection_of_the_largest_origin_is_dropped() -> None:
    """That holds for a new connection of that origin and of another one."""
    port = LimitedConnections()
    for name, origin in (("caller", "1"), ("a", "2"), ("b", "2"), ("c", "2"), ("d", "2"), ("other", "3")):
        port.enter(name, origin)
    assert port.dropped == ["a", "b"]
    assert len(port.visitors) == 4


def test_connections_without_a_request_are_dropped_first() -> None:
    """Clients may share a load balancer's address; after those, the one that was idle for longest is dropped."""
    port = LimitedConnections()
    for name in "abcd":
        port.enter(name, "1")
    port.named["a"].record_request(10.0)
    port.named["b"].record_request(11.0)
    for name in "efgh":
        port.enter(name, "1")
    assert port.dropped == ["c", "d", "e", "f"]
    for name in "gh":
        port.named[name].record_request(20.0)
    port.visitors.displace()
    assert port.dropped[4:] == ["a"]


def test_the_origin_with_most_buffered_bytes_is_dropped_beyond_the_bound() -> None:
    """Its connection that has waited longest is dropped, and released bytes do not count."""
    port = LimitedConnections(most=10)
    for name, origin in (("caller", "1"), ("a", "2"), ("b", "2"), ("idle", "2")):
        port.enter(name, origin)
    port.visitors.hold(port.named["caller"], 40)
    port.visitors.hold(port.named["b"], 30)
    port.visitors.hold(port.named["a"], 30)
    assert port.dropped == []
    port.visitors.hold(port.named["caller"], 1)
    assert port.dropped == ["a"]
    port.visitors.release(port.named["caller"])
    port.visitors.hold(port.named["b"], 70)
    assert port.dropped == ["a"]
    port.visitors.hold(port.named["b"], 1)
    assert port.dropped == ["a", "b"]


def test_a_closed_connection_does_not_count() -> None:
    """It may be removed more than once."""
    port = LimitedConnections()
    port.enter("a", "1")
    port.visitors.hold(port.named["a"], 100)
    for _ in range(2):
        port.visitors.leave(port.named["a"])
    port.enter("b", "1")
    port.visitors.hold(port.named["b"], 100)
    port.visitors.displace()
    port.visitors.displace()
    assert (port.dropped, len(port.visitors)) == (["b"], 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.integers(0, 60)), max_size=200))
def test_the_bounds_hold_for_any_sequence_of_events(doings: list[tuple[int, int, int]]) -> None:
    """A client with one connection and few bytes is never dropped for others."""
    port = LimitedConnections(most=6)
    port.enter("caller", "caller")
    port.visitors.hold(port.named["caller"], 5)
    for number, (what, who, size) in enumerate(doings):
        known = list(port.visitors)[1:]
        chosen = known[who % len(known)] if known else None
        if what <= 1 or chosen is None:
            port.enter(f"v{number}", str(who % 3))
        elif what == 2:
            port.visitors.hold(chosen, size)
        elif what == 3:
            port.visitors.release(chosen)
        else:
            port.visitors.leave(chosen)
        assert len(port.visitors) <= 6
        assert sum(one.held for one in port.visitors) <= 100
        assert "caller" not in port.dropped
