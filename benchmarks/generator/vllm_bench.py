"""Runs `vllm bench serve` in vLLM's own environment, loaded once: each line of input has a run's options as JSON.

Results are in the file that the options name; the line `done` follows each run, behind vLLM's own output.
"""

import json
import sys

from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser

if __name__ == "__main__":
    parser = FlexibleArgumentParser()
    add_cli_args(parser)
    print("done", flush=True)
    for line in sys.stdin:
        main(parser.parse_args(json.loads(line)))
        print("\ndone", flush=True)
