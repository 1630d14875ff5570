"""The checks for a GPU, rehearsed on the CPU."""

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import gpu_checks
import torch


def test_the_checks_pass_on_the_cpu(capsys: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    gpu_checks.main(["cpu"], scale=40)
    lines = capsys.readouterr().out.splitlines()
    assert [line.partition(":")[0] for line in lines[1:]] == (
        ["equality"] * 4 + ["waits"] * 4 + ["streams", "memory"] + ["speed"] * 8
    )


def test_by_hand_adds_up_three_steps() -> None:
    buffer = gpu_checks.ByHand(1, 8, "cpu")
    for number in range(5):
        now = torch.full((1, 48), float(number))
        is_end = torch.tensor([number == 3])
        buffer.extend(now, torch.zeros(1, 12), torch.ones(1), now + 1, terminated=is_end)
    torch.manual_seed(0)
    now, _, reward, after, discount = buffer.sample(64)
    found = {*zip(*[each.reshape(64, -1)[:, 0].tolist() for each in (now, reward, after, discount)], strict=True)}
    sums = {1: 1.0, 2: 1.99, 3: 2.9701}
    expected = [(0, 3, 3, 0.970299), (1, 3, 4, 0), (2, 2, 4, 0), (3, 1, 4, 0), (4, 1, 5, 0.99)]
    assert sorted(found) == [
        (start, pytest.approx(sums[count]), end, pytest.approx(power)) for start, count, end, power in expected
    ]
