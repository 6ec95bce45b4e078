"""Executes the few lines of assembly that convert codes, which Triton's interpreter cannot run."""

import re

import torch
from torch import Tensor

INSTRUCTION = re.compile(r"(\w[\w.]*) ([^;]+);")
WORD = 0xFFFFFFFF


def executed(assembly: str, words: Tensor, dtype: torch.dtype, second: Tensor | None = None) -> Tensor:
    """Runs the instructions on int64 `words` of 32 bits each, and a `second` argument like it.

    Returns the two numbers of each word, the lower first.
    """
    registers = {"$1": words} if second is None else {"$1": words, "$2": second}

    def value(name: str) -> Tensor:
        return registers[name] if name in registers else torch.full_like(words, int(name, 0))

    for name, operands in INSTRUCTION.findall(assembly.strip("{}")):
        target, *given = (each.strip() for each in operands.split(","))
        if name == "reg":
            continue
        sources = [value(each) for each in given]
        match name.split(".")[0]:
            case "mov" | "cvt":
                found = sources[0]
            case "shl":
                found = sources[0] << sources[1] & WORD
            case "shr":
                found = sources[0] >> sources[1]
            case "and":
                found = sources[0] & sources[1]
            case "lop3":
                assert given[3] == "0xea", "a and b, or c"
                found = sources[0] & sources[1] | sources[2]
            case "prmt":
                found = permuted(sources[0], int(given[2], 0))
            case "fma":
                assert name == ("fma.rn.f16x2" if dtype == torch.float16 else "fma.rn.bf16x2")
                one, other, term = (numbers(each, dtype) for each in sources)
                found = words_of((one * other + term).to(dtype))
            case _:
                raise AssertionError(name)
        registers[target] = found
    return numbers(registers["$0"], dtype).to(dtype)


def permuted(words: Tensor, selector: int) -> Tensor:
    """Returns words of four of their own bytes, or of a byte's sign where the selector's highest digit is set."""
    found = torch.zeros_like(words)
    for place in range(4):
        chosen = selector >> 4 * place & 15
        byte = words >> 8 * (chosen & 3) & 255
        found |= ((byte >> 7) * 255 if chosen & 8 else byte) << 8 * place
    return found


def numbers(words: Tensor, dtype: torch.dtype) -> Tensor:
    halves = torch.stack((words & 0xFFFF, words >> 16), -1).to(torch.int32)
    return halves.to(torch.uint16).view(dtype).double()


def words_of(pairs: Tensor) -> Tensor:
    halves = pairs.view(torch.uint16).to(torch.int64)
    return halves[..., 0] | halves[..., 1] << 16
