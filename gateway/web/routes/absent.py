"""Names endpoints that other servers of these APIs offer and this server does not."""

import re

ABSENT_OFFERS = {
    "embeddings": "v1/embeddings|embeddings|v2/embed|v1/embed|pooling|v1/pooling",
    "classification": "classify|v1/classify",
    "reranking": "rerank|v1/rerank|v2/rerank",
    "scoring of texts": "score|v1/score",
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
}
_ABSENT_PATHS = {what: re.compile(f"/({paths})/?") for what, paths in ABSENT_OFFERS.items()}


def absent(path: str) -> str | None:
    """Returns the purpose of a path that only other servers offer; None for any other path."""
    return next((what for what, paths in _ABSENT_PATHS.items() if paths.fullmatch(path)), None)
