"""Texts of the front doors: ``generate``, ``stream``, chat and ``custom_generate`` agree, whatever the tokenizer."""

import copy
from collections.abc import Callable, Sequence
from random import Random
from threading import Thread
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, LogitsProcessor, StopStringCriteria, TextIteratorStreamer

import specdec
from specdec import Generator, RequestError, ToyModel
from specdec.apps.chat.session import Session
from tests.support.tokenizers_of_kinds import CHANNEL, END, ids_of, llama, metaspace

INCOMPLETE = "\N{REPLACEMENT CHARACTER}"


def saying(tokenizer: Any, prompt: Sequence[int], script: Sequence[int]) -> ToyModel:
    """A model that goes on with the script after the prompt."""

    def law(context: tuple[int, ...]) -> list[float]:
        place = min(max(len(context) - len(prompt), 0), len(script) - 1)
        return [float(token == script[place]) for token in range(len(tokenizer))]

    return ToyModel(law, len(tokenizer))


def both(model: Any, tokenizer: Any, prompt: Any, **settings: Any) -> str:
    """The text by ``generate``, which is the stream's."""
    generator = Generator(model, tokenizer, proposer="autoregressive")
    result = generator.generate(prompt, **settings)
    chunks = list(generator.stream(prompt, **settings))
    assert "".join(chunk.text for chunk in chunks) == result.text
    return str(result.text)


PROMPTS: dict[str, Callable[[Any], Any]] = {
    "text": lambda _: "once upon",
    "ids": lambda tokenizer: tokenizer("once upon")["input_ids"],
    "tensor": lambda tokenizer: tokenizer("once upon", return_tensors="pt")["input_ids"][0],
}


@pytest.mark.parametrize("form", PROMPTS)
@pytest.mark.parametrize("made", [llama, metaspace])
def test_prompt_and_text_are_the_text_of_all_tokens(made: Callable[[], Any], form: str) -> None:
    tokenizer = made()
    ids, new = tokenizer("once upon")["input_ids"], ids_of(tokenizer, "▁a", "▁time", ".")
    model = saying(tokenizer, ids, new)
    prompt = PROMPTS[form](tokenizer)
    assert both(model, tokenizer, prompt, max_new_tokens=3) == " a time."
    assert tokenizer.decode(ids) + " a time." == tokenizer.decode([*ids, *new])
    assert both(model, tokenizer, prompt, max_new_tokens=3, stop=[" a time"]) == ""
    assert both(model, tokenizer, prompt, max_new_tokens=3, stop_strings=" time") == " a"


def test_a_request_that_goes_on_from_a_context_has_its_space() -> None:
    ids, new = llama()("once upon")["input_ids"], ids_of(llama(), "▁a", "▁time", "▁there", "▁was")
    generator = Generator(saying(llama(), ids, new), llama(), proposer="autoregressive")
    with generator.context() as context:
        first = generator.generate(ids, context=context, max_new_tokens=2)
        further = generator.generate([*ids, *first.token_ids], context=context, max_new_tokens=2)
        assert further.stats.num_reused
    assert (first.text, further.text) == (" a time", " there was")


def test_texts_of_a_list_have_their_own_prompts() -> None:
    first, second = (llama()(text)["input_ids"] for text in ("once upon", "there was one"))
    script = ids_of(llama(), "▁a", "x")

    def law(context: tuple[int, ...]) -> list[float]:
        last = context[-1] == script[0]
        return [float(token == script[last]) for token in range(len(llama()))]

    generator = Generator(ToyModel(law, len(llama())), llama(), proposer="autoregressive")
    results = generator.generate([first, [ids_of(llama(), "<s>")[0]], second], max_new_tokens=2)
    assert [result.text for result in results] == [" ax", "ax", " ax"]


def test_a_text_that_is_cut_inside_a_character_keeps_the_good_ones() -> None:
    ids = llama()("once")["input_ids"]
    model = saying(llama(), ids, ids_of(llama(), "bytes:東京"))
    assert both(model, llama(), ids, max_new_tokens=5) == "東" + 2 * INCOMPLETE
    assert both(model, llama(), ids, max_new_tokens=5, stop="never") == "東" + 2 * INCOMPLETE


