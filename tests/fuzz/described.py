"""Judges answers to requests that /openapi.json allows, for schemathesis (`SCHEMATHESIS_HOOKS` names this module).

Its own check of them goes by the status. Ours goes by the code as well: what no schema can say (how many tokens a text
has, which parameters go together) may be refused, with a code that `docs/api.md` has for it, and nothing else.
"""

import json
from typing import Any

import schemathesis

BEYOND_SCHEMAS = {
    "capacity",
    "conflicting_parameters",
    "context_length_exceeded",
    "empty_prompt",
    "grammar_too_complex",
    "invalid_grammar",
    "invalid_token_id",
    "lora_loading_off",
    "no_infill_tokens",
    "no_tool_parser",
    "no_tool_template",
    "not_cancellable",
    "nothing_allowed",
    "previous_response_not_found",
    "too_long",
}


@schemathesis.check
def valid_requests_are_answered(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case[Any]
) -> None:
    """Raises AssertionError for a valid request that is refused without a reason that schemas cannot express."""
    if case.meta is None or not case.meta.generation.mode.is_positive or not 400 <= response.status_code < 500:
        return
    if response.status_code in (405, 404, 429):  # a method or path that is tried on purpose; too many at once
        return
    body = json.loads(response.content)
    error = body if isinstance(body["error"], str) else body["error"]  # Ollama's error is its sentence
    code = error["details"]["error_code"] if "details" in error else error["code"]
    assert code in BEYOND_SCHEMAS, f"a valid request is refused as {code}: {error}"
