"""The options that a request has for its chat template."""

from collections.abc import Mapping
from typing import Any

from specdec.apps.serving.schemas import ChatBody

_HINTS = "reasoning_effort", "verbosity"  # that templates may read
# Options of transformers' apply_chat_template that aren't the template's own.
NOT_THE_TEMPLATES = {
    "chat_template", "conversation", "tokenize", "tools", "documents", "add_generation_prompt",
    "continue_final_message", "padding", "truncation", "max_length", "return_tensors", "return_dict",
    "return_assistant_tokens_mask", "tokenizer_kwargs",
}  # fmt: skip


def is_continuation(body: ChatBody) -> bool:
    """Return True if the answer continues the last message, and doesn't begin one of its own."""
    if body.add_generation_prompt is None and body.continue_final_message is None:
        return body.messages[-1].role == "assistant"
    return bool(body.continue_final_message)


def template_options(body: ChatBody) -> dict[str, Any]:
    """Return the chat template's options besides the messages."""
    options: dict[str, Any] = {name: value for name in _HINTS if (value := getattr(body, name)) is not None}
    options |= body.chat_template_kwargs or {}
    if body.tools and body.tool_choice != "none":
        options["tools"] = body.tools
    begins, goes_on = body.add_generation_prompt, is_continuation(body)
    if begins is not None or body.continue_final_message is not None:  # the last message's role doesn't decide
        options["add_generation_prompt"] = not goes_on if begins is None else begins
        options["continue_final_message"] = goes_on
    return options


def template_field(options: Mapping[str, Any]) -> str:
    """Return the request's field whose options the template has rejected."""
    known = {*_HINTS, "tools", "add_generation_prompt", "continue_final_message"}
    return next(iter(options)) if options.keys() <= known else "chat_template_kwargs"
