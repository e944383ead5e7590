"""The whole picture in its two written forms, and back again."""

import orjson
import pytest
from statuskit import NOW, TOPOLOGY, accepted, bad, row

from tensile.engine.status.report import StatusReport, TopologyStatus, read_data
from tensile.errors import TensileError


def report(*lowers: object) -> StatusReport:
    """Make a report of a topology in force."""
    return StatusReport(TOPOLOGY.name, accepted(), tuple(lowers))  # type: ignore[arg-type]


def test_the_json_has_all_of_it() -> None:
    """With the version of its form."""
    found = report(row()).document()
    assert list(found) == ["formatVersion", "topology", "waits", "leader", "state", "accepted", "lowers"]
    assert (found["formatVersion"], found["topology"], found["waits"]) == ("1.5", "demo", "")
    assert found["lowers"] == [
        {
            "name": "lower-a",
            "node": "node-lower-a",
            "reachable": True,
            "message": "",
            "pods": 3,
            "lag": 0,
            "advertised": {"cpu": "90", "memory": "768Gi", "pods": "1500"},
            "real": {"cpu": "96", "memory": "768Gi", "pods": "1500"},
            "state": "Ready",
            "version": "v1.36.3",
            "nodes": {"ready": 3, "total": 4},
            "drift": 0,
            "blocked": 0,
        }
    ]


def test_what_is_waited_for_is_said() -> None:
    """And lowers of which nothing is known yet are not taken for none."""
    assert StatusReport("demo", accepted(), None).document()["waits"] == (
        "the state of some lower clusters is not known yet"
    )
    assert StatusReport("demo", accepted(), (), "the upper cluster").document()["waits"] == "the upper cluster"


def test_the_config_map_has_a_word_and_json() -> None:
    """So that `kubectl wait` can look at it, and programs and people can read it."""
    data = report(row()).data()
    assert (data["state"], data["topology"]) == ("Accepted", "demo")
    assert orjson.loads(data["accepted"]) == accepted().document()["accepted"]
    assert "advertised" not in orjson.loads(data["lowers"])[0]
    assert "rejected" not in data


def test_the_config_map_has_no_lowers_while_none_are_known() -> None:
    """What was told before stays."""
    assert "lowers" not in StatusReport("", TopologyStatus(), None).data()


@pytest.mark.parametrize("before", [1, 5, 61, 3599])
def test_the_config_map_changes_no_more_than_what_it_says(before: int) -> None:
    """What a node offers moves all the time, and the seconds of an outage do."""
    first = report(row(lag=before)).data()
    later = report(row(lag=before + 1 if before % 60 else before, advertised={"cpu": "1"})).data()
    assert (first == later) is (before != 3599)


def test_what_was_written_can_be_read_back() -> None:
    """With nothing advertised, which the nodes say."""
    whole = StatusReport("demo", accepted(bad()), (row(), row("lower-b", lag=60, reachable=False)))
    expected = whole.document()
    for one in expected["lowers"]:
        one["advertised"] = {}
    assert read_data(whole.data(), "ConfigMap ops/topo-status") == expected


@pytest.mark.parametrize(
    "data", [{}, {"state": "Accepted"}, {"state": "x", "topology": "y", "lowers": "{"}, {"lowers": "1", "topology": ""}]
)
def test_what_somebody_else_wrote_is_refused(data: dict[str, str]) -> None:
    """By its place, without a traceback."""
    with pytest.raises(TensileError, match="ConfigMap ops/topo-status: not written by this version of tensile"):
        read_data(data, "ConfigMap ops/topo-status")


def test_a_topology_that_was_never_in_force_is_left_out_of_the_config_map() -> None:
    """As is how the lowers are: an engine that does not start knows neither."""
    found = StatusReport("", TopologyStatus().after(bad(), NOW)).data()
    assert (sorted(found), found["state"]) == (["rejected", "state"], "Rejected")
