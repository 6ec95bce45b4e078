"""Makes one regex of a Lark grammar without recursion, for texts that a call carries inside JSON.

A custom tool's input is a JSON string to the model. llguidance quotes a regex for JSON, and no grammar; so rules and
terminals are put into each other's places. What the input may be is then any derivation of `start`: where Lark's lexer
would prefer a longer terminal, this regex takes both. (Syntax: https://lark-parser.readthedocs.io, Grammar Reference.)
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from checkpoints.grammars import GrammarError

MAX_EXPANDED_CHARS = 1 << 15
MAX_GRAMMAR_DEPTH = 64
REMEMBERED_GRAMMARS = 64  # a conversation sends its tools with every turn
COMMON = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[a-fA-F0-9]",
    "INT": "[0-9]+",
    "SIGNED_INT": "[+-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "FLOAT": r"(?:[0-9]+[eE][+-]?[0-9]+|(?:[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)",
    "NUMBER": r"(?:[0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?(?:[0-9]+|[0-9]+\.[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"(?:[^"\\\n]|\\.)*"',
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[a-zA-Z]",
    "WORD": "[a-zA-Z]+",
    "CNAME": "[a-zA-Z_][a-zA-Z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
"""The terminals of Lark's library `common`."""
TOKEN_REGEX = re.compile(
    r"""(?P<gap>[ \t\r]+|//[^\n]*)|(?P<line>\n)|(?P<text>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)"""
    r"""|(?P<order>%[a-z]+)|(?P<name>[?!]*_?[a-zA-Z][a-zA-Z0-9_]*)|(?P<number>[0-9]+)|(?P<sign>->|\.\.|[][()|:*+?~.,])""",
    re.DOTALL,
)
TEXT_ESCAPE_REGEX = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|.)", re.DOTALL)
TEXT_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "f": "\f"}
REGEX_SIGNS = frozenset("\\.+*?()|[]{}^$#&-~/\"'")
SERVED_REGEX_FLAGS = frozenset("imsu")


@dataclass(frozen=True)
class LarkToken:
    kind: str
    text: str


@dataclass
class _Grammar:
    bodies: dict[str, list[LarkToken]] = field(default_factory=dict)
    regexes: dict[str, str] = field(default_factory=dict)  # of names that are read
    ignored: str = ""


@lru_cache(REMEMBERED_GRAMMARS)
def regex_of_lark(source: str) -> str:
    """Returns the regex of texts that the rule `start` derives.

    Raises `GrammarError` for recursion, and for anything else in Lark's syntax that is not served.
    """
    grammar, ignored = _Grammar(), []
    for statement in _statements(source):
        first = statement[0]
        if first.kind == "name":
            name, body = _definition(statement)
            if name in grammar.bodies:
                raise GrammarError(f"{name} is defined twice")
            grammar.bodies[name] = body
        elif first.text == "%import":
            grammar.regexes |= _imported(statement[1:])
        elif first.text == "%ignore":
            ignored.append(statement[1:])
        else:
            raise GrammarError(f"{first.text!r} does not begin a rule of a custom tool's Lark grammar")
    if "start" not in grammar.bodies:
        raise GrammarError("there is no rule `start`")
    parts = [_Reader(grammar, body, (), in_rule=False).whole() for body in ignored]
    grammar.ignored = f"(?:{'|'.join(parts)})*" if parts else ""
    return grammar.ignored + _named(grammar, "start", ())


def _statements(source: str) -> list[list[LarkToken]]:
    """Divides a grammar into rules; a rule goes on in lines that begin with `|`, and within brackets."""
    found: list[list[LarkToken]] = [[]]
    at = depth = 0
    while at < len(source):
        match = TOKEN_REGEX.match(source, at)
        if match is None:
            raise GrammarError(f"{source[at : at + 20]!r} is not read as Lark")
        at, kind, text = match.end(), str(match.lastgroup), match[0]
        depth += (text in ("(", "[")) - (text in (")", "]")) if kind == "sign" else 0
        if kind == "line" and not depth:
            found.append([])
        elif kind not in ("gap", "line"):
            goes_on = text == "|" and kind == "sign" and not found[-1] and any(found)
            if goes_on:
                found = [each for each in found if each]
            found[-1].append(LarkToken(kind, text))
    return [each for each in found if each]


def _definition(statement: Sequence[LarkToken]) -> tuple[str, list[LarkToken]]:
    """Returns name and body of `name: …`; a terminal's priority, `NAME.2: …`, changes no language."""
    rest = list(statement[1:])
    if len(rest) > 1 and rest[0].text == "." and rest[1].kind == "number":
        rest = rest[2:]
    if not rest or rest[0].text != ":":
        raise GrammarError(f"a colon is missing behind {statement[0].text!r}; templates are not served")
    return statement[0].text.lstrip("?!"), rest[1:]


def _imported(tokens: Sequence[LarkToken]) -> dict[str, str]:
    """Reads `common.NAME`, `common.NAME -> OTHER` and `common (A, B)`."""
    texts = [token.text for token in tokens]
    if texts[:1] == ["common"]:
        named = texts[2:] if texts[1:2] == ["."] else [text for text in texts[2:-1] if text != ","]
        alias = named[2] if len(named) == 3 and named[1] == "->" else None
        names = named[:1] if alias else named
        unknown = next((name for name in names if name not in COMMON), None)
        if names and unknown is None:
            return {alias or name: COMMON[name] for name in names}
    raise GrammarError(f"%import {''.join(texts)} is not served; served are terminals of `common`: {', '.join(COMMON)}")


