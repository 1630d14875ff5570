import pathlib

import pytest

from relive.cli import curve
from relive.cli import learning_record


@pytest.mark.parametrize(("episodes", "solved_at"), [(0, None), (5, None), (40, 475.0)])
def test_the_curve_is_a_png_of_some_size(tmp_path: pathlib.Path, episodes: int, solved_at: float | None) -> None:
    record = learning_record.LearningRecord()
    for episode in range(episodes):
        record.steps += 10
        record.add_episode(float(episode))
    record.add_check(17.0)
    curve.save(record, "title", solved_at, str(tmp_path / "curve.png"))
    content = (tmp_path / "curve.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    assert len(content) > 10_000
