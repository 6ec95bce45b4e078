"""Holds how chat templates of each family write calls, in a template of ours: what the published templates write.

The templates of other families stand in `templates/`, whole.
"""

CHAT = """{{- bos_token }}
{%- if tools %}{{- 'Tools: ' + tools | tojson + '\\n' }}{%- endif %}
{%- for message in messages %}
    {{- '<|' + message.role + '|>\\n' }}
    {%- if message.tool_calls %}{{- message.content or '' }}CALLS{%- else %}{{- SAID }}{%- endif %}
    {{- '<|done|>' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|assistant|>\\n' }}{%- endif %}"""
FOR = "{%- for call in message.tool_calls %}"
END = "{%- endfor %}"
ITEMS = "{%- for name, value in call.function.arguments | items %}"
BARE = "(value if value is string else value | tojson)"
OBJECT = """{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson + '}' }}"""
COMMA = "{{- ', ' if not loop.last else '' }}"
COHERE = (
    """{{- '"tool_name": "' + call.function.name + '", "parameters": ' + call.function.arguments | tojson + '}' }}"""
)


def _array(before: str, behind: str, call: str = OBJECT) -> str:
    return f"{{{{- '{before}[' }}}}{FOR}{call}{COMMA}{END}{{{{- ']{behind}' }}}}"


def _tagged(call: str, name: str, named: str, value: str, end: str, call_end: str) -> str:
    head = f"{{{{- '{call}' + call.function.name + '{name}' }}}}"
    argument = f"{{{{- '{named}' + name + '{value}' + {BARE} + '{end}' }}}}"
    return f"{FOR}{head}{ITEMS}{argument}{END}{{{{- '{call_end}' }}}}{END}"


def _dsml(section: str) -> str:
    kind = "('true' if value is string else 'false')"
    argument = (
        f"""{{{{- '<｜DSML｜parameter name="' + name + '" string="' + {kind} + '">' + {BARE} """
        "+ '</｜DSML｜parameter>\\n' }}"
    )
    return (
        f"{{{{- '\\n\\n<｜DSML｜{section}>\\n' }}}}{FOR}"
        f"""{{{{- '<｜DSML｜invoke name="' + call.function.name + '">\\n' }}}}{ITEMS}{argument}{END}"""
        f"{{{{- '</｜DSML｜invoke>\\n' }}}}{END}{{{{- '</｜DSML｜{section}>' }}}}"
    )


