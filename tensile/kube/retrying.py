"""Which failed reads are repeated within one call, and when: those that are known to pass in a moment.

Writes are sent once. A decision that is taken anew sees whether a write happened whose answer was lost.
"""

import tenacity

from tensile.errors import Throttled
from tensile.kube.transport import Dropped, Sleep

_TRIES = 3
_LONGEST_WAIT = 5.0
_PAUSE = 0.1


def retrying(sleep: Sleep) -> tenacity.AsyncRetrying:
    """Return what calls a read up to three times; `sleep` waits for seconds. The last error is raised as it is."""
    return tenacity.AsyncRetrying(
        retry=tenacity.retry_if_exception(_passes_soon),
        stop=tenacity.stop_after_attempt(_TRIES),
        wait=_wait,
        sleep=sleep,
        reraise=True,
    )


def _passes_soon(error: BaseException) -> bool:
    """Report whether a read may be repeated within the call."""
    return isinstance(error, Dropped) or (isinstance(error, Throttled) and error.retry_after <= _LONGEST_WAIT)


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds before the next try of a read."""
    error = state.outcome.exception() if state.outcome else None
    return error.retry_after if isinstance(error, Throttled) else _PAUSE * state.attempt_number
