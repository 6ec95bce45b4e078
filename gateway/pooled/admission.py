"""Turns texts into prompts whose states are pooled, or refuses them: checks lengths, token ids and capacity."""

from collections.abc import Callable, Sequence

from contracts.messages.sampling import Limits, Sampling
from contracts.pooling import Pooling, PoolingTask
from gateway.errors import invalid, not_offered, unavailable
from gateway.keys.caller import Caller
from gateway.openai.admission import PromptAdmission
from gateway.openai.bodies.schemas import CompletionRequest
from gateway.openai.context_window import too_long
from gateway.pooled.schemas import PooledFields
from gateway.requests.sample import AdmittedPrompt

MAX_TEXTS_AT_ONCE = 128
"""Texts of one request that are in progress at workers; the next ones follow when these have ended."""
GREEDY, NO_TOKENS = Sampling(seed=0, temperature=0.0), Limits(max_tokens=1)

FEATURE_BY_ENDPOINT = {
    **dict.fromkeys(("embeddings", "embed"), "embeddings"),
    "rerank": "reranking",
    "score": "scoring of texts",
}
"""What an endpoint offers, by the last part of its path."""

Tokenize = Callable[[int, bool], list[list[int]]]
"""Called with a maximum of tokens per text: returns the token ids of each text.

Longer texts are cut if the second argument is True, else `TooManyTokens` is raised."""


async def pooling_of(
    admission: PromptAdmission, ready: Callable[[], bool], path: str, caller: Caller, task: PoolingTask | None
) -> Pooling:
    """Waits until the model is loaded, and returns how it pools states, as its workers report.

    Raises `APIError` if no worker is `ready`, if the model answers chats, or if its task is not `task`.
    """
    await admission.wait_for_model(caller)
    pooling = admission.pooling()
    if pooling is None and not ready():
        raise unavailable("no worker is ready", "no_workers", 2.0)
    if pooling is None:
        raise not_offered(path, FEATURE_BY_ENDPOINT[path.rpartition("/")[2]], "it answers chats and completes texts")
    if task is not None and pooling.task != task:
        raise not_offered(
            path, FEATURE_BY_ENDPOINT[path.rpartition("/")[2]], "the model scores pairs of texts: use /v1/rerank"
        )
    return pooling


async def admitted(
    admission: PromptAdmission,
    body: PooledFields,
    texts: int,
    tokenize: Tokenize,
    size: int,
    param: str,
    caller: Caller,
) -> list[AdmittedPrompt]:
    """Returns the prompts of texts, `texts` in number and of `size` characters or ids together. Raises `APIError`."""
    pooling, context = admission.pooling(), admission.window.tokens()
    cut = body.truncate_prompt_tokens
    max_tokens = context if cut is None or cut < 0 else min(cut, context)
    common = CompletionRequest(model=body.model, prompt="", priority=body.priority)
    with admission.reserve_answers(common, min(texts, MAX_TEXTS_AT_ONCE)):
        found = await admission.work.run(
            lambda: tokenize(max_tokens, cut is not None), size, param, caller.tenant_share
        )
        prompts = [_admitted(admission, common, ids, param, caller) for ids in found]
        if pooling is None or pooling.method != "last":  # a whole text is computed, whatever is cached
            return prompts
        return [await admission.with_keys(each, param, caller.tenant_share) for each in prompts]


def _admitted(
    admission: PromptAdmission, body: CompletionRequest, ids: list[int], param: str, caller: Caller
) -> AdmittedPrompt:
    if not ids:
        raise invalid(f"{param} has no tokens", param, "empty_prompt")
    if len(ids) > admission.window.tokens():  # a worker with a shorter context has come meanwhile
        raise too_long(param, admission.window.tokens(), len(ids))
    return AdmittedPrompt(
        prompt=admission.prompt_of(body, ids, caller),
        sampling=GREEDY,
        limits=NO_TOKENS,
        objective=caller.objective,
        promise=caller.promise,
        reserved=len(ids),
        key=caller.key,
        pooled=True,
    )


def tokens_in(prompts: Sequence[AdmittedPrompt]) -> int:
    return sum(len(each.prompt.token_ids) for each in prompts)


def check_dimensions(pooling: Pooling, wanted: int | None, model: str) -> None:
    """Raises `APIError` for a number of dimensions that the model's vectors cannot be cut to."""
    if wanted is None or wanted == pooling.width:
        return
    problem: str | None = None
    if not pooling.matryoshka:
        problem = f"{model} was not trained to have its vectors cut; they have {pooling.width} dimensions"
    elif wanted > pooling.width:
        problem = f"{wanted} are more than the {pooling.width} of {model}"
    elif pooling.dimensions and wanted not in pooling.dimensions:
        problem = f"{model} has vectors of {', '.join(map(str, pooling.dimensions))}, and not of {wanted}"
    if problem is not None:
        raise invalid(f"dimensions: {problem}", "dimensions", "invalid_value")
