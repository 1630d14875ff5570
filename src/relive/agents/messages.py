"""Steps from chat messages: a chat template is applied again, and what it adds after each prompt is the response.

messages   system  user  assistant  tool  assistant
step 0     p p p p p p p  a a a a                      p: tokens of the prompt, with its generation prompt
step 1     p p p p p p p p p p p p p p p p  a a a      a: tokens of the response, with the token that ends it
"""

from collections.abc import Iterable, Mapping, Sequence
import contextlib
import itertools
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from relive import errors
from relive.agents import tokens
from relive.common import validation

_OTHER = "another text"
_AROUND = 12
"""How many tokens, or characters, an error shows before and after a difference."""


class Tokenizer(Protocol):
    """A tokenizer with a chat template, such as those of transformers.

    If it has an `eos_token_id`, that ends a response. If it has a method `decode`, errors show the text of tokens.
    """

    def apply_chat_template(self, messages: Any, /, *, tokenize: bool, add_generation_prompt: bool, tools: Any) -> Any:
        """Return the token ids of messages [k], or a mapping that has them as `input_ids`."""


def steps_from_messages(
    messages: Iterable[Mapping[str, Any]],
    tokenizer: Tokenizer,
    *,
    policy_version: npt.ArrayLike,
    logprobs: Iterable[npt.ArrayLike] | None = None,
    tools: Any = None,
) -> list[tokens.TokenStep]:
    r"""Return one TokenStep for each assistant message of a conversation; O(its tokens) for each.

    The prompt of a step is the template of all earlier messages with the generation prompt, and its response what the
    template of that message adds to it: up to its last `eos_token_id` if the tokenizer has one and it is there, since
    a template may add more that was not generated, such as a newline; else all.

    A later prompt that does not continue an earlier prompt and response, since the template removes earlier reasoning,
    is no error: each step holds what the model saw, and `TokenReplayBuffer` reports the mismatch.

    Args:
        messages: Mappings with a "role", in time order; at least one has the role "assistant".
        tokenizer: Its `apply_chat_template` is called twice for each assistant message, and twice for the first that
            has content as if it had none.
        policy_version: The policy version that generated the messages of the assistant, an integer of at least 0, or
            one for each of them.
        logprobs: The log-probabilities of each response [A], a row for each assistant message. None for zeros, which
            stand for no known probability: recompute them before you use importance weights.
        tools: Passed to the template.

    Raises:
        ArgumentTypeError: A message is not a mapping with a role, the tokenizer has no `apply_chat_template`, this
            does not return a row of integers, or an argument has the wrong type.
        ArgumentError: There is no assistant message, the template of one raises, does not begin with its prompt or
            leaves out its content, as templates for lists of parts do with a text, its response is empty, or an
            argument has another length or is invalid. The error has the number of the message, from 0.

    >>> import relive
    >>> class Bytes:
    ...     eos_token_id = 10
    ...
    ...     def apply_chat_template(self, messages, *, tokenize, add_generation_prompt, tools):
    ...         text = "".join(f"{each['role'][0]}:{each['content']}\n" for each in messages)
    ...         return list((text + "a:" * add_generation_prompt).encode())
    >>> messages = [{"role": "user", "content": "2+2"}, {"role": "assistant", "content": "4"}]
    >>> [step] = relive.steps_from_messages(messages, Bytes(), policy_version=0)
    >>> bytes(step.prompt.tolist()), bytes(step.response.tolist())
    (b'u:2+2\na:', b'4\n')
    """
    if not callable(getattr(tokenizer, "apply_chat_template", None)):
        shown = validation.short_repr(tokenizer)
        raise errors.ArgumentTypeError(f"tokenizer must have a method apply_chat_template, got {shown}")
    given = validation.items("messages", messages, "mappings with a role")
    for number, message in enumerate(given):
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            shown = validation.short_repr(message)
            raise errors.ArgumentTypeError(f"message {number} must be a mapping with a role, got {shown}")
    numbers = [number for number, message in enumerate(given) if message["role"] == "assistant"]
    if not numbers:
        raise errors.ArgumentError("messages must have at least 1 message of the assistant, got 0")
    single = validation.array_of(policy_version)
    is_single = single is not None and single.ndim == 0
    versions = [policy_version] * len(numbers) if is_single else _for_each("policy_version", policy_version, numbers)
    rows: list[Any] = [None] * len(numbers) if logprobs is None else _for_each("logprobs", logprobs, numbers)
    steps: list[tokens.TokenStep] = []
    without: list[tokens.Tokens] = []
    for number, version, row in zip(numbers, versions, rows, strict=True):
        try:
            prompt, response = _turn(given[: number + 1], tokenizer, tools)
            content = given[number].get("content")
            if isinstance(content, str) and content.strip() not in ("", _OTHER):
                without = without or _responses_without_text(given[:number], tokenizer, tools)
                if any(np.array_equal(response, each) for each in without):
                    rule = "the template must render the content of the message of the role 'assistant', got nothing of"
                    remedy = "some templates take a list of parts, [{'type': 'text', 'text': ...}], and no text"
                    raise errors.ArgumentError(f"{rule} {validation.short_repr(content)}: {remedy}")
            values = [0.0] * len(response) if logprobs is None else row
            steps.append(tokens.TokenStep(prompt=prompt, response=response, logprobs=values, policy_version=version))
        except errors.ArgumentError as error:
            raise type(error)(f"message {number}: {error}") from error
    return steps


