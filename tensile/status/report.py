"""The whole picture, and its two written forms: JSON for programs, and the data of ConfigMap NAME-status."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from tensile.errors import TensileError
from tensile.status.lowers import Row, coarse
from tensile.status.verdict import Verdict

FORMAT = "1.0"
"""Of the JSON; the first number changes when something that was there is gone or means something else."""

_STATE, LOWERS, TOPOLOGY = "state", "lowers", "topology"
ACCEPTED, REJECTED = OPTIONAL = ("accepted", "rejected")
_ADVERTISED = "advertised"
_UNKNOWN = "the lower clusters have not all told yet how they are"


class Report(NamedTuple):
    """What the engine says of itself; `topology` is the topology's name, "" while none was ever in force.

    `lowers` is None while nothing is known of them; `waits` says what the engine waits for, "" for nothing.
    """

    topology: str
    verdict: Verdict
    lowers: tuple[Row, ...] | None = None
    waits: str = ""

    def document(self) -> dict[str, Any]:
        """Give it as JSON."""
        return {
            "formatVersion": FORMAT,
            TOPOLOGY: self.topology,
            "waits": self.waits or (_UNKNOWN if self.lowers is None else ""),
            **self.verdict.document(),
            LOWERS: [row.document() for row in self.lowers or ()],
        }

    def data(self) -> dict[str, str]:
        """Give the data of the ConfigMap, which changes no more than what it says.

        What this engine knows nothing of is left out: the lowers while none is known, and the topology while none was
        ever in force here.

        A word in `state`, so that `kubectl wait` can look at it, and JSON in the others. What a node offers is not in
        it: the Node itself says that.
        """
        verdict = self.verdict.document()
        found = {_STATE: str(verdict[_STATE]), **({TOPOLOGY: self.topology} if self.topology else {})}
        found.update({part: _json(verdict[part]) for part in OPTIONAL if part in verdict})
        if self.lowers is None:
            return found
        told = [coarse(row).document() for row in self.lowers]
        return {**found, LOWERS: _json([{key: row[key] for key in row if key != _ADVERTISED} for row in told])}


def read_data(data: Mapping[str, str], where: str) -> dict[str, Any]:
    """Read the data of such a ConfigMap back into the form of `document`; raises TensileError for anything else."""
    try:
        found: dict[str, Any] = {part: orjson.loads(data[part]) for part in (*OPTIONAL, LOWERS) if part in data}
        lowers = [{_ADVERTISED: {}, **row} for row in found.pop(LOWERS)]
        return {
            "formatVersion": FORMAT,
            TOPOLOGY: data[TOPOLOGY],
            "waits": "",
            _STATE: data[_STATE],
            **found,
            LOWERS: lowers,
        }
    except (KeyError, TypeError, ValueError):
        raise TensileError(f"{where}: not written by this version of tensile: look whether an engine runs") from None


def _json(value: Any) -> str:
    return orjson.dumps(value, option=orjson.OPT_INDENT_2).decode()
