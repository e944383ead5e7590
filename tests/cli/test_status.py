"""Tests of the exact output of `tensile status`."""

from functools import partial
from os import terminal_size
from signal import SIGINT
from typing import Any

import orjson
import pytest
from clikit import Files, run_failing, started, wait_for_exit
from statuskit import LATER, NOW, accepted, invalid_update, pending_edit, row, valid_update

from tensile.cli.status import JsonLines, StatusView, as_json, as_text, rendered
from tensile.engine.status.query import StatusAnswer
from tensile.engine.status.report import LowerRow, StatusReport, TopologyStatus, public
from tensile.errors import TensileError

AWAY = "10.0.0.2:6443 did not respond in time"


def as_table(report: StatusReport, *, colour: bool = False) -> str:
    """Return a report as text."""
    return as_text(report.document(), colour=colour)


def test_lowers_are_a_table_like_those_of_kubectl() -> None:
    """Problems follow the table, and the state of the topology is the last line."""
    away = row("lower-bb", reachable=False, lag=3725, message=AWAY, advertised={}, real={}, pods=12, state="NoAnswer")
    assert as_table(StatusReport("demo", accepted(), (row(), away))) == (
        "LOWER      NODE            STATE      PODS   CPU     MEMORY        MAX PODS    LAG\n"
        "lower-a    node-lower-a    Ready      3      90/96   768Gi/768Gi   1500/1500   0s\n"
        "lower-bb   node-lower-bb   NoAnswer   12     -/-     -/-           -/-         62m\n"
        "\n"
        "CPU, MEMORY and MAX PODS: advertised/real.\n"
        "\n"
        f"lower-bb: {AWAY}\n"
        "To find the cause, run `tensile doctor`: it checks connections, credentials and permissions.\n"
        "\n"
        "Topology demo: in force since 2026-03-01T12:00:00Z (sha256 aa..., resourceVersion 7)"
    )


def test_a_report_without_states_can_be_read() -> None:
    """Engines of earlier versions write their status without them."""
    document = StatusReport("demo", accepted(), (row(), row("lower-b", reachable=False))).document()
    for one in document["lowers"]:
        del one["state"]
    lines = as_text(document, colour=False).splitlines()
    assert [line.split()[2] for line in lines[1:3]] == ["Ready", "NoAnswer"]


def test_reverted_drift_is_counted() -> None:
    """Both tables have it if there is any; engines of earlier versions do not report it."""
    report = StatusReport("demo", accepted(), (row(drift=1), row("lower-b", drift=30), row("lower-c")))
    rest = "by other clients put back since the engine started: see the status page, or Events DriftReverted\n"
    assert f"\nlower-a: 1 change {rest}lower-b: 30 changes {rest}\nTopology" in as_table(report)
    assert "lower-c: " not in as_table(report)
    assert f"\nlower-a: 1 change {rest}" in as_text(report.document(), colour=False, wide=True)
    document = StatusReport("demo", accepted(), (row(drift=1),)).document()
    del document["lowers"][0]["drift"]
    assert "put back" not in as_text(document, colour=False)


def test_blocked_objects_are_counted_with_the_command_that_names_them() -> None:
    """Engines of earlier versions do not report them."""
    report = StatusReport("demo", accepted(), (row(blocked=1), row("lower-b", blocked=30), row("lower-c")))
    rest = "blocked: the engine's log and status page name them; `tensile explain pod` says why a pod waits\n"
    assert f"\nlower-a: 1 object is {rest}lower-b: 30 objects are {rest}\nTopology" in as_table(report)
    document = StatusReport("demo", accepted(), (row(blocked=1),)).document()
    del document["lowers"][0]["blocked"]
    assert "blocked" not in as_text(document, colour=False)


def test_a_failed_request_names_its_lower_once() -> None:
    """Its message begins with the name already; doctor is suggested in any state."""
    text = as_table(StatusReport("demo", accepted(), (row(message="lower-a: list Pod: forbidden", state="Starting"),)))
    assert "\nlower-a: list Pod: forbidden\nTo find the cause, run `tensile doctor`" in text


def test_without_lowers_the_table_is_replaced_by_a_sentence() -> None:
    """A topology that was refused at the start is reported as not active."""
    assert as_table(StatusReport("demo", accepted(), ())).startswith("No lower clusters.\n\nTopology demo: ")
    assert as_table(StatusReport("", accepted(), ())).startswith(
        "No topology is active.\n"
    )  # it was refused at the start


