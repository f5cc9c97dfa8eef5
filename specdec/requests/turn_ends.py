"""The tokens that end an assistant's turn, which are ends of text in a chat."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from specdec.requests.model_defaults import ModelDefaults
from specdec.requests.special_tokens import special_tokens

_MARK = "mark\u2063of\u2063an\u2063answer"  # stands for an answer in a rendered template
# Of a tokenizer: end of text, and what GGUF files name besides it, end of turn and end of message.
_NAMES = "eos_token_id", "eot_token_id", "eom_token_id"
_OF_THE_REQUEST = "tools", "documents", "add_generation_prompt", "continue_final_message"


def ends_in_chat(model: Any, tokenizer: Any, vocab_size: int, template: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the ends of text of a chat's answers: the model's own and those of its turns, see ``ends_of_turn``."""
    own = ModelDefaults.of(model, vocab_size).eos_token_ids
    return tuple(dict.fromkeys((*own, *(token for token in ends_of_turn(tokenizer, template) if token < vocab_size))))


def ends_of_turn(tokenizer: Any, template: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the tokens that end a turn: those that the tokenizer names, and the one that the chat template writes.

    A model may name only one end in its generation config, such as ``<|endoftext|>``, and end its turns by another one,
    such as ``<|im_end|>``: without it, a chat would run on into the user's next turn.

    Args:
        template: options of the chat template.
    """
    named = [token for name in _NAMES if isinstance(token := getattr(tokenizer, name, None), int)]
    options = {name: value for name, value in template.items() if name not in _OF_THE_REQUEST}
    return tuple(dict.fromkeys((*named, *_written(tokenizer, options))))


def _written(tokenizer: Any, options: Mapping[str, Any]) -> list[int]:
    """Return the special token with which the template ends an answer: one or none.

    The special tokens right after an answer's text may include others, which depend on what follows: a template may
    write an end of text after the last turn, and begin the next turn with a special token. So only those count that
    follow the answer in both cases, and the last of them is the end::

        answer<|end|><|endoftext|>          and   answer<|end|><|user|>question  ->  <|end|>
        answer<|END_RESPONSE|><|END_TURN|>  and   answer<|END_RESPONSE|><|END_TURN|><|TURN|>…  ->  <|END_TURN|>
        answer<|return|>                    and   answer<|end|><|start|>user…    ->  none
    """
    question = {"role": "user", "content": "question"}
    turn = [question, {"role": "assistant", "content": _MARK}]
    special, found = special_tokens(tokenizer), list[int]()
    with suppress(Exception):  # templates run third-party code, and may need more than these messages
        last, followed = (
            tokenizer.apply_chat_template(messages, tokenize=False, **options).rpartition(_MARK)[2].lstrip()
            for messages in (turn, [*turn, question])
        )
        while both := [text for text in special if text and last.startswith(text) and followed.startswith(text)]:
            text = max(both, key=len)
            found.append(special[text])
            last, followed = last[len(text) :], followed[len(text) :]
    return found[-1:]
