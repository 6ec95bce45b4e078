"""Counts what a JSON text will become while its bytes arrive, so that too much of it is never decoded."""

MAX_OBJECTS = 8192  # objects and lists that a body may have
PIECE_BYTES = 32 << 10  # bytes that are counted in well under a millisecond, whatever they are


class JSONCounts:
    """Counts the objects and lists of a JSON text, and its values, exactly for a valid text. Pure.

    `objects` counts what is opened by a brace or a bracket, `values` one more than the commas outside of strings: at
    least the entries of any list in it.
    """

    def __init__(self) -> None:
        self.objects = 0
        self.values = 1
        self._in_string = False
        self._rest = b""  # a backslash at the end, whose second half has not come

    def push(self, piece: bytes) -> None:
        """Takes the next bytes, of any number; it takes time in proportion to them."""
        text = (self._rest + piece).replace(rb"\\", b"")  # so that each backslash left escapes what follows it
        self._rest = b"\\" if text.endswith(b"\\") else b""
        parts = text.replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        self.objects += outside.count(b"{") + outside.count(b"[")
        self.values += outside.count(b",")
