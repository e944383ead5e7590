"""On how many cases a property is tried: some in `make unit` and `make test`, all of them in `make test-all`.

The few are the same in each run, so that no change fails by what it did not cause.
"""

import os
from typing import Any

from hypothesis import settings

THOROUGH = "TENSILE_THOROUGH" in os.environ
SHARE, LEAST = 10, 20
"""Of how many cases one is tried where not all are, and how many at least."""

settings.register_profile("thorough", deadline=None)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=LEAST)


def examples(count: int, **more: Any) -> settings:
    """Return the settings of a property that is tried on so many cases; `more` as in hypothesis."""
    return settings(max_examples=count if THOROUGH else min(count, max(LEAST, count // SHARE)), **more)


def load() -> None:
    """Choose the settings of all properties that have none of their own."""
    settings.load_profile("thorough" if THOROUGH else "quick")
