"""Names endpoints that other servers of these APIs offer and this server does not."""

import re

ABSENT_OFFERS = {
    "embeddings": "embeddings?|v2/embed|v1/embed|pooling|v1/pooling",
    "classification": "classify|v1/classify",
    "reranking": "reranking|v1/reranking",
    "images": "v1/images(/.*)?",
    "videos": "v1/videos(/.*)?",
    "audio": "v1/audio(/.*)?",
    "realtime sessions": "v1/realtime(/.*)?",
    "files": "v1/(files|uploads)(/.*)?",
    "moderations": "v1/moderations",
    "fine-tuning": "v1/fine_tuning(/.*)?|v1/fine-tunes(/.*)?",
    "batches": "v1/batches(/.*)?|v1/messages/batches(/.*)?",
    "assistants": "v1/(assistants|threads)(/.*)?",
    "vector stores": "v1/vector_stores(/.*)?",
    "containers": "v1/containers(/.*)?",
    "evaluations": "v1/evals(/.*)?",
    "conversations": "v1/conversations(/.*)?",
    "compacting of conversations": "v1/responses/compact",
    "batches of chats": "v1/chat/completions/batch",
    "rendering of prompts": "v1/(chat/)?completions/render",
    "stored chat completions": "v1/chat/completions/.+",
    "Anthropic's text completions": "v1/complete",
    "Ollama's management of models": "api/(pull|push|create|copy|delete|blobs/.*)",
    "llama.cpp's completions": "completion",
    "llama.cpp's filling in": "infill",
    "llama.cpp's properties": "props|slots(/.*)?",
    "llama.cpp's rendering of templates": "apply-template",
    "SageMaker's and SGLang's endpoints": "invocations|generate",
}
"""Features that only other servers offer, each with a regex of its paths."""
OFFERED_INSTEAD = {
    "embeddings": "models that are made for them answer /v1/embeddings",
    "reranking": "models that are made for it answer /v1/rerank",
    "Ollama's management of models": "the model is chosen when the server starts",
    "llama.cpp's completions": "use /v1/completions",
    "llama.cpp's filling in": "use /v1/completions with a suffix",
    "llama.cpp's properties": "use /v1/models, /tokenizer_info and /stats",
    "llama.cpp's rendering of templates": "use /tokenize with messages",
    "SageMaker's and SGLang's endpoints": "use /v1/chat/completions or /v1/completions",
}
"""Advice what to use in place of an absent endpoint."""
_ABSENT_PATHS = {what: re.compile(f"/({paths})/?") for what, paths in ABSENT_OFFERS.items()}


def absent(path: str) -> tuple[str, str] | None:
    """Returns the purpose of a path that only other servers offer, and the replacement here; None for other paths."""
    what = next((what for what, paths in _ABSENT_PATHS.items() if paths.fullmatch(path)), None)
    return None if what is None else (what, OFFERED_INSTEAD.get(what, "it answers chats and completes texts"))
