"""Checks of a TensorStorage on a GPU, in three minutes: equality, waits, streams, memory, speed.

    python gpu_checks.py               on "cuda"
    python gpu_checks.py cpu           a rehearsal: the same calls where nothing can go wrong

equality   random steps, ends and draws: every field of every batch is that of a buffer in main memory
waits      torch raises where the host waits for the device, but for the one copy to the host of each write
streams    written on a stream of its own, drawn on another
memory     no more is allocated after 2,000 rounds than after 300
speed      microseconds of a write and of a draw, beside tensors by environment that are written by hand
"""

from collections.abc import Callable, Sequence
import contextlib
import statistics
import sys
import time
from typing import Any

import numpy as np
import torch

import relive
from relive.integrations import tensor_storage
from relive.integrations import torch as relive_torch

SCHEMA = relive.Schema(relive.Field(48, "float32"), relive.Field(12, "float32"), reward=relive.Field((), "float32"))
KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "3-step": (relive.RingReplayBuffer, {"n_step": 3}),
    "prioritized": (relive.PrioritizedReplayBuffer, {"n_step": 3}),
    "sequences": (relive.SequenceReplayBuffer, {"length": 8, "pad": True}),
    "stacks": (relive.RingReplayBuffer, {"frame_stack": 4}),
}


