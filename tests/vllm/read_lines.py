#!/usr/bin/env python3
"""What vLLM's own parser makes of start lines: one JSON list of words a line in, one JSON object of values a line out.

The words are those of the process, `vllm serve …` or `python -m vllm.entrypoints.openai.api_server …`. A line that vLLM
refuses is `null`. For tests/tests/vllm_real/start_lines.rs.
"""

import contextlib
import io
import json
import logging
import sys

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

logging.disable(logging.CRITICAL)


def serve_parser() -> FlexibleArgumentParser:
    parser = FlexibleArgumentParser()
    parser.add_argument("-v", "--version", action="version", version="0")
    ServeSubcommand().subparser_init(parser.add_subparsers(dest="subparser"))
    return parser


PARSERS = {
    "vllm": serve_parser(),
    "python": make_arg_parser(FlexibleArgumentParser()),
}


def plain(value):
    try:
        json.dumps(value)
        return value
    except TypeError:
        return str(value)


def values(words: list[str]) -> dict | None:
    parser, arguments = (PARSERS["vllm"], words[1:]) if words[0] == "vllm" else (PARSERS["python"], words[3:])
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            told = vars(parser.parse_args(list(arguments)))
    except (SystemExit, Exception):
        return None
    if words[0] == "vllm" and told["model_tag"] is not None:
        told["model"] = told["model_tag"]
    return {name: plain(value) for name, value in told.items() if name != "dispatch_function"}


def main() -> None:
    for line in sys.stdin:
        print(json.dumps(values(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
