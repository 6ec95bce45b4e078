"""Reads text that arrives in pieces, so that a format's parser can be written for the whole text.

A parser is a generator over an `OutputReader`. Where it needs more text, it yields None and is resumed when text has
arrived; all other yielded values are parts of the answer. Text is read once, and only the few characters that may begin
a marker are held back, so the time is linear in the text, however it is cut.
"""

import re
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from gateway.output.parts import CallArguments, CallBegins, Content, Part, Reasoning

Result = TypeVar("Result")
Steps = Generator[Part | None, None, Result]  # parts of the answer; None: more text is needed
Pieces = Generator[str | None, None, Result]  # pieces of text; None: more is needed

_NO_SPACE = re.compile(r"\S")


class Markers:
    """Markers that end a stretch of text. No marker is a prefix of another."""

    def __init__(self, *marks: str) -> None:
        assert not any(one != other and one.startswith(other) for one in marks for other in marks)
        self._pattern = re.compile("|".join(map(re.escape, marks)))
        self._beginnings = {mark[:size] for mark in marks for size in range(1, len(mark))}
        self._longest = max(map(len, marks))

    def find(self, text: str, at: int) -> re.Match[str] | None:
        return self._pattern.search(text, at)

    def begun(self, text: str, at: int) -> int:
        """Returns where the text's last characters begin that may be the start of a marker, or the text's length."""
        first = max(at, len(text) - self._longest + 1)
        return next((place for place in range(first, len(text)) if text[place:] in self._beginnings), len(text))


class OutputReader:
    """Text that has arrived and is not read yet. Also counts the calls.

    With `only_calls`, the answer consists of calls only: white space is not content, and an unfinished call at the end
    is dropped.
    """

    def __init__(self, only_calls: bool = False) -> None:
        self._only_calls = only_calls
        self._drops = False  # unfinished markup is dropped, as no client can use it
        self.text = ""
        self.at = 0  # position: everything before it was read
        self.ended = False  # the text is complete
        self.calls = 0  # number of calls that have begun
        self._space: list[str] = []  # white space after the last content; no content if a call follows
        self._read: list[str] | None = None  # text that was read since `attempt`

    def push(self, text: str) -> None:
        self.text = self.text[self.at :] + text
        self.at = 0

    def end_of_text(self, cut: bool) -> None:
        """Marks the text as complete. If it was `cut`, unread text is dropped, since it may be half a marker."""
        self.ended = True
        self._drops = cut or self._only_calls
        if self._drops:
            self.text = self.text[: self.at]

    # reading ----------------------------------------------------------------------------------------------------------

    def take(self, end: int) -> str:
        taken = self.text[self.at : end]
        self.at = end
        if self._read is not None:
            self._read.append(taken)
        return taken

    def more(self) -> Generator[None, None, bool]:
        """Waits for unread text. Returns False at the end of the text."""
        while self.at >= len(self.text):
            if self.ended:
                return False
            yield None
        return True

    def until(self, marks: Markers) -> Pieces[str]:
        """Yields the text before the next marker. Returns the marker, or "" at the end of the text."""
        while True:
            found = marks.find(self.text, self.at)
            sure = len(self.text) if self.ended else marks.begun(self.text, self.at)
            if found is not None and found.start() <= sure:
                if found.start() > self.at:
                    yield self.take(found.start())
                return self.take(found.end())
            if sure > self.at:
                yield self.take(sure)
            if self.ended:
                return ""
            yield None

    def skip(self, *words: str) -> Generator[None, None, str]:
        """Reads one of `words` if the text continues with it. Returns that word, or ""."""
        while True:
            for word in words:
                if self.text.startswith(word, self.at):
                    return self.take(self.at + len(word))
            here = self.text[self.at : self.at + max(map(len, words))]
            if self.ended or not any(word.startswith(here) for word in words):
                return ""
            yield None

    def unread(self, mark: str) -> None:
        self.at -= len(mark)
        if mark and self._read is not None:
            assert self._read.pop() == mark

    def comes(self, sign: str) -> Generator[None, None, bool]:
        return (yield from self.more()) and self.text[self.at] == sign

    def word(self, ends: re.Pattern[str]) -> Generator[None, None, str]:
        """Returns the text before the next character that matches `ends`, which stays unread."""
        pieces: list[str] = []
        while (yield from self.more()):
            end = ends.search(self.text, self.at)
            pieces.append(self.take(end.start() if end else len(self.text)))
            if end:
                break
        return "".join(pieces)

    def space(self) -> Generator[None, None, None]:
        while (yield from self.more()):
            found = _NO_SPACE.search(self.text, self.at)
            self.take(found.start() if found else len(self.text))
            if found:
                return

    def hold_space(self) -> Generator[None, None, None]:
        """Reads white space, which becomes content unless a call follows."""
        while (yield from self.more()):
            found = _NO_SPACE.search(self.text, self.at)
            if space := self.take(found.start() if found else len(self.text)):
                self._space.append(space)
            if found:
                return

    def end(self, *words: str) -> Generator[None, None, None]:
        """Reads the closing words of a call that are present. White space before a missing word is kept."""
        for word in words:
            yield from self.hold_space()
            if (yield from self.skip(word)):
                self.drop_space()

    def drop_space(self) -> None:
        self._space.clear()

    # the answer -------------------------------------------------------------------------------------------------------

    def content(self, marks: Markers) -> Steps[str]:
        """Yields the text before the next marker as content. Returns the marker, or "" at the end of the text.

        White space beside calls belongs to the format, and is not content.
        """
        pieces = self.until(marks)
        while True:
            try:
                piece = next(pieces)
            except StopIteration as stop:
                if not stop.value and not self.calls:
                    yield from self.space_as_content()
                return str(stop.value)
            if piece is None:
                yield None
                continue
            words = piece.rstrip()
            if words:
                yield Content("".join([*self._space, words]))
                self._space.clear()
            if len(words) < len(piece):
                self._space.append(piece[len(words) :])

    def rest(self) -> Steps[None]:
        yield from self.space_as_content()
        while (yield from self.more()):
            yield Content(self.take(len(self.text)))

    def space_as_content(self) -> Steps[None]:
        if self._space and not self._only_calls:
            yield Content("".join(self._space))
            self._space.clear()

    def attempt(self, marker: str = "") -> None:
        """Begins to record the text from `marker` on, so that `give_up` can turn it into content."""
        self._read = [marker]

    def accept(self) -> None:
        self._read = None
        self._space.clear()

    def give_up(self) -> Steps[None]:
        """Yields the recorded text as content, as it is no call. An unfinished call at a cut end is dropped."""
        words = "" if self._drops else "".join([*self._space, *(self._read or ())])
        self._space.clear()
        self._read = None
        if words:
            yield Content(words)

    def begin(self, name: str) -> CallBegins:
        self.accept()
        self.calls += 1
        return CallBegins(self.calls - 1, name)

    def arguments(self, text: str) -> CallArguments:
        """Returns a piece of the last call's arguments, to which the recorded text belongs."""
        self.accept()
        return CallArguments(self.calls - 1, text)


