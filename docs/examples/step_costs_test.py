"""The costs of steps are measured and printed for five set-ups."""

import pytest

pytest.importorskip("ale_py")
pytest.importorskip("gymnasium")
pytest.importorskip("torch")

import step_costs


def test_each_set_up_has_a_row(capsys: pytest.CaptureFixture[str]) -> None:
    step_costs.main(["--short"])
    header, _, *rows = capsys.readouterr().out.splitlines()
    assert header.count("|") == 8
    names = ["DQN on a vector", "SAC on a vector", "DQN on stacks", "R2D2 on a vector", "tokens"]
    assert [row.startswith(f"| {name}") for row, name in zip(rows, names, strict=True)] == [True] * 5
    for row in rows:
        *cells, share = [cell.strip() for cell in row.strip("| ").split("|")][1:]
        assert all(float(cell.replace(",", "")) > 0 for cell in cells if cell)
        assert 0 <= float(share.rstrip("%")) < 100
