"""Programs that the fleet's benchmark measures: each has fleets of its own, and returns a line for each line.

    what is asked     {"fleet": "relive-2", "mode": "both", "seconds": 2.0, "message_steps": 1000, "batch_size": 256}
    what is returned  {"inserted": steps, "insert_seconds": s, "drawn": transitions, "draw_seconds": s, "asked": pings,
                       "processor": {"writers": s, "shards": s, "learner": s, "rest": s}, "wrong": transitions}

Lines are JSON. In the mode "insert" writers send episodes as fast as they can, in "sample" a learner draws batches, in
"both" all of them do, and in "ping" the learner asks a shard for nothing. `processor` is what each kind of process took
of the processor. The first line, before anything is asked, says the version of what is measured. Standard input ends
when nothing more is asked.
"""

from collections.abc import Mapping, Sequence
import contextlib
import dataclasses
import json
import os
import pathlib
import subprocess
from typing import Any, Literal, TypeAlias

from relive.bench import machine
from relive.bench import tasks
from relive.testing import fleet_work

Mode: TypeAlias = Literal["insert", "sample", "both", "ping"]

RAY = "relive.bench.peers.with_ray_fleet"
"""The module of relive's own fleets, on Ray."""

_PATIENCE = 30.0
"""So many seconds a program has to end by itself."""

REVERB = pathlib.Path(__file__).parent / "peers" / "with_reverb_fleet.py"
"""The program of Reverb."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Turn:
    """What came of one turn; the attributes are those of the line."""

    inserted: int
    insert_seconds: float
    drawn: int
    draw_seconds: float
    processor: Mapping[str, float]
    asked: int = 0
    wrong: int = 0

    @property
    def steps(self) -> float:
        """Steps inserted a second."""
        return self.inserted / self.insert_seconds if self.inserted else 0.0

    @property
    def transitions(self) -> float:
        """Transitions drawn a second."""
        return self.drawn / self.draw_seconds if self.drawn else 0.0


def config(fleets: Mapping[str, tuple[int, fleet_work.Work]], directory: pathlib.Path) -> str:
    """Return what a program is told of its fleets, and write the episodes that they are sent.

    Args:
        fleets: The number of shards and the work of each, by name.
        directory: Where the episodes are written.
    """
    told = {}
    for name, (shards, work) in fleets.items():
        path = directory / f"{name}.npz"
        work.save(path)
        told[name] = {"shards": shards, "path": str(path), **dataclasses.asdict(work)}
    return json.dumps(told)


class Program:
    """A program that runs until it is closed.

    Args:
        arguments: Its command line.
        log: The file that what it has to say besides goes to.

    Raises:
        CannotError: It has ended before its first line.
    """

    def __init__(self, arguments: Sequence[str], log: pathlib.Path) -> None:
        self._log = log
        with log.open("w", encoding="utf-8") as file:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
                text=True,
                env={**os.environ, **machine.QUIET, **machine.ONE_THREAD},
            )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._asked, self._answered = self._process.stdin, self._process.stdout
        try:
            self.version = str(self._answer()["version"])
        except tasks.CannotError:
            self.close()
            raise

    def turn(self, mode: Mode, seconds: float, *, fleet: str, **asked: int) -> Turn:
        """Return what came of one turn.

        Raises:
            CannotError: The program has ended.
        """
        line = json.dumps({"fleet": fleet, "mode": mode, "seconds": seconds, **asked})
        with contextlib.suppress(BrokenPipeError):
            self._asked.write(f"{line}\n")
            self._asked.flush()
        return Turn(**self._answer())

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self._process.poll() is None

    def close(self) -> None:
        """Let the program end, and wait until it has."""
        with contextlib.suppress(BrokenPipeError):
            self._asked.close()
        self._answered.close()
        try:
            self._process.wait(_PATIENCE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _answer(self) -> dict[str, Any]:
        line = self._answered.readline()
        if not line:
            said = self._log.read_text(encoding="utf-8").strip().splitlines()
            raise tasks.CannotError(f"ended: {said[-1] if said else 'it said nothing'}")
        answer: dict[str, Any] = json.loads(line)
        return answer
