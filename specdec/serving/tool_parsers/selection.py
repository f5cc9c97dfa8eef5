"""The answer format of a model, by its chat template."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from specdec.errors import RequestError
from specdec.serving.tool_parsers.base import AnswerFormat
from specdec.serving.tool_parsers.call_syntax import CallSyntax
from specdec.serving.tool_parsers.deepseek import DEEPSEEK_V3, DEEPSEEK_V31, is_deepseek_v3, is_deepseek_v31
from specdec.serving.tool_parsers.gpt_oss import GptOssFormat, is_gpt_oss
from specdec.serving.tool_parsers.hermes import HERMES, is_hermes
from specdec.serving.tool_parsers.json_calls import JSON_CALLS
from specdec.serving.tool_parsers.llama3_json import LLAMA3_JSON, is_llama3_json
from specdec.serving.tool_parsers.mistral import MISTRAL, MISTRAL_ARGS, is_mistral, is_mistral_args
from specdec.serving.tool_parsers.reasoning import reasoning_tags
from specdec.serving.tool_parsers.tagged import TaggedFormat

_SYNTAXES: Sequence[tuple[CallSyntax, Callable[[str], bool]]] = (
    (MISTRAL, is_mistral),
    (MISTRAL_ARGS, is_mistral_args),
    (DEEPSEEK_V3, is_deepseek_v3),
    (DEEPSEEK_V31, is_deepseek_v31),
    (HERMES, is_hermes),
    (LLAMA3_JSON, is_llama3_json),
)
TOOL_PARSERS: Mapping[str, CallSyntax] = {
    syntax.name: syntax for syntax in (*(each for each, _ in _SYNTAXES), JSON_CALLS)
}


def answer_format(tokenizer: Any, tool_parser: str | None = None) -> AnswerFormat:
    """Return the format of the answers of a tokenizer's model.

    Args:
        tool_parser: the name of a format, instead of the one that the chat template has.

    Raises:
        RequestError: for an unknown name.
    """
    check_tool_parser(tool_parser)
    template = getattr(tokenizer, "chat_template", None) or ""
    text = "\n".join(template.values()) if isinstance(template, Mapping) else str(template)
    if tool_parser == GptOssFormat.name or (tool_parser is None and is_gpt_oss(text)):
        return GptOssFormat()
    syntax = (
        TOOL_PARSERS[tool_parser] if tool_parser else next((each for each, fits in _SYNTAXES if fits(text)), JSON_CALLS)
    )
    added = getattr(tokenizer, "added_tokens_decoder", {})
    return TaggedFormat(syntax, reasoning_tags(text, [token.content for token in added.values()]))


def check_tool_parser(name: str | None) -> None:
    """Raise RequestError for an unknown name of a format."""
    known = [*TOOL_PARSERS, GptOssFormat.name]
    if name is not None and name not in known:
        raise RequestError(f"--tool-parser {name!r}: it must be one of {', '.join(known)}")
