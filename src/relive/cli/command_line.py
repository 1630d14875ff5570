"""The command line: `relive COMMAND [OPTIONS]`.

Exit codes: 0 the command did its work, 1 it could not, 2 it was mistyped, 130 it was interrupted. An error is one line.
A command's module is imported when the command runs, so that `relive --help` needs numpy alone.
"""

import argparse
from collections.abc import Callable, Sequence
import importlib
import os
import sys
from typing import NoReturn

import relive

_EXAMPLES = """examples:
  relive demo --watch                   a network learns; watch its buffer
  relive bench --quick                  relive beside what else is installed
  relive inspect replay                 what is in a checkpoint or a journal
  relive verify replay && echo whole    is all of it as it was written?
  relive repair replay                  put in order what a crash has left
  relive convert replay steps.parquet   hand the steps over to another tool

`relive COMMAND --help` has more for each. The exit code is 0 if a command did
its work, 1 if it could not, 2 if it was mistyped, 130 if it was interrupted.
"""

_DEMO_EXAMPLES = """examples:
  relive demo                        learn CartPole, and draw a learning curve
  relive demo --watch                see what is stored, drawn and dropped
  relive demo --seed 7 --quiet       another seed; print the result alone
  relive demo --env Acrobot-v1 --plot acrobot.png
  relive demo --buffer prioritized   from a PrioritizedReplayBuffer
  relive demo --buffer sequence      a task that needs memory

It needs the extra relive[demo].
"""

_BENCH_EXAMPLES = """examples:
  relive bench --list                              all workloads and peers
  relive bench --quick                             are the answers right?
  relive bench --workload uniform prioritized-1m   two workloads, full size
  relive bench --workload images --peers relive cpprb take
  relive bench --markdown page.md --plot picture.png --json figures.json

A peer that is not installed is named and left out, with the package that brings
it, as in pip install cpprb. Every answer is checked: a fast wrong one is
reported as wrong.
"""

_INSPECT_EXAMPLES = """examples:
  relive inspect replay                         tables: sizes, episodes, files
  relive inspect replay --json | jq .stats      the same as one JSON object
  relive inspect replay --report replay.html    a page with charts, in one file

The exit code is 1 if something is broken; needs the extra: relive[cli].
"""

_CONVERT_EXAMPLES = """examples:
  relive convert replay steps.parquet             for pandas, polars, DuckDB
  relive convert steps.parquet replay             and back, to the last bit
  relive convert replay minari:cartpole/mine-v0   for those who learns offline
  relive convert minari:D4RL/pen/human-v2 replay --info success

FROM and TO are told by their form: minari:ID, FILE.parquet, or the directory
of a checkpoint; FROM may also be that of a journal. Minari keeps published
datasets on this machine after, for example, minari download D4RL/pen/human-v2.
A checkpoint that is written is one of a RingReplayBuffer. Priorities,
generators and counters are in checkpoints alone. Parquet needs the extra
relive[arrow], Minari relive[minari].
"""

_MODULES = {
    "demo": "relive.cli.demo",
    "bench": "relive.bench.command",
    "inspect": "relive.cli.inspect",
    "verify": "relive.cli.verify",
    "repair": "relive.cli.repair",
    "convert": "relive.cli.convert",
}
"""Where the work of each command is."""

_BUFFERS = {"episode": ("env", "actors"), "prioritized": ("env",), "sequence": ()}
"""The buffers of the demo, and the options of which each makes use beside those that all of them know."""

_DEFAULTS = {"env": "CartPole-v1", "actors": 8}


