"""Prints the format of tool calls that chat templates have: `python -m benchmarks.tool_templates DIRECTORY`.

Each `.jinja` file of the directory is a model's template. Without the model's vocabulary, a template that writes no
calls is recognized by its words alone.
"""

import argparse
from pathlib import Path

from contracts.errors import ModelError
from gateway.output.answer_format import answer_format
from gateway.text.chat_template import ChatTemplate
from gateway.text.shown_tools import NOTHING_SHOWN, ShownTools

SPECIAL_TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path, help="folder with chat templates")
    directory: Path = parser.parse_args().directory
    known = taking = 0
    for path in sorted(directory.glob("*.jinja")):
        shown = _shown(path)
        family = answer_format(shown, lambda text: None).tool_format
        taking += shown.takes
        known += family is not None
        print(f"{path.stem:60} {family.name if family else 'unknown' if shown.takes else 'takes no tools'}")
    print(f"{known} of {taking} templates that take tools have a known format")


def _shown(path: Path) -> ShownTools:
    try:
        return ChatTemplate(path.read_text(encoding="utf-8"), SPECIAL_TOKENS).shown_tools()
    except ModelError as error:
        print(f"{path.stem}: {error}")
        return NOTHING_SHOWN


if __name__ == "__main__":
    main()
