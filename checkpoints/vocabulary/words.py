"""Words of a vocabulary with their kinds, and the merges that follow from SentencePiece's scores.

Kinds are numbered alike in SentencePiece's tokenizer.model and in GGUF files.
"""

from msgspec import Struct

NORMAL_TOKEN, UNKNOWN_TOKEN, CONTROL_TOKEN, USER_DEFINED_TOKEN, UNUSED_TOKEN = 1, 2, 3, 4, 5
SPACE_MARK = "▁"  # stands for a space


class Vocabulary(Struct, frozen=True):
    """Words and their kinds, by token id."""

    words: list[str]
    kinds: list[int]

    def of_kinds(self, *kinds: int) -> list[int]:
        return [token for token, kind in enumerate(self.kinds) if kind in kinds]

    def ids(self) -> dict[str, int]:
        """Returns the id of each word that may stand in a text; of equal words, the first id."""
        found: dict[str, int] = {}
        for token, word in enumerate(self.words):
            if self.kinds[token] != UNUSED_TOKEN:
                found.setdefault(word, token)
        return found


def merges_by_score(ids: dict[str, int], scores: dict[str, float]) -> list[tuple[str, str]]:
    """Returns every pair of words that makes a word, ordered as transformers does: by the score of the result.

    Among pairs with the same result, the longer left part comes first.
    """
    found = []
    for word, score in scores.items():
        pairs = ((word[:cut], word[cut:]) for cut in range(1, len(word)))
        known = [pair for pair in pairs if pair[0] in scores and pair[1] in scores]
        known.sort(key=lambda pair: (ids[pair[0]], ids[pair[1]]))
        found += [(score, *pair) for pair in known]
    found.sort(key=lambda merge: (merge[0], len(merge[1]), len(merge[2])), reverse=True)
    return [(left, right) for _, left, right in found]
