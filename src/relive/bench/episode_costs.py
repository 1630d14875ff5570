"""What a draw and an append of the episode buffer cost, and that neither grows with the number of episodes.

    python -m relive.bench.episode_costs

Every row is a ratio of medians from rounds that take turns, so that a machine whose speed drifts slows both sides.
Observations and actions are small integers: copies of arrays are not part of these costs.
"""

import asyncio
from collections.abc import Callable
import gc
import statistics
import time

import relive

Buffer = relive.EpisodeReplayBuffer[int, int]

_BATCH = 256
_ROUNDS = 201
_APPENDS = 2000
_MANY_OPEN = 20_000


def stored(episodes: int, steps: int) -> Buffer:
    """Return a buffer with that many finished episodes of that many steps."""
    buffer = Buffer(seed=0)
    for _ in range(episodes):
        episode_id = buffer.start_episode_nowait("agent")
        for t in range(steps):
            buffer.append_observation_action_reward_nowait(episode_id, t, t, float(t))
        buffer.end_episode_nowait(episode_id, steps)
    return buffer


def running(episodes: int, steps: int) -> tuple[Buffer, list[str]]:
    """Return a buffer with that many open episodes of that many steps, and their ids."""
    buffer = Buffer(seed=0)
    ids = [buffer.start_episode_nowait("agent") for _ in range(episodes)]
    for episode_id in ids:
        for t in range(steps):
            buffer.append_observation_action_reward_nowait(episode_id, t, t, float(t))
    return buffer, ids


def build_samples() -> list[relive.ReplaySample[int, int]]:
    """Build a batch of samples out of nothing, with the lists that each owns."""
    return [
        relive.ReplaySample(
            episode_id="episode",
            agent_id="agent",
            observation=1,
            action=1,
            next_observation=2,
            next_discount=0.97,
            is_terminal=False,
            rewards_seq=[1.0, 2.0, 3.0],
            discount_powers=[1.0, 0.99, 0.98],
            start_step=1,
            actual_n=3,
            gamma=0.99,
            window_end="HORIZON",
        )
        for _ in range(_BATCH)
    ]


def interleaved(calls: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Return the median seconds of each call, over rounds that run every call once."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    gc.collect()
    gc.disable()
    for _ in range(_ROUNDS):
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    gc.enable()
    return {name: statistics.median(values) for name, values in times.items()}


def draw_costs() -> None:
    """Print what a batch costs, out of few and out of many episodes."""
    few, many = stored(100, 10_000), stored(100_000, 10)
    few_open, many_open = running(10, 20_001)[0], running(20_000, 11)[0]
    medians = interleaved(
        {
            "few": lambda: few.sample_n_step_nowait(_BATCH, 3, 0.99),
            "many": lambda: many.sample_n_step_nowait(_BATCH, 3, 0.99),
            "few open": lambda: few_open.sample_n_step_nowait(_BATCH, 3, 0.99),
            "many open": lambda: many_open.sample_n_step_nowait(_BATCH, 3, 0.99),
            "build": build_samples,
        }
    )
    print(f"\nA 3-step draw of {_BATCH}                   microseconds")
    rows = [
        ("building the samples alone", "build", "build"),
        ("10^6 transitions, 10^2 episodes", "few", "few"),
        ("10^6 transitions, 10^5 episodes", "many", "few"),
        ("2x10^5 transitions, 10 open episodes", "few open", "few open"),
        ("2x10^5 transitions, 20,000 open episodes", "many open", "few open"),
    ]
    for label, name, base in rows:
        of_base, of_build = medians[name] / medians[base], medians[name] / medians["build"]
        print(f"{label:42}{medians[name] * 1e6:8.0f}   {of_base:.2f}x of {base}, {of_build:.2f}x of build")


async def append_costs() -> None:
    """Print what an awaited append costs over three list appends, beside few and beside many open episodes."""
    bare: list[float] = []
    few: list[float] = []
    many: list[float] = []
    clock = time.perf_counter
    gc.collect()
    gc.disable()
    for _ in range(_ROUNDS // 4):
        lists: tuple[list[int], list[int], list[float]] = ([], [], [])
        start = clock()
        for t in range(_APPENDS):
            lists[0].append(t)
            lists[1].append(t)
            lists[2].append(1.0)
        bare.append(clock() - start)
        for times, open_episodes in ((few, 10), (many, _MANY_OPEN)):
            buffer, ids = running(open_episodes, 2)
            await buffer.start_episode("agent")
            turns = [ids[t % open_episodes] for t in range(_APPENDS)]
            start = clock()
            for t, episode_id in enumerate(turns):
                await buffer.append_observation_action_reward(episode_id, t, t, 1.0)
            times.append(clock() - start)
    gc.enable()
    base, low, high = (statistics.median(times) / _APPENDS * 1e6 for times in (bare, few, many))
    print("\nAn awaited append                         microseconds")
    print(f"{'three list appends':42}{base:8.2f}")
    print(f"{'to one of 10 open episodes':42}{low:8.2f}   {low - base:.2f} over the list appends")
    print(f"{f'to one of {_MANY_OPEN:,} open episodes':42}{high:8.2f}   {high / low:.2f}x of 10 open episodes")


if __name__ == "__main__":
    draw_costs()
    asyncio.run(append_costs())
