"""The parser of answers that have no other parts than content."""

from collections.abc import Sequence

from gateway.output.parts import Content, Part


class PlainText:
    """Turns all text into content."""

    def push(self, text: str) -> Sequence[Part]:
        return (Content(text),) if text else ()

    def flush(self, cut: bool = False) -> Sequence[Part]:
        return ()
