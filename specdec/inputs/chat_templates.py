"""The content that a chat template reads: text or lists of parts, and which options."""

from collections.abc import Mapping, Sequence
from typing import Any

from specdec.errors import RequestError

_MARK = "mark\u2063of\u2063a\u2063question"
_TEXT_PARTS = {
    "text": "text", "input_text": "text", "output_text": "text", "reasoning_text": "text", "summary_text": "text",
    "refusal": "refusal",
}  # fmt: skip
_OF_IMAGES = "'image'", '"image"', "'audio'", '"audio"'


def with_defined_fields(messages: Sequence[Any]) -> list[Any]:
    """Return messages without fields that are None or calls where there are none, as templates ask for defined ones.

    An assistant's refusal is its content.

    Raises:
        RequestError: for a message without a role.
    """
    for index, message in enumerate(messages):
        if isinstance(message, Mapping) and "role" not in message:
            raise RequestError(
                f"chat message {index} has no 'role': a message is {{'role': 'user', 'content': …}}, and the role may "
                "also be 'system' or 'assistant'"
            )
    return list(map(_with_defined_fields, messages))


def _with_defined_fields(message: Any) -> Any:
    if not isinstance(message, Mapping):
        return message
    left_out: dict[str, tuple[object, ...]] = {"tool_calls": (None, [], ()), "content": ()}
    defined = {name: value for name, value in message.items() if value not in left_out.get(name, (None,))}
    if not message.get("content") and isinstance(message.get("refusal"), str):
        defined["content"] = message["refusal"]
    return defined


def text_of_part(part: Any) -> str | None:
    """Return the text of one part of a chat message's content; None if the part isn't text."""
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get(_TEXT_PARTS[kind]) if isinstance(kind, str) and kind in _TEXT_PARTS else None
    return text if isinstance(text, str) else None


def with_parts_if_needed(messages: Sequence[Any], template_of: Any, options: Mapping[str, Any]) -> list[Any]:
    """Return messages whose text is a list of parts, if the template leaves out any other text, as those of LLaVA do.

    Args:
        template_of: the tokenizer or processor that has the template.
        options: of the template.
    """
    if not _reads_parts_alone(template_of, options):
        return [*messages]
    return [
        {**message, "content": [{"type": "text", "text": message["content"]}]}
        if isinstance(message, Mapping) and isinstance(message.get("content"), str)
        else message
        for message in messages
    ]


def _reads_parts_alone(template_of: Any, options: Mapping[str, Any]) -> bool:
    template = options.get("chat_template") or getattr(template_of, "chat_template", None)
    if not any(kind in str(template) for kind in _OF_IMAGES):  # all others read text
        return False
    forms = _MARK, [{"type": "text", "text": _MARK}]
    reads_text, reads_parts = (_MARK in _rendered(form, template_of, options) for form in forms)
    return reads_parts and not reads_text


def _rendered(content: Any, template_of: Any, options: Mapping[str, Any]) -> str:
    begun = {"add_generation_prompt": True, "continue_final_message": False}
    try:
        messages = [{"role": "user", "content": content}]
        return str(template_of.apply_chat_template(messages, tokenize=False, **{**options, **begun}))
    except Exception:  # templates run third-party code, and may refuse a form
        return ""


def template_variables(template: Any) -> frozenset[str]:
    """Return the options that a chat template reads; none for a processor that has no template."""
    if isinstance(template, Mapping):
        template = template.get("default")
    if not isinstance(template, str):
        return frozenset()
    from jinja2 import Environment, meta
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Node
    from jinja2.parser import Parser

    class Generation(Extension):
        """transformers' tag around what an assistant writes."""

        tags = {"generation"}  # noqa: RUF012 - jinja's

        def parse(self, parser: Parser) -> list[Node]:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    parsed = Environment(extensions=[Generation, loopcontrols]).parse(template)
    return frozenset(meta.find_undeclared_variables(parsed))