def _named(grammar: _Grammar, name: str, within: tuple[str, ...]) -> str:
    """Returns the regex of a rule or terminal, which is being read `within` others."""
    if name in grammar.regexes:
        return grammar.regexes[name]
    if name not in grammar.bodies:
        raise GrammarError(f"{name} is not defined")
    if name in within:
        raise GrammarError(f"the rule {name} contains itself, and grammars of custom tools may not")
    if len(within) > MAX_GRAMMAR_DEPTH:
        raise GrammarError(f"rules are nested more than {MAX_GRAMMAR_DEPTH} deep")
    read = _Reader(grammar, grammar.bodies[name], (*within, name), in_rule=_is_rule(name)).whole()
    grammar.regexes[name] = f"(?:{read})"
    return grammar.regexes[name]


class _Reader:
    """Reads the body of a rule or terminal. In a rule, what is ignored may follow each terminal."""

    def __init__(self, grammar: _Grammar, tokens: list[LarkToken], within: tuple[str, ...], *, in_rule: bool) -> None:
        self._grammar, self._tokens, self._within, self._in_rule = grammar, tokens, within, in_rule
        self._at = self._depth = 0

    def whole(self) -> str:
        found = self._choice()
        if self._at < len(self._tokens):
            raise GrammarError(f"{self._tokens[self._at].text!r} is out of place")
        return found

    def _next(self, *texts: str) -> str | None:
        """Takes the next token if it is one of these signs."""
        if self._at < len(self._tokens) and self._tokens[self._at].kind == "sign":
            text = self._tokens[self._at].text
            if text in texts:
                self._at += 1
                return text
        return None

    def _choice(self) -> str:
        found = [self._sequence()]
        while self._next("|"):
            found.append(self._sequence())
        return "|".join(found)

    def _sequence(self) -> str:
        found = ""
        while self._at < len(self._tokens) and self._tokens[self._at].text not in ("|", ")", "]", "->"):
            found += self._repeated()
            if len(found) > MAX_EXPANDED_CHARS:
                raise GrammarError(
                    f"its rules, put into each other's places, have over {MAX_EXPANDED_CHARS} characters"
                )
        if self._next("->"):
            self._at += 1  # an alias names a node of a tree that nobody makes
        return found

    def _repeated(self) -> str:
        atom = self._atom()
        if sign := self._next("?", "*", "+"):
            return f"{atom}{sign}"
        if not self._next("~"):
            return atom
        least = most = self._number()
        if self._next(".."):
            most = self._number()
        return f"{atom}{{{least},{most}}}"

    def _number(self) -> int:
        if self._at == len(self._tokens) or self._tokens[self._at].kind != "number":
            raise GrammarError("a number is missing behind ~")
        self._at += 1
        return int(self._tokens[self._at - 1].text)

    def _atom(self) -> str:
        if bracket := self._next("(", "["):
            self._depth += 1
            if self._depth > MAX_GRAMMAR_DEPTH:
                raise GrammarError(f"brackets are nested more than {MAX_GRAMMAR_DEPTH} deep")
            inside = self._choice()
            if not self._next(")" if bracket == "(" else "]"):
                raise GrammarError("a bracket is not closed")
            self._depth -= 1
            return f"(?:{inside}){'?' if bracket == '[' else ''}"
        token = self._tokens[self._at]
        self._at += 1
        if token.kind == "name":
            found = _named(self._grammar, token.text, self._within)
            return found if _is_rule(token.text) else self._terminal(found)
        if token.kind == "text":
            return self._terminal(self._range(token) if self._next("..") else _of_text(token.text))
        if token.kind == "regex":
            return self._terminal(_of_regex(token.text))
        raise GrammarError(f"{token.text!r} is out of place")

    def _range(self, first: LarkToken) -> str:
        last = self._tokens[self._at].text if self._at < len(self._tokens) else ""
        self._at += 1
        ends = [_unescaped(text) for text in (first.text, last) if text.startswith('"')]
        if len(ends) != 2 or any(len(end) != 1 for end in ends):
            raise GrammarError("a range is between two characters")
        return f"[{_escaped(ends[0])}-{_escaped(ends[1])}]"

    def _terminal(self, regex: str) -> str:
        follows = self._grammar.ignored if self._in_rule else ""
        return f"(?:(?:{regex}){follows})" if follows else f"(?:{regex})"


def _is_rule(name: str) -> bool:
    return name.lstrip("_")[:1].islower()


def _of_text(text: str) -> str:
    written = _escaped(_unescaped(text.removesuffix("i")))
    return f"(?i:{written})" if text.endswith("i") else written


def _unescaped(text: str) -> str:
    def one(found: re.Match[str]) -> str:
        code = found[1]
        return chr(int(code[1:], 16)) if len(code) > 1 else TEXT_ESCAPES.get(code, code)

    return TEXT_ESCAPE_REGEX.sub(one, text.removesuffix("i")[1:-1] if text.endswith('"i') else text[1:-1])


def _escaped(text: str) -> str:
    signs = (f"\\{sign}" if sign in REGEX_SIGNS else sign for sign in text)
    return "".join(f"\\x{ord(sign):02x}" if sign < " " else sign for sign in signs)


def _of_regex(text: str) -> str:
    body, _, flags = text[1:].rpartition("/")
    strange = sorted(set(flags) - SERVED_REGEX_FLAGS)
    if strange:
        raise GrammarError(f"the regex flag {strange[0]} is not served; served: i, m, s, u")
    body, flags = body.replace("\\/", "/"), flags.replace("u", "")
    return f"(?{flags}:{body})" if flags else f"(?:{body})"
