"""Words of others, fit for a message of ours: short, on one line, and harmless on a terminal."""

from collections.abc import Iterable

LONGEST = 80
MOST = 5


def shown(text: object, longest: int = LONGEST) -> str:
    """Give a name or path with everything escaped that does not print; the middle of a long one is left out."""
    whole = str(text)
    if len(whole) > longest:
        half = longest // 2
        whole = f"{whole[:half]}...{whole[-half:]}"
    return repr(whole)[1:-1].replace("\\\\", "\\")


def listed(names: Iterable[str]) -> str:
    """List some names, in order; "none" when there are none."""
    found = sorted(names)
    more = f" and {len(found) - MOST} more" if len(found) > MOST else ""
    return (", ".join(shown(name) for name in found[:MOST]) or "none") + more
