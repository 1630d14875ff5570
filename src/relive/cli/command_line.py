"""The command line: `relive COMMAND [OPTIONS]`.

Exit codes: 0 success, 1 failure or something is broken, 2 wrong arguments, 130 interrupted. An error is one line.
A command's module is imported when the command runs, so that `relive --help` does not wait for numpy.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
import difflib
import io
import os
import pkgutil
import shutil
import sys
import textwrap
from typing import Any, NoReturn

import relive

_EXAMPLES = """examples:
  relive demo                    watch a network learn
  relive bench --quick           compare installed libraries
  relive inspect buffer.relive   show what is in it
  relive verify buffer.relive    check its integrity
  relive repair journal          clean up after a crash
  relive convert buffer.relive steps.parquet

`relive COMMAND --help` says more. Exit codes: 0 success,
1 failure, or something is broken, 2 wrong arguments,
130 interrupted. An error is one line.
"""

_DEMO_EXAMPLES = """examples:
  relive demo --seed 7 --quiet     print the result alone
  relive demo --actors 16 --plot curve.png

It needs the extra "demo".
"""

_BENCH_EXAMPLES = """examples:
  relive bench --list              all workloads and peers
  relive bench --quick             are the results right?
  relive bench --workload uniform prioritized-1m
  relive bench --peers relive cpprb --json figures.json

A peer that is not installed is named and left out. Every
result is checked: a fast wrong one is reported as wrong.
"""

_CONVERT_EXAMPLES = """examples:
  relive convert buffer.relive steps.parquet
  relive convert steps.parquet buffer.relive
  relive convert minari:D4RL/pen/human-v2 buffer.relive

FROM is recognised by its contents, TO by its name:
minari:ID, FILE.parquet, or FILE.relive, which may also have
no ending. Minari finds what was fetched with
`minari download ID`.
Priorities and counters are kept in checkpoints alone.
Parquet needs the extra "arrow", Minari datasets the
extra "minari".
"""

_COMMANDS = ("demo", "bench", "inspect", "verify", "repair", "convert")


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, with the nearest of the words that it knows."""

    def __init__(self, *, description: str, **keywords: Any) -> None:
        self.words: list[str] = []
        filled = textwrap.fill(description, shutil.get_terminal_size().columns - 2)
        formatter = argparse.RawDescriptionHelpFormatter  # It leaves the examples as they are.
        super().__init__(description=filled, formatter_class=formatter, allow_abbrev=False, **keywords)
        self.set_defaults(parser=self)

    def add_argument(self, *names: Any, **keywords: Any) -> argparse.Action:
        """Add an argument, and remember the names of an option."""
        self.words += [name for name in names if name.startswith("-")]
        return super().add_argument(*names, **keywords)

    def refuse(self, unknown: Sequence[str], command: str | None) -> NoReturn:
        """Say that arguments have no meaning here, and exit with 2."""
        option = unknown[0].partition("=")[0]
        if option in self.words:
            self.error(f"{option} must follow the command, as in relive {command} {option}")
        if not option.startswith("-"):
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        self.error(f"there is no option {option!r}{hint(option, self.words)}")

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and exit with 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")

    def print_help(self, file: Any = None) -> None:
        """Print the help; where argparse would hide that a disk is full, `main` tells of it."""
        sys.stdout.write(self.format_help())
        sys.stdout.flush()


def hint(word: str, known: Iterable[str]) -> str:
    """Return a question for the nearest of the known words, in whatever case; nothing if none is near."""
    names = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), names, 1)
    return f", did you mean {names[near[0]]}?" if near else ""


def _integer_from(least: int) -> Callable[[str], int]:
    """Return a converter of option values to integers of at least `least`."""

    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {least}, got {text!r}")
        return int(text)

    return convert


def parser() -> _Parser:
    """Return the parser of the whole command line."""
    top = _Parser(prog="relive", description="Replay memory for reinforcement learning.", epilog=_EXAMPLES)
    top.add_argument("-V", "--version", action="store_true", help="print the version")
    top.words += _COMMANDS
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    _add_demo(commands)
    _add_bench(commands)
    _add_saved(commands)
    _add_convert(commands)
    return top


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser(
        "demo",
        help="learn a task from a replay buffer, and show it",
        description="Actor coroutines fill an EpisodeReplayBuffer while a learner awaits samples of it: double "
        "Q-learning with a small network in numpy. At the end the best network plays 100 episodes without exploring. "
        "Interrupt it (Ctrl-C) to end early with what was learned.",
        epilog=_DEMO_EXAMPLES,
    )
    demo.set_defaults(run="relive.cli.demo:run")
    demo.add_argument(
        "--env", default="CartPole-v1", help="a Gymnasium environment with discrete actions (%(default)s)"
    )
    demo.add_argument("--seed", type=_integer_from(0), default=0, help="the same seed gives the same run (%(default)s)")
    demo.add_argument(
        "--steps",
        type=_integer_from(1),
        default=30_000,
        help="environment steps at most, over all actors (%(default)s)",
    )
    demo.add_argument("--actors", type=_integer_from(1), default=8, help="actor coroutines (%(default)s)")
    demo.add_argument(
        "--plot", default="relive-demo.png", metavar="PATH", help="where the learning curve goes, a PNG (%(default)s)"
    )
    demo.add_argument("--quiet", action="store_true", help="print the last line alone")


