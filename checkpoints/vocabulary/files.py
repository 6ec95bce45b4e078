"""Names the files that a model's tokenizer may be in, in the order in which they are looked for."""

from collections.abc import Iterable
from pathlib import Path

from contracts.errors import ModelError

HUGGING_FACE = "tokenizer.json"
TEKKEN = "tekken.json"
TIKTOKEN = "tiktoken.model"
SENTENCEPIECE = "tokenizer.model"
FILES = (HUGGING_FACE, TEKKEN, TIKTOKEN, SENTENCEPIECE)


class TokenizerMissing(ModelError):
    """A directory has no file that a tokenizer is read from; `why` says so without its path."""

    def __init__(self, directory: Path, why: str) -> None:
        super().__init__(f"--model: {directory} {why}")
        self.why = why


def tokenizer_file(directory: Path) -> Path:
    """Returns the file that a model's tokenizer is read from. Raises `TokenizerMissing`."""
    for name in FILES:
        if (directory / name).is_file():
            return directory / name
    raise TokenizerMissing(directory, _without(path.name for path in directory.glob("*")))


def _without(names: Iterable[str]) -> str:
    lacks = f"has no {HUGGING_FACE}, and no {', '.join(FILES[1:-1])} or {FILES[-1]} either"
    other = next((name for name in sorted(names) if name.endswith((".tiktoken", "vocab.json", "vocab.txt"))), None)
    return f"{lacks}; {other} is not read" if other else lacks
