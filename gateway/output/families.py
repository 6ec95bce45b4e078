"""Lists the formats that are known: of tools, and of thinking. Where several fit a template, the first is taken."""

from gateway.output.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from gateway.output.family import Family
from gateway.output.glm45 import GLM45
from gateway.output.harmony import CHANNELS, HARMONY
from gateway.output.hermes import HERMES
from gateway.output.llama3_json import LLAMA3_JSON
from gateway.output.mistral import MISTRAL, MISTRAL_NAMED
from gateway.output.pythonic import PYTHONIC
from gateway.output.qwen3_coder import QWEN3_CODER
from gateway.output.thinking import MISTRAL_THINK, THINK, Thinking

FAMILIES: tuple[Family, ...] = (
    HARMONY,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    MISTRAL_NAMED,
    MISTRAL,
    GLM45,
    QWEN3_CODER,
    HERMES,
    PYTHONIC,
    LLAMA3_JSON,
)
THINKINGS: tuple[Thinking, ...] = (CHANNELS, THINK, MISTRAL_THINK)