class ByHand:
    """What one writes by hand for such simulators: 3-step transitions from tensors by environment and time."""

    def __init__(self, count: int, steps: int, device: str) -> None:
        def zeros(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
            return torch.zeros(count, steps, *shape, dtype=dtype, device=device)

        self.now, self.next, self.action, self.reward = zeros(48), zeros(48), zeros(12), zeros()
        self.is_end, self.count, self.steps, self.at = zeros(dtype=torch.bool), count, steps, 0
        self.powers = 0.99 ** torch.arange(4, device=device)

    def extend(self, now: Any, action: Any, reward: Any, after: Any, *, terminated: Any) -> None:
        """Write a step of each environment."""
        place = self.at % self.steps
        self.now[:, place], self.next[:, place], self.action[:, place] = now, after, action
        self.reward[:, place], self.is_end[:, place] = reward, terminated
        self.at += 1

    def sample(self, size: int) -> tuple[torch.Tensor, ...]:
        """Return observations, actions, 3-step rewards, what follows, and discounts, of random steps."""
        device = self.now.device
        env = torch.randint(self.count, (size, 1), device=device)
        place = torch.randint(min(self.at, self.steps), (size, 1), device=device)
        places = (place + torch.arange(3, device=device)) % self.steps
        is_end = self.is_end[env, places]
        is_last = is_end | (places == (self.at - 1) % self.steps)
        goes_on = torch.cat([torch.ones_like(is_last[:, :1]), ~is_last[:, :-1]], 1).cumprod(1)
        last = goes_on.sum(1, keepdim=True) - 1
        reward = (self.reward[env, places] * goes_on * self.powers[:3]).sum(1)
        discount = self.powers[last[:, 0] + 1] * ~is_end.gather(1, last)[:, 0]
        end = places.gather(1, last)
        return self.now[env, place][:, 0], self.action[env, place][:, 0], reward, self.next[env, end][:, 0], discount


def steps(count: int, device: str, seed: int = 0) -> Callable[[], tuple[list[torch.Tensor], dict[str, torch.Tensor]]]:
    """Return a function that returns the arguments of one `extend` after another; episodes end now and then."""
    rng = torch.Generator(device).manual_seed(seed)
    now = torch.randn(count, 48, generator=rng, device=device)

    def following() -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        nonlocal now
        after, action = (torch.randn(count, size, generator=rng, device=device) for size in (48, 12))
        reward, chance = (
            torch.randn(count, generator=rng, device=device),
            torch.rand(count, generator=rng, device=device),
        )
        before, is_end = now, chance < 0.01
        now = torch.where(is_end[:, None], after + 1, after)
        return [before, action, reward, after], {"terminated": is_end}

    return following


def buffer_of(kind: str, streams: int, length: int, device: str | None) -> Any:
    """Return a buffer on a device, or in main memory."""
    made, options = KINDS[kind]
    capacity = streams * length
    storage = None if device is None else relive_torch.TensorStorage(SCHEMA, capacity, device)
    return made(capacity, SCHEMA, storage=storage, streams=streams, seed=0, **options)


def require_equal(plain: Any, drawn: Any) -> None:
    """Raise AssertionError if a field of two batches differs."""
    converted, here = relive_torch.as_tensors(plain), drawn.to("cpu")
    for name in ("observation", "action", "reward", "keys", "weights", "probabilities"):
        one, other = np.asarray(getattr(converted, name)), np.asarray(getattr(here, name))
        assert one.dtype == other.dtype, name
        assert np.array_equal(one, other), name


def check_equality(device: str, rounds: int) -> None:
    """Compare the batches of two buffers that are given the same steps."""
    for kind in KINDS:
        plain, there, step = buffer_of(kind, 16, 20, None), buffer_of(kind, 16, 20, device), steps(16, device)
        for _ in range(rounds):
            given, ends = step()
            plain.extend(*[each.cpu().numpy() for each in given], terminated=ends["terminated"].cpu().numpy())
            there.extend(*given, **ends)
            if plain.num_eligible:
                require_equal(plain.sample(64), there.sample(64))
        there.check()
        print(f"equality: {rounds} rounds of {kind} are equal")


def check_waits(device: str, rounds: int) -> None:
    """Let torch raise where the host waits, but in the one copy to the host."""
    is_cuda, packed = device.startswith("cuda"), tensor_storage.TensorStorage._to_host
    num_copies = 0

    def allowed(*given: Any) -> Any:
        nonlocal num_copies
        num_copies += 1
        torch.cuda.set_sync_debug_mode("default") if is_cuda else None
        copied = packed(*given)
        torch.cuda.set_sync_debug_mode("error") if is_cuda else None
        return copied

    for kind in KINDS:
        buffer, step = buffer_of(kind, 64, 64, device), steps(64, device)
        for _ in range(80):
            given, ends = step()
            buffer.extend(*given, **ends)
        inputs, num_copies = [step() for _ in range(rounds)], 0
        setattr(tensor_storage.TensorStorage, "_to_host", allowed)  # noqa: B010
        torch.cuda.set_sync_debug_mode("error") if is_cuda else None
        try:
            for given, ends in inputs:
                buffer.extend(*given, **ends)
                buffer.sample(256)
        finally:
            torch.cuda.set_sync_debug_mode("default") if is_cuda else None
            setattr(tensor_storage.TensorStorage, "_to_host", packed)  # noqa: B010
        print(f"waits: {num_copies} copies to the host in {rounds} writes and draws of {kind}, and no other wait")


def check_streams(device: str, rounds: int) -> None:
    """Write on one stream and draw on another."""
    is_cuda = device.startswith("cuda")
    side: Any = torch.cuda.Stream() if is_cuda else None
    plain, there, step = buffer_of("3-step", 64, 16, device), buffer_of("3-step", 64, 16, device), steps(64, device)
    for _ in range(rounds):
        given, ends = step()
        plain.extend(*given, **ends)
        with torch.cuda.stream(side) if is_cuda else contextlib.nullcontext():
            side.wait_stream(torch.cuda.default_stream()) if is_cuda else None
            there.extend(*given, **ends)
        torch.cuda.default_stream().wait_stream(side) if is_cuda else None
        require_equal(plain.sample(64).to("cpu").map(np.asarray), there.sample(64))
    print(f"streams: {rounds} rounds on two streams are equal")


def check_memory(device: str, rounds: int) -> None:
    """Compare what is allocated early and late."""
    buffer, step, allocated = buffer_of("3-step", 512, 32, device), steps(512, device), list[int]()
    for number in range(rounds):
        given, ends = step()
        buffer.extend(*given, **ends)
        buffer.sample(1_024)
        if number in (min(300, rounds // 2), rounds - 1):
            allocated.append(torch.cuda.memory_allocated() if device.startswith("cuda") else buffer.get_stats().nbytes)
    print(f"memory: {allocated[1] - allocated[0]} bytes more in {rounds} rounds")


def check_speed(device: str, streams: int, rounds: int) -> None:
    """Time writes and draws beside what is written by hand, by turns."""
    buffers = {"relive": buffer_of("3-step", streams, 128, device), "by hand": ByHand(streams, 128, device)}
    step = steps(streams, device)
    inputs = [step() for _ in range(16)]
    inputs[-1][0][3] = inputs[0][0][0]  # They go round.

    def call(name: str, buffer: Any, number: int) -> None:
        if name == "extend":
            buffer.extend(*inputs[number % 16][0], **inputs[number % 16][1])
        else:
            buffer.sample(int(name.removeprefix("draw ")))

    def wait() -> None:
        torch.cuda.synchronize() if device.startswith("cuda") else None

    for buffer in buffers.values():
        for number in range(144):
            call("extend", buffer, number)
    for name in ("extend", "draw 256", "draw 8192", "draw 32768"):
        taken: dict[str, list[float]] = {kind: [] for kind in buffers}
        for number in range(rounds):
            for kind, buffer in buffers.items():
                wait()
                start = time.perf_counter()
                for place in range(16):
                    call(name, buffer, 16 * number + place)
                wait()
                taken[kind].append((time.perf_counter() - start) / 16 * 1e6)
        medians = ", ".join(f"{kind} {statistics.median(each):.0f}" for kind, each in taken.items())
        print(f"speed: {streams} environments, {name}: {medians} us")


def main(arguments: Sequence[str] | None = None, scale: int = 1) -> None:
    """Run all checks on the device that the command line names."""
    device = [*(sys.argv[1:] if arguments is None else arguments), "cuda"][0]
    name = torch.cuda.get_device_name() if device.startswith("cuda") else device
    print(f"{name}, torch {torch.__version__}, relive {relive.__version__}")
    check_equality(device, 200 // scale)
    check_waits(device, 100 // scale)
    check_streams(device, 200 // scale)
    check_memory(device, 2_000 // scale)
    for streams in (64, 4_096 // scale):
        check_speed(device, streams, 11 if scale == 1 else 1)


if __name__ == "__main__":
    main()