def _for_each(name: str, values: Any, numbers: Sequence[int]) -> list[Any]:
    """Return as many values as there are assistant messages."""
    found = validation.items(name, values, "values, one for each assistant message")
    if len(found) != len(numbers):
        shown = validation.short_repr(numbers)
        raise errors.ArgumentError(f"{name} must be one for each of the assistant messages {shown}, got {len(found)}")
    return found


def _turn(messages: list[Any], tokenizer: Any, tools: Any) -> tuple[tokens.Tokens, tokens.Tokens]:
    """Return the prompt and the response of the last of the messages."""

    def template(count: int, add_generation_prompt: bool, tokenize: bool = True) -> Any:
        options = {"tokenize": tokenize, "add_generation_prompt": add_generation_prompt, "tools": tools}
        try:
            return tokenizer.apply_chat_template(messages[:count], **options)
        except Exception as error:
            number = _refused(messages[:count], tokenizer, tools, error)
            text = " ".join(f"{type(error).__name__}: {error}".split())
            rule = f"the template must render message {number} of the role {messages[number]['role']!r}"
            raise errors.ArgumentError(f"{rule}, got {text}") from error

    def token_ids(count: int, add_generation_prompt: bool) -> tokens.Tokens:
        found = template(count, add_generation_prompt)
        found = found.get("input_ids") if isinstance(found, Mapping) else found
        return tokens.row_of_tokens("the result of apply_chat_template", found)

    sides = (len(messages) - 1, True), (len(messages), False)
    prompt, whole = (token_ids(*side) for side in sides)
    if not np.array_equal(whole[: len(prompt)], prompt):
        position, *shown = _difference(prompt.tolist(), whole.tolist())
        if callable(getattr(tokenizer, "decode", None)):
            shown = [tokenizer.decode(each) for each in shown]
        else:
            with contextlib.suppress(Exception):  # One that gives no text must not hide what is wrong.
                texts = [template(*side, tokenize=False) for side in sides]
                if all(isinstance(text, str) for text in texts):
                    _, *shown = _difference(*texts)
        rule = "the template must begin with the prompt of the message, with its generation prompt"
        raise errors.ArgumentError(f"{rule}, got {shown[1]!r} instead of {shown[0]!r} at position {position}")
    response, end = whole[len(prompt) :], getattr(tokenizer, "eos_token_id", None)
    if isinstance(end, int) and end in response:
        response = response[: np.flatnonzero(response == end)[-1] + 1]
    return prompt, response


def _responses_without_text(messages: list[Any], tokenizer: Any, tools: Any) -> list[tokens.Tokens]:
    """Return what a response is that has lost its text: an end token alone, or what it would be with another text."""
    responses = [np.array([getattr(tokenizer, "eos_token_id", None)])]
    with contextlib.suppress(errors.ArgumentError):
        responses.append(_turn([*messages, {"role": "assistant", "content": _OTHER}], tokenizer, tools)[1])
    return responses


def _refused(messages: list[Any], tokenizer: Any, tools: Any, error: Exception) -> int:
    """Return the number of the first message with which the template raises this error."""
    for count in range(1, len(messages)):
        try:
            tokenizer.apply_chat_template(messages[:count], tokenize=False, add_generation_prompt=False, tools=tools)
        except Exception as other:
            if (type(other), str(other)) == (type(error), str(error)):
                return count - 1
    return len(messages) - 1


def _difference(first: Any, second: Any) -> tuple[int, Any, Any]:
    """Return the first place where two sequences differ, or 0, and what is around it in both."""
    pairs = itertools.zip_longest(first, second)
    place = next((place for place, (own, other) in enumerate(pairs) if own != other), 0)
    around = slice(max(place - _AROUND, 0), place + _AROUND)
    return place, first[around], second[around]
