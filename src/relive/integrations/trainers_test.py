"""Batches of tokens through verl's DataProto and TransferQueue and back; each is run where the library is installed."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("tensordict")

import torch

import relive
from relive.integrations import tensordict_test
from relive.integrations import torch as relive_torch


class Config:
    """What an estimator of verl reads."""

    gamma = 1.0


CASES = pytest.mark.parametrize(("nested", "has_extras"), [(False, True), (True, True), (False, False), (True, False)])


def batch_of(has_extras: bool, count: int = 3) -> relive.TokenBatch:
    batch = tensordict_test.inexact()[:count]
    batch.metadata = tuple({"answer": "42", "image": [row, None]} for row in range(count))
    batch.extras = batch.extras if has_extras else {}
    return batch


@CASES
@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_goes_through_a_data_proto_and_comes_back(nested: bool, has_extras: bool, count: int) -> None:
    protocol = pytest.importorskip("verl.protocol", reason="verl is not installed")
    batch = batch_of(has_extras, count)
    proto = protocol.DataProto.from_tensordict(relive_torch.as_tensordict(batch, nested=nested))
    tensordict_test.check_equal(relive_torch.from_tensordict(proto.to_tensordict()), batch)
    if not nested:
        last = proto.select_idxs([count - 1]).to_tensordict()
        tensordict_test.check_equal(relive_torch.from_tensordict(last), batch[count - 1 :])


def test_advantages_are_those_of_verl() -> None:
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")
    rewards, groups = [1.0, 0.0, 0.0, 0.0, 0.5, 0.5], np.array(["p"] * 4 + ["q"] * 2)
    mask = torch.ones(6, 1, dtype=torch.float64)
    theirs, _ = core_algos.compute_grpo_outcome_advantage(
        torch.tensor(rewards, dtype=torch.float64)[:, None], mask, groups
    )
    ours = relive.group_advantages(rewards, groups, normalize="mean_std", epsilon=1e-6)
    np.testing.assert_allclose(ours, theirs[:, 0], rtol=1e-12)


@pytest.mark.parametrize("estimator", ["gae", "reinforce_plus_plus"])
def test_verl_learns_nothing_from_a_reward_outside_of_the_mask(estimator: str) -> None:
    core_algos = pytest.importorskip("verl.trainer.ppo.core_algos", reason="verl is not installed")
    mask = torch.tensor([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0]])  # The last token is of a tool.

    def advantages(rewards: list[list[float]]) -> list[list[float]]:
        values = {"values": torch.zeros(2, 3), "lam": 1.0} if estimator == "gae" else {"config": Config()}
        options = {"token_level_rewards": torch.tensor(rewards), "response_mask": mask, "gamma": 1.0}
        found, _ = core_algos.get_adv_estimator_fn(estimator)(**options, **values)
        return [row[:2] for row in found.tolist()]

    assert advantages([[0.0, 0.0, 1.0], [0.0, 0.0, 0.0]]) == [[0.0, 0.0], [0.0, 0.0]]
    moved = advantages([[0.0, 1.0, 0.0], [0.0, 0.0, 0.0]])
    assert min(moved[0]) > 0 > max(moved[1])


@pytest.fixture(scope="module")
def queue() -> Iterator[Any]:
    transfer_queue = pytest.importorskip("transfer_queue", reason="transfer_queue is not installed")
    ray, omegaconf = pytest.importorskip("ray"), pytest.importorskip("omegaconf")
    ray.init(include_dashboard=False, num_cpus=4, log_to_driver=False, logging_level="ERROR")
    transfer_queue.init(omegaconf.OmegaConf.create({"backend": {"SimpleStorage": {"num_data_storage_units": 1}}}))
    yield transfer_queue
    transfer_queue.close()
    ray.shutdown()


@CASES
@pytest.mark.parametrize("count", [1, 3])
def test_a_batch_goes_through_a_transfer_queue(queue: Any, nested: bool, has_extras: bool, count: int) -> None:
    batch = batch_of(has_extras, count)
    keys = [f"{nested} {has_extras} {count} {row}" for row in range(count)]
    queue.kv_batch_put(keys=keys, partition_id="p", fields=relive_torch.as_tensordict(batch, nested=nested))
    tensordict_test.check_equal(relive_torch.from_tensordict(queue.kv_batch_get(keys=keys, partition_id="p")), batch)
    last = relive_torch.from_tensordict(queue.kv_batch_get(keys=keys[-1:], partition_id="p"))
    tensordict_test.check_equal(last.tokens, batch[count - 1 :].tokens)
