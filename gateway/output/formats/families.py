"""Lists the formats that are known: of tools, and of thinking. Where several fit a template, the first is taken."""

from gateway.output.formats.family import Family
from gateway.output.formats.functionary_v32 import FUNCTIONARY_V32
from gateway.output.formats.gemma4 import GEMMA4
from gateway.output.formats.harmony import CHANNELS, HARMONY
from gateway.output.formats.json_calls import (
    APERTUS,
    APRIEL,
    COMMAND_R,
    COMMAND_R7B,
    GIGACHAT3,
    GIGACHAT31,
    GRANITE,
    HERMES,
    MINIMAX,
    NEMOTRON,
)
from gateway.output.formats.llama3_json import LLAMA3_JSON
from gateway.output.formats.mistral import MISTRAL, MISTRAL_NAMED
from gateway.output.formats.named_calls import DEEPSEEK_V3, DEEPSEEK_V31, FUNCTIONARY_V31, KIMI_K2, SOLAR_OPEN
from gateway.output.formats.pythonic import LFM2, PYTHONIC
from gateway.output.formats.tagged_calls import (
    DEEPSEEK_V4,
    DEEPSEEK_V32,
    GLM45,
    HUNYUAN,
    MINICPM5,
    MINIMAX_M2,
    QWEN3_CODER,
    SEED_OSS,
)
from gateway.output.thinking import COHERE_THINK, GEMMA_THINK, MISTRAL_THINK, SEED_THINK, THINK, Thinking

FAMILIES: tuple[Family, ...] = (
    HARMONY,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    DEEPSEEK_V32,
    DEEPSEEK_V4,
    MISTRAL_NAMED,
    MISTRAL,
    KIMI_K2,
    SOLAR_OPEN,
    GEMMA4,
    GLM45,
    HUNYUAN,
    QWEN3_CODER,
    SEED_OSS,
    MINIMAX_M2,
    MINICPM5,
    HERMES,
    GRANITE,
    NEMOTRON,
    APRIEL,
    MINIMAX,
    APERTUS,
    COMMAND_R7B,
    COMMAND_R,
    GIGACHAT3,
    GIGACHAT31,
    FUNCTIONARY_V32,
    FUNCTIONARY_V31,
    LFM2,
    PYTHONIC,
    LLAMA3_JSON,
)
THINKINGS: tuple[Thinking, ...] = (CHANNELS, SEED_THINK, COHERE_THINK, GEMMA_THINK, THINK, MISTRAL_THINK)
