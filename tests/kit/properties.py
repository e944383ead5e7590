"""The number of cases of each property test: some in `make unit` and `make test`, all in `make test-all`.

The few cases are the same in each run, so that no change fails for a reason that it did not cause.
"""

import os
from typing import Any

from hypothesis import settings

THOROUGH = "TENSILE_THOROUGH" in os.environ
SHARE, LEAST = 10, 20
"""One of how many cases is tested if not all are, and the minimum number of cases."""

settings.register_profile("thorough", deadline=None)
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=LEAST)


def examples(count: int, **more: Any) -> settings:
    """Return the settings of a property that is tested on so many cases; `more` as in hypothesis."""
    return settings(max_examples=count if THOROUGH else min(count, max(LEAST, count // SHARE)), **more)


def load() -> None:
    """Set the default settings of all properties without their own."""
    settings.load_profile("thorough" if THOROUGH else "quick")
