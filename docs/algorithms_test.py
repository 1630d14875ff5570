"""The page of algorithms has a buffer for each, and each can be made."""

import pathlib
import re

import pytest

import relive

ROWS = re.findall(
    r"^\| (.+?) \| `(relive\..+?)` \| (.+?) \|$",
    pathlib.Path(__file__).with_name("algorithms.md").read_text("utf-8"),
    re.M,
)
NAMES = (
    "DQN",
    "C51",
    "QR-DQN",
    "Rainbow",
    "SAC",
    "TD3",
    "DDPG",
    "HER",
    "PPO",
    "R2D2",
    "Dreamer",
    "QMIX",
    "DT",
    "GRPO",
    "RLOO",
)


def test_each_algorithm_has_a_line() -> None:
    first = [re.split(r"[, ]", algorithm)[0] for algorithm, _, _ in ROWS]
    assert {name for name in NAMES if name not in first} == set()


@pytest.mark.parametrize("constructor", sorted({constructor for _, constructor, _ in ROWS}))
def test_each_buffer_of_the_table_can_be_made(constructor: str) -> None:
    kind = constructor.removeprefix("relive.").partition("(")[0]
    assert type(eval(constructor, {"relive": relive})) is getattr(relive, kind)


@pytest.mark.parametrize("guides", sorted({guides for _, _, guides in ROWS}))
def test_each_line_leads_to_a_guide(guides: str) -> None:
    assert re.match(r"\[[\w ]+\]\((guides|tutorials)/\w+\.md\)", guides)
