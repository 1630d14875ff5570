"""Tests of steps from chat messages, with templates of several kinds and a naive twin that builds tokens by hand."""

from collections.abc import Callable
import json
import re
from typing import Any

import hypothesis
from hypothesis import strategies as st
import numpy as np
import pytest

import relive
from relive import errors
from relive.common import validation_test

SPECIAL = ["<start>", "<end>"]
START, END = 200, 201


def encode(text: str) -> list[int]:
    """Return one token for each character, or special token."""
    pieces = re.findall("|".join([*SPECIAL, "."]), text, re.DOTALL)
    return [START + SPECIAL.index(piece) if piece in SPECIAL else ord(piece) for piece in pieces]


def say(*pairs: str) -> list[dict[str, str]]:
    """Return messages from texts such as "user: hi"."""
    return [dict(zip(("role", "content"), pair.split(": "), strict=True)) for pair in pairs]


class Plain:
    """A template without tokens that end a message: [user]hi[assistant]yo."""

    prompt = "[assistant]"

    def apply_chat_template(
        self, messages: Any, tokenize: bool = True, add_generation_prompt: bool = False, tools: Any = None
    ) -> Any:
        assert type(messages) is list
        text = self.rendered(messages, tools) + self.prompt * add_generation_prompt
        return encode(text) if tokenize else text

    def rendered(self, messages: list[Any], tools: Any) -> str:
        return "".join(f"[{each['role']}]{each['content']}" for each in messages)


class ChatML(Plain):
    """The template of ChatML, which adds a newline after the token that ends a message."""

    prompt = "<start>assistant\n"
    eos_token_id = END

    def rendered(self, messages: list[Any], tools: Any) -> str:
        tools_text = "" if tools is None else f"<start>system\n{json.dumps(tools)}<end>\n"
        return tools_text + "".join(f"<start>{each['role']}\n{each['content']}<end>\n" for each in messages)


class Forgetful(ChatML):
    """A template that removes the reasoning of what comes before the last message of the user."""

    def rendered(self, messages: list[Any], tools: Any) -> str:
        last = max(place for place, each in enumerate(messages) if each["role"] == "user")
        kept = [
            {**each, "content": re.sub("{.*}", "", each["content"])} if place < last else each
            for place, each in enumerate(messages)
        ]
        return super().rendered(kept, tools)


class Reasoning(Plain):
    """A template that begins the reasoning in its generation prompt, and removes it from every message."""

    prompt = "[assistant]{"

    def rendered(self, messages: list[Any], tools: Any) -> str:
        return re.sub("{.*}", "", super().rendered(messages, tools))


class ReasoningTokens(Reasoning):
    """One that has tokens alone, not their text."""

    def apply_chat_template(
        self, messages: Any, tokenize: bool = True, add_generation_prompt: bool = False, tools: Any = None
    ) -> Any:
        return super().apply_chat_template(messages, True, add_generation_prompt, tools)


class ReasoningWithoutText(Reasoning):
    """One that cannot render text."""

    def apply_chat_template(
        self, messages: Any, tokenize: bool = True, add_generation_prompt: bool = False, tools: Any = None
    ) -> Any:
        assert tokenize
        return super().apply_chat_template(messages, True, add_generation_prompt, tools)


class ReasoningDecoded(Reasoning):
    """One that returns the text of tokens."""

    def decode(self, tokens: list[int]) -> str:
        assert all(type(token) is int for token in tokens)
        return "".join(map(chr, tokens)).upper()


class Given(Plain):
    """Returns what a function makes of the token ids."""

    def __init__(self, function: Callable[[list[int]], Any]) -> None:
        self.function = function

    def apply_chat_template(self, *arguments: Any, **options: Any) -> Any:
        return self.function(super().apply_chat_template(*arguments, **options))


def texts(steps: list[relive.TokenStep]) -> list[tuple[str, str]]:
    return [("".join(map(chr, step.prompt)), "".join(map(chr, step.response))) for step in steps]


MESSAGES = st.lists(st.tuples(st.sampled_from(["assistant", "user", "tool"]), st.text("ab<\n", max_size=4)), max_size=8)


