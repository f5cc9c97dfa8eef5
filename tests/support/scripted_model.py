"""A chat model that answers by a script: a real server's clients can hold a conversation whose end is known."""

import copy
import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from specdec import Generator, ToyModel
from tests.support.byte_tokenizer import END, trained

TEMPLATE = (
    "{% for tool in tools or [] %}function: {{ tool.function.name ~ '\n' }}{% endfor %}"
    "{% for message in messages %}{{ message.role }}: {{ message.content }}"
    "{% for call in message.tool_calls or [] %}"
    '<tool_call>{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}</tool_call>'
    "{% endfor %}{{ '\n' }}{% endfor %}{% if add_generation_prompt %}assistant:{% endif %}"
)
REASONING_TEMPLATE = TEMPLATE.replace(
    "{{ message.content }}",
    "{% if message.reasoning_content %}<think>{{ message.reasoning_content }}</think>{% endif %}{{ message.content }}",
)
_BEGIN = "assistant:"
_REST = 1e-9  # probability of each other token, for a mask that refuses the script's
Reply = Callable[[str], str]  # conversation -> answer


def called(name: str, arguments: str) -> str:
    """A tool call in the model's format."""
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def says_what_it_is_told(conversation: str) -> str:
    """Repeat what follows the last "Say: "; as the arguments of a call if there are tools."""
    said = re.findall(r"Say: (.*)", conversation)[-1]
    tools = re.findall(r"^function: ([\w-]+)$", conversation, re.MULTILINE)
    return called(tools[0], said) if tools else str(said)


def asks_for_weather(conversation: str) -> str:
    """Call ``get_weather`` for two cities, one after the other, and report the results."""
    results = re.findall(r"^tool: (-?\d+)$", conversation, re.MULTILINE)
    if len(results) < 2:
        return called("get_weather", f'{{"city": "{("Paris", "Rome")[len(results)]}"}}')
    return f"Paris has {results[0]} degrees, Rome has {results[1]}."


def says_or_asks(conversation: str) -> str:
    """Says what it is told, or else asks for the weather."""
    return says_what_it_is_told(conversation) if "Say: " in conversation else asks_for_weather(conversation)


def scripted_chat(reply: Reply, template: str = TEMPLATE) -> Generator:
    """Return a generator of a model that answers each conversation with ``reply``."""
    tokenizer = copy.deepcopy(trained())
    tokenizer.chat_template = template
    size, end = len(tokenizer), tokenizer.convert_tokens_to_ids(END)

    @lru_cache(4096)
    def next_token(context: tuple[int, ...]) -> int:
        conversation, _, written = str(tokenizer.decode(context)).rpartition(_BEGIN)
        rest = _rest(reply(conversation), written)
        return int(tokenizer(rest)["input_ids"][0]) if rest else int(end)

    def law(context: tuple[int, ...]) -> list[float]:
        weights = [_REST] * size
        weights[next_token(context)] = 1.0 - _REST * (size - 1)
        return weights

    return Generator(_Ending(law, size, end), tokenizer, proposer="prompt_lookup")


class _Ending(ToyModel):
    """With a generation config, as models have it: the end of text."""

    def __init__(self, law: Any, vocab_size: int, end: int) -> None:
        super().__init__(law, vocab_size, max_positions=4096)
        self.generation_config = _GenerationConfig(end)


class _GenerationConfig:
    def __init__(self, end: int) -> None:
        self.eos_token_id = end


def _rest(answer: str, written: str) -> str:
    """What is left of an answer, nothing after another text; a grammar may have other white space than the script."""
    if answer.startswith(written):
        return answer[len(written) :]
    left = iter(answer)
    for character in written:
        if not character.isspace() and next((each for each in left if not each.isspace()), "") != character:
            return ""
    return "".join(left).lstrip()
