"""What `tensile status` prints, to the letter."""

from typing import Any

import orjson
import pytest
from statuskit import accepted, bad, good, row

from tensile.cli.status import as_json, as_text
from tensile.engine.status.report import StatusReport, TopologyStatus

AWAY = "10.0.0.2:6443 did not respond in time"


def shown(report: StatusReport, *, colour: bool = False) -> str:
    """Print a report."""
    return as_text(report.document(), colour=colour)


def test_lowers_are_laid_out_as_kubectl_does() -> None:
    """With what is wrong below, and what became of the topology at the end."""
    away = row("lower-bb", reachable=False, lag=3725, message=AWAY, advertised={}, real={}, pods=12, state="NoAnswer")
    assert shown(StatusReport("demo", accepted(), (row(), away))) == (
        "LOWER      NODE            STATE      PODS   CPU     MEMORY        MAX PODS    LAG\n"
        "lower-a    node-lower-a    Ready      3      90/96   768Gi/768Gi   1500/1500   0s\n"
        "lower-bb   node-lower-bb   NoAnswer   12     -/-     -/-           -/-         62m\n"
        "\n"
        "CPU, MEMORY and MAX PODS: advertised/real.\n"
        "\n"
        f"lower-bb: {AWAY}\n"
        "\n"
        "Topology demo: in force since 2026-03-01T12:00:00Z (sha256 aa..., resourceVersion 7)"
    )


def test_an_engine_that_does_not_tell_the_state_is_read_too() -> None:
    """One of an earlier version writes its status without it."""
    document = StatusReport("demo", accepted(), (row(), row("lower-b", reachable=False))).document()
    for one in document["lowers"]:
        del one["state"]
    lines = as_text(document, colour=False).splitlines()
    assert [line.split()[2] for line in lines[1:3]] == ["Ready", "NoAnswer"]


def test_without_lowers_that_is_said() -> None:
    """In place of an empty table."""
    assert shown(StatusReport("demo", accepted(), ())).startswith("No lower clusters.\n\nTopology demo: ")


def test_a_bad_edit_is_told_with_its_lines() -> None:
    """And what that means for what is in force."""
    text = shown(StatusReport("demo", accepted(bad("topo:3:5: lowerz: unknown key\ntopo:4:1: kind: wrong")), (row(),)))
    assert text.endswith(
        "Refused at 2026-03-01T12:05:00Z, the last good topology stays in force:\n"
        "  topo:3:5: lowerz: unknown key\n"
        "  topo:4:1: kind: wrong"
    )
    verdict = TopologyStatus().after(bad(), accepted().accepted.time)  # type: ignore[union-attr]
    assert "Refused at 2026-03-01T12:00:00Z, the engine does not start:\n  topo:3:5" in shown(
        StatusReport("", verdict, ())
    )


def test_what_needs_a_restart_is_told() -> None:
    """Below what is in force."""
    verdict = TopologyStatus().after(good(), accepted().accepted.time, ("name: a -> b: not while running",))  # type: ignore[union-attr]
    assert shown(StatusReport("demo", verdict, ())).endswith(")\n  not in force: name: a -> b: not while running")


def test_what_has_to_wait_is_told() -> None:
    """In the same place, in other words: it needs nobody."""
    verdict = accepted().pending(("lowers[a].node.name: a -> b: waits until no pods are mirrored",))
    text = shown(StatusReport("demo", verdict, ()))
    assert text.endswith(")\n  topology change pending: lowers[a].node.name: a -> b: waits until no pods are mirrored")


def test_what_the_engine_waits_for_is_told() -> None:
    """It answers, and is not ready."""
    text = shown(StatusReport("demo", accepted(), None, "the upper cluster has not responded yet"))
    assert text.endswith("\nThe engine is not ready: the upper cluster has not responded yet")


def test_on_a_terminal_what_is_out_of_reach_is_red() -> None:
    """Nothing else is, and in a file nothing at all."""
    report = StatusReport("demo", accepted(), (row(), row("lower-b", reachable=False)))
    lines = shown(report, colour=True).splitlines()
    assert ["\x1b[31m" in line for line in lines[:4]] == [False, False, True, False]
    assert lines[2].endswith("\x1b[0m")
    assert "\x1b" not in shown(report)


@pytest.mark.parametrize(
    ("memory", "told"),
    [("768Gi", "768Gi"), ("805306367Ki", "768Gi"), ("100000Ki", "97.7Mi"), ("1500Gi", "1.5Ti"), ("512", "512")],
)
def test_memory_is_told_so_that_two_amounts_can_be_compared(memory: str, told: str) -> None:
    """Kubernetes' canonical form of what is left after requests is a long number of Ki."""
    line = shown(StatusReport("demo", accepted(), (row(real={"memory": memory}),))).splitlines()[1]
    assert f"768Gi/{told} " in line


@pytest.mark.parametrize(("lag", "told"), [(0, "0s"), (119, "119s"), (120, "2m"), (7199, "119m"), (7200, "2h")])
def test_lag_is_told_as_an_age(lag: int, told: str) -> None:
    """As kubectl tells one."""
    line = shown(StatusReport("demo", accepted(), (row(lag=lag),))).splitlines()[1]
    assert line.endswith(f" {told}")


def test_programs_get_json() -> None:
    """All of it."""
    document: dict[str, Any] = StatusReport("demo", accepted(bad()), (row(),)).document()
    assert orjson.loads(as_json(document)) == document


def test_words_of_others_do_nothing_to_a_terminal() -> None:
    """A message may hold what an apiserver below said; colours are ours alone."""
    away = row("lower-a", reachable=False, message="gone\x1b[2J\nlower-b: well")
    text = shown(StatusReport("demo", accepted(), (away,)), colour=True)
    assert "\nlower-a: gone\\u001b[2J\\nlower-b: well\n" in text
    assert text.count("\x1b") == 2