@hypothesis.given(pairs=MESSAGES, seed=st.integers(0, 9), tools=st.sampled_from([None, [{"name": "add"}]]))
def test_steps_are_those_built_by_hand(pairs: list[tuple[str, str]], seed: int, tools: Any) -> None:
    pairs = [("system", "x"), *pairs, ("assistant", "b"), ("user", "z")]
    seen = [] if tools is None else [START, *b"system\n", *json.dumps(tools).encode(), END, 10]
    expected, logprobs, versions = [], [], []
    rng = np.random.default_rng(seed)
    for role, content in pairs:
        head, body = [START, *role.encode(), 10], [*content.encode(), END]
        if role == "assistant":
            logprobs.append(-rng.random(len(body), np.float32))
            versions.append(int(rng.integers(5)))
            expected.append((seen + head, body, logprobs[-1].tolist(), [versions[-1]] * len(body)))
        seen = [*seen, *head, *body, 10]
    messages = [{"role": role, "content": content} for role, content in pairs]
    own = np.array(versions) if seed % 2 else versions
    steps = relive.steps_from_messages(messages, ChatML(), policy_version=own, logprobs=logprobs, tools=tools)
    found = [
        (step.prompt.tolist(), step.response.tolist(), step.logprobs.tolist(), step.policy_version.tolist())
        for step in steps
    ]
    assert all(step.loss_mask.all() and step.reward == 0 for step in steps)
    assert found == expected
    buffer = relive.TokenReplayBuffer(max_tokens=10_000, seed=0)
    assert len(buffer.add_episode(steps, agent_id="a")) == 1  # The newline is part of the next prompt.
    assert buffer.read(np.arange(1)).loss_mask.sum() == sum(map(len, logprobs))


def test_the_response_ends_at_the_last_end_token() -> None:
    [step] = relive.steps_from_messages(say("user: u", "assistant: a<end>b"), ChatML(), policy_version=0)
    assert step.response.tolist() == [ord("a"), END, ord("b"), END]


def test_without_an_end_token_all_that_is_added_is_response() -> None:
    messages = say("user: u", "assistant: a")
    for other in (None, 7, [END], "<end>"):
        tokenizer = ChatML()
        tokenizer.eos_token_id = other  # type: ignore[assignment]
        [step] = relive.steps_from_messages(messages, tokenizer, policy_version=0)
        assert step.response.tolist() == [ord("a"), END, 10]


def test_a_later_prompt_may_drop_earlier_reasoning() -> None:
    messages = say("user: u", "assistant: {hm}a", "tool: t", "assistant: {so}b", "user: v", "assistant: {ok}c")
    steps = relive.steps_from_messages(messages, Forgetful(), policy_version=0)
    assert [step.response.tolist() for step in steps] == [[*each, END] for each in (b"{hm}a", b"{so}b", b"{ok}c")]
    assert steps[2].prompt.tolist() == encode(
        ChatML().rendered(say("user: u", "assistant: a", "tool: t", "assistant: b", "user: v"), None)
        + "<start>assistant\n"
    )
    buffer = relive.TokenReplayBuffer(max_tokens=10_000, seed=0)
    buffer.add_episode(steps, agent_id="a")
    batch = buffer.read(np.arange(2))
    first = len(steps[0].prompt)
    assert [each and (each.step, each.position, each.expected, each.found) for each in batch.mismatches] == [
        None,
        (2, first, ord("{"), ord("a")),
    ]


@pytest.mark.parametrize(
    "function",
    [
        lambda ids: {"input_ids": ids, "attention_mask": [1] * len(ids)},
        lambda ids: np.array(ids, np.int64),
        tuple,
        lambda ids: {"input_ids": np.array(ids, np.uint16)},
        lambda ids: validation_test.Tensor(ids),
    ],
)
def test_tokenizers_may_return_mappings_and_arrays(function: Any) -> None:
    messages = say("user: u", "assistant: a", "user: v", "assistant: bc")
    steps = relive.steps_from_messages(messages, Given(function), policy_version=0)
    assert texts(steps) == texts(relive.steps_from_messages(messages, Plain(), policy_version=0))


