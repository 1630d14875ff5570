"""What a notebook shows of buffers."""

import numpy as np

import relive


def test_a_buffer_shows_its_fields_once_they_are_known() -> None:
    buffer = relive.RingReplayBuffer(1_000, seed=0)
    assert buffer._repr_html_() == f"<div>&lt;{repr(buffer)[1:-1]}&gt;</div>"
    buffer.add({"a<b": np.zeros((84, 84), np.uint8)}, 0, 1.0)
    shown = buffer._repr_html_()
    assert "RingReplayBuffer of 1 steps, capacity=1000" in shown
    assert "<td>observation/a&lt;b<td>uint8<td>1,000 x 84 x 84<td>7,056,000" in shown
    assert "<td>reward<td>float64<td>1,000<td>8,000" in shown


def test_a_joint_buffer_shows_the_fields_of_each_agent() -> None:
    buffer = relive.JointReplayBuffer(10, agents=["left", "right"], seed=0)
    buffer.add({"left": [0.0]}, {"left": 0}, {"left": 1.0}, {"left": [1.0]})
    shown = buffer._repr_html_()
    assert "left/observation" in shown
    assert "right/" not in shown


def test_a_buffer_of_objects_shows_its_line_alone() -> None:
    buffer: relive.EpisodeReplayBuffer[str, str] = relive.EpisodeReplayBuffer(max_transitions=10)
    assert "<table>" not in buffer._repr_html_()
    assert "max_transitions=10" in buffer._repr_html_()


def test_a_batch_shows_its_fields() -> None:
    buffer = relive.RingReplayBuffer(10, seed=0)
    buffer.add({"image": np.zeros((2, 3), np.uint8)}, 0, 1.0, {"image": np.zeros((2, 3), np.uint8)})
    batch = buffer.sample(5)
    shown = batch._repr_html_()
    assert shown.startswith("<div>&lt;TransitionBatch of 5&gt;<table>")
    assert "<td>observation/image<td>uint8<td>5 x 2 x 3<td>30" in shown
    assert "<td>keys<td>int64<td>5<td>40" in shown
