"""Gives calls of custom tools their free text: a model calls such a tool as a function with one text, `input`."""

import json
import re
from collections.abc import Collection, Iterator, Sequence

from gateway.output.parts import CallArguments, CallBegins, OutputParser, Part

INPUT_FIELD = "input"  # the only argument of a custom tool
_BEGIN_REGEX = re.compile(rf'\s*{{\s*"{INPUT_FIELD}"\s*:\s*"')
_CHARACTERS_REGEX = re.compile(r'(?:[^"\\]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*')
_HALF_REGEX = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\Z")  # first half of a character that needs two escapes


class CustomCalls:
    """An `OutputParser` around another one; calls of the tools with these names have plain text as arguments."""

    def __init__(self, parser: OutputParser, names: Collection[str]) -> None:
        self._parser = parser
        self._names = names
        self._open: dict[int, CallInputReader] = {}  # by the number of the call

    def push(self, text: str) -> Sequence[Part]:
        return list(self._shaped(self._parser.push(text)))

    def flush(self, cut: bool = False) -> Sequence[Part]:
        return list(self._shaped(self._parser.flush(cut)))

    def _shaped(self, parts: Sequence[Part]) -> Iterator[Part]:
        for part in parts:
            match part:
                case CallBegins(call, name) if name in self._names:
                    self._open[call] = CallInputReader()
                    yield CallBegins(call, name, custom=True)
                case CallArguments(call, text) if call in self._open:
                    if found := self._open[call].push(text):
                        yield CallArguments(call, found)
                case _:
                    yield part


class CallInputReader:
    """Reads the text `input` out of JSON that arrives in pieces, as early as possible."""

    def __init__(self) -> None:
        self._unread = ""
        self._inside = False

    def push(self, piece: str) -> str:
        self._unread += piece
        if not self._inside:
            begin = _BEGIN_REGEX.match(self._unread)
            if begin is None:
                return ""
            self._inside, self._unread = True, self._unread[begin.end() :]
        found = _CHARACTERS_REGEX.match(self._unread)
        assert found is not None, "no characters match, too"
        written = found[0]
        if not self._unread.startswith('"', found.end()):  # the other half may follow
            written = _HALF_REGEX.sub("", written)
        self._unread = self._unread[len(written) :]
        text: str = json.loads(f'"{written}"', strict=False)
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
