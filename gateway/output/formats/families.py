"""Lists the formats that are known: of tools, and of thinking. Where several fit a template, the first is taken."""

from gateway.output.formats.deepseek import DEEPSEEK_V3, DEEPSEEK_V31
from gateway.output.formats.family import Family
from gateway.output.formats.glm45 import GLM45
from gateway.output.formats.harmony import CHANNELS, HARMONY
from gateway.output.formats.hermes import HERMES
from gateway.output.formats.llama3_json import LLAMA3_JSON
from gateway.output.formats.mistral import MISTRAL, MISTRAL_NAMED
from gateway.output.formats.pythonic import PYTHONIC
from gateway.output.formats.qwen3_coder import QWEN3_CODER
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
