"""Prompts: text, messages, ids or a tensor, one or a list of them; anything else is refused with a reason."""

from typing import Any

import numpy as np
import pytest
import torch

from specdec import RequestError
from specdec.requests.prompts import as_list, encode
from tests.support.byte_tokenizer import trained

VOCAB = 10
FORMS = "text, chat messages ({'role': …, 'content': …}), token ids or a tensor; one of these or a list of them"
MESSAGES = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]


class Chatty:
    """The trained tokenizer with a chat template, as far as prompts need it."""

    chat_template = "a template"

    def __call__(self, text: str, add_special_tokens: bool = True) -> Any:
        return trained()(("<s>" if add_special_tokens else "") + text)

    def apply_chat_template(self, messages: list[Any], tokenize: bool, **options: Any) -> str:
        assert not tokenize
        turns = "".join(f"[{message['role']}]{message['content']}" for message in messages)
        if options.pop("continue_final_message", False):
            turns += "\N{HORIZONTAL ELLIPSIS}"
        turns += "[assistant]" if options.pop("add_generation_prompt") else ""
        return turns + "".join(f"{name}={value}" for name, value in options.items())


class Alternating(Chatty):
    """A chat template that rejects the order of the messages."""

    def apply_chat_template(self, messages: list[Any], tokenize: bool, **options: Any) -> str:
        raise ValueError("roles must alternate")


def refusal(prompt: Any, tokenizer: Any = None, vocab_size: int = VOCAB) -> str:
    with pytest.raises(RequestError) as caught:
        encode(as_list(prompt)[0][0], tokenizer, vocab_size)
    return str(caught.value)


@pytest.mark.parametrize(
    "prompt",
    [
        [3, 1, 4],
        (3, 1, 4),
        torch.tensor([3, 1, 4]),
        torch.tensor([3, 1, 4], dtype=torch.int32),
        torch.tensor([3, 1, 4], dtype=torch.uint8),
        np.array([3, 1, 4]),
        np.array([4, 1, 3])[::-1],
    ],
)
def test_one_prompt_of_ids_is_the_ids(prompt: Any) -> None:
    (item,), is_list = as_list(prompt)
    assert not is_list
    ids = encode(item, None, VOCAB)
    assert ids == [3, 1, 4]
    assert all(type(token) is int for token in ids)


@pytest.mark.parametrize(
    "prompt",
    [
        [[3, 1], [4]],
        ([3, 1], [4]),
        [(3, 1), (4,)],
        [torch.tensor([3, 1]), torch.tensor([4])],
        [torch.tensor([3, 1]), [4]],
        [np.array([3, 1]), [4]],
    ],
)
def test_a_list_of_prompts_is_each_of_them(prompt: Any) -> None:
    items, is_list = as_list(prompt)
    assert is_list
    assert [encode(item, None, VOCAB) for item in items] == [[3, 1], [4]]


def test_a_two_dimensional_tensor_is_a_batch_of_its_rows() -> None:
    items, is_list = as_list(torch.tensor([[3, 1], [4, 1]]))
    assert is_list
    assert [encode(item, None, VOCAB) for item in items] == [[3, 1], [4, 1]]


def test_text_is_what_the_tokenizer_makes_of_it() -> None:
    (item,), is_list = as_list("naïve 東京")
    assert not is_list
    assert trained().decode(encode(item, trained(), 1000)) == "naïve 東京"
    items, is_list = as_list(["the cat", "the"])
    assert is_list
    assert [trained().decode(encode(item, trained(), 1000)) for item in items] == ["the cat", "the"]


def test_messages_go_through_the_template_and_get_special_tokens_from_it_alone() -> None:
    items, is_list = as_list(MESSAGES[:1])
    assert not is_list
    assert trained().decode(encode(items[0], Chatty(), 1000)) == "[user]the cat[assistant]"
    items, is_list = as_list([MESSAGES, "the"])
    assert is_list
    assert items == [MESSAGES, "the"]


def test_an_assistants_message_at_the_end_is_continued() -> None:
    assert trained().decode(encode(MESSAGES, Chatty(), 1000)) == "[user]the cat[assistant]sat…"


def test_a_template_has_options() -> None:
    told = trained().decode(encode(MESSAGES[:1], Chatty(), 1000, {"enable_thinking": False}))
    assert told == "[user]the cat[assistant]enable_thinking=False"
    with pytest.raises(RequestError, match="enable_thinking: only chat messages have a template"):
        encode("the cat", Chatty(), 1000, {"enable_thinking": False})


def test_parts_of_text_are_one_text_and_others_are_refused() -> None:
    parts = [{"type": "text", "text": "the "}, {"type": "text", "text": "cat"}]
    assert encode([{"role": "user", "content": parts}], Chatty(), 1000) == encode(MESSAGES[:1], Chatty(), 1000)
    picture = [{"role": "user", "content": [*parts, {"type": "image", "url": "cat.png"}]}]
    assert refusal(picture, Chatty(), 1000) == "a message has parts that aren't text: image"


def test_special_tokens_are_added_to_text() -> None:
    assert trained().decode(encode("the", Chatty(), 1000)) == "<s>the"


@pytest.mark.parametrize("prompt", ["", [], (), torch.tensor([], dtype=torch.long), np.array([])])
def test_an_empty_prompt_is_refused(prompt: Any) -> None:
    assert refusal(prompt, trained()) == "the prompt is empty: give at least one token"


