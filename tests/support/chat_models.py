"""Random models that chat: a byte-level tokenizer with a chat template and the markers of a format."""

import copy
from collections.abc import Sequence
from typing import Any

from transformers import AddedToken, PreTrainedModel

from tests.support.byte_tokenizer import trained
from tests.support.families import SMALL, make

END = "<|endoftext|>"
DEEPSEEK = (
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁calls▁end｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁sep｜>",
)
HARMONY = "<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>", "<|return|>"
_MESSAGES = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{{ tools | tojson if tools }}"


def chat_tokenizer(template_end: str, special: Sequence[str] = (), added: Sequence[str] = ()) -> Any:
    """A tokenizer whose template writes the messages, the tools and ``template_end``.

    Args:
        special, added: special tokens, and others that are a single token as well.
    """
    tokenizer = copy.deepcopy(trained())
    tokenizer.add_special_tokens({"eos_token": END})
    tokenizer.chat_template = _MESSAGES + template_end
    tokenizer.add_tokens([AddedToken(text, special=True) for text in special], special_tokens=True)
    tokenizer.add_tokens([AddedToken(text, special=False) for text in added])
    return tokenizer


def random_model(tokenizer: Any) -> PreTrainedModel:
    """A random model with the vocabulary of a tokenizer, whose texts never end by themselves soon."""
    arguments = {**SMALL, "vocab_size": len(tokenizer), "max_position_embeddings": 1024}
    return make("LlamaConfig", {**arguments, "eos_token_id": tokenizer.eos_token_id})