class Parts(ChatML):
    """A template that takes lists of parts alone, and renders nothing of a text; as of some models with images."""

    def rendered(self, messages: list[Any], tools: Any) -> str:
        def text(content: Any) -> str:
            assert content  # They look at the first part.
            return "".join(each["text"] for each in content if isinstance(each, dict))

        return super().rendered([{**each, "content": " " + text(each["content"])} for each in messages], tools)


class Strict(Parts):
    """One that raises for a text, and for a conversation without a user."""

    def rendered(self, messages: list[Any], tools: Any) -> str:
        if all(each["role"] != "user" for each in messages):
            raise ValueError("no user")
        if any(isinstance(each["content"], str) for each in messages):
            raise KeyError("text\nof a str")
        return super().rendered(messages, tools)


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


@pytest.mark.parametrize(("end", "count"), [(END, 3), (None, 4)])
def test_content_that_a_template_leaves_out_is_refused(end: Any, count: int) -> None:
    tokenizer = Parts()
    tokenizer.eos_token_id = end
    messages: list[Any] = [*say("user: u"), {"role": "assistant", "content": parts("a")}, *say("user: v")]
    assert texts(relive.steps_from_messages(messages, tokenizer, policy_version=0))[0][1][:2] == " a"
    rule = "the template must render the content of the message of the role 'assistant', got nothing of 'bc': some .*"
    with pytest.raises(errors.ArgumentError, match=f"^message 3: {rule}$"):
        relive.steps_from_messages([*messages, *say("assistant: bc")], tokenizer, policy_version=0)
    with pytest.raises(errors.ArgumentError, match=f"^message 3: {rule}$"):
        relive.steps_from_messages(
            [*messages, *say("assistant: bc")], tokenizer, policy_version=0, logprobs=[[-1.0] * count, []]
        )


class Removing(ChatML):
    """A template that removes all reasoning."""

    def rendered(self, messages: list[Any], tools: Any) -> str:
        return re.sub("{.*}", "", super().rendered(messages, tools))


def test_a_response_that_lost_its_content_is_refused_in_any_turn() -> None:
    messages = say("user: u", "assistant: a", "user: v", "assistant: {hm}")
    with pytest.raises(errors.ArgumentError, match="^message 3: the template must render .*, got nothing of '{hm}': "):
        relive.steps_from_messages(messages, Removing(), policy_version=0)


@pytest.mark.parametrize("content", [" ", [{"type": "image", "text": ""}]])
def test_a_message_without_content_may_be_an_end_token(content: Any) -> None:
    messages = [*say("user: u"), {"role": "assistant", "content": content}]
    [step] = relive.steps_from_messages(messages, Parts(), policy_version=0)
    assert step.response.tolist() == [ord(" "), END]


@pytest.mark.parametrize(("text", "number"), [("user: s", 0), ("tool: t", 2), ("assistant: a", 3)])
def test_an_error_of_a_template_names_the_message(text: str, number: int) -> None:
    messages: list[Any] = [{"role": role, "content": parts("x")} for role in ("system", "user", "user", "assistant")]
    [messages[number]] = say(text)
    role = messages[number]["role"]
    rule = f"the template must render message {number} of the role '{role}', got KeyError: .text.nof a str."
    with pytest.raises(errors.ArgumentError, match=rf"^message 3: {rule}$") as caught:
        relive.steps_from_messages(messages, Strict(), policy_version=0)
    assert isinstance(caught.value.__cause__.__cause__, KeyError)  # type: ignore[union-attr]


def test_an_error_of_a_whole_conversation_names_its_end() -> None:
    with pytest.raises(errors.ArgumentError, match="^message 0: .* of the role 'assistant', got ValueError: no user$"):
        relive.steps_from_messages(say("assistant: a"), Strict(), policy_version=0)


def test_messages_may_be_any_iterable_of_mappings() -> None:
    messages = say("user: u", "assistant: a")
    [step] = relive.steps_from_messages(iter(messages), Plain(), policy_version=np.int64(2), logprobs=iter([[-0.5]]))
    assert (step.response.tolist(), step.logprobs.tolist()) == ([ord("a")], [-0.5])
    assert step.policy_version.tolist() == [2]


