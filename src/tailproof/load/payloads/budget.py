"""How much may be drawn: whatever a description asks for, its bodies are there soon, or refused."""

from typing import Any

import msgspec

WORK = 2_000_000
"""Of about a microsecond each."""
MAX_BYTES = 128 * 2**20
"""Of names and given values in all bodies together."""


class Undrawable(Exception):
    """The document says nothing, or nothing that we understand, about what to send."""


class Exhausted(Undrawable):
    """It says so much that drawing it would take too long."""


class Budget:
    """What drawing from one document may cost. Everything that a document can make many or long is
    spent from it."""

    def __init__(self, work: int = WORK, max_bytes: int = MAX_BYTES) -> None:
        self._work = work
        self._bytes = max_bytes

    def spend(self, work: int) -> None:
        """Raises Exhausted."""
        self._work -= work
        if self._work < 0:
            raise Exhausted("bodies like these are too large to draw")

    def spend_bytes(self, num: int) -> None:
        """Raises Exhausted."""
        self._bytes -= num
        if self._bytes < 0:
            raise Exhausted("bodies like these are too large to hold")

    def give(self, value: Any) -> Any:
        """A value that the document itself holds. Raises Exhausted."""
        self.spend_bytes(len(msgspec.json.encode(value)))
        return value
