"""A number taken apart into choices, so that an action is one number and always the same."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
RANGE = 10**15


class Choices:
    """Each choice takes a part of the number away; when nothing is left of it, the first of all is chosen."""

    def __init__(self, number: int) -> None:
        self._left = number

    def pick(self, among: Sequence[T]) -> T:
        """Return one of several; there is one at least."""
        self._left, place = divmod(self._left, len(among))
        return among[place]

    def chance(self, one_in: int) -> bool:
        """Report whether what happens once in so many times happens."""
        self._left, rest = divmod(self._left, one_in)
        return rest == 1