def test_logprobs_that_are_not_given_are_zeros_of_any_dtype() -> None:
    steps = relive.steps_from_messages(say("user: u", "assistant: ab"), Plain(), policy_version=0)
    buffer = relive.TokenReplayBuffer(max_tokens=100, seed=0)
    batch = buffer.read(buffer.add_episode(steps, agent_id="a"))
    assert batch.logprobs.dtype == np.float32
    assert batch.logprobs.tolist() == [[0.0] * batch.tokens.shape[1]]


BEGIN = "message 1: the template must begin with the prompt of the message, with its generation prompt, got "


@pytest.mark.parametrize(
    ("tokenizer", "text"),
    [
        (Reasoning(), "'u[assistant]abcdefghijkl' instead of 'u[assistant]{' at position 18"),
        (ReasoningDecoded(), "'U[ASSISTANT]ABCDEFGHIJKL' instead of 'U[ASSISTANT]{' at position 18"),
        (ReasoningWithoutText(), f"{[*b'u[assistant]abcdefghijkl']} instead of {[*b'u[assistant]{']} at position 18"),
        (ReasoningTokens(), f"{[*b'u[assistant]abcdefghijkl']} instead of {[*b'u[assistant]{']} at position 18"),
    ],
)
def test_a_template_that_leaves_its_prompt_is_refused(tokenizer: Any, text: str) -> None:
    with pytest.raises(errors.ArgumentError, match=f"^{re.escape(BEGIN + text)}$"):
        relive.steps_from_messages(say("user: u", "assistant: {hm}abcdefghijklmno"), tokenizer, policy_version=0)


def test_a_template_shorter_than_its_prompt_is_refused() -> None:
    messages = say("user: u", "assistant: a", "user: v", "assistant: {hm}")
    with pytest.raises(errors.ArgumentError, match=r"^message 1: .*, got .* instead of .* at position 18$"):
        relive.steps_from_messages(messages, Reasoning(), policy_version=0)
    with pytest.raises(errors.ArgumentError, match=r"^message 1: .*, got '.*\]' instead of '.*\]{' at position 18$"):
        relive.steps_from_messages(say("user: u", "assistant: {hm}"), Reasoning(), policy_version=0)


def test_tokens_that_differ_for_one_text_are_refused() -> None:
    class Unsteady(Plain):
        prompt = ""

        def apply_chat_template(self, messages: Any, tokenize: bool = True, *_: Any, **options: Any) -> Any:
            return [len(messages)] if tokenize else "same" * 10

    with pytest.raises(
        errors.ArgumentError, match=r"^message 1: .*, got 'samesamesame' instead of 'samesamesame' at position 0$"
    ):
        relive.steps_from_messages(say("user: u", "assistant: a"), Unsteady(), policy_version=0)


