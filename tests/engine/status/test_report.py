"""Tests of the report of an engine as JSON and as ConfigMap data, and of reading the data back."""

import orjson
import pytest
from statuskit import NOW, TOPOLOGY, accepted, invalid_update, row

from tensile.engine.status.report import StatusReport, TopologyStatus, read_data
from tensile.errors import TensileError


def report(*lowers: object) -> StatusReport:
    """Return a report of an active topology."""
    return StatusReport(TOPOLOGY.name, accepted(), tuple(lowers))  # type: ignore[arg-type]


def test_the_json_document_has_every_field_of_the_report() -> None:
    """It has the version of its format too."""
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


def test_the_document_states_what_the_engine_waits_for() -> None:
    """Lowers whose state is not known yet are reported as such, and not as an empty list."""
    assert StatusReport("demo", accepted(), None).document()["waits"] == (
        "the state of some lower clusters is not known yet"
    )
    assert StatusReport("demo", accepted(), (), "the upper cluster").document()["waits"] == "the upper cluster"


def test_the_config_map_has_the_state_as_a_word_and_the_rest_as_json() -> None:
    """`kubectl wait` can thus check the state, and programs and users can read the rest."""
    data = report(row()).data()
    assert (data["state"], data["topology"]) == ("Accepted", "demo")
    assert orjson.loads(data["accepted"]) == accepted().document()["accepted"]
    assert "advertised" not in orjson.loads(data["lowers"])[0]
    assert "rejected" not in data


def test_the_config_map_data_has_no_lowers_key_while_no_lowers_are_known() -> None:
    """The lowers that were written before thus stay in the ConfigMap."""
    assert "lowers" not in StatusReport("", TopologyStatus(), None).data()


@pytest.mark.parametrize("before", [1, 5, 61, 3599])
def test_the_config_map_data_ignores_advertised_resources_and_small_changes_of_lag(before: int) -> None:
    """Both change all the time, and each change would cause a write."""
    first = report(row(lag=before)).data()
    later = report(row(lag=before + 1 if before % 60 else before, advertised={"cpu": "1"})).data()
    assert (first == later) is (before != 3599)


def test_config_map_data_is_read_back_as_the_same_document() -> None:
    """The advertised resources are empty, because they are read from the virtual nodes."""
    whole = StatusReport("demo", accepted(invalid_update()), (row(), row("lower-b", lag=60, reachable=False)))
    expected = whole.document()
    for one in expected["lowers"]:
        one["advertised"] = {}
    assert read_data(whole.data(), "ConfigMap ops/topo-status") == expected


@pytest.mark.parametrize(
    "data", [{}, {"state": "Accepted"}, {"state": "x", "topology": "y", "lowers": "{"}, {"lowers": "1", "topology": ""}]
)
def test_invalid_config_map_data_is_refused_with_the_name_of_the_config_map(data: dict[str, str]) -> None:
    """Data that this version did not write raises a TensileError."""
    with pytest.raises(TensileError, match="ConfigMap ops/topo-status: not written by this version of tensile"):
        read_data(data, "ConfigMap ops/topo-status")


def test_the_data_has_no_topology_and_no_lowers_if_no_topology_was_ever_active() -> None:
    """An engine that does not start knows neither."""
    found = StatusReport("", TopologyStatus().after(invalid_update(), NOW)).data()
    assert (sorted(found), found["state"]) == (["rejected", "state"], "Rejected")
