"""Lists the formats that are known: of tools, and of thinking. Where several fit a template, the first is taken."""

from gateway.output.family import Family
from gateway.output.hermes import HERMES
from gateway.output.thinking import THINK, Thinking

FAMILIES: tuple[Family, ...] = (HERMES,)
THINKINGS: tuple[Thinking, ...] = (THINK,)