DIALOGUE = say("user: u", "assistant: ab", "user: v", "assistant: c")


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"messages": say("user: u")}, "messages must have at least 1 message of the assistant, got 0"),
        ({"messages": []}, "messages must have at least 1 message of the assistant, got 0"),
        ({"messages": "hi"}, "messages must be a list of mappings with a role, got 'hi'"),
        ({"messages": 3}, "messages must be a list of mappings with a role, got 3"),
        ({"messages": DIALOGUE[1]}, "message 0 must be a mapping with a role, got 'role'"),
        ({"messages": [*DIALOGUE, None]}, "message 4 must be a mapping with a role, got None"),
        ({"messages": [{"content": "a"}]}, "message 0 must be a mapping with a role, got {'content': 'a'}"),
        ({"messages": [{"role": 1}]}, "message 0 must be a mapping with a role, got {'role': 1}"),
        ({"messages": say("user: u", "assistant: ")}, "message 1: response must have at least 1 token, got 0"),
        ({"tokenizer": "gpt"}, "tokenizer must have a method apply_chat_template, got 'gpt'"),
        ({"tokenizer": None}, "tokenizer must have a method apply_chat_template, got None"),
        (
            {"tokenizer": Given(lambda ids: "[user]u")},
            "message 1: the result of apply_chat_template must be a row of integers, got '[user]u'",
        ),
        (
            {"tokenizer": Given(lambda ids: {"tokens": ids})},
            "message 1: the result of apply_chat_template must be a row of integers, got None",
        ),
        (
            {"tokenizer": Given(lambda ids: [ids[:2]])},
            "message 1: the result of apply_chat_template must be a row of integers, got [[91, 117]]",
        ),
        (
            {"tokenizer": Given(lambda ids: [0.5, 1.0])},
            "message 1: the result of apply_chat_template must be a row of integers, got [0.5, 1.0]",
        ),
        (
            {"tokenizer": Given(lambda ids: [1, -2])},
            "message 1: the result of apply_chat_template must be integers in [0, 2147483647], got -2 at position 1",
        ),
        ({"logprobs": [[-1.0, -1.0]]}, "logprobs must be one for each of the assistant messages [1, 3], got 1"),
        ({"logprobs": [[-1.0]] * 3}, "logprobs must be one for each of the assistant messages [1, 3], got 3"),
        ({"logprobs": 5}, "logprobs must be a list of values, one for each assistant message, got 5"),
        (
            {"logprobs": [[-1.0, -1.0], [-1.0, -2.0]]},
            "message 3: logprobs must be one for each of 1 tokens of the response, got 2",
        ),
        ({"logprobs": [None, [-1.0]]}, "message 1: logprobs must be a row of floats, got None"),
        ({"policy_version": [1]}, "policy_version must be one for each of the assistant messages [1, 3], got 1"),
        ({"policy_version": -1}, "message 1: policy_version must be at least 0, got -1"),
        ({"policy_version": [1, "x"]}, "message 3: policy_version must be an integer of at least 0, got 'x'"),
    ],
)
def test_arguments_of_steps_from_messages_are_checked(arguments: dict[str, Any], text: str) -> None:
    defaults: dict[str, Any] = {"messages": DIALOGUE, "tokenizer": Plain(), "policy_version": 0}
    with pytest.raises(errors.ArgumentError, match=f"^{re.escape(text)}$"):
        relive.steps_from_messages(**defaults | arguments)


def test_errors_of_a_message_keep_their_class() -> None:
    given: list[Any] = [([["x"] * 2, [-1.0]], errors.ArgumentTypeError), ([[-1.0], [-1.0]], errors.ArgumentError)]
    for logprobs, kind in given:
        with pytest.raises(errors.ArgumentError) as caught:
            relive.steps_from_messages(DIALOGUE, Plain(), policy_version=0, logprobs=logprobs)
        assert type(caught.value) is kind


def test_tokenizers_of_transformers_give_steps() -> None:
    transformers, tokenizers = pytest.importorskip("transformers"), pytest.importorskip("tokenizers")
    pytest.importorskip("jinja2")
    byte_level = tokenizers.pre_tokenizers.ByteLevel
    vocabulary = {character: place for place, character in enumerate(sorted(byte_level.alphabet()))}
    # The one merge runs over the end of the second template's generation prompt.
    merges = [("h", "i")]
    model = tokenizers.models.BPE(vocab={**vocabulary, "hi": len(vocabulary)}, merges=merges)
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = byte_level(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|im_end|>", additional_special_tokens=["<|im_start|>"]
    )
    tokenizer.chat_template = (
        "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    messages = say("user: hi", "assistant: hi, I call", "tool: 4", "assistant: it is 4")
    tools = [{"type": "function", "function": {"name": "add"}}]
    steps = relive.steps_from_messages(messages, tokenizer, policy_version=1, tools=tools)
    decoded = [(tokenizer.decode(step.prompt), tokenizer.decode(step.response)) for step in steps]
    system = f"<|im_start|>system\n{json.dumps(tools)}<|im_end|>\n"
    first = system + "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    second = first + "hi, I call<|im_end|>\n<|im_start|>tool\n4<|im_end|>\n<|im_start|>assistant\n"
    assert decoded == [(first, "hi, I call<|im_end|>"), (second, "it is 4<|im_end|>")]
    buffer = relive.TokenReplayBuffer(max_tokens=1000, seed=0)
    assert len(buffer.add_episode(steps, agent_id="a")) == 1
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% endfor %}{% if add_generation_prompt %}h{% endif %}"
    )
    with pytest.raises(errors.ArgumentError, match=r"^message 1: .*, got '4hi' instead of '4h' at position 1$"):
        relive.steps_from_messages(say("user: 4", "assistant: hi"), tokenizer, policy_version=1)
