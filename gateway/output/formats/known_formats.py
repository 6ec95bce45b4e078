"""Lists the known formats of tool calls and of thoughts. If several fit a chat template, the first is taken."""

from gateway.output.formats.functionary_v32 import FUNCTIONARY_V32
from gateway.output.formats.gemma4 import GEMMA4_FORMAT
from gateway.output.formats.harmony import HARMONY_FORMAT, HARMONY_THINKING
from gateway.output.formats.json_calls import JSON_FORMATS
from gateway.output.formats.llama3_json import LLAMA3_JSON
from gateway.output.formats.mistral import MISTRAL_ARRAY, MISTRAL_NAMED
from gateway.output.formats.named_calls import DEEPSEEK_V3, DEEPSEEK_V31, FUNCTIONARY_V31, KIMI_K2, SOLAR_OPEN
from gateway.output.formats.pythonic import LIST_FORMATS
from gateway.output.formats.tagged_calls import DEEPSEEK_FORMATS, TAGGED_FORMATS
from gateway.output.formats.tool_format import ToolFormat
from gateway.output.thinking import COHERE_THINK, GEMMA_THINK, MISTRAL_THINK, SEED_THINK, THINK_TAGS, Thinking

TOOL_FORMATS: tuple[ToolFormat, ...] = (
    HARMONY_FORMAT,
    DEEPSEEK_V3,
    DEEPSEEK_V31,
    *DEEPSEEK_FORMATS,
    MISTRAL_NAMED,
    MISTRAL_ARRAY,
    KIMI_K2,
    SOLAR_OPEN,
    GEMMA4_FORMAT,
    *TAGGED_FORMATS,
    *JSON_FORMATS,
    FUNCTIONARY_V32,
    FUNCTIONARY_V31,
    *LIST_FORMATS,
    LLAMA3_JSON,
)
THINKING_FORMATS: tuple[Thinking, ...] = (
    HARMONY_THINKING,
    SEED_THINK,
    COHERE_THINK,
    GEMMA_THINK,
    THINK_TAGS,
    MISTRAL_THINK,
)
