"""Builds the grammar of an answer: a form or calls of tools, after the model's thoughts."""

from functools import partial

from checkpoints.grammars import GrammarError
from gateway.errors import APIError, invalid
from gateway.grammar.checks import GrammarChecks
from gateway.grammar.forms import ASSUMED_SCHEMA_CHARS, AnswerForm, Work, grammar_of
from gateway.output.answer_format import AnswerFormat
from gateway.output.tools import ToolUse
from infra.fair_queueing.turns import NO_TENANT, TenantShare

ASSUMED_TOOL_CHARS = 512  # assumed size of a tool, added to the assumed size of a schema


def size_of_tools(count: int) -> int:
    """Returns the assumed size of tools, in characters: large enough for a thread, since schemas have any size."""
    return ASSUMED_SCHEMA_CHARS + ASSUMED_TOOL_CHARS * count if count else 0


class AnswerConstraints:
    """Makes grammars for one model, whose answers have this format."""

    def __init__(self, format: AnswerFormat, grammars: GrammarChecks, work: Work) -> None:
        self._format = format
        self._grammars = grammars
        self._work = work

    async def grammar(
        self,
        form: AnswerForm | None,
        use: ToolUse | None = None,
        tail: str | None = None,
        share: TenantShare = NO_TENANT,
    ) -> str:
        """Returns the grammar of an answer, or "". With the `tail` of a prompt, the grammar allows thoughts first.

        Raises `APIError` for impossible constraints. For optional tools that are not strict, such constraints are
        dropped.
        """
        grammar = "" if form is None else await grammar_of(form, self._grammars, self._work, share)
        param = form.param if form else "tools"
        try:
            if tail is not None:
                size = size_of_tools(len(use.tools)) if use is not None else 0
                grammar = await self._work(partial(self._format.grammar, tail, use, grammar), size, "tools", share)
            return await self._grammars.checked(grammar, param, share=share) if grammar else ""
        except (APIError, GrammarError) as error:
            if isinstance(error, GrammarError):
                error = invalid(f"tools: {error}", "tools", "grammar_too_complex")
            demanded = use is None or use.must or any(tool.strict for tool in use.tools)
            if error.status != 400 or form is not None or demanded:
                raise error from None
            return ""
