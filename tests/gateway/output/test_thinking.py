"""What a model thinks is told from what it says, in each way of marking it."""

import pytest

from gateway.output.answer_format import answer_format
from gateway.output.formats.known_formats import THINKING_FORMATS
from gateway.output.thinking import Thinking
from gateway.text.shown_tools import ShownTools
from tests.gateway.output.composed import parsed

MARKED = [thinking for thinking in THINKING_FORMATS if type(thinking) is Thinking]


@pytest.mark.parametrize("thinking", MARKED, ids=lambda thinking: thinking.name)
def test_thoughts_stand_before_the_answer(thinking: Thinking) -> None:
    shown = ShownTools(f"{{{{ messages }}}} {thinking.opening} {thinking.closing}", takes=False, calls=None)
    known = answer_format(shown, lambda text: None)
    assert known.thinking is thinking
    title = f"{thinking.title}\n" if thinking.title else ""
    begun = f"{title}Hm.\n{thinking.closing}Yes."
    told = [{"reasoning": "Hm."}, {"content": "Yes."}]
    for pieces in ([thinking.opening + begun], list(thinking.opening + begun)):
        assert parsed(known.parser("", None), pieces) == told
        assert parsed(known.parser(f"so: {thinking.opening}", None), [begun]) == told
    assert parsed(known.parser("", None), ["Yes."]) == [{"content": "Yes."}]