def test_an_edit_that_waits_for_approval_has_the_approve_command() -> None:
    """It also has the names of the first affected pods and the number of the others."""
    text = as_table(StatusReport("demo", accepted().waiting(pending_edit()), (row(),)))
    assert text.endswith(
        "Edit dd... waits for an approval since 2026-03-01T12:05:00Z: it affects 3 running pods "
        "(guard.approveOver: 1)\n"
        "  lowers[lower-a].maintenance: none -> drain\n"
        "  pods: shop/web-0 (lower-a), shop/web-1 (lower-a), and 1 more\n"
        "  to approve it: tensile approve dd --configmap ops/topo"
    )


def test_details_that_the_engine_hides_are_in_the_configmap() -> None:
    """Pod names and changes of an edit are shown only to callers on the engine's machine."""
    report = StatusReport("demo", accepted().waiting(pending_edit()), (row(),))
    assert as_text(public(report.document()), colour=False).endswith(
        "(guard.approveOver: 1)\n"
        "  changes and pods: see ConfigMap NAME-status; the engine shows them on loopback addresses only\n"
        "  to approve it: tensile approve dd --configmap ops/topo"
    )
    assert public(StatusReport("demo", accepted(), ()).document()) == StatusReport("demo", accepted(), ()).document()
    document = StatusReport("demo", accepted().pending(("not called for pod payroll/salaries-0",)), ()).document()
    assert "payroll" in str(document)
    assert "payroll" not in str(public(document))


def test_a_refused_edit_is_shown_with_its_errors() -> None:
    """The report also has the consequence: the last valid topology stays in force, or the engine does not start."""
    text = as_table(
        StatusReport("demo", accepted(invalid_update("topo:3:5: lowerz: unknown key\ntopo:4:1: kind: wrong")), (row(),))
    )
    assert text.endswith(
        "Refused at 2026-03-01T12:05:00Z, the last good topology stays in force:\n"
        "  topo:3:5: lowerz: unknown key\n"
        "  topo:4:1: kind: wrong"
    )
    verdict = TopologyStatus().after(invalid_update(), accepted().accepted.time)  # type: ignore[union-attr]
    assert "Refused at 2026-03-01T12:00:00Z, the engine does not start:\n  topo:3:5" in as_table(
        StatusReport("", verdict, ())
    )


def test_changes_that_need_a_restart_are_shown() -> None:
    """They follow the topology in force."""
    verdict = TopologyStatus().after(valid_update(), accepted().accepted.time, ("name: a -> b: not while running",))  # type: ignore[union-attr]
    assert as_table(StatusReport("demo", verdict, ())).endswith(")\n  not in force: name: a -> b: not while running")


def test_pending_changes_are_shown() -> None:
    """They follow the topology in force and need no action by a user."""
    verdict = accepted().pending(("lowers[a].node.name: a -> b: waits until no pods are mirrored",))
    text = as_table(StatusReport("demo", verdict, ()))
    assert text.endswith(")\n  topology change pending: lowers[a].node.name: a -> b: waits until no pods are mirrored")


def test_the_reason_why_the_engine_is_not_ready_is_shown() -> None:
    """The engine answers although it is not ready."""
    text = as_table(StatusReport("demo", accepted(), None, "the upper cluster has not responded yet"))
    assert text.startswith("The lower clusters are not known yet.\n")
    assert text.endswith("\nThe engine is not ready: the upper cluster has not responded yet")


def test_a_standby_names_the_leader() -> None:
    """It is ready, and does not know the lower clusters."""
    text = as_table(StatusReport("demo", accepted(), None, "", "host_1_a"))
    assert text.startswith("This engine is a standby: host_1_a leads, and knows the lower clusters.\n")
    assert "not ready" not in text


def test_only_unreachable_lowers_are_red_on_a_terminal() -> None:
    """A file contains no escape codes."""
    report = StatusReport("demo", accepted(), (row(), row("lower-b", reachable=False)))
    lines = as_table(report, colour=True).splitlines()
    assert ["\x1b[31m" in line for line in lines[:4]] == [False, False, True, False]
    assert lines[2].endswith("\x1b[0m")
    assert "\x1b" not in as_table(report)


