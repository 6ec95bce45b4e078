"""Takes all text of a sample for content: the parser of answers that have no other parts."""

from collections.abc import Sequence

from gateway.output.parts import Content, Part


class PlainText:
    """Makes content of every text."""

    def push(self, text: str) -> Sequence[Part]:
        """Returns the text, unless it is empty."""
        return (Content(text),) if text else ()

    def flush(self, cut: bool = False) -> Sequence[Part]:
        """Returns nothing: nothing is held back."""
        return ()
