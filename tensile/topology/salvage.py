"""Where the engine of a topology file that is refused can be asked.

`tensile status` is wanted most while an edit is half done.

The engine keeps using the last valid topology, which may differ from the file. If the edit changed the address of
telemetry, no engine answers at the address that is read here.
"""

import re
from typing import Any

from pydantic import ValidationError

from tensile.topology.models import Telemetry
from tensile.yamltext import compose
from tensile.yamltree import plain

_KEYS = ("name", "telemetry")
_TOP = re.compile(r"^(?=[^\s#-])", re.MULTILINE)
"""Where a key at the top begins."""


def salvaged(text: str) -> tuple[str, Telemetry]:
    """Return name and telemetry of a file that is refused, as far as they can be read: "" and the defaults else.

    Each key at the top is read alone, whatever is wrong with the others.
    """
    found: dict[str, Any] = {}
    for block in _TOP.split(text):
        key = block.partition(":")[0]
        root = compose(block)[0] if key in _KEYS and key not in found else None
        data = plain(root) if root is not None else None
        if isinstance(data, dict):
            found[key] = data.get(key)
    name = found.get("name")
    return name if isinstance(name, str) else "", _telemetry(found.get("telemetry"))


def _telemetry(data: Any) -> Telemetry:
    try:
        return Telemetry.model_validate(data, by_alias=True, by_name=False)
    except ValidationError:
        return Telemetry()
