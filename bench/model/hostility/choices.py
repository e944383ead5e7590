"""A number that is divided into choices, so that one number determines an action completely."""

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")
RANGE = 10**15


class Choices:
    """A sequence of choices from one number; once the number is used up, the first option is chosen."""

    def __init__(self, number: int) -> None:
        self._left = number

    def pick(self, among: Sequence[T]) -> T:
        """Return one of several options; there must be at least one."""
        self._left, place = divmod(self._left, len(among))
        return among[place]

    def chance(self, one_in: int) -> bool:
        """Report whether an event with the probability of 1 to `one_in` occurs."""
        self._left, rest = divmod(self._left, one_in)
        return rest == 1
