"""What these pages say of relive is there, and what they show of other libraries runs where those are installed."""

import ast
from collections.abc import Iterator
import functools
import importlib
import inspect
import pathlib
import re
from typing import Any

import pytest

import relive
from relive import errors

PAGES = sorted(pathlib.Path(__file__).parent.glob("*.md"))
INTEGRATIONS = ("gymnasium", "jax", "ray", "stable_baselines3", "torch")

# What a page calls by these names. Wrappers of buffers are left out: they take any arguments, and hand them on.
WRAPPERS = {"AsyncReplayBuffer", "ThreadSafeReplayBuffer"}
OBJECTS = {
    "buffer": [getattr(relive, name) for name in relive.__all__ if re.search("ReplayBuffer$", name)],
    "batch": [relive.TransitionBatch, relive.SequenceBatch, relive.TokenBatch],
    "rollout": [relive.RolloutBuffer],
}
OBJECTS["buffer"] = [cls for cls in OBJECTS["buffer"] if cls.__name__ not in WRAPPERS]

THEIRS = {
    "cpprb.md": "cpprb",
    "rllib.md": "ray.rllib.env.single_agent_episode",
    "stable_baselines3.md": "stable_baselines3",
    "tianshou.md": "tianshou",
    "torchrl.md": "torchrl",
}
THEIR_BLOCK = re.compile(r"^```py\n(.*?)^```$", re.DOTALL | re.MULTILINE)
PUT_OFF = re.compile(r"\b(not yet|planned|coming soon|in an? (later|future) (release|version))\b", re.IGNORECASE)
DENIED = re.compile(r"no counterpart|nothing|none\b", re.IGNORECASE)


def prose_of(page: pathlib.Path) -> str:
    """Return a page without its blocks."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


def codes_in(text: str) -> list[str]:
    """Return what stands between backticks."""
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def rows_of(text: str) -> Iterator[list[str]]:
    """Yield the cells of each row of the tables whose second column is relive's."""
    is_ours = False
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if not line.startswith("|"):
            is_ours = False
        elif is_ours and not line.startswith("|--"):
            yield cells
        else:
            is_ours = is_ours or cells[1:2] == ["relive"]


