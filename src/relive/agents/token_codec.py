"""TokenSteps as bytes, so that buffers and journals of episodes keep them.

    0                  a byte that no content of a PlainCodec begins with: what follows is a TokenStep
    plain-1 content    (prompt, answer, log_probabilities, policy_version, loss_mask, reward), a tuple

Anything else is as a PlainCodec has it.
"""

from typing import Any

from relive import errors
from relive.agents import token_step
from relive.common import validation
from relive.persistence import codec

_MARK = b"\0"
_NAMES = ("prompt", "answer", "log_probabilities", "policy_version", "loss_mask", "reward")


class TokenStepCodec:
    """Writes TokenSteps, and all that a PlainCodec writes; give it as `codec` to save, load, attach and recover.

    A step comes back bit for bit, and checked as a new one is. One within a list or dict is refused.

    >>> import relive
    >>> codec = relive.TokenStepCodec()
    >>> step = relive.TokenStep(prompt=[1, 5], answer=[7], log_probabilities=[-0.5], policy_version=0)
    >>> codec.decode(codec.encode(step))
    <TokenStep of a prompt of 2 tokens and an answer of 1, reward=0.0>
    """

    name = "token-steps-1"

    def __init__(self) -> None:
        self._plain = codec.PlainCodec()

    def encode(self, value: Any) -> bytes:
        """Answers the bytes of a value.

        Raises:
            ArgumentError: It is no TokenStep, and a PlainCodec does not write it.
        """
        if type(value) is token_step.TokenStep:
            return _MARK + self._plain.encode(tuple(getattr(value, name) for name in _NAMES))
        return self._plain.encode(value)

    def decode(self, content: bytes) -> Any:
        """Answers the value of the bytes, whoever wrote them.

        Raises:
            ArgumentTypeError: `content` is no bytes.
            CheckpointError: `encode` does not write such bytes.
        """
        if type(content) is not bytes or not content.startswith(_MARK):
            return self._plain.decode(content)
        values = self._plain.decode(content[1:])
        if type(values) is not tuple or len(values) != len(_NAMES):
            raise errors.CheckpointError(f"a TokenStep must be {', '.join(_NAMES)}, got {validation.shown(values)}")
        try:
            return token_step.TokenStep(**dict(zip(_NAMES, values, strict=True)))
        except errors.ArgumentError as error:
            raise errors.CheckpointError(f"a TokenStep cannot be made: {error}") from error
