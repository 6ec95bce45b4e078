"""Finds what form a body asks of its answer. There are several fields for it, OpenAI's and vLLM's; one may be used."""

from gateway.errors import conflict
from gateway.grammar.forms import Form
from gateway.openai.formats import JSONObjectFormat, JSONSchemaFormat, StructuredOutputs
from gateway.openai.schemas import SamplingFields


def form_of(body: SamplingFields) -> Form | None:
    """Returns the form that is asked for, or None. Raises `APIError` for more than one."""
    forms = _response_format(body) + _structured(body.structured_outputs or StructuredOutputs()) + _guided(body)
    if len(forms) > 1:
        message = f"{forms[1].param}: the form of the answer is said by {forms[0].param} already; give one of them"
        raise conflict(message, forms[1].param)
    return forms[0] if forms else None


def _response_format(body: SamplingFields) -> list[Form]:
    match body.response_format:
        case JSONObjectFormat():
            return [Form("json_object")]
        case JSONSchemaFormat(named):
            return [Form("json_schema", named.schema, "response_format.json_schema.schema")]
        case _:
            return []


def _structured(asked: StructuredOutputs) -> list[Form]:
    forms = [Form("json_object", param="structured_outputs.json_object")] if asked.json_object else []
    if asked.json is not None:
        forms.append(Form("json_schema", asked.json, "structured_outputs.json"))
    if asked.regex is not None:
        forms.append(Form("regex", asked.regex, "structured_outputs.regex"))
    if asked.choice is not None:
        forms.append(Form("choice", asked.choice, "structured_outputs.choice"))
    if asked.grammar is not None:
        forms.append(Form("grammar", asked.grammar, "structured_outputs.grammar"))
    return forms


def _guided(body: SamplingFields) -> list[Form]:
    forms = []
    if body.guided_json is not None:
        forms.append(Form("json_schema", body.guided_json, "guided_json"))
    if body.guided_regex is not None:
        forms.append(Form("regex", body.guided_regex, "guided_regex"))
    if body.guided_choice is not None:
        forms.append(Form("choice", body.guided_choice, "guided_choice"))
    if body.guided_grammar is not None:
        forms.append(Form("grammar", body.guided_grammar, "guided_grammar"))
    return forms
