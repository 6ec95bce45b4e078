"""The assembly that converts codes of 4 bits makes the values that they stand for, which the interpreter cannot run."""

import re

import pytest
import torch
from torch import Tensor

from kernels.quantized.four_bits import conversion
from kernels.quantized.packed import CODE_BITS, FP4_VALUES, CodeKind

INSTRUCTION = re.compile(r"(\w[\w.]*) ([^;]+);")


def executed(assembly: str, words: Tensor, dtype: torch.dtype) -> Tensor:
    """Runs the instructions on int64 `words` of 32 bits each; returns the two numbers of each, the lower first."""
    registers = {"$1": words}

    def value(name: str) -> Tensor:
        return registers[name] if name in registers else torch.full_like(words, int(name, 0))

    for name, operands in INSTRUCTION.findall(assembly.strip("{}")):
        target, *sources = (each.strip() for each in operands.split(","))
        match name.split(".")[0]:
            case "mov":
                registers[target] = value(sources[0])
            case "shl":
                registers[target] = value(sources[0]) << int(sources[1]) & 0xFFFFFFFF
            case "shr":
                registers[target] = value(sources[0]) >> int(sources[1])
            case "lop3":
                assert sources[3] == "0xea", "a and b, or c"
                registers[target] = value(sources[0]) & value(sources[1]) | value(sources[2])
            case "fma":
                assert name == ("fma.rn.f16x2" if dtype == torch.float16 else "fma.rn.bf16x2")
                one, other, term = (numbers(value(each), dtype) for each in sources)
                assert target == "$0"
                return (one * other + term).to(dtype)
            case "reg":
                pass
            case _:
                raise AssertionError(name)
    raise AssertionError("no result")


def numbers(words: Tensor, dtype: torch.dtype) -> Tensor:
    halves = torch.stack((words & 0xFFFF, words >> 16), -1).to(torch.int32)
    return halves.to(torch.uint16).view(dtype).double()


@pytest.mark.parametrize("kind", ["int4", "fp4"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("plane", range(4))
def test_every_pair_of_codes_becomes_its_two_values(kind: CodeKind, plane: int, dtype: torch.dtype) -> None:
    """Whatever the other three places of both words have."""
    table = torch.tensor(FP4_VALUES if kind == "fp4" else range(-8, 8)).to(dtype)
    places = torch.randint(0, 16, (4096, 2, 4))
    pair = torch.cartesian_prod(torch.arange(16), torch.arange(16)).repeat(16, 1)
    places[:, :, plane] = pair
    halves = torch.zeros_like(places[:, :, 0])
    for place, bits in enumerate(CODE_BITS[kind]):
        for bit, target in enumerate(bits):
            halves |= (places[:, :, place] >> bit & 1) << target
    found = executed(conversion(kind, plane, dtype == torch.float16), halves[:, 0] | halves[:, 1] << 16, dtype)
    assert found.equal(table[pair])