def as_parts(pieces: Pieces[Result], part: Callable[[str], Part]) -> Steps[Result]:
    """Yields each piece of text as a part of the answer."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        yield None if piece is None else part(piece)


def into_list(pieces: Pieces[Result], into: list[str]) -> Generator[None, None, Result]:
    """Appends each piece of text to a list."""
    while True:
        try:
            piece = next(pieces)
        except StopIteration as stop:
            result: Result = stop.value
            return result
        if piece is None:
            yield None
        else:
            into.append(piece)


class ReadingParser:
    """An `OutputParser` that runs a generator over a reader."""

    def __init__(self, reader: OutputReader, steps: Steps[None]) -> None:
        self._reader = reader
        self._steps = steps

    def push(self, text: str) -> Sequence[Part]:
        self._reader.push(text)
        return self._next_parts()

    def flush(self, cut: bool = False) -> Sequence[Part]:
        self._reader.end_of_text(cut)
        return self._next_parts()

    def _next_parts(self) -> list[Part]:
        parts: list[Part] = []
        for part in self._steps:
            if part is None:
                break
            parts.append(part)
        return joined(parts) if len(parts) > 1 else parts


def joined(parts: Sequence[Part]) -> list[Part]:
    """Returns the parts with successive parts of one kind and one call joined."""
    groups: list[list[Part]] = []
    for part in parts:
        if groups and not isinstance(part, CallBegins) and _kind(groups[-1][0]) == _kind(part):
            groups[-1].append(part)
        else:
            groups.append([part])
    return [_joined_part(group) for group in groups]


def _kind(part: Part) -> tuple[type, int]:
    return type(part), part.call if isinstance(part, CallArguments | CallBegins) else 0


def _joined_part(group: list[Part]) -> Part:
    first = group[0]
    if isinstance(first, CallBegins) or len(group) == 1:
        return first
    text = "".join(part.text for part in group if not isinstance(part, CallBegins))
    match first:
        case CallArguments():
            return CallArguments(first.call, text)
        case Reasoning():
            return Reasoning(text)
        case Content():
            return Content(text)
