"""The files that a tokenizer may be in, in order of preference."""

from collections.abc import Iterable
from pathlib import Path

from contracts.errors import ModelError

HUGGING_FACE_FILE = "tokenizer.json"
TEKKEN_FILE = "tekken.json"
TIKTOKEN_FILE = "tiktoken.model"
SENTENCEPIECE_FILE = "tokenizer.model"
TOKENIZER_FILES = (HUGGING_FACE_FILE, TEKKEN_FILE, TIKTOKEN_FILE, SENTENCEPIECE_FILE)


class TokenizerMissing(ModelError):
    """A directory has no supported tokenizer file; `why` is the message without the path."""

    def __init__(self, directory: Path, why: str) -> None:
        super().__init__(f"--model: {directory} {why}")
        self.why = why


def tokenizer_file(directory: Path) -> Path:
    """Returns the preferred tokenizer file. Raises `TokenizerMissing`."""
    for name in TOKENIZER_FILES:
        if (directory / name).is_file():
            return directory / name
    raise TokenizerMissing(directory, _without(path.name for path in directory.glob("*")))


def _without(names: Iterable[str]) -> str:
    lacks = f"has no {HUGGING_FACE_FILE}, and no {', '.join(TOKENIZER_FILES[1:-1])} or {TOKENIZER_FILES[-1]} either"
    other = next((name for name in sorted(names) if name.endswith((".tiktoken", "vocab.json", "vocab.txt"))), None)
    return f"{lacks}; {other} is not read" if other else lacks
