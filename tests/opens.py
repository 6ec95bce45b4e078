"""Makes Opens of whole prompts, whose ids stand packed in them."""

from typing import Any

from msgspec import structs

from contracts.messages.handoff import Open
from contracts.messages.job import Prompt
from contracts.messages.packed_ids import packed


def open_of(prompt: Prompt, **fields: Any) -> Open:
    """Makes the Open of a prompt with its ids."""
    return Open(prompt=structs.replace(prompt, token_ids=[]), ids=packed(prompt.token_ids), **fields)