@pytest.mark.parametrize(
    ("prompt", "fault"),
    [
        (torch.tensor([1.0, 2.0]), "a tensor prompt holds integer ids, not torch.float32"),
        (torch.tensor([True]), "a tensor prompt holds integer ids, not torch.bool"),
        (torch.tensor([1j]), "a tensor prompt holds integer ids, not torch.complex64"),
        (torch.zeros(1, 2, 3), "a tensor prompt has shape (tokens,) or (batch, tokens), not (1, 2, 3)"),
        (torch.tensor(3), "a tensor prompt has shape (tokens,) or (batch, tokens), not ()"),
        ([torch.tensor([[1, 2]])], "a tensor in a list of prompts has shape (tokens,), not (1, 2)"),
        ([torch.tensor(3)], "a tensor in a list of prompts has shape (tokens,), not ()"),
        ([1, 10], "the prompt's token 1 is 10, but ids go from 0 to 9: was it encoded by another model's tokenizer?"),
        ([-1], "the prompt's token 0 is -1, but ids go from 0 to 9"),
        (torch.tensor([2, -7]), "the prompt's token 1 is -7, but ids go from 0 to 9"),
        ([True], f"the prompt's token 0 is True, not an integer id; a prompt is {FORMS}"),
        ([1, 2.5], f"the prompt's token 1 is 2.5, not an integer id; a prompt is {FORMS}"),
        ([1, "a"], f"the prompt's token 1 is 'a', not an integer id; a prompt is {FORMS}"),
        ([[1, [2]]], f"the prompt's token 1 is [2], not an integer id; a prompt is {FORMS}"),
        ([[[1, 2]]], f"the prompt's token 0 is [1, 2], not an integer id; a prompt is {FORMS}"),
        ([1.5], f"the prompt's token 0 is 1.5, not an integer id; a prompt is {FORMS}"),
        ([None], f"a prompt of type NoneType was given; a prompt is {FORMS}"),
        (None, f"a prompt of type NoneType was given; a prompt is {FORMS}"),
        (7, f"a prompt of type int was given; a prompt is {FORMS}"),
        ({1, 2}, f"a prompt of type set was given; a prompt is {FORMS}"),
        (b"bytes", f"a prompt of type bytes was given; a prompt is {FORMS}"),
        ({"text": "the cat"}, f"a prompt of type dict was given; a prompt is {FORMS}"),
        (MESSAGES[0], "one chat message was given: put it in a list, [{'role': …, 'content': …}]"),
        (np.array(["a"]), "an array prompt holds integer ids, (tokens,), not <U1 (1,)"),
        (np.array([0.5]), "an array prompt holds integer ids, (tokens,), not float64 (1,)"),
        ([np.array([[1, 2]])], "an array prompt holds integer ids, (tokens,), not int64 (1, 2)"),
    ],
)
def test_another_form_is_refused_with_what_was_given_and_what_is_allowed(prompt: Any, fault: str) -> None:
    assert refusal(prompt).startswith(fault)


def test_a_tokenizers_output_is_refused_with_the_remedy() -> None:
    assert refusal([{"input_ids": [1], "pixel_values": [0.0]}]).endswith("prompts: unpack it, generate(**processor(…))")
    remedy = "a tokenizer's output was given as one of the prompts: give its input_ids, without padding"
    assert refusal(trained()("the cat")) == refusal({"input_ids": [[1]]}) == refusal([{"input_ids": [1]}]) == remedy


def test_a_gap_in_a_list_of_prompts_is_its_members_fault() -> None:
    items, is_list = as_list([float("nan"), [3, 1]])
    assert is_list
    assert len(items) == 2


def test_mistyped_messages_are_one_prompt_and_not_several() -> None:
    assert refusal([{"rol": "user"}], Chatty()).startswith(
        "chat message 0 has no 'role': a message is {'role': 'user', "
    )


def test_a_message_that_is_in_no_list_names_the_list() -> None:
    assert refusal(MESSAGES[0], Chatty()) == "one chat message was given: put it in a list, [{'role': …, 'content': …}]"


@pytest.mark.parametrize(("prompt", "what"), [("the cat", "a text prompt needs"), (MESSAGES, "chat messages need")])
def test_text_and_messages_are_refused_without_a_tokenizer(prompt: Any, what: str) -> None:
    assert refusal(prompt) == f"{what} a tokenizer: Generator(model, tokenizer), or pass token ids"


def test_messages_are_refused_without_a_chat_template() -> None:
    assert refusal(MESSAGES, trained()) == (
        "chat messages were given, but the tokenizer has no chat template: give text (on the command line, without "
        "--chat), or set tokenizer.chat_template"
    )


def test_a_template_that_refuses_the_messages_is_quoted() -> None:
    called = [MESSAGES[0], {"role": "assistant", "tool_calls": [{}]}]
    assert refusal(called, Chatty()) == "the tokenizer's chat template rejected the messages: 'content'"
    assert refusal([MESSAGES[0], {"role": "tool"}], Chatty()) == (
        "chat message 1 has no 'content': a message is {'role': 'tool', 'content': …}; "
        "the tokenizer's chat template rejected the messages: 'content'"
    )
    empty = {"role": "assistant", "content": None}
    assert refusal([empty, MESSAGES[0]], Alternating()) == (
        "the tokenizer's chat template rejected the messages: roles must alternate"
    )


def test_text_that_the_tokenizer_can_not_take_is_refused() -> None:
    assert refusal("half a pair \ud800", trained(), 1000).startswith(
        "the tokenizer rejected the text 'half a pair \\ud800': "
    )


def test_text_of_another_models_tokenizer_is_refused_when_its_ids_do_not_fit() -> None:
    assert "ids go from 0 to 9: was it encoded by another model's tokenizer?" in refusal("the cat", trained())
