"""The instructions that the emulator knows, by the first part of their opcode."""

import numpy as np

from tests.kernels.emulated import accesses, arithmetic, exchanges, matrices, warpgroups
from tests.kernels.emulated.ptx import Instruction
from tests.kernels.emulated.warp import Lanes, Warp

NOTHING_TO_DO = {
    "fence",
    "membar",
    "nanosleep",
    "prefetch",
    "createpolicy",
    "griddepcontrol",
    "pragma",
    "bar",
    "setmaxnreg",
}
OPERATIONS: dict[str, arithmetic.Operation] = {
    "add": arithmetic.elementwise(np.add),
    "sub": arithmetic.elementwise(np.subtract),
    "and": arithmetic.elementwise(np.bitwise_and),
    "or": arithmetic.elementwise(np.bitwise_or),
    "xor": arithmetic.elementwise(np.bitwise_xor),
    "not": arithmetic.elementwise(np.invert),
    "min": arithmetic.elementwise(arithmetic.least),
    "max": arithmetic.elementwise(arithmetic.largest),
    "div": arithmetic.elementwise(arithmetic.quotient),
    "rem": arithmetic.elementwise(np.fmod),
    "fma": arithmetic.elementwise(arithmetic.product_and_sum),
    "neg": arithmetic.elementwise(np.negative),
    "abs": arithmetic.elementwise(np.abs),
    "ex2": arithmetic.elementwise(np.exp2),
    "lg2": arithmetic.elementwise(np.log2),
    "sin": arithmetic.elementwise(np.sin),
    "cos": arithmetic.elementwise(np.cos),
    "tanh": arithmetic.elementwise(np.tanh),
    "rcp": arithmetic.elementwise(np.reciprocal),
    "sqrt": arithmetic.elementwise(np.sqrt),
    "rsqrt": arithmetic.elementwise(lambda values: 1 / np.sqrt(values)),
    "mul": arithmetic.multiply,
    "mad": arithmetic.multiply,
    "shl": arithmetic.shift,
    "shr": arithmetic.shift,
    "shf": arithmetic.funnel_shift,
    "bfe": arithmetic.extract_bits,
    "prmt": arithmetic.permute_bytes,
    "lop3": arithmetic.three_inputs,
    "popc": arithmetic.into_word(arithmetic.count_bits),
    "clz": arithmetic.into_word(arithmetic.leading_zeros),
    "mov": arithmetic.move,
    "cvt": arithmetic.convert,
    "cvta": arithmetic.generic_address,
    "setp": arithmetic.compare,
    "selp": arithmetic.select,
    "ld": accesses.load,
    "st": accesses.store,
    "cp": accesses.copy,
    "shfl": exchanges.shuffle,
    "vote": exchanges.vote,
    "redux": exchanges.reduce,
    "atom": accesses.atomic,
    "red": accesses.atomic,
    "ldmatrix": matrices.load,
    "stmatrix": matrices.store,
    "mma": matrices.multiply,
    "wgmma": warpgroups.issue,
}


def execute(warp: Warp, instruction: Instruction, lanes: Lanes) -> None:
    """Raises NotImplementedError for an instruction that no kernel has had so far, and Fault."""
    name = instruction.opcode[0]
    operation = OPERATIONS.get(name)
    if warp.products and name != "wgmma":
        warpgroups.finish_results(warp, instruction)
    if operation is not None:
        with np.errstate(all="ignore"):
            operation(warp, instruction, lanes)
    elif name not in NOTHING_TO_DO:
        raise NotImplementedError(instruction.text)
