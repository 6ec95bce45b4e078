"""The second table of `benchmarks.compile_kernels`: machine code of hot loops, beside their budgets."""

from collections import Counter
from collections.abc import Iterable

from benchmarks.kernels.budgets import BUDGETS, Budget
from benchmarks.kernels.rows import Wanted
from benchmarks.simulated.compile_only import Compiled
from benchmarks.simulated.machine_code import Loop, disassembled, hot_loops

LOOP_COLUMNS = (
    *("kernel", "compiled for", "sm", "registers", "instructions", "tensor", "of a weight or tensor instruction"),
    *("budget", "target", "loads x bytes", "conversions", "barriers", "shared stores", "shared loads", "shuffles"),
)


def budgets_of(wanted: Wanted, sm: int) -> dict[str, Budget]:
    """Returns the budgets of a row by the launched function."""
    row = dict(wanted.shape.arguments)
    found = [each for each in BUDGETS if (each.kernel, each.row, each.sm) == (wanted.kernel, row, sm)]
    return {each.launched: each for each in found}


class LoopTable:
    """Lines of the table, and what exceeds a budget."""

    def __init__(self) -> None:
        self.exceeded: list[str] = []
        self._lines = ["| " + " | ".join(LOOP_COLUMNS) + " |", "| --- " * len(LOOP_COLUMNS) + "|"]

    def __str__(self) -> str:
        return "\n".join([*self._lines, "", *self.exceeded])

    def add(self, wanted: Wanted, kind: str, sm: int, new: Iterable[Compiled], used: Iterable[Compiled]) -> None:
        """Adds the loops of `new` kernels, and of `used` kernels with a budget, which may have been compiled before.

        Budgets are for kernels in bf16.
        """
        budgets = budgets_of(wanted, sm) if kind == "bfloat16" else {}
        missing = set(budgets)
        for each in dict.fromkeys([*new, *(each for each in used if each.name in budgets)]):
            budget = budgets.get(each.name)
            name = f"{wanted.kernel}.{each.name}"
            for loop in hot_loops(disassembled(each.code)) if each.code else []:
                missing.discard(each.name)
                over = [f"{name}, {wanted.shape}, sm_{sm}: {one}" for one in budget.exceeded(loop)] if budget else []
                self.exceeded += over
                self._lines.append(_line(name, f"{wanted.shape}, {kind}", each, loop, budget, bool(over)))
        self.exceeded += [f"{wanted.kernel}.{one}, {wanted.shape}, sm_{sm}: no hot loop" for one in sorted(missing)]


def _line(name: str, shape: str, compiled: Compiled, loop: Loop, budget: Budget | None, over: bool) -> str:
    share = budget.share(loop) if budget else loop.instructions / loop.tensor if loop.tensor else None
    loads = ", ".join(f"{count} x {size}" for size, count in sorted(Counter(loop.load_bytes).items()))
    cells = (
        *(name, shape, compiled.sm, compiled.registers, f"**{loop.instructions}**" if over else loop.instructions),
        *(loop.tensor, "" if share is None else f"{share:.2f}", f"{budget.instructions:.1f}" if budget else ""),
        *(f"{budget.target:.1f}" if budget and budget.target else "", loads, loop.conversions, loop.barriers),
        *(loop.shared_stores, loop.shared_loads, loop.shuffles),
    )
    return "".join(f"| {cell} " for cell in cells) + "|"