def said_of_relive(page: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yield each code that speaks of relive, and the cell that it stands in."""
    text = prose_of(page)
    rows = list(rows_of(text))
    for row in rows:
        for code in codes_in(row[1]):
            yield code, row[1]
    theirs = {code for row in rows for code in codes_in(row[0])}
    for code in set(codes_in(text)) - theirs:
        if re.match(rf"(relive|{'|'.join(OBJECTS)})\.", code):
            yield code, ""


def integration(name: str) -> Any:
    """Return a module of `relive.integrations`, or None where its library is not installed."""
    try:
        return importlib.import_module(f"relive.integrations.{name}")
    except errors.MissingExtraError:
        return None


def arguments_of(value: Any) -> list[str]:
    """Return the names of the arguments of a class or function; the empty list of anything else."""
    try:
        return list(inspect.signature(value).parameters)
    except (TypeError, ValueError):
        return []


def public() -> Iterator[tuple[str, Any]]:
    """Yield what relive and its integrations have, and the methods of their classes, by name."""
    owners = [(relive, relive.__all__)]
    owners += [(module, dir(module)) for name in INTEGRATIONS if (module := integration(name))]
    for owner, names in owners:
        for name in names:
            value = getattr(owner, name)
            if not name.startswith("_") and str(getattr(value, "__module__", "")).startswith("relive"):
                yield name, value
                for attribute in dir(value) if inspect.isclass(value) else ():
                    if not attribute.startswith("_"):
                        yield attribute, getattr(value, attribute)


@functools.cache
def arguments() -> set[str]:
    """Return the names of all arguments that something public takes."""
    return {name for _, value in public() for name in arguments_of(value)}


def members(owner: Any, name: str) -> list[Any]:
    """Return an attribute of a module or class as a list of one, or the empty list if it has none of that name."""
    if name.startswith("_"):
        return []
    try:
        if hasattr(owner, name):
            return [getattr(owner, name)]
        if inspect.isclass(owner) and name in arguments_of(owner) and owner in OBJECTS["batch"]:
            return [None]  # A field of a dataclass.
        if inspect.ismodule(owner) and hasattr(owner, "__path__"):
            return [importlib.import_module(f"{owner.__name__}.{name}")]
    except errors.MissingExtraError:
        pytest.skip(f"{owner.__name__}.{name} needs its library")
    except ModuleNotFoundError:
        pass
    return []


def meant_by(node: ast.expr, modules: list[Any]) -> list[Any]:
    """Return what an expression may be by the names of relive in it; the empty list if it is none of relive's.

    Raises:
        AssertionError: It is an attribute that what has it has not, or a call with arguments that are not taken.
    """
    if isinstance(node, ast.Name):
        if node.id in OBJECTS:
            return OBJECTS[node.id]
        if node.id in {"len", "relive"}:
            return [len if node.id == "len" else relive]
        owners = [*modules, *[relive] * (node.id in relive.__all__)]
        return [found for owner in owners for found in members(owner, node.id)]
    if isinstance(node, ast.Attribute):
        owners = meant_by(node.value, modules)
        found = [one for owner in owners for one in members(owner, node.attr)]
        assert found or not owners, f"{ast.unparse(node)} is not there"
        return found
    if isinstance(node, ast.Call):
        callees = meant_by(node.func, modules)
        refusals = [refusal_of(callee, node) for callee in callees]
        assert not callees or not all(refusals), f"{ast.unparse(node)}: {refusals[0]}"
        return callees
    return []


def refusal_of(callee: Any, call: ast.Call) -> str:
    """Return why something does not take the arguments of a call, or an empty string; `...` stands for any."""
    is_method = inspect.isfunction(callee) and "." in callee.__qualname__
    places = [node for node in call.args if not (isinstance(node, ast.Constant) and node.value is ...)]
    names = [keyword.arg for keyword in call.keywords if keyword.arg]
    try:
        inspect.signature(callee).bind_partial(*[None] * is_method, *places, **dict.fromkeys(names))
    except TypeError as error:
        return str(error)
    return ""


def check(code: str, modules: list[Any]) -> None:
    """Check that relive has what a code says, such as `buffer.sample(32)`, `Schema`, or `n_step=3`."""
    if re.match(r"\w+=", code):
        assert code.partition("=")[0] in arguments(), f"nothing takes {code}"
        return
    tree = ast.parse(code, mode="eval").body
    assert meant_by(tree.value if isinstance(tree, ast.Subscript) else tree, modules), f"{code} is not there"
    for node in ast.walk(tree):
        if isinstance(node, ast.expr):
            meant_by(node, modules)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_of_relive_on_a_page_exist(page: pathlib.Path) -> None:
    for code, cell in said_of_relive(page):
        modules = [integration(name) for name in re.findall(r"relive\.integrations\.(\w+)", cell)]
        if None not in modules:
            check(code, modules)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_denies_an_existing_feature(page: pathlib.Path) -> None:
    assert not PUT_OFF.findall(prose_of(page))
    ours = {name for name, _ in public()} | arguments()
    for row in rows_of(prose_of(page)):
        theirs = {re.split(r"[(=]", code)[0].rpartition(".")[2] for code in codes_in(row[0])}
        assert not DENIED.match(row[1]) or not theirs & ours, f"{row[0]} is denied, and there is {theirs & ours}"


@pytest.mark.parametrize(
    "code",
    [
        "relive.RingReplayBufer",
        "relive.integrations.torches",
        "RingReplayBuffer(capacity, n_steps=3)",
        "RingReplayBuffer(capacity, schema, 3)",
        "buffer.smaple(32)",
        "buffer.sample(batchsize=32)",
        "buffer.read(buffer.elegible_keys())",
        "batch.next_discounts",
        "batch.actions[:, None]",
        "number_of_steps=3",
        "replay_buffer(3)",
    ],
)
def test_a_missing_name_on_a_page_is_found(code: str) -> None:
    with pytest.raises(AssertionError):
        check(code, [])


def test_a_page_that_denies_an_existing_feature_is_found(tmp_path: pathlib.Path) -> None:
    for row in ["| `prefetch=2` | nothing | |", "| `HerReplayBuffer(env)`, `x.sample()` | no counterpart | |"]:
        (tmp_path / "denies.md").write_text(f"| theirs | relive | what differs |\n|---|---|---|\n{row}\n")
        with pytest.raises(AssertionError, match="is denied"):
            test_no_page_denies_an_existing_feature(tmp_path / "denies.md")
    (tmp_path / "late.md").write_text("Tensors: not yet.")
    with pytest.raises(AssertionError):
        test_no_page_denies_an_existing_feature(tmp_path / "late.md")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_code_of_installed_libraries_runs(page: pathlib.Path) -> None:
    blocks = [compile(block, page.name, "exec") for block in THEIR_BLOCK.findall(page.read_text(encoding="utf-8"))]
    if page.name in THEIRS:
        pytest.importorskip(THEIRS[page.name], reason=f"{THEIRS[page.name]} is not installed", exc_type=ImportError)
        for block in blocks:
            exec(block, {"__name__": "__main__"})
