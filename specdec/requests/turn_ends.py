"""The tokens that end an assistant's turn, which are ends of text in a chat."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from specdec.inputs.chat_templates import with_parts_if_needed
from specdec.requests.model_defaults import own_eos_token_ids

_MARK = "mark\u2063of\u2063an\u2063answer"  # stands for an answer in a rendered template
_THOUGHT = "mark\u2063of\u2063a\u2063thought"  # stands for the reasoning before it, by any of its names
_QUESTION = {"role": "user", "content": "question"}
_ANSWER = {"role": "assistant", "content": _MARK} | dict.fromkeys(
    ("reasoning", "reasoning_content", "thinking"), _THOUGHT
)
# Of vocabularies in which <|end|> ends a part of a turn, such as its reasoning: harmony's and Solar Open's.
_OF_PARTS = ("<|return|>", "<|call|>"), ("<|flush|>", "<|calls|>")
# Of a tokenizer: end of text, and what GGUF files name besides it, end of turn and end of message.
_NAMES = "eos_token_id", "eot_token_id", "eom_token_id"
_OF_THE_REQUEST = "tools", "documents", "add_generation_prompt", "continue_final_message"


def ends_in_chat(model: Any, tokenizer: Any, vocab_size: int, template: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ends of text of a chat's answers: the model's own and those of its turns, see ``ends_of_turn``."""
    own = own_eos_token_ids(model, vocab_size)
    return tuple(dict.fromkeys((*own, *(token for token in ends_of_turn(tokenizer, template) if token < vocab_size))))


def ends_of_turn(tokenizer: Any, template: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens that end a turn: those that the tokenizer names, and the one that the chat template writes.

    A model may name only one end in its generation config, such as ``<|endoftext|>``, and end its turns by another one,
    such as ``<|im_end|>``: without it, a chat would run on into the user's next turn. A token that also ends the
    reasoning before an answer ends no turn.

    Args:
        template: options of the chat template.
    """
    ends = [token for name in _NAMES if isinstance(token := getattr(tokenizer, name, None), int)]
    options = {name: value for name, value in template.items() if name not in _OF_THE_REQUEST}
    of_parts = set[int]()
    with suppress(Exception):  # templates run third-party code, and may need more than these messages
        of_parts |= _ends_of_parts(tokenizer)
        between, last = _around_answer(tokenizer, [_QUESTION, _ANSWER], options)
        _, followed = _around_answer(tokenizer, [_QUESTION, _ANSWER, _QUESTION], options)
        of_parts |= {*between}
        ends += _written(tokenizer, last, followed)
    return tuple(token for token in dict.fromkeys(ends) if token not in of_parts)


def _ends_of_parts(tokenizer: Any) -> set[int]:
    """Return the token that a vocabulary is known to end parts of a turn with, if there is one."""

    def has(text: str) -> bool:
        return tokenizer.convert_tokens_to_ids(text) not in (None, tokenizer.unk_token_id)

    return {tokenizer.convert_tokens_to_ids("<|end|>")} if any(all(map(has, pair)) for pair in _OF_PARTS) else set()


def _around_answer(tokenizer: Any, messages: list[Any], options: Mapping[str, Any]) -> list[list[int]]:
    """Return the tokens between an answer's reasoning and its text, and those after it; none of what is missing."""
    read = with_parts_if_needed(messages, tokenizer, options)
    before, mark, after = tokenizer.apply_chat_template(read, tokenize=False, **options).rpartition(_MARK)
    _, thought, between = before.rpartition(_THOUGHT)
    texts = between if thought else "", after.lstrip() if mark else ""
    return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in texts]


def _written(tokenizer: Any, last: list[int], followed: list[int]) -> list[int]:
    """Return the special token with which the template ends an answer: one or none.

    The special tokens right after an answer's text may include others, which depend on what follows: a template may
    write an end of text after the last turn, and begin the next turn with a special token. So only those count that
    follow the answer in both cases, and the last of them is the end::

        answer<|end|><|endoftext|>          and   answer<|end|><|user|>question  ->  <|end|>
        answer<|END_RESPONSE|><|END_TURN|>  and   answer<|END_RESPONSE|><|END_TURN|><|TURN|>…  ->  <|END_TURN|>
        answer<|return|>                    and   answer<|end|><|start|>user…    ->  none
    """
    found = list[int]()
    for token, other in zip(last, followed, strict=False):
        if token != other or not _is_special(tokenizer, token):
            break
        found.append(token)
    return found[-1:]


def _is_special(tokenizer: Any, token: int) -> bool:
    """Return True for a token that decoded text omits; a list of all such tokens takes milliseconds to make."""
    return bool(tokenizer.decode([token])) and not tokenizer.decode([token], skip_special_tokens=True)
