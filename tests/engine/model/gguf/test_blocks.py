"""Blocks of every type that is served stand for the numbers that the `gguf` package reads them as, to the bit."""

import gguf
import numpy as np
import pytest
import torch

from engine.model.gguf.blocks import FORM_BY_TYPE, unpacked
from tests.gguf_files import blocks_of


@pytest.mark.parametrize("kind", FORM_BY_TYPE)
def test_random_blocks_are_what_the_library_says(kind: str) -> None:
    """Takes a product and a sum in fp32 each, as the library has them.

    Equal but where d s is rounded before it is used.
    """
    number = gguf.GGMLQuantizationType[kind]
    bytes = blocks_of(number, (5, 768))
    found = unpacked(kind, torch.from_numpy(bytes), 768)
    assert found.form == FORM_BY_TYPE[kind] and found.group in (16, 32)
    expected = gguf.quants.dequantize(bytes, number)
    apart = np.abs(found.dequantized().numpy() - expected).max()
    # Q4_0: 8 d is taken off behind the product, where the library takes 8 off before it. d has 11 bits and q 4, so
    # products and their difference are exact in the 24 bits of fp32; d s of the K types has 17 bits, with q 23. Scales
    # of IQ types have 15 or 16 bits and their values up to 8.
    assert apart == 0 and expected.std() > 0


def test_q6_k_keeps_its_codes() -> None:
    blocks = torch.from_numpy(blocks_of(gguf.GGMLQuantizationType.Q6_K, (3, 512)))
    found = unpacked("Q6_K", blocks, 512)
    assert found.group == 16 and int(found.values.min()) == -32 and int(found.values.max()) == 31
