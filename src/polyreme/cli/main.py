"""Entry of the `polyreme` command: picks the subcommand, turns errors into messages and documented exit codes.

Each subcommand is one module of this package with `HELP`, `EXAMPLE`, `add_arguments(parser)` and `run(args) -> int`.
Only the chosen one is imported, so planning never loads the run half.
"""

import argparse
import difflib
import importlib
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import Any, NoReturn

from polyreme import __version__
from polyreme.errors import PolyremeError

COMMANDS = {
    "demo": "train one small model over four unlike emulated devices, no configuration",
    "devices": "list, filter and compare the devices and links of the catalogue",
    "import": "record the shapes of a model given as a list of blocks",
    "profile": "time each layer kind on the devices at hand",
    "plan": "find the best plan for a model on a cluster",
    "explain": "say what binds a plan",
    "simulate": "replay a plan's action lists and predict one step",
    "train": "run a plan",
    "report": "show a run: summary, report page, events",
}
MODULES = {"import": "importing"}
"""Commands whose module cannot have their name."""
INTERRUPTED = 130
INPUT_ERROR = 2
OUR_BUG = 70


class _Parser(argparse.ArgumentParser):
    """argparse with a suggestion for a mistyped command or option."""

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        words = [word for word in message.replace(":", " ").replace("'", " ").split() if word.startswith("--")]
        known = [option for action in self._actions for option in action.option_strings]
        close = [match for word in words for match in difflib.get_close_matches(word, known, n=1)]
        hint = f"; did you mean {close[0]}?" if close and close[0] not in words else ""
        self.exit(INPUT_ERROR, f"{self.prog}: {message}{hint}\n")


def entry() -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(main(sys.argv[1:]))


def main(arguments: Sequence[str]) -> int:
    """Run `arguments` and return the exit code. Never lets a traceback reach the user."""
    try:
        return _dispatch(list(arguments))
    except PolyremeError as error:
        print(f"polyreme: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("polyreme: stopped by Ctrl-C", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:  # noqa: BLE001 - the last line of defence: our own bug, kept in a file
        return _report_bug(error)


def _dispatch(arguments: list[str]) -> int:
    name = next((argument for argument in arguments if not argument.startswith("-")), None)
    if name is not None and name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, n=1)
        hint = f"did you mean {close[0]}?" if close else f"commands: {', '.join(COMMANDS)}"
        print(f"polyreme: {name!r} is no command; {hint}", file=sys.stderr)
        return INPUT_ERROR
    parser = _Parser(prog="polyreme", description="Plan, simulate, run and watch one training job over unlike devices.")
    parser.add_argument("--version", action="version", version=f"polyreme {__version__}")
    if name is None or arguments[0] in ("-h", "--help", "--version"):
        subparsers = parser.add_subparsers(metavar="COMMAND", required=True)
        for command, summary in COMMANDS.items():
            subparsers.add_parser(command, help=summary)
        parser.parse_args(arguments)  # --help, --version or a usage error: each exits
        return INPUT_ERROR
    # The threads of numpy's matrix library would start at import, take more CPU than planning, and never be used.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    module: Any = importlib.import_module(f"polyreme.cli.{MODULES.get(name, name)}")
    chosen = _Parser(
        prog=f"polyreme {name}",
        description=module.HELP,
        epilog=f"example: {module.EXAMPLE}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(chosen)
    before = arguments.index(name)
    if before:
        parser.error(f"{arguments[0]} stands before the command; options of a command follow it")
    code: int = module.run(chosen.parse_args(arguments[1:]))
    return code


def _report_bug(error: Exception) -> int:
    handle, path = tempfile.mkstemp(prefix="polyreme-bug-", suffix=".log")
    with os.fdopen(handle, "w", encoding="utf-8") as log:
        log.write(f"polyreme {__version__}, python {sys.version}\narguments: {sys.argv[1:]}\n\n")
        log.writelines(traceback.format_exception(error))
    print(f"polyreme: this is a bug of ours: {type(error).__name__}: {error}", file=sys.stderr)
    print(f"  details: {path}", file=sys.stderr)
    return OUR_BUG
