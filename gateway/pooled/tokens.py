"""Tokenizes inputs and pairs of texts, as the model was trained to see them."""

from collections.abc import Callable, Sequence

from gateway.openai.admission import PromptAdmission
from gateway.pooled.admission import Tokenize
from gateway.pooled.bodies import Input
from gateway.text.chat import Chat
from gateway.text.chat_template import ChatTemplate
from gateway.text.tokenizer import ModelTokenizer, TooManyTokens

MAX_CUTS = 4
"""Most cuts of a document's end: where texts meet, tokens of the parts and of the whole may differ."""
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
"""How Qwen3-Reranker is asked, by its own documentation."""


def of_inputs(front: PromptAdmission, inputs: Sequence[Input]) -> Tokenize:
    """Tokenizes texts with the tokens around them; token ids stay as they are."""

    def tokens(most: int, cuts: bool) -> list[list[int]]:
        return [
            front.tokenizer.encode_text(each, None, most, cuts=cuts)
            if isinstance(each, str)
            else front.known(each[:most] if cuts else each, most, "input")
            for each in inputs
        ]

    return tokens


def of_pairs(front: PromptAdmission, pairs: Sequence[tuple[str, str]], *, asks: bool) -> Tokenize:
    """Tokenizes pairs of texts; of the second its end is cut.

    A model that answers with a word (`asks`) sees a pair in its chat template, if that knows messages of the roles
    query and document, or as Qwen3-Reranker does, if it has the tokens of ChatML.
    """
    tokenizer = front.tokenizer
    template = _template(tokenizer) if asks else None

    def tokens(most: int, cuts: bool) -> list[list[int]]:
        if template is None:
            return [tokenizer.encode_text(first, second, most, cuts=cuts) for first, second in pairs]
        return [_fitting(tokenizer, template, pair, most if cuts else None, most) for pair in pairs]

    return tokens


def _template(tokenizer: ModelTokenizer) -> ChatTemplate | None:
    source = tokenizer.template_source or ""
    if all(f"'{role}'" in source or f'"{role}"' in source for role in ("query", "document")):
        return tokenizer.template
    is_chatml = all(tokenizer.token_id(token) is not None for token in ("<|im_start|>", "<|im_end|>"))
    return ChatTemplate(ASKING_TEMPLATE, tokenizer.named) if is_chatml else None


def _fitting(
    tokenizer: ModelTokenizer, template: ChatTemplate, pair: tuple[str, str], cut: int | None, most: int
) -> list[int]:
    """Returns a pair's tokens; with `cut` the document's end is left out until no more than that are left."""
    query, document = pair
    render = _renderer(tokenizer, template, query)
    if cut is None:
        return render(document, most)
    for _ in range(MAX_CUTS):
        ids = render(document, None)
        if len(ids) <= cut:
            return ids
        kept = tokenizer.encode(document, special=False)[: cut - len(ids)]
        document = tokenizer.decode(kept) if kept else ""
    raise TooManyTokens(len(ids), counted=True)


def _renderer(tokenizer: ModelTokenizer, template: ChatTemplate, query: str) -> Callable[[str, int | None], list[int]]:
    def render(document: str, most: int | None) -> list[int]:
        messages = [{"role": "query", "content": query}, {"role": "document", "content": document}]
        return tokenizer.chat(Chat(messages), most, template)

    return render