def _add_bench(commands: Any) -> None:
    bench = commands.add_parser(
        "bench",
        help="measure relive beside other libraries, and check all results",
        description="Measures draws, updates, adds and memory of relive and of the libraries that are installed, by "
        "turns, one thread each, and checks every result on data that describes itself.",
        epilog=_BENCH_EXAMPLES,
    )
    bench.set_defaults(run="relive.bench.command:run")
    bench.add_argument("--list", action="store_true", help="print the names of workloads and peers, and what they are")
    bench.add_argument("--workload", nargs="+", metavar="NAME", help="workloads, or families of them (all)")
    bench.add_argument("--peers", nargs="+", metavar="NAME", help="the libraries to measure (all that are installed)")
    bench.add_argument(
        "--repeats", type=_integer_from(1), metavar="N", help="rounds, of which the median is taken (7; 3 with --quick)"
    )
    bench.add_argument("--quick", action="store_true", help="small rings and few short rounds")
    bench.add_argument("--json", metavar="FILE", help="where all figures go")
    bench.add_argument("--markdown", metavar="FILE", help="where a page with all tables goes")
    bench.add_argument("--plot", metavar="FILE", help="where a picture goes, a PNG")


def _add_saved(commands: Any) -> None:
    inspect = commands.add_parser(
        "inspect",
        help="show what is in a checkpoint or a journal",
        description="Shows what is in a checkpoint or a journal, and whether it is intact. It loads the buffer, and "
        "changes nothing. Of a memory map or a Parquet file it says what it is. Exit code 1: something is broken.",
    )
    verify = commands.add_parser(
        "verify",
        help="check the integrity of a checkpoint or a journal; exit code 0 or 1",
        description="Reads all of a checkpoint or a journal, loads the buffer, and says that it is whole or names "
        "every broken part. It changes nothing. The rows of a memory map or a Parquet file are not read.",
    )
    repair = commands.add_parser(
        "repair",
        help="clean up a journal after a crash",
        description="Cuts a torn record off a journal. Damaged data are never deleted. A second repair finds nothing "
        "to do. A checkpoint needs none: a crash leaves the old one or the new one.",
    )
    for name, command in {"inspect": inspect, "verify": verify, "repair": repair}.items():
        command.set_defaults(run=f"relive.cli.saved:{name}")
        command.add_argument("path", metavar="PATH", help="the file of a checkpoint or the directory of a journal")
    for command in (inspect, verify):
        command.add_argument("--json", action="store_true", help="print one JSON object instead of words")
    inspect.add_argument("--files", action="store_true", help="show the arrays of a checkpoint, too")
    damaged = "let a damaged journal end before the damage; the files with the rest stay in it, as FILE.damaged"
    repair.add_argument("--drop-damaged", action="store_true", help=damaged)


def _add_convert(commands: Any) -> None:
    convert = commands.add_parser(
        "convert",
        help="convert between checkpoints, Parquet files and Minari datasets",
        description="Reads the steps of FROM into memory and writes them to TO, to the last bit: observations, "
        "actions, rewards, extras, final observations, and how episodes ended. FROM is not changed.",
        epilog=_CONVERT_EXAMPLES,
    )
    convert.set_defaults(run="relive.cli.convert:run")
    convert.add_argument("source", metavar="FROM", help="a checkpoint, a journal, a Parquet file, or minari:ID")
    convert.add_argument("target", metavar="TO", help="FILE.relive, FILE.parquet, or minari:ID; its parent must exist")
    convert.add_argument(
        "--overwrite", action="store_true", help="replace what relive wrote at TO before, once the new one is whole"
    )
    convert.add_argument(
        "--capacity",
        type=_integer_from(1),
        metavar="N",
        help="of a new checkpoint's buffer (as many as there are steps)",
    )
    convert.add_argument(
        "--like", metavar="PATH", help="a checkpoint of columns: the new one has its class and its settings"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    name = "relive"
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # Not every encoding of a console has all characters.
    try:
        arguments, top = sys.argv[1:] if arguments is None else arguments, parser()
        if arguments and not arguments[0].startswith("-") and arguments[0] not in _COMMANDS:
            known = hint(arguments[0], _COMMANDS) or f", only {', '.join(_COMMANDS)}"
            top.error(f"there is no command {arguments[0]!r}{known}")
        options, unknown = top.parse_known_args(arguments)
        if unknown:
            options.parser.refuse(unknown, options.command)
        name = options.parser.prog
        code = 0
        if options.version:
            sys.stdout.write(f"relive {relive.__version__}\n")
        elif options.command is None:
            top.print_help()
        else:
            code = pkgutil.resolve_name(options.run)(options)
        sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stderr.write(f"\n{name}: interrupted\n")
        return 130
    except (relive.ReplayError, MemoryError, OSError) as error:
        said = str(error)
        if isinstance(error, MemoryError):
            said = f"there is not enough memory: {error}"
        elif isinstance(error, OSError) and error.strerror:
            said = f"{error.filename!r}: {error.strerror}" if error.filename else error.strerror
        if not isinstance(error, BrokenPipeError):  # The reader of a pipe may leave.
            sys.stderr.write(f"{name}: {said}\n")
        try:
            sys.stdout.flush()
        except OSError:  # Python would complain of it once more on the way out.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
