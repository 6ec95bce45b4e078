"""Counts the values of a JSON text while its bytes arrive, so that a text with too many values is never decoded."""

MAX_OBJECTS = 8192  # maximum number of objects and lists of a body
PIECE_BYTES = 32 << 10  # any such piece is counted in well under a millisecond


class JSONCounts:
    """Counts the objects and lists of a JSON text, and its values, exactly for a valid text. Pure.

    `objects` counts opening braces and brackets, `values` is one more than the number of commas outside of strings: at
    least the length of any list.
    """

    def __init__(self) -> None:
        self.objects = 0
        self.values = 1
        self._in_string = False
        self._rest = b""  # a backslash at the end, whose escaped character is still missing

    def push(self, piece: bytes) -> None:
        """Takes the next bytes, of any number, in linear time."""
        text = (self._rest + piece).replace(rb"\\", b"")  # now each remaining backslash escapes the next character
        self._rest = b"\\" if text.endswith(b"\\") else b""
        parts = text.replace(rb"\"", b"").split(b'"')
        outside = b"".join(parts[self._in_string :: 2])
        self._in_string ^= len(parts) % 2 == 0
        self.objects += outside.count(b"{") + outside.count(b"[")
        self.values += outside.count(b",")