@pytest.mark.parametrize(
    ("memory", "formatted"),
    [("768Gi", "768Gi"), ("805306367Ki", "768Gi"), ("100000Ki", "97.7Mi"), ("1500Gi", "1.5Ti"), ("512", "512")],
)
def test_memory_has_comparable_units(memory: str, formatted: str) -> None:
    """The canonical form of the remaining memory is a large number of Ki."""
    line = as_table(StatusReport("demo", accepted(), (row(real={"memory": memory}),))).splitlines()[1]
    assert f"768Gi/{formatted} " in line


@pytest.mark.parametrize(("lag", "formatted"), [(0, "0s"), (119, "119s"), (120, "2m"), (7200, "120m"), (10800, "3h")])
def test_lag_is_formatted_as_an_age_in_kubectl(lag: int, formatted: str) -> None:
    """The unit grows with the age."""
    line = as_table(StatusReport("demo", accepted(), (row(lag=lag),))).splitlines()[1]
    assert line.endswith(f" {formatted}")


def test_json_output_has_the_complete_report() -> None:
    """Programs get every field of it."""
    document: dict[str, Any] = StatusReport("demo", accepted(invalid_update()), (row(),)).document()
    assert orjson.loads(as_json(document)) == document


def test_escape_codes_in_messages_do_not_reach_the_terminal() -> None:
    """A message may contain words of a lower apiserver; only the table itself is colored."""
    away = row("lower-a", reachable=False, message="gone\x1b[2J\nlower-b: well")
    text = as_table(StatusReport("demo", accepted(), (away,)), colour=True)
    assert "\nlower-a: gone\\u001b[2J\\nlower-b: well\n" in text
    assert text.count("\x1b") == 2


def test_the_wide_table_has_nodes_versions_and_messages() -> None:
    """The messages are in the table, for `grep`, and are not repeated after it."""
    away = row("lower-b", message=AWAY, nodes={}, version="")
    lines = as_text(StatusReport("demo", accepted(), (row(), away)).document(), colour=False, wide=True).splitlines()
    assert lines[0].endswith("LAG   NODES   VERSION   MESSAGE")
    assert lines[1].endswith("0s    3/4     v1.36.3   -")
    assert lines[2].endswith(f"0s    -       -         {AWAY}")
    assert "\n".join(lines).count(AWAY) == 1
    assert lines[4] == "CPU, MEMORY and MAX PODS: advertised/real; NODES: Ready and schedulable/all."


def test_the_wide_table_of_an_earlier_engine_has_empty_cells() -> None:
    """Engines of earlier versions report neither nodes nor versions."""
    document = StatusReport("demo", accepted(), (row(),)).document()
    del document["lowers"][0]["nodes"], document["lowers"][0]["version"]
    assert as_text(document, colour=False, wide=True).splitlines()[1].endswith("0s    -       -         -")


def update(*lowers: LowerRow, error: str = "") -> StatusAnswer:
    """Return the answer of an engine with these lowers."""
    return StatusAnswer(StatusReport("demo", accepted(), lowers).document(), error)


def view(lines: int = 0, columns: int = 200, *, colour: bool = False) -> StatusView:
    """Return a view on a terminal of this size, or on another stream."""
    size = (lambda: terminal_size((columns, lines))) if lines else None
    return StatusView(partial(rendered, output="text", colour=colour), size)


def screen(parts: list[str], lines: int, columns: int) -> list[str]:
    """Return the content of a terminal after it received several redraws."""
    rows, at = [""], 0
    for part in parts:
        for piece in part.replace("\r", "").replace("\x1b[31m", "").replace("\x1b[0m", "").split("\x1b["):
            if piece.startswith("J"):
                rows = [*rows[:at], ""]
            elif piece.startswith("H"):
                at = max(len(rows) - lines, 0)
            elif piece[:1].isdigit():
                at = max(at - int(piece.split("A")[0]), len(rows) - lines, 0)
            for line in piece.removeprefix("J").split("\n")[:-1]:
                cut = [line[begin : begin + columns] for begin in range(0, max(len(line), 1), columns)]
                rows = [*rows[:at], *cut, ""]
                at = len(rows) - 1
    return rows


def test_a_terminal_shows_the_latest_report_in_place() -> None:
    """This works for lines longer than the terminal is wide, and for a shorter report."""
    shows = view(40, 50)
    long = update(row(), row("lower-b", message="no answer " * 20), row("lower-c"))
    first, second = shows.render(long, NOW), shows.render(update(row("lower-d")), LATER)
    alone = screen([view(40, 50).render(update(row("lower-d")), LATER)], 40, 50)
    assert screen([first, second], 40, 50) == alone
    assert alone[0] == "As of 2026-03-01T12:05:00Z:"