def test_special_tokens_stay_in_the_text_where_they_are_wanted() -> None:
    ids = llama()("once")["input_ids"]
    model = saying(llama(), ids, ids_of(llama(), CHANNEL, "▁a", "▁time", END))
    assert both(model, llama(), ids, max_new_tokens=4) == " a time"
    wanted = {"max_new_tokens": 4, "skip_special_tokens": False}
    assert both(model, llama(), ids, **wanted) == f"{CHANNEL} a time{END}"
    assert both(model, llama(), ids, **wanted, stop=[END]) == f"{CHANNEL} a time"
    assert both(model, llama(), ids, **wanted, eos_token_id=ids_of(llama(), CHANNEL)) == CHANNEL


@pytest.mark.parametrize("marker", [CHANNEL, END])
def test_a_stop_string_that_the_text_leaves_out_is_refused(marker: str) -> None:
    """One that has a role, and one that was added as special without any."""
    generator = Generator(saying(llama(), [5], [5]), llama())
    with pytest.raises(RequestError, match=r"eos_token_id=\d+, or skip_special_tokens=False"):
        generator.generate([5], stop=marker)


def test_special_tokens_in_the_text_need_a_tokenizer() -> None:
    with pytest.raises(RequestError, match="skip_special_tokens=False needs a tokenizer"):
        Generator(saying(llama(), [5], [5])).generate([5], skip_special_tokens=False)


def test_an_answer_in_a_chat_is_the_text_after_its_prompt() -> None:
    tokenizer = copy.deepcopy(llama())
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    ids = tokenizer("once upon", add_special_tokens=False)["input_ids"]
    model = saying(tokenizer, ids, ids_of(tokenizer, "▁a", "▁time"))
    session = Session(Generator(model, tokenizer), Random(0), "autoregressive", max_new_tokens=2)
    assert "".join(chunk.text for chunk in session.ask("once upon")) == " a time"
    assert session.conversation.turns[0].answer == " a time"
    session.close()


class Forced(LogitsProcessor):  # type: ignore[misc]  # transformers is untyped here
    """Scores that force a script after a prompt."""

    is_path_pure = True

    def __init__(self, num_prompt: int, script: Sequence[int]) -> None:
        self._num_prompt, self._script = num_prompt, script

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        forced = torch.full_like(scores, -torch.inf)
        forced[:, self._script[min(input_ids.shape[1] - self._num_prompt, len(self._script) - 1)]] = 0.0
        return forced


def test_stop_strings_end_a_text_where_transformers_and_custom_generate_end_it() -> None:
    torch.manual_seed(0)
    size = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=len(llama()), **size)).eval()
    encoded = llama()("once upon", return_tensors="pt", return_token_type_ids=False)
    num_prompt = encoded["input_ids"].shape[1]
    script = ids_of(llama(), "▁a", "▁time", "▁there", "▁was")
    options = {"max_new_tokens": 4, "do_sample": False, "logits_processor": [Forced(num_prompt, script)]}
    own = model.generate(**encoded, **options, stop_strings=[" a time"], tokenizer=llama())[0, num_prompt:]
    criteria = {"stopping_criteria": [StopStringCriteria(llama(), [" a time"])]}
    ours = model.generate(**encoded, **options, **criteria, custom_generate=specdec.custom_generate())[0, num_prompt:]
    result = Generator(model, llama()).generate(**encoded, **options, stop_strings=[" a time"])[0]
    assert own.tolist() == ours.tolist() == list(result.token_ids) == script[:2]
    assert result.text == ""


def test_a_streamer_of_transformers_shows_what_our_stream_does() -> None:
    """It is told of the prompt as well, so that its text has the prompt's in front."""
    ids = llama()("once upon")["input_ids"]
    generator = Generator(saying(llama(), ids, ids_of(llama(), "▁a", "▁time")), llama(), proposer="autoregressive")
    streamer = TextIteratorStreamer(llama(), timeout=30)
    thread = Thread(target=generator.generate, args=(ids,), kwargs={"streamer": streamer, "max_new_tokens": 2})
    thread.start()
    shown = "".join(streamer)
    thread.join()
    assert shown == "once upon" + "".join(chunk.text for chunk in generator.stream(ids, max_new_tokens=2))
