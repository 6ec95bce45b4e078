"""What attention does not support is named, and what it is tuned by."""

import torch

from kernels.attention import paged_decode_attention, prefill_attention
from kernels.attention.attention_tiles import HeadShape, unsupported
from kernels.tuning import asked


def test_what_models_have_is_supported(dtype: torch.dtype) -> None:
    for dim in (16, 32, 64, 80, 96, 128, 256):
        assert not unsupported(dtype, dim, 16, 4)
    for block in (8, 24, 64, 128):
        assert not unsupported(dtype, 128, block, 16)


def test_what_is_unsupported_is_named() -> None:
    assert unsupported(torch.float64, 128, 16, 4) == "attention supports fp32, fp16 and bf16, not float64"
    assert unsupported(torch.float16, 40, 16, 4).endswith("multiples of 16 up to 256, not 40")
    assert unsupported(torch.float16, 512, 16, 4).endswith("multiples of 16 up to 256, not 512")
    assert unsupported(torch.float16, 64, 12, 4).endswith("multiples of 8, not 12")
    assert unsupported(torch.float16, 64, 16, 32).endswith("1 to 16 query heads to one KV head, not 32")


def test_a_shape_has_a_name() -> None:
    shape = HeadShape(torch.bfloat16, kv_heads=8, shared=4, dim=128, block=16)
    with asked() as found:
        shape.config("prefill_attention", torch.device("cpu"), prefill_attention.DEFAULT_CONFIGS)
    assert found == [("prefill_attention", "bfloat16,dim=128,shared=4")]


def test_what_was_not_measured_has_a_default_by_format_and_head_size() -> None:
    for kernel in (paged_decode_attention, prefill_attention):
        usual, wide, single = kernel.DEFAULT_CONFIGS
        assert [kernel.DEFAULT_CONFIGS.of(torch.bfloat16, dim) for dim in (64, 128, 256)] == [usual, usual, wide]
        assert [kernel.DEFAULT_CONFIGS.of(torch.float32, dim) for dim in (64, 256)] == [single, single]
        assert (
            all(each in kernel.CANDIDATE_CONFIGS for each in kernel.DEFAULT_CONFIGS)
            and kernel.CANDIDATE_CONFIGS[0] is usual
        )
