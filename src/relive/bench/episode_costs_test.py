import re

import pytest

from relive.bench import episode_costs


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    stored, running = episode_costs.stored, episode_costs.running
    monkeypatch.setattr(episode_costs, "_ROUNDS", 8)
    monkeypatch.setattr(episode_costs, "_APPENDS", 50)
    monkeypatch.setattr(episode_costs, "stored", lambda episodes, steps: stored(min(episodes, 20), min(steps, 20)))
    monkeypatch.setattr(episode_costs, "running", lambda episodes, steps: running(min(episodes, 20), min(steps, 20)))


def test_the_table_of_draws_has_a_row_for_each_case(capsys: pytest.CaptureFixture[str]) -> None:
    episode_costs.draw_costs()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 5
    assert all(re.search(r"\d+   \d+\.\d\dx of .+, \d+\.\d\dx of build$", row) for row in rows)


async def test_the_table_of_appends_has_a_row_for_each_case(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(episode_costs, "_MANY_OPEN", 20)
    await episode_costs.append_costs()
    rows = capsys.readouterr().out.splitlines()[2:]
    assert len(rows) == 3
    assert "to one of 20 open episodes" in rows[-1]
