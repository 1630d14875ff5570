from typing import Any

import pytest

from relive import testing

SUITES = [testing.BufferTests, testing.EpisodeSamplerTests, testing.SamplerTests, testing.StorageTests]


@pytest.mark.parametrize("suite", SUITES)
def test_a_suite_without_a_subject_cannot_run(suite: Any) -> None:
    with pytest.raises(TypeError, match="abstract.*make"):
        suite()


@pytest.mark.parametrize("suite", SUITES)
def test_pytest_collects_no_suite_itself(suite: type) -> None:
    """Pytest collects classes whose name begins with Test: those of users."""
    assert not suite.__name__.startswith("Test")
    assert any(name.startswith("test_") for name in vars(suite))