class _Help(argparse.RawDescriptionHelpFormatter):
    """Fits a description to the terminal, and leaves examples as they are."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return argparse.HelpFormatter._fill_text(self, text, width, indent)


class _Parser(argparse.ArgumentParser):
    """A parser whose errors are one line."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is, and exit with 2."""
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def _integer_from(least: int) -> Callable[[str], int]:
    """Return a converter of option values to integers of at least `least`."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"must be an integer, got {text!r}") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least}, got {value}")
        return value

    return convert


def parser() -> argparse.ArgumentParser:
    """Return the parser of the whole command line."""
    top = _Parser(
        prog="relive",
        description="Replay memory for reinforcement learning.",
        epilog=_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    top.add_argument("--version", action="version", version=f"relive {relive.__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    demo = commands.add_parser(
        "demo",
        help="learn a task from a replay buffer, and show it",
        description="A small network in numpy learns from a replay buffer: double Q-learning. At the end the best "
        "network plays 20 episodes without exploring. Interrupt it (Ctrl-C) to end early with what was learned.",
        epilog=_DEMO_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    demo.set_defaults(parser=demo)
    demo.add_argument(
        "--buffer",
        choices=_BUFFERS,
        default="episode",
        help="episode: actor coroutines fill an EpisodeReplayBuffer while a learner awaits samples of it; "
        "prioritized: a plain loop with a PrioritizedReplayBuffer; sequence: a plain loop with a SequenceReplayBuffer, "
        "and a recurrent network that has to remember what it saw (%(default)s)",
    )
    demo.add_argument(
        "--env",
        help=f"a Gymnasium environment with discrete actions; not with --buffer sequence ({_DEFAULTS['env']})",
    )
    demo.add_argument("--seed", type=_integer_from(0), default=0, help="the same seed gives the same run (%(default)s)")
    demo.add_argument(
        "--steps",
        type=_integer_from(1),
        default=60_000,
        help="environment steps at most, over all actors (%(default)s)",
    )
    demo.add_argument(
        "--actors",
        type=_integer_from(1),
        help=f"actor coroutines; with --buffer episode alone ({_DEFAULTS['actors']})",
    )
    demo.add_argument(
        "--plot", default="relive-demo.png", metavar="PATH", help="where the learning curve goes, a PNG (%(default)s)"
    )
    shown = demo.add_mutually_exclusive_group()
    shown.add_argument(
        "--watch",
        action="store_true",
        help="show what the buffer says of itself, four times a second; in a terminal alone, elsewhere print lines",
    )
    shown.add_argument("--quiet", action="store_true", help="print the last line alone")
    _add_bench(commands)
    _add_saved(commands)
    _add_convert(commands)
    return top


def _add_bench(commands: "argparse._SubParsersAction[_Parser]") -> None:
    bench = commands.add_parser(
        "bench",
        help="measure relive beside other libraries, and check what all of them answer",
        description="Measures draws, updates, adds and memory of relive and of the libraries that are installed, by "
        "turns, one thread each, and checks every answer on data that describes itself.",
        epilog=_BENCH_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    bench.set_defaults(parser=bench)
    bench.add_argument("--list", action="store_true", help="print the names of workloads and peers, and what they are")
    bench.add_argument("--workload", nargs="+", metavar="NAME", help="workloads, or families of them (all)")
    bench.add_argument("--peers", nargs="+", metavar="NAME", help="whom to measure (all that are installed)")
    bench.add_argument(
        "--repeats", type=_integer_from(1), metavar="N", help="rounds, of which the median is taken (7; 3 with --quick)"
    )
    bench.add_argument("--quick", action="store_true", help="small rings and few short rounds")
    bench.add_argument("--json", metavar="FILE", help="where all figures go")
    bench.add_argument("--markdown", metavar="FILE", help="where a page with all tables goes")
    bench.add_argument("--plot", metavar="FILE", help="where a picture goes, a PNG")


def _add_saved(commands: "argparse._SubParsersAction[_Parser]") -> None:
    inspect = commands.add_parser(
        "inspect",
        help="show what is in a checkpoint or a journal",
        description="Shows what relive wrote: a checkpoint, a journal, a memory map or a Parquet file, and whether all "
        "of it is as it was written. It loads the buffer, and changes nothing.",
        epilog=_INSPECT_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    inspect.add_argument("--report", metavar="FILE", help="where a page with charts goes, HTML in one file")
    verify = commands.add_parser(
        "verify",
        help="say whether a checkpoint or a journal is whole; exit code 0 or 1",
        description="Reads all that relive wrote: a checkpoint, a journal, a memory map or a Parquet file; loads the "
        "buffer, and says that it is whole, or names every file that is broken. It changes nothing.",
        allow_abbrev=False,
    )
    repair = commands.add_parser(
        "repair",
        help="put in order what a crash has left of a checkpoint or a journal",
        description="Gives a checkpoint its name back and deletes what was never completed beside it; cuts a torn "
        "record off a journal. Of what is damaged nothing is deleted. A second repair finds nothing to do.",
        allow_abbrev=False,
    )
    repair.add_argument(
        "--drop-damaged",
        action="store_true",
        help="let a damaged journal end before the damage; the files with the rest stay in it, as FILE.damaged",
    )
    for command in (inspect, verify):
        command.add_argument("--json", action="store_true", help="print one JSON object instead of words")
    for command in (inspect, verify, repair):
        command.set_defaults(parser=command)
        command.add_argument("path", metavar="PATH", help="the directory of a checkpoint or a journal")


def _add_convert(commands: "argparse._SubParsersAction[_Parser]") -> None:
    """Add the command that carries steps over."""
    convert = commands.add_parser(
        "convert",
        help="carry steps over between checkpoints, Parquet files and Minari datasets",
        description="Reads the steps of FROM into memory, and writes them to TO, to the last bit: observations, "
        "actions, rewards, extras, final observations, and how episodes ended. FROM is left as it is.",
        epilog=_CONVERT_EXAMPLES,
        formatter_class=_Help,
        allow_abbrev=False,
    )
    convert.set_defaults(parser=convert)
    convert.add_argument("source", metavar="FROM", help="a directory, FILE.parquet or minari:ID")
    convert.add_argument("target", metavar="TO", help="the same, of another kind; its parent must exist")
    convert.add_argument(
        "--overwrite", action="store_true", help="replace what relive wrote at TO before, once the new one is whole"
    )
    convert.add_argument(
        "--capacity",
        type=_integer_from(1),
        metavar="N",
        help="of a new checkpoint's buffer (as many as there are steps)",
    )
    infos = convert.add_mutually_exclusive_group()
    infos.add_argument(
        "--info",
        action="append",
        metavar="NAME",
        help="keep this info of a Minari dataset as an extra, and no other but those of more --info (all of them)",
    )
    infos.add_argument("--no-infos", action="store_true", help="keep no info of a Minari dataset")
    convert.add_argument(
        "--incomplete",
        choices=("refuse", "as_sampled"),
        help="what a Minari dataset gets of an episode of which the last observation is not known: refuse it, or "
        "as_sampled, zeros if it terminated and otherwise all but its last step (refuse)",
    )


def _settle(options: argparse.Namespace) -> None:
    """Give options that were left out their defaults, and exit with 2 if one makes no sense with the buffer."""
    for name, default in _DEFAULTS.items():
        is_used, is_given = name in _BUFFERS[options.buffer], getattr(options, name) is not None
        if is_given and not is_used:
            options.parser.error(f"argument --{name}: not allowed with --buffer {options.buffer}")
        if is_used and not is_given:
            setattr(options, name, default)


def _drop_stdout() -> None:
    """Let what is still to be printed go nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    top = parser()
    options, unknown = top.parse_known_args(arguments)
    if unknown:
        (top if options.command is None else options.parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.command is None:
        top.print_help()
        return 0
    if options.command == "demo":
        _settle(options)
    try:
        code: int = importlib.import_module(_MODULES[options.command]).run(options)
        sys.stdout.flush()
    except relive.ReplayError as error:
        sys.stderr.write(f"relive {options.command}: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write(f"\nrelive {options.command}: interrupted\n")
        return 130
    except BrokenPipeError:  # The reader of a pipe has left; Python would complain of it once more on the way out.
        _drop_stdout()
        return 1
    except OSError as error:  # Such as a full disk, where what is printed goes.
        sys.stderr.write(f"relive {options.command}: {error.strerror or error}\n")
        try:
            sys.stdout.flush()
        except OSError:
            _drop_stdout()
        return 1
    return code
