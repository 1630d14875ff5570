"""Reverb in the fleet's benchmark: a server, writers and a learner, each a process; a program that returns lines.

It imports nothing of relive: Reverb is built for a TensorFlow that wants numpy 1, and runs with a Python of its own.
It has one fleet, of one server. What the lines are is said in `relive.bench.fleet_programs`. A transition is an item of
its own, of two observations, so that as many items are kept as relive keeps steps. A writer lets 200 items be on their
way, and the learner reads a TrajectoryDataset that draws ahead, as Reverb's documentation has it.
"""

from collections.abc import Callable, Mapping
from importlib import metadata
import json
import multiprocessing
import os
import sys
import time
from typing import Any

import numpy as np
import reverb
import tensorflow as tf

_TABLE = "steps"
_ON_THE_WAY = 200


def _serve(pipe: Any, work: Mapping[str, Any]) -> None:
    """Serve a table, and return the seconds of the processor that it has taken when it is asked."""
    signature = {
        "observation": tf.TensorSpec((2, *work["shape"]), work["dtype"]),
        "action": tf.TensorSpec((1,), "int64"),
        "reward": tf.TensorSpec((1,), "float32"),
        "terminal": tf.TensorSpec((1,), "bool"),
    }
    table = reverb.Table(
        _TABLE,
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=work["capacity"],
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature=signature,
    )
    server = reverb.Server([table])
    pipe.send(server.port)
    while pipe.recv() is not None:
        pipe.send(time.process_time())


def _write(pipe: Any, work: Mapping[str, Any], port: int) -> None:
    """Send whole episodes for as long as it is told to."""
    client = reverb.Client(f"localhost:{port}")
    writer = client.trajectory_writer(num_keep_alive_refs=2)
    with np.load(work["path"]) as episodes:
        observations, actions, rewards = (episodes[name] for name in ("observations", "actions", "rewards"))
    steps = work["steps"]
    zero = np.zeros((), np.float32)
    turn = 0

    def send() -> int:
        nonlocal turn
        episode = turn % len(observations)
        turn += 1
        for t in range(steps + 1):
            is_final = t == steps
            writer.append(
                {
                    "observation": observations[episode, t],
                    "action": actions[episode, t - is_final],
                    "reward": zero if is_final else rewards[episode, t],
                    "terminal": np.bool_(t == steps - 1),
                }
            )
            if t:
                history = writer.history
                row = {name: history[name][-2:-1] for name in ("action", "reward", "terminal")}
                writer.create_item(_TABLE, 1.0, {"observation": history["observation"][-2:], **row})
        writer.flush(block_until_num_items=_ON_THE_WAY)
        return int(steps)

    _take_turns(pipe, send, writer.flush)


def _learn(pipe: Any, work: Mapping[str, Any], port: int) -> None:
    """Draw batches for as long as it is told to, and looks at the last one."""
    dataset = reverb.TrajectoryDataset.from_table_signature(
        f"localhost:{port}", _TABLE, max_in_flight_samples_per_worker=2 * work["batch_size"]
    )
    batches = dataset.batch(work["batch_size"]).prefetch(2).as_numpy_iterator()
    batch: Any = None

    def draw() -> int:
        nonlocal batch
        batch = next(batches).data
        return int(work["batch_size"])

    def faults() -> int:
        rows = len(batch["action"])
        pairs = batch["observation"].reshape(rows, 2, -1)[:, :, :2].astype(np.float64)
        before, after, action = pairs[:, 0], pairs[:, 1], batch["action"][:, 0]
        right = (before[:, 0] == after[:, 0]) & (before[:, 1] + 1 == after[:, 1]) & (action == before[:, 1])
        right &= batch["reward"][:, 0] == before.sum(axis=1)
        right &= batch["terminal"][:, 0] == (before[:, 1] == work["steps"] - 1)
        return int(np.count_nonzero(~right))

    _take_turns(pipe, draw, lambda: None, faults)


def _take_turns(
    pipe: Any, call: Callable[[], int], finish: Callable[[], Any], faults: Callable[[], int] = lambda: 0
) -> None:
    """Repeat a call for as many seconds as are asked for, over and over; return rows, seconds, processor, faults."""
    pipe.send("ready")
    while (seconds := pipe.recv()) is not None:
        rows, start, processor = 0, time.perf_counter(), time.process_time()
        while time.perf_counter() - start < seconds:
            rows += call()
        finish()
        taken, processor = time.perf_counter() - start, time.process_time() - processor
        pipe.send((rows, taken, processor, faults()))


def _main() -> None:
    lines = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    (work,) = json.loads(sys.argv[1]).values()
    context = multiprocessing.get_context("spawn")

    def start(target: Callable[..., None], *arguments: Any) -> Any:
        here, there = context.Pipe()
        context.Process(target=target, args=(there, work, *arguments), daemon=True).start()
        return here

    server = start(_serve)
    port = server.recv()
    writers = [start(_write, port) for _ in range(work["writers"])]
    learner = start(_learn, port)
    for pipe in (*writers, learner):
        pipe.recv()
    print(json.dumps({"version": f"dm-reverb {metadata.version('dm-reverb')}"}), file=lines)
    for line in sys.stdin:
        asked = json.loads(line)
        inserting = writers if asked["mode"] != "sample" else []
        drawing = [learner] if asked["mode"] != "insert" else []
        server.send("processor")
        before = server.recv()
        for pipe in (*inserting, *drawing):
            pipe.send(asked["seconds"])
        sent, drawn = ([pipe.recv() for pipe in pipes] for pipes in (inserting, drawing))
        server.send("processor")
        answer = {
            "inserted": sum(rows for rows, *_ in sent),
            "insert_seconds": max((taken for _, taken, *_ in sent), default=0.0),
            "drawn": sum(rows for rows, *_ in drawn),
            "draw_seconds": max((taken for _, taken, *_ in drawn), default=0.0),
            "processor": {
                "writers": sum(processor for *_, processor, _ in sent),
                "learner": sum(processor for *_, processor, _ in drawn),
                "shards": server.recv() - before,
            },
            "wrong": sum(faults for *_, faults in drawn),
        }
        print(json.dumps(answer), file=lines)
    for pipe in (server, *writers, learner):
        pipe.send(None)


if __name__ == "__main__":
    _main()
