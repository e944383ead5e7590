"""Words of others, fit for a message of ours: short, on one line, and harmless on a terminal."""

import re
from collections.abc import Collection

LONGEST = 80
_WORD = re.compile("[A-Za-z-]{1,40}")
_BEGIN = re.compile("[A-Za-z-]{0,8}")


def shown(text: object, longest: int = LONGEST) -> str:
    """Give a name or path with everything escaped that does not print; the middle of a long one is left out."""
    whole = str(text)
    if len(whole) > longest:
        half = longest // 2
        whole = f"{whole[:half]}...{whole[-half:]}"
    return repr(whole)[1:-1].replace("\\\\", "\\")


def key_shown(key: object, known: Collection[str]) -> str:
    """Give a key that is none of those `known`, as far as it surely is one.

    Where a colon is missing, YAML takes what was meant for the value, a token or a private key, for a part of the key.
    """
    whole = str(key)
    if whole.lower() in {one.lower() for one in known}:
        return whole
    begun = max((one for one in known if whole.lower().startswith(one.lower())), key=len, default="")
    if begun:
        return f"{begun}..."
    return whole if _WORD.fullmatch(whole) else f"{_BEGIN.match(whole).group()}..."  # type: ignore[union-attr]
