"""The regex of a Lark grammar takes the texts that the grammar derives, in a call's JSON, too, and no others."""

import json
import re
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from checkpoints.grammars import GrammarError, read_tokenizer
from gateway.grammar.lark_regex import MAX_EXPANDED_CHARS, regex_of_lark
from gateway.grammar.texts import of_json_schema
from tests.gateway.grammar.fitting import fitting

PATCH = """
start: begin hunk+ end
begin: "*** Begin Patch" LF
end: "*** End Patch" LF?
hunk: add | update
add: "*** Add File: " filename LF line+
update: "*** Update File: " filename LF change?
filename: /(.+)/
line: "+" /(.*)/ LF -> line
change: (context | changed)+
context: ("@@" | "@@ " /(.+)/) LF
changed: ("+" | "-" | " ") /(.*)/ LF
%import common.LF
"""
"""After the grammar with which a coding agent's tool edits files."""
SUMS = """
// sums of products
?start: product (PLUS product)*   // of whole numbers
    | "nothing"i
product: [SIGN] INT ("*" INT)~0..2
SIGN.2: "-" | "\\u2212"
PLUS: "+"
%import common (INT, WS_INLINE)
%ignore WS_INLINE
"""
CASES = {
    "a patch": (
        PATCH,
        ['*** Begin Patch\n*** Add File: a.py\n+x = "1"\n*** Update File: b\n@@ f\n-a\n+\\n\n*** End Patch\n'],
        ["*** Begin Patch\n*** End Patch\n", "*** Begin Patch\n*** Add File: a.py\nx\n*** End Patch"],
    ),
    "sums": (SUMS, ["1", "1+2 * 3", " -4 * 5*6 + \u22127 ", "NOTHING"], ["", "1+", "1*2*3*4", "--1", "1\n+2"]),
    "ranges and flags": ('start: "a".."c"+ /x.y/is? "/" /\\//', ["ab//", "cX\nY//"], ["d//", "a/"]),
}


@pytest.fixture(scope="module")
def tokenizer(model: Path) -> LLTokenizer:
    return read_tokenizer(model, 443)


@pytest.mark.parametrize("case", CASES)
def test_texts_that_the_grammar_derives(case: str) -> None:
    source, derived, others = CASES[case]
    regex = regex_of_lark(source)
    assert [text for text in derived + others if re.fullmatch(regex, text)] == derived


def test_a_call_may_be_constrained_by_it(tokenizer: LLTokenizer) -> None:
    """The regex is quoted for JSON by llguidance: quotation marks and line ends are escaped there."""
    schema = {"type": "object", "properties": {"input": {"type": "string", "pattern": f"^(?:{regex_of_lark(PATCH)})$"}}}
    _, (patch,), others = CASES["a patch"]
    grammar = of_json_schema(schema | {"required": ["input"]})
    calls = [json.dumps({"input": text}) for text in (patch, *others)]
    assert fitting(tokenizer, grammar, calls) == calls[:1]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('start: a\na: "(" a ")" | "x"', "the rule a contains itself"),
        ("start: other", "other is not defined"),
        ('other: "a"', "there is no rule `start`"),
        ("start: /a/x", "the regex flag x is not served"),
        ("%declare X\nstart: X", "'%declare' does not begin a rule"),
        ("%import python.NAME\nstart: NAME", "%import python.NAME is not served"),
        ('start{x}: "a"', "is not read as Lark"),
        ('start: ("a"', "a bracket is not closed"),
        ('start: "a"~', "a number is missing"),
        ('start: "ab".."c"', "a range is between two characters"),
        ('start: "a"\nstart: "b"', "start is defined twice"),
        ("start: " + "(" * 100 + '"a"' + ")" * 100, "brackets are nested more than 64 deep"),
        (
            "start: r20\n" + "".join(f"r{n}: r{n - 1} r{n - 1}\n" for n in range(1, 21)) + 'r0: "a"',
            f"over {MAX_EXPANDED_CHARS} characters",
        ),
    ],
)
def test_what_is_not_served_is_refused_by_name(source: str, words: str) -> None:
    with pytest.raises(GrammarError, match=re.escape(words)):
        regex_of_lark(source)
