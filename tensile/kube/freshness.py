"""When the files behind a credential are worth reading again: they changed, and then stayed as they are for a look.

A file that is being written is left alone until it is whole. One that cannot be used is tried again for as long as it
is not put right, because what is missing may be a file that was not known of before.
"""

from tensile.kube.files import Watched

AGAIN = 5.0
"""Seconds until what could not be used is read again without a change."""


class Freshness:
    """What is known of the files of one access; `used` is how they were when they were read."""

    def __init__(self, used: Watched) -> None:
        self._used = used
        self._seen = used
        self._again: float | None = None

    def is_due(self, found: Watched, now: float) -> bool:
        """Take a look (`now` in monotonic seconds), and say whether the files are to be read."""
        settled, self._seen = found == self._seen, found
        if found == self._used:
            return self._again is not None and now >= self._again
        return settled

    def note_read(self, used: Watched) -> None:
        """Note that the files were read as they were at `used`, and could be used."""
        self._used, self._again = used, None

    def note_refused(self, now: float) -> None:
        """Note that the files as they were found last could not be used."""
        self._used, self._again = self._seen, now + AGAIN