def test_a_report_that_does_not_fit_the_terminal_is_truncated() -> None:
    """Otherwise each redraw would scroll its beginning out of the screen."""
    shows = view(12)
    many = update(*(row(f"lower-{number:02}") for number in range(30)))
    parts = [shows.render(many, NOW), shows.render(many, LATER)]
    seen = screen(parts, 12, 200)
    assert len(seen) == 12
    assert seen[0] == "As of 2026-03-01T12:05:00Z:"
    assert seen[-3].startswith("lower-07 ")
    assert seen[-2] == "... 26 more lines do not fit on the terminal"


def test_escape_codes_do_not_count_as_width_on_a_terminal() -> None:
    """A red line has the same height as a plain one."""
    shows = view(40, 92, colour=True)
    away = update(row(reachable=False))
    parts = [shows.render(away, NOW), shows.render(away, LATER)]
    assert screen(parts, 40, 92) == ["As of 2026-03-01T12:05:00Z:", *screen(parts[:1], 40, 92)[1:]]


def test_an_error_keeps_the_last_report_on_a_terminal() -> None:
    """The error follows the report, with escape codes in its text escaped."""
    shows = view(40)
    shows.render(update(row()), NOW)
    text = shows.render(TensileError("upper: not reachable: \x1b[2Jgone\ncheck it"), LATER)
    assert "As of 2026-03-01T12:00:00Z:\nLOWER " in text
    assert text.endswith(
        "\n\nNo status at 2026-03-01T12:05:00Z, trying again: upper: not reachable: \\u001b[2Jgone\ncheck it\n"
    )
    assert "No status" not in shows.render(update(row()), LATER)


def test_on_other_streams_changed_reports_are_appended() -> None:
    """An empty line separates them; a changed lag alone is no change."""
    shows = view()
    text = [
        shows.render(update(row(lag=0)), NOW),
        shows.render(update(row(lag=9)), LATER),
        shows.render(update(row(pods=4, lag=9)), LATER),
    ]
    assert text[1] == ""
    assert text[0].startswith("As of 2026-03-01T12:00:00Z:\nLOWER ")
    assert text[2].startswith("\nAs of 2026-03-01T12:05:00Z:\nLOWER ")
    assert text[0].endswith(")\n")
    assert "\x1b" not in "".join(text)


def test_on_other_streams_an_error_is_reported_once() -> None:
    """The known report is not repeated, and the next status is shown again."""
    shows = view()
    shows.render(update(row()), NOW)
    error = TensileError("upper: not reachable")
    assert shows.render(error, LATER) == ("\nNo status at 2026-03-01T12:05:00Z, trying again: upper: not reachable\n")
    assert shows.render(TensileError("upper: not reachable"), LATER) == ""
    assert shows.render(update(row()), LATER).startswith("\nAs of ")


def test_a_problem_with_the_status_itself_follows_the_report() -> None:
    """The status may be outdated."""
    assert view().render(update(row(), error="no engine renews"), NOW).endswith(")\n\nno engine renews\n")


def test_programs_get_a_line_of_json_for_each_change() -> None:
    """Errors are reported separately, once each."""
    errors: list[str] = []
    shows = JsonLines(errors.append)
    answers = (update(row(lag=1)), update(row(lag=2)), TensileError("gone"), TensileError("gone"), update(row(lag=3)))
    text = [shows.render(one, NOW) for one in answers]
    assert [bool(one) for one in text] == [True, False, False, False, True]
    assert [orjson.loads(one)["lowers"][0]["lag"] for one in text if one] == [1, 3]
    assert text[0].endswith("}\n")
    assert errors == ["gone"]


@pytest.mark.process
def test_watch_continues_without_an_engine_until_ctrl_c(files: Files) -> None:
    """An engine may still start; Ctrl-C gives exit code 130, as in other commands."""
    with started("status", "--watch", "-f", files.save()) as running:
        assert running.stdout is not None
        first = running.stdout.readline().decode()
        result = wait_for_exit(running, SIGINT)
    assert first.startswith("No status at ")
    assert "trying again: no engine responds at http://127.0.0.1:" in first
    assert (result.code, result.err) == (130, "interrupted\n")


@pytest.mark.process
def test_watch_fails_if_the_file_is_missing() -> None:
    """A retry would not help."""
    assert run_failing("status", "--watch", "-f", "nowhere.yaml").startswith("nowhere.yaml: no such file")
