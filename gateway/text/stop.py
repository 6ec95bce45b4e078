"""Finds stop strings in text that arrives in pieces: no part of one is ever sent.

All stop strings are searched for at once, by the automaton of Aho and Corasick ("Efficient string matching", 1975): its
states are the beginnings of stop strings, and the state is the longest one with which the text ends. Each character is
read once. A state is made when a text reaches it first, so that no request pays for 4,096 of them before it begins.
"""

from collections.abc import Iterable


class _Beginning:
    """Is a beginning of the stop strings that are given to it."""

    __slots__ = ("longer", "made", "met", "shorter", "size")

    def __init__(self, size: int, stops: Iterable[str], shorter: "_Beginning | None") -> None:
        self.size = size  # characters
        self.shorter = shorter  # the longest other beginning with which it ends; None: it is empty
        self.met: str = shorter.met if shorter is not None else ""  # the longest stop string with which it ends
        self.made: dict[str, _Beginning] = {}  # the beginnings that are one character longer, by it …
        self.longer: dict[str, list[str]] = {}  # … and those that are not made yet, by their stop strings
        for stop in stops:
            if len(stop) == size:
                self.met = stop
            else:
                self.longer.setdefault(stop[size], []).append(stop)

    def after(self, character: str) -> "_Beginning":
        """Returns the longest beginning with which the text ends when this character has come."""
        at = self
        while (found := at.made.get(character)) is None:
            if (stops := at.longer.pop(character, None)) is not None:
                # No more shorter beginnings in a row are not made yet than there are stop strings.
                shorter = at if at.shorter is None else at.shorter.after(character)
                found = at.made[character] = _Beginning(at.size + 1, stops, shorter)
            elif at.shorter is None:
                return at
            else:
                at = at.shorter
        return found


class StopStrings:
    """Holds the stop strings of a request, and what all searches for them have in common."""

    def __init__(self, stops: Iterable[str] = ()) -> None:
        stops = tuple(stops)
        assert all(stops), "an empty stop string would end every answer"
        self.none = _Beginning(0, stops, None)
        self.any = bool(stops)


NO_STOPS = StopStrings()


class StopSearch:
    """Holds back the end of one answer's text while it may be the beginning of a stop string."""

    def __init__(self, stops: StopStrings) -> None:
        self._none = self._at = stops.none
        self.any = stops.any
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Returns text that can be sent, and the stop string that was met; empty: none.

        The text ends before the stop string that ends first, so it does not depend on how it was cut into pieces.
        """
        if not self.any:
            return text, ""
        at, none = self._at, self._none
        for place, character in enumerate(text, len(self._held) + 1):
            if (found := at.made.get(character)) is not None:  # else `after` says so, but where it is sure to be `none`
                at = found
            elif at is not none or character in none.longer:
                at = at.after(character)
            if at.met:
                text = (self._held + text)[: place - len(at.met)]
                self._held, self._at = "", none
                return text, at.met
        text, self._at = self._held + text, at
        sent = len(text) - at.size
        self._held = text[sent:]
        return text[:sent], ""

    def flush(self) -> str:
        """Returns what was held back: at the end of the answer it cannot become a stop string any more."""
        held, self._held, self._at = self._held, "", self._none
        return held
