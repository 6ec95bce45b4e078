"""Reads tekken.json, the tokenizer of Mistral's models since NeMo; newer models have no other tokenizer.

Special tokens have the first ids. Older files do not list them and use those of version 3, by position.
"""

import base64
import json
from pathlib import Path

from tokenizers import Tokenizer, processors

from checkpoints.vocabulary.ranked import ranked_tokenizer, special_token

VERSION_3_SPECIAL_TOKENS = (
    *("<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]"),
    *("[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]"),
    *("[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"),
)
BOS_TOKEN = "<s>"


def tekken_tokenizer(path: Path) -> Tokenizer:
    """Returns the tokenizer in a tekken.json. Raises `ValueError`, `KeyError` or `TypeError` for another file."""
    tekken = json.loads(path.read_bytes())
    config = tekken["config"]
    count = int(config["default_num_special_tokens"])
    listed = {int(each["rank"]): str(each["token_str"]) for each in tekken.get("special_tokens") or ()}
    special = {id: f"<SPECIAL_{id}>" for id in range(count)} | (listed or dict(enumerate(VERSION_3_SPECIAL_TOKENS)))
    if max(special) >= count:
        raise ValueError(f"the special token {max(special)} is beyond the {count} that it has room for")
    words = tekken["vocab"][: int(config["default_vocab_size"]) - count]
    if any(word["rank"] != rank for rank, word in enumerate(words)):
        raise ValueError("its tokens are not in the order of their ranks")
    tokens = [base64.b64decode(word["token_bytes"]) for word in words]
    tokenizer = ranked_tokenizer(
        tokens, config["pattern"], count, {id: special_token(text) for id, text in special.items()}
    )
    begin = tokenizer.token_to_id(BOS_TOKEN)
    if begin is not None:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS_TOKEN} $A", special_tokens=[(BOS_TOKEN, begin)]
        )
    return tokenizer
