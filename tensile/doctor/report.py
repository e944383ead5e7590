"""The findings as `tensile doctor` prints them: a table by cluster, and below it what is not well and what to do."""

from collections.abc import Iterator, Sequence
from typing import Any

from tensile.doctor.diagnosis import worst
from tensile.doctor.facts import Facts, shown
from tensile.doctor.finding import CHECKS, Finding, Level
from tensile.legible import aligned, harmless

FORMAT = 1
_COLOURS = {Level.OK: "\x1b[32m", Level.WARN: "\x1b[33m", Level.FAIL: "\x1b[31m"}
_PLAIN = "\x1b[0m"
_WORDS = {Level.OK: "ok", Level.SKIP: "skipped", Level.WARN: "warn", Level.FAIL: "fail"}
"""The levels as programs read them."""
_TOLD = ("certificates", "network")
"""What is told in text where nothing is wrong too: until when papers hold, and which addresses there are."""


def as_document(facts: Facts, findings: Sequence[Finding]) -> dict[str, Any]:
    """Give everything for programs: `formatVersion`, `topology`, `level`, and `findings` of each of `clusters`."""
    return {
        "formatVersion": FORMAT,
        "topology": facts.topology.name,
        "level": _WORDS[worst(list(findings))],
        "clusters": [
            {
                "name": side.name or None,
                "findings": [
                    {
                        "check": one.check,
                        "level": _WORDS[one.level],
                        "what": one.what,
                        "advice": one.advice.splitlines(),
                    }
                    for one in findings
                    if one.cluster == side.name
                ],
            }
            for side in facts.sides()
        ],
    }


def as_text(facts: Facts, findings: Sequence[Finding], *, colour: bool) -> str:
    """Write the findings as lines, without a newline at the end."""
    lines = _table(facts, findings, colour=colour)
    for side in facts.sides():
        of_side = [one for one in findings if one.cluster == side.name]
        lines += ["", f"{shown(side.name)}{_who(of_side)}"]
        worth = (one for one in of_side if one.level != Level.OK or one.check in _TOLD)
        lines += [line for one in worth for line in _told(one, colour=colour)]
    return "\n".join([*lines, "", _sum(findings)])


def _table(facts: Facts, findings: Sequence[Finding], *, colour: bool) -> list[str]:
    """Give a line for each cluster, with the worst of each check that any has."""
    checks = [check for check in CHECKS if any(one.check == check for one in findings)]
    rows = [[shown(side.name), *(_mark(findings, side.name, check) for check in checks)] for side in facts.sides()]
    head, *lines = aligned([["CLUSTER", *(check.upper() for check in checks)], *rows])
    return [head, *(_coloured(line) if colour else line for line in lines)]


def _mark(findings: Sequence[Finding], cluster: str, check: str) -> str:
    found = [one for one in findings if (one.cluster, one.check) == (cluster, check)]
    return str(worst(found)) if found else ""


def _coloured(line: str) -> str:
    """Colour the marks of a line of the table; they are words of their own after the cluster's name."""
    for level, code in _COLOURS.items():
        line = f"{line} ".replace(f" {level} ", f" {code}{level}{_PLAIN} ").rstrip(" ")
    return line


def _who(findings: Sequence[Finding]) -> str:
    """Say in a line what is known of a cluster that is reached."""
    known = ", ".join(words for check in ("version", "reach", "login") if (words := _first(findings, check)))
    return f": {harmless(known)}" if known else ""


def _first(findings: Sequence[Finding], check: str) -> str:
    return next((one.what for one in findings if one.check == check and one.level == Level.OK), "")


def _told(finding: Finding, *, colour: bool) -> Iterator[str]:
    """Give the lines of one finding."""
    mark = str(finding.level)
    painted = f"{_COLOURS[finding.level]}{mark}{_PLAIN}" if colour and finding.level in _COLOURS else mark
    yield f"  {painted}{' ' * (5 - len(mark))}{finding.check}: {harmless(finding.what)}"
    for number, line in enumerate(finding.advice.splitlines()):
        yield f"         {'->' if number == 0 else '  '} {harmless(line)}"


def _sum(findings: Sequence[Finding]) -> str:
    fails, warnings = (sum(one.level == level for one in findings) for level in (Level.FAIL, Level.WARN))
    well = f"{_counted(fails)} fails" if fails == 1 else f"{_counted(fails)} fail" if fails else "All is well"
    look = f", {_counted(warnings)} {'is' if warnings == 1 else 'are'} worth a look" if warnings else ""
    return f"{well}{look}."


def _counted(number: int) -> str:
    return f"{number} thing" if number == 1 else f"{number} things"
