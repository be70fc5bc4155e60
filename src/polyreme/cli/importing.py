"""`polyreme import`: makes a polyreme file from something else. So far a model file from a list of blocks."""

import argparse
from pathlib import Path

from polyreme.errors import InputError
from polyreme.layout.layers import parameter_count
from polyreme.specs.io import save
from polyreme.units import format_count

HELP = "Record the shapes of a model given as a list of nn.Module blocks, so that it can be planned without its code."
EXAMPLE = "polyreme import blocks net.py:blocks --allow-code -o model.json"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Options of the command."""
    parser.add_argument("kind", choices=["blocks"], help="what is imported")
    parser.add_argument("code", metavar="FILE:FUNCTION", help="a function that returns the list of blocks")
    parser.add_argument("--allow-code", action="store_true", help="run that file; without it nothing is run")
    parser.add_argument("--vocab-size", type=int, metavar="N", help="where the first block holds no nn.Embedding")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", default=Path("model.json"), help="default: model.json"
    )


def run(args: argparse.Namespace) -> int:
    """Run the function once, write what it made."""
    if not args.allow_code:
        raise InputError.single("command line", f"this would run {args.code}", fix="add --allow-code if you trust it")
    from polyreme.models.foreign import describe  # noqa: PLC0415 - loads torch

    file, _, function = args.code.partition(":")
    path = Path(file).resolve()
    base = args.output.resolve().parent
    relative = path.relative_to(base) if path.is_relative_to(base) else path
    model = describe(f"{relative}:{function}" if function else str(relative), base, args.vocab_size)
    save(args.output, model)
    total = format_count(parameter_count(model))
    print(f"{len(model.blocks or ())} blocks, {total} parameters, hidden size {model.hidden_size}")
    print(f"written: {args.output}")
    return 0
