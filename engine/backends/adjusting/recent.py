"""A least-recently-used cache by sequence."""

from typing import Generic, TypeVar

Value = TypeVar("Value")

MAX_ABSENT_SEQUENCES = 256
"""Maximum number of entries for sequences outside the step: some wait, most are gone."""


class Recent(Generic[Value]):
    """Maps sequences to values; forgets the least recently used."""

    def __init__(self, allowance: int = MAX_ABSENT_SEQUENCES) -> None:
        self._allowance = allowance
        self._values: dict[int, Value] = {}  # in the order in which they were used

    def __len__(self) -> int:
        return len(self._values)

    def use(self, sequence: int) -> Value | None:
        """Returns the value of a sequence and marks it as most recently used; None if there is none."""
        value = self._values.pop(sequence, None)
        if value is not None:
            self._values[sequence] = value
        return value

    def keep(self, sequence: int, value: Value) -> None:
        self._values.pop(sequence, None)
        self._values[sequence] = value

    def forget(self, used: int) -> None:
        """Drops the entries used longest ago, beyond the `used` sequences of this step and the allowance."""
        while len(self._values) > used + self._allowance:
            del self._values[next(iter(self._values))]
