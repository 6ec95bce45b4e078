"""Finds stop strings in text that arrives in pieces, so that no part of a stop string is ever sent.

All stop strings are searched for at once with the automaton of Aho and Corasick ("Efficient string matching", 1975):
its states are prefixes of stop strings, and the current state is the longest prefix that the text ends with. Each
character is read once. States are made when a text first reaches them, so that no request pays for 4,096 states in
advance.
"""

from collections.abc import Iterable


class _Beginning:
    """State of the automaton: a common prefix of `stops`."""

    __slots__ = ("longer", "made", "met", "shorter", "size")

    def __init__(self, size: int, stops: Iterable[str], shorter: "_Beginning | None") -> None:
        self.size = size  # length in characters
        self.shorter = shorter  # the longest proper suffix that is a state; None for the empty prefix
        self.met: str = shorter.met if shorter is not None else ""  # the longest stop string that it ends with
        self.made: dict[str, _Beginning] = {}  # states that are one character longer, by that character
        self.longer: dict[str, list[str]] = {}  # stop strings of states that are not made yet
        for stop in stops:
            if len(stop) == size:
                self.met = stop
            else:
                self.longer.setdefault(stop[size], []).append(stop)

    def after(self, character: str) -> "_Beginning":
        """Returns the state after this character."""
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
    """The stop strings of a request, with the automaton that all its searches share."""

    def __init__(self, stops: Iterable[str] = ()) -> None:
        stops = tuple(stops)
        assert all(stops), "an empty stop string would end every answer"
        self.none = _Beginning(0, stops, None)
        self.any = bool(stops)


NO_STOPS = StopStrings()


class StopSearch:
    """Searches one answer's text, and holds back its end while it may begin a stop string."""

    def __init__(self, stops: StopStrings) -> None:
        self._none = self._at = stops.none
        self.any = stops.any
        self._held = ""

    def push(self, text: str) -> tuple[str, str]:
        """Returns text that can be sent, and the stop string that was found, or "".

        The text ends before the stop string that ends first, so the result does not depend on how the text is cut.
        """
        if not self.any:
            return text, ""
        at, none = self._at, self._none
        for place, character in enumerate(text, len(self._held) + 1):
            # otherwise `after` finds it, except where it must be `none`
            if (found := at.made.get(character)) is not None:
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
        held, self._held, self._at = self._held, "", self._none
        return held
