"""Tokenizes inputs and pairs of texts, as the model was trained to see them."""

from collections.abc import Callable, Sequence

from gateway.openai.admission import PromptAdmission
from gateway.pooled.admission import Tokenize
from gateway.pooled.bodies import Input
from gateway.text.chat import Chat
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import ModelTokenizer, TooManyTokens

MAX_CUTS = 4
"""Maximum number of times that a document's end is cut: the tokens of two joined texts may differ from the parts'."""
ASKING_TEMPLATE = """<|im_start|>system
Judge whether the Document meets the requirements based on the Query and the Instruct provided. \
Note that the answer can only be "yes" or "no".<|im_end|>
<|im_start|>user
<Instruct>: Given a web search query, retrieve relevant passages that answer the query
<Query>: {{ messages[0].content }}
<Document>: {{ messages[1].content }}<|im_end|>
<|im_start|>assistant
<think>

</think>

{# #}"""
"""The template of Qwen3-Reranker's own documentation."""


def of_inputs(admission: PromptAdmission, inputs: Sequence[Input]) -> Tokenize:
    """Tokenizes texts, with the special tokens around them. Inputs that are token ids stay unchanged."""

    def tokens(max_tokens: int, cuts: bool) -> list[list[int]]:
        return [
            admission.tokenizer.encode_text(each, None, max_tokens, cuts=cuts)
            if isinstance(each, str)
            else admission.checked_ids(each[:max_tokens] if cuts else each, max_tokens, "input")
            for each in inputs
        ]

    return tokens


def of_pairs(admission: PromptAdmission, pairs: Sequence[tuple[str, str]], *, asks: bool) -> Tokenize:
    """Tokenizes pairs of texts. In a pair that is too long, the end of the second text is cut.

    A model whose logits of a word are the score (`asks`) gets a pair in its chat template, if the template has the
    roles query and document, or in Qwen3-Reranker's template, if the vocabulary has the tokens of ChatML.
    """
    tokenizer = admission.tokenizer
    template = _template(tokenizer) if asks else None

    def tokens(max_tokens: int, cuts: bool) -> list[list[int]]:
        if template is None:
            return [tokenizer.encode_text(first, second, max_tokens, cuts=cuts) for first, second in pairs]
        return [_fitting(tokenizer, template, pair, max_tokens if cuts else None, max_tokens) for pair in pairs]

    return tokens


def _template(tokenizer: ModelTokenizer) -> ChatTemplate | None:
    source = tokenizer.template_source or ""
    if all(f"'{role}'" in source or f'"{role}"' in source for role in ("query", "document")):
        return tokenizer.template
    is_chatml = all(tokenizer.token_id(token) is not None for token in ("<|im_start|>", "<|im_end|>"))
    return ChatTemplate(ASKING_TEMPLATE, tokenizer.named) if is_chatml else None


def _fitting(
    tokenizer: ModelTokenizer, template: ChatTemplate, pair: tuple[str, str], cut: int | None, max_tokens: int
) -> list[int]:
    """Returns a pair's tokens. With `cut`, the document loses its end until at most `cut` tokens remain."""
    query, document = pair
    render = _renderer(tokenizer, template, query)
    if cut is None:
        return render(document, max_tokens)
    for _ in range(MAX_CUTS):
        ids = render(document, None)
        if len(ids) <= cut:
            return ids
        kept = tokenizer.encode(document, special=False)[: cut - len(ids)]
        document = tokenizer.decode(kept) if kept else ""
    raise TooManyTokens(len(ids), counted=True)


def _renderer(tokenizer: ModelTokenizer, template: ChatTemplate, query: str) -> Callable[[str, int | None], list[int]]:
    def render(document: str, max_tokens: int | None) -> list[int]:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return tokenizer.chat(Chat(messages), max_tokens, template)

    return render
