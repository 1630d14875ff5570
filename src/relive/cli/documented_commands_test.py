"""Every `relive ...` line in the pages, README and the help is a valid command."""

import pathlib
import re
import shlex

import pytest

from relive.cli import command_line

_ROOT = pathlib.Path(__file__).parents[3]
_PAGES = [_ROOT / "README.md", *sorted(_ROOT.glob("docs/**/*.md"))]
_BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_EXAMPLE = re.compile(r"^  (relive .*?)(?:   .*)?$", re.MULTILINE)


def commands_of(text: str) -> list[str]:
    blocks = [re.sub(r"\\\n\s*", " ", block) for language, block in _BLOCK.findall(text) if language in ("", "sh")]
    lines = [line.strip() for block in blocks for line in block.splitlines()]
    return [re.split(r"   | #| \||&&", line)[0] for line in lines if line.startswith("relive ")]


def check(command: str) -> None:
    code: object = 0
    try:
        command_line.parser().parse_args(shlex.split(command)[1:])
    except SystemExit as stopped:
        code = stopped.code
    assert code == 0, command


@pytest.mark.parametrize("page", [page for page in _PAGES if "_build" not in page.parts], ids=lambda page: page.name)
def test_commands_on_a_page_exist(page: pathlib.Path) -> None:
    for command in commands_of(page.read_text(encoding="utf-8")):
        check(command)


def test_commands_in_the_help_exist(capsys: pytest.CaptureFixture[str]) -> None:
    found = 0
    for name in ("", "demo", "bench", "convert"):
        check(f"relive {name} --help")
        for command in _EXAMPLE.findall(capsys.readouterr().out):
            check(re.split(r" \||&&", command)[0])
            found += 1
    assert found > 14


def test_a_wrong_command_on_a_page_is_found() -> None:
    [right, wrong] = commands_of("```sh\nrelive inspect \\\n  replay   # look\nrelive inspekt replay\n```\n")
    check(right)
    with pytest.raises(AssertionError, match="^relive inspekt replay"):
        check(wrong)
