"""Options of Ray that belong to the fleet are refused before Ray is asked for anything, so no Ray is needed."""

import importlib
import sys
import types
from typing import Any

import pytest

import relive
from relive import errors
from relive import integrations

WHY = {
    "name": "it finds its actors by their names",
    "namespace": "give namespace to start",
    "get_if_exists": "give get_if_exists to start",
    "lifetime": "a fleet with a name is detached",
    "max_restarts": "Ray restarts its processes for ever",
    "max_task_retries": "it repeats calls itself, so that nothing is stored twice",
    "max_concurrency": "calls run one at a time",
    "concurrency_groups": "calls run one at a time",
    "allow_out_of_order_execution": "calls run in the order in which they are made",
    "max_pending_calls": "calls beyond it fail before they are tried",
}


@pytest.fixture
def start(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return `start` of a fleet on a Ray that can do nothing."""
    fake: Any = types.ModuleType("ray")
    fake.exceptions = types.ModuleType("ray.exceptions")
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setitem(sys.modules, "ray.exceptions", fake.exceptions)
    monkeypatch.delitem(sys.modules, "relive.integrations.ray", raising=False)
    monkeypatch.setattr(integrations, "ray", None, raising=False)
    module: Any = importlib.import_module("relive.integrations.ray")
    del sys.modules["relive.integrations.ray"]
    assert module._OURS == WHY
    return module.ShardedReplay.start


@pytest.mark.parametrize("setting", ["actor_options", "coordinator_options"])
@pytest.mark.parametrize("option", WHY)
def test_options_that_belong_to_the_fleet_are_refused(start: Any, setting: str, option: str) -> None:
    """P151: with max_pending_calls=1, 30 of 40 steps were lost."""
    rule = f"^{setting} must leave {option} to the fleet \\({WHY[option]}\\), got {option}=1$"
    with pytest.raises(errors.ArgumentError, match=rule):
        start(lambda: relive.RingReplayBuffer(9), **{setting: {"num_cpus": 1, option: 1}})


@pytest.mark.parametrize("setting", ["actor_options", "coordinator_options"])
@pytest.mark.parametrize("wrong", [3, 0, "num_cpus", [("num_cpus", 1)]])
def test_options_that_are_no_mapping_are_refused(start: Any, setting: str, wrong: Any) -> None:
    with pytest.raises(errors.ArgumentTypeError, match=f"^{setting} must be an instance of Mapping, got "):
        start(lambda: relive.RingReplayBuffer(9), **{setting: wrong})