CALLS = {
    "apertus": _array(
        "<|tools_prefix|>",
        "<|tools_suffix|>",
        """{{- '{"' + call.function.name + '": ' + call.function.arguments | tojson + '}' }}""",
    ),
    "apriel": _array(
        "\\n<tool_calls>",
        "</tool_calls>",
        """{{- '{"name": "' + call.function.name + '", "arguments": ' + call.function.arguments | tojson }}"""
        """{{- ', "id": "' + call.id + '"}' }}""",
    ),
    "command_r": _array("\\nAction:\\n```json\\n", "```\\n", "{{- '{\\n    ' }}" + COHERE),
    "command_r7b": _array(
        "<|START_ACTION|>",
        "\\n<|END_ACTION|>",
        """{{- '\\n    {"tool_call_id": "' ~ loop.index0 ~ '", ' }}""" + COHERE,
    ),
    "deepseek_v32": _dsml("function_calls"),
    "deepseek_v4": _dsml("tool_calls"),
    "functionary_v31": FOR
    + "{{- '<function=' + call.function.name + '>' + call.function.arguments | tojson + '</function>' }}"
    + END,
    "functionary_v32": FOR + "{{- '>>>' + call.function.name + '\\n' + call.function.arguments | tojson }}" + END,
    "gemma4": """{%- macro written(value) %}
    {%- if value is string %}{{- '<|"|>' + value + '<|"|>' }}
    {%- elif value is mapping %}{{- '{' }}{%- for name, one in value | items %}{{- name + ':' + written(one) }}
        {{- ',' if not loop.last else '' }}{%- endfor %}{{- '}' }}
    {%- elif value is sequence %}{{- '[' }}{%- for one in value %}{{- written(one) }}
        {{- ',' if not loop.last else '' }}{%- endfor %}{{- ']' }}
    {%- else %}{{- value | tojson }}{%- endif %}{%- endmacro %}"""
    + FOR
    + "{{- '<|tool_call>call:' + call.function.name + written(call.function.arguments) + '<tool_call|>' }}"
    + END,
    "gigachat3": f"{FOR}{{{{- '\\n\\nfunction call<|role_sep|>\\n' }}}}{OBJECT}{END}",
    "gigachat31": f"{FOR}{{{{- '<|function_call|>' }}}}{OBJECT}{END}",
    "granite": _array("<|tool_call|>", ""),
    "hunyuan": "{{- '<tool_calls:opensource>\\n' }}"
    + _tagged(
        "<tool_call:opensource>",
        "<tool_sep:opensource>\\n",
        "<arg_key:opensource>",
        "</arg_key:opensource>\\n<arg_value:opensource>",
        "</arg_value:opensource>\\n",
        "</tool_call:opensource>\\n",
    )
    + "{{- '</tool_calls:opensource>' }}",
    "kimi_k2": "{{- '<|tool_calls_section_begin|>' }}"
    + FOR
    + "{{- '<|tool_call_begin|>functions.' + call.function.name + ':' ~ loop.index0 }}"
    + "{{- '<|tool_call_argument_begin|>' + call.function.arguments | tojson + '<|tool_call_end|>' }}"
    + END
    + "{{- '<|tool_calls_section_end|>' }}",
    "lfm2": "{{- '<|tool_call_start|>[' }}"
    + FOR
    + "{{- call.function.name + '(' }}"
    + ITEMS
    + "{{- name + '=' + value | tojson }}"
    + COMMA
    + END
    + "{{- ')' }}"
    + COMMA
    + END
    + "{{- ']<|tool_call_end|>' }}",
    "minicpm5": _tagged('<function name="', '">', '<param name="', '">', "</param>", "</function>"),
    "minimax": f"{{{{- '<tool_calls>\\n' }}}}{FOR}{OBJECT}{{{{- '\\n' }}}}{END}{{{{- '</tool_calls>' }}}}",
    "minimax_m2": "{{- '\\n<minimax:tool_call>\\n' }}"
    + _tagged('<invoke name="', '">\\n', '<parameter name="', '">', "</parameter>\\n", "</invoke>\\n")
    + "{{- '</minimax:tool_call>' }}",
    "nemotron": _array("<TOOLCALL>", "</TOOLCALL>"),
    "seed_oss": _tagged(
        "<seed:tool_call>\\n<function=",
        ">\\n",
        "<parameter=",
        ">",
        "</parameter>\\n",
        "</function>\\n</seed:tool_call>",
    ),
    "solar_open": "{{- '<|tool_calls|>' }}"
    + FOR
    + "{{- '<|tool_call:begin|>' + call.id + '<|tool_call:name|>' + call.function.name }}"
    + "{{- '<|tool_call:args|>' + call.function.arguments | tojson + '<|tool_call:end|>' }}"
    + END
    + "{{- '<|calls|>' }}",
}


def chat_template(family: str) -> str:
    all_of_it = family == "functionary_v32"
    calls = CALLS[family]
    chat = CHAT.replace("SAID", "'>>>all\\n' + message.content" if all_of_it else "message.content")
    if all_of_it:
        calls = "{%- if message.content %}{{- '>>>all\\n' + message.content }}{%- endif %}" + calls
        return chat.replace("{{- message.content or '' }}CALLS", calls).replace("assistant|>\\n", "assistant|>\\n>>>")
    return chat.replace("CALLS", calls)
