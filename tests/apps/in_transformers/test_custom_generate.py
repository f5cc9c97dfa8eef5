"""Beside ``generate`` itself: greedy tokens, outputs, processors, criteria and streamers of every kind are the same."""

import copy
import gc
import inspect
import pickle
import weakref
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, combinations
from threading import Thread
from typing import Any

import pytest
import torch
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
    WatermarkingConfig,
    pipeline,
)

import specdec
from specdec.apps.in_transformers.generator_cache import kept_generator, release
from specdec.sampling.randomness import Randomness
from tests.support import families
from tests.support.byte_tokenizer import trained

MODELS = {name: spec for name, spec in families.TREES.items() if name != "nemotron_h"}
MODELS |= {"bloom": families.CHAINS["bloom"], "mpt": families.CHAINS["mpt"]}
NUM_NEW = 16
SPECDEC = specdec.custom_generate("prompt_lookup:min_ngram=1,num_tokens=4", numerics="fast")
LENGTHS = 11, 4, 7


@pytest.fixture(scope="module")
def llama() -> PreTrainedModel:
    return families.make(*families.TREES["llama"])


def batch(num_rows: int, vocab: int = families.VOCAB) -> dict[str, torch.Tensor]:
    """Prompts of several lengths, padded on the left."""
    torch.manual_seed(5)
    ids = torch.zeros(num_rows, LENGTHS[0], dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS[:num_rows]):
        ids[row, -length:], mask[row, -length:] = torch.randint(1, vocab, (length,)), 1
    return {"input_ids": ids, "attention_mask": mask}


def both(model: PreTrainedModel, make: Callable[[], dict[str, Any]], num_rows: int = 1) -> tuple[Any, Any]:
    """What ``generate`` gives by itself and with specdec, each with arguments of its own."""
    settings = {"max_new_tokens": NUM_NEW, "do_sample": False, "pad_token_id": 0}
    inputs = batch(num_rows)
    own = model.generate(**inputs, **{**settings, **make()})
    return own, model.generate(**inputs, **{**settings, **make()}, custom_generate=SPECDEC)


def rows_by_turns(names: Iterable[str]) -> Iterator[Any]:
    """Yield each name with one row and with three, one of the two for the night."""
    for i, name in enumerate(names):
        for j, num_rows in enumerate((1, 3)):
            marks = [pytest.mark.nightly] if (i + j) % 2 else []
            yield pytest.param(name, num_rows, marks=marks, id=f"{name}-{num_rows}")


@pytest.mark.parametrize(("name", "num_rows"), [*rows_by_turns(MODELS)])
def test_greedy_text_is_generates_own_for_every_family(name: str, num_rows: int) -> None:
    model = families.make(*MODELS[name][:2])
    own, drafted = both(model, dict, num_rows)
    assert drafted.dtype == own.dtype
    assert drafted.tolist() == own.tolist()
    assert own.shape == (num_rows, LENGTHS[0] + NUM_NEW)


class Nudge(LogitsProcessor):
    """Favours what follows from the last token and the length, padding included."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        favoured = (input_ids[:, -1] * 7 + input_ids.shape[1]) % scores.shape[1]
        return scores.scatter_add(1, favoured[:, None], torch.full_like(scores[:, :1], 9.0))


class Few(StoppingCriteria):
    """Ends a text at a length, padding included, that depends on its row."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return input_ids[:, -1] % 5 == 3


CALLS: dict[str, Callable[[], dict[str, Any]]] = {
    "repetition penalty": lambda: {"repetition_penalty": 1.7},
    "n-grams": lambda: {"no_repeat_ngram_size": 2},
    "bad words": lambda: {"bad_words_ids": [[1], [83, 1], [55, 34]], "eos_token_id": 3},
    "least tokens": lambda: {"min_new_tokens": 9, "eos_token_id": [*range(1, 40)]},
    "suppressed": lambda: {"suppress_tokens": [*range(50, 80)], "begin_suppress_tokens": [*range(1, 30)]},
    "several ends": lambda: {"eos_token_id": [*range(10, 22)]},
    "own processor": lambda: {"logits_processor": LogitsProcessorList([Nudge()])},
    "own criterion": lambda: {"stopping_criteria": StoppingCriteriaList([Few()]), "eos_token_id": [94]},
    "bias": lambda: {"sequence_bias": {(5,): 4.0, (6, 7): 5.0}},
    "forced end": lambda: {"forced_eos_token_id": 2, "eos_token_id": 2},
    "length": lambda: {"max_new_tokens": None, "max_length": 19},
    "long ago": lambda: {"max_time": 1e-9},
    "exponential decay": lambda: {"exponential_decay_length_penalty": (4, 1.3), "eos_token_id": 9},
    "least length": lambda: {"min_length": 20, "eos_token_id": [*range(1, 40)]},
    "watermark": lambda: {"watermarking_config": WatermarkingConfig(bias=4.0, seeding_scheme="selfhash")},
    "hallucination penalty": lambda: {"encoder_repetition_penalty": 1.6},
    "n-grams of the prompt": lambda: {"encoder_no_repeat_ngram_size": 1},
    "invalid values": lambda: {"remove_invalid_values": True},
    "static cache": lambda: {"cache_implementation": "static"},
    "no cache": lambda: {"use_cache": False},
}


# By day each is asked for in a batch, whose rows have what a text alone has.
@pytest.mark.parametrize("num_rows", [pytest.param(1, marks=pytest.mark.nightly), 3])
@pytest.mark.parametrize("name", [name for name in CALLS if name != "long ago"])
def test_what_is_asked_for_is_honoured(llama: PreTrainedModel, name: str, num_rows: int) -> None:
    own, drafted = both(llama, CALLS[name], num_rows)
    assert drafted.tolist() == own.tolist()
    if name not in ("static cache", "no cache", "invalid values"):
        assert own.tolist() != both(llama, dict, num_rows)[0].tolist()


def test_a_text_that_has_taken_too_long_ends_where_generates_does(llama: PreTrainedModel) -> None:
    own, drafted = both(llama, CALLS["long ago"])
    assert drafted.tolist() == own.tolist() != both(llama, dict)[0].tolist()


@pytest.mark.parametrize("num_rows", [1, 3])
def test_allowed_tokens_may_depend_on_the_row(llama: PreTrainedModel, num_rows: int) -> None:
    def allowed(row: int, sentence: torch.Tensor) -> list[int]:
        return [(10 * row + len(sentence) + shift) % families.VOCAB for shift in range(3)]

    own, drafted = both(llama, lambda: {"prefix_allowed_tokens_fn": allowed}, num_rows)
    assert drafted.tolist() == own.tolist()


@pytest.mark.parametrize("num_rows", [1, 3])
def test_scores_and_logits_are_generates_own(llama: PreTrainedModel, num_rows: int) -> None:
    asked = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        "repetition_penalty": 1.3,
        "eos_token_id": [*range(10, 22)],
    }
    own, drafted = both(llama, lambda: asked, num_rows)
    assert type(drafted) is type(own)
    assert drafted.sequences.tolist() == own.sequences.tolist()
    assert len(drafted.scores) == len(drafted.logits) == len(own.scores) < NUM_NEW + 1
    new = own.sequences[:, LENGTHS[0] :]
    is_written = (new != 0).long().cummin(-1).values.bool()  # up to a row's end
    for step in range(len(own.scores)):
        rows = is_written[:, step]
        torch.testing.assert_close(drafted.scores[step][rows], own.scores[step][rows], atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(drafted.logits[step][rows], own.logits[step][rows], atol=1e-4, rtol=1e-4)
    assert not drafted.scores[0].is_inference()


OUTPUTS = "return_dict_in_generate", "output_scores", "output_logits", "output_hidden_states", "output_attentions"


def calls_with_outputs() -> Iterator[Any]:
    """Yield outputs, whether tokens are drawn, and a number of rows: by day each pair of these."""
    for i, asked in enumerate(asked for size in range(4) for asked in combinations(OUTPUTS, size)):
        for j, samples in enumerate((False, True)):
            for k, num_rows in enumerate((1, 3)):
                marks = [pytest.mark.nightly] if (i + j + k) % 2 else []
                yield pytest.param(
                    {*asked}, samples, num_rows, marks=marks, id=f"{' '.join(asked)}-{samples}-{num_rows}"
                )


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("asked", "samples", "num_rows"), [*calls_with_outputs()])
def test_outputs_of_every_combination_are_generates_own_or_refused(
    llama: PreTrainedModel, asked: set[str], samples: bool, num_rows: int
) -> None:
    streamer = Told() if num_rows == 1 else None
    given = {**dict.fromkeys(asked, True), "max_new_tokens": 4, "do_sample": samples, "pad_token_id": 0}
    own = llama.generate(**batch(num_rows), **given)
    call = {**batch(num_rows), **given, "streamer": streamer, "custom_generate": SPECDEC}
    if asked & {"output_hidden_states", "output_attentions"}:
        with pytest.raises(specdec.RequestError, match="doesn't return output_"):
            llama.generate(**call)
        return
    drafted = llama.generate(**call)
    assert type(drafted) is type(own)
    ids, wanted = (each if torch.is_tensor(each) else each.sequences for each in (drafted, own))
    assert ids.shape == wanted.shape
    assert samples or ids.tolist() == wanted.tolist()
    for name in ("scores", "logits"):
        steps, wanted_steps = getattr(drafted, name, None), getattr(own, name, None)
        assert (steps is None) == (wanted_steps is None)
        assert [step.shape for step in steps or ()] == [step.shape for step in wanted_steps or ()]
    assert streamer is None or [*streamer.told[0][0], *chain.from_iterable(streamer.told[1:-1])] == ids[0].tolist()


@pytest.mark.parametrize("num_rows", [1, 2])
def test_stop_strings_are_generates_own(num_rows: int) -> None:
    tokenizer = trained()
    model = families.make("LlamaConfig", {**families.SMALL, "vocab_size": len(tokenizer)})
    inputs = {name: value.expand(num_rows, -1) for name, value in tokenizer("the cat sat", return_tensors="pt").items()}
    call = {**inputs, "max_new_tokens": 40, "do_sample": False, "pad_token_id": 0, "eos_token_id": 1}
    written = model.generate(**call)
    text = tokenizer.decode(written[0, inputs["input_ids"].shape[1] + 5 :])
    stop = next(letter for letter in text if letter.isascii() and letter.isalpha())
    given = {**call, "stop_strings": stop, "tokenizer": tokenizer}
    own = model.generate(**given)
    assert model.generate(**given, custom_generate=SPECDEC).tolist() == own.tolist()
    assert own.shape[1] < written.shape[1]
    with pytest.raises(ValueError, match="you must pass the model's tokenizer"):
        model.generate(**call, stop_strings=stop, custom_generate=SPECDEC)


def test_the_signature_can_be_inspected_and_changes_nothing() -> None:
    assert [*inspect.signature(type(SPECDEC)).parameters] == ["options", "constraint", "reference"]
    assert [*inspect.signature(SPECDEC).parameters][:2] == ["model", "input_ids"]

    def _extract_generation_mode_kwargs(custom_generate: Any) -> dict[str, Any]:
        kwargs, generation_mode_kwargs = dict[str, Any](), {"tokenizer": 3}
        inspect.signature(SPECDEC)
        inspect.signature(custom_generate)
        return {**kwargs, "given": len(generation_mode_kwargs)}

    assert _extract_generation_mode_kwargs(len) == {"given": 1}


def test_an_end_of_text_outside_the_vocabulary_ends_nothing(llama: PreTrainedModel) -> None:
    own, drafted = both(llama, lambda: {"eos_token_id": [families.VOCAB + 5, 35]})
    assert drafted.tolist() == own.tolist()


def test_the_last_position_of_the_model_is_used() -> None:
    kind, options = families.TREES["gpt2"][:2]
    model = families.make(kind, {**options, "n_positions": 32})
    ids = torch.arange(60)[None] % 7 + 1
    for num_prompt in (32, 30):
        prompt, given = ids[:, :num_prompt], {"max_new_tokens": 33 - num_prompt, "do_sample": False, "pad_token_id": 0}
        own = model.generate(prompt, attention_mask=torch.ones_like(prompt), **given)
        drafted = model.generate(prompt, attention_mask=torch.ones_like(prompt), **given, custom_generate=SPECDEC)
        assert drafted.tolist() == own.tolist()


def test_stop_strings_come_as_a_criterion() -> None:
    tokenizer = trained()
    model = families.make("LlamaConfig", {**families.SMALL, "vocab_size": len(tokenizer)})
    inputs = tokenizer("the cat sat", return_tensors="pt")
    written = model.generate(**inputs, max_new_tokens=40, do_sample=False, pad_token_id=0)
    text = tokenizer.decode(written[0, inputs.input_ids.shape[1] + 5 :])
    stop = next(letter for letter in text if letter.isascii() and letter.isalpha())
    given = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
    given["stopping_criteria"] = StoppingCriteriaList([StopStringCriteria(tokenizer, [stop])])
    own = model.generate(**inputs, **given)
    drafted = model.generate(**inputs, **given, custom_generate=SPECDEC)
    assert drafted.tolist() == own.tolist()
    assert own.shape[1] < written.shape[1]


class Told:
    """A streamer that notes what it is told."""

    def __init__(self) -> None:
        self.told: list[Any] = []

    def put(self, value: torch.Tensor) -> None:
        self.told.append(value.tolist())

    def end(self) -> None:
        self.told.append("end")


def test_a_streamer_hears_what_it_hears_from_generate(llama: PreTrainedModel) -> None:
    streamers = [Told(), Told()]
    makers = iter(streamers)
    both(llama, lambda: {"streamer": next(makers), "eos_token_id": [*range(10, 22)]})
    own, drafted = streamers
    assert drafted.told == own.told
    assert len(own.told) > 3


def test_a_text_streamer_is_read_in_another_thread() -> None:
    tokenizer = trained()
    model = families.make("LlamaConfig", {**families.SMALL, "vocab_size": len(tokenizer)})
    inputs = tokenizer("the cat sat", return_tensors="pt")
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    call = {**inputs, "max_new_tokens": 20, "do_sample": False, "pad_token_id": 0, "streamer": streamer}
    thread = Thread(target=model.generate, kwargs={**call, "custom_generate": SPECDEC})
    thread.start()
    text = "".join(streamer)
    thread.join()
    own = model.generate(**{**call, "streamer": None})
    assert text == tokenizer.decode(own[0, inputs.input_ids.shape[1] :])


def test_a_streamer_ends_where_the_call_fails(llama: PreTrainedModel) -> None:
    class Broken(LogitsProcessor):
        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            raise OSError("broken")

    streamer = Told()
    given = {"streamer": streamer, "logits_processor": LogitsProcessorList([Broken()]), "max_new_tokens": 4}
    with pytest.raises(specdec.SpecdecError, match="broken"):
        llama.generate(**batch(1), **given, do_sample=False, custom_generate=SPECDEC)
    assert streamer.told[-1] == "end"


def test_sampled_text_repeats_under_torchs_seed(llama: PreTrainedModel) -> None:
    def sampled(seed: int, **given: Any) -> list[list[int]]:
        inputs = batch(3)
        torch.manual_seed(seed)
        options = {"max_new_tokens": 16, "do_sample": True, "pad_token_id": 0, **given}
        texts: torch.Tensor = llama.generate(**inputs, **options, custom_generate=SPECDEC)
        return texts.tolist()

    assert sampled(1) == sampled(1) != sampled(2)
    few = sampled(3, temperature=0.7, top_p=0.8)
    assert few != sampled(3)
    several = sampled(4, num_return_sequences=4)
    assert len({tuple(text) for text in several}) == 12


@pytest.mark.parametrize(
    "asked",
    [{"top_k": 3, "temperature": 0.9}, {"top_k": 0, "typical_p": 0.7}, {"top_k": 4, "renormalize_logits": True}],
)
def test_sampled_tokens_follow_generates_distribution(asked: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are drawn from what the model's own forward and transformers' own processors give, after any first one."""
    model = families.make(*families.TREES["llama"])
    prompt = torch.tensor([[2, 1, 4, 2]])  # 1 is drafted after it
    asked = {**asked, "suppress_tokens": [*range(5, families.VOCAB)]}

    def law(ids: torch.Tensor) -> torch.Tensor:
        given = model.generation_config.__class__(do_sample=True, **asked)
        processors = model._get_logits_processor(given, 4, prompt, None, LogitsProcessorList(), device="cpu")
        with torch.no_grad():
            return processors(ids, model(ids).logits[:, -1].float()).softmax(-1)[0]

    drawn_from: dict[int, torch.Tensor] = {}
    call = {"max_new_tokens": 2, "do_sample": True, "pad_token_id": 0, **asked, "custom_generate": SPECDEC}
    possible = law(prompt).nonzero().flatten().tolist()
    assert {1} < {*possible}
    for first in possible:

        def draw(_: Randomness, weights: torch.Tensor, position: int, first: int = first) -> int:
            drawn_from[position] = weights
            return first if position == 4 else int(weights.argmax())

        monkeypatch.setattr(Randomness, "categorical", draw)
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), **call)
        for length in (4, 5):
            expected = law(ids[:, :length])
            torch.testing.assert_close(drawn_from[length] / drawn_from[length].sum(), expected, atol=1e-5, rtol=1e-4)
            assert torch.equal(drawn_from[length] > 0, expected > 0)
        assert ids[0, 4:].tolist() == [first, int(drawn_from[5].argmax())]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "no beam search"),
    "assisted": ({"prompt_lookup_num_tokens": 3}, "custom_generate.proposer='prompt_lookup'"),
    "own heads": ({"use_mtp": True}, "use_mtp=True asks for .*custom_generate.proposer='mtp'"),
    "a kind of speculation": ({"speculation_type": "dflash"}, r"speculation_type='dflash' .*'dflash:head=FOLDER'"),
    "early exit": ({"assistant_early_exit": 1}, "assistant_early_exit=1 .*draft_model:layers"),
    "an ensemble": ({"assistant_ensemble_weight": 0.5}, "assistant_ensemble_weight=0.5 asks"),
    "attentions": ({"return_dict_in_generate": True, "output_attentions": True}, "doesn't return output_attentions"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "."),
    "layers against layers": ({"dola_layers": "low"}, "."),
    "guidance": ({"guidance_scale": 1.5}, "guidance_scale runs the model"),
    "positions": ({"position_ids": torch.arange(5, 16)[None]}, "positions counted from"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 11, 32), "input_ids": None}, "doesn't read inputs_embeds"),
    "padding": ({"attention_mask": torch.tensor([[1] * 10 + [0]])}, "padding_side='left'"),
    "processors twice": (
        {
            "return_dict_in_generate": True,
            "output_scores": True,
            "logits_processor": LogitsProcessorList([Nudge()]),
        },
        "calls Nudge a second time for each token",
    ),
}


@pytest.mark.filterwarnings("ignore:.*attention_mask.*")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cant_be_honoured_is_refused_by_name(llama: PreTrainedModel, name: str) -> None:
    asked, message = REFUSED[name]
    with pytest.raises((specdec.RequestError, ValueError), match=message):
        llama.generate(**{**batch(1), "max_new_tokens": 4, "do_sample": False, **asked}, custom_generate=SPECDEC)


def test_the_maker_itself_is_refused_with_the_call_that_was_meant(llama: PreTrainedModel) -> None:
    with pytest.raises(specdec.RequestError, match=r"custom_generate=custom_generate\(\)"):
        llama.generate(**batch(1), max_new_tokens=4, do_sample=False, custom_generate=specdec.custom_generate)


def test_an_assistant_is_refused_by_name(llama: PreTrainedModel) -> None:
    with pytest.raises(specdec.RequestError, match="DraftModelProposer"):
        llama.generate(**batch(1), max_new_tokens=4, assistant_model=llama, do_sample=False, custom_generate=SPECDEC)


def test_criteria_of_a_batch_need_an_end_of_text(llama: PreTrainedModel) -> None:
    given = {"stopping_criteria": StoppingCriteriaList([Few()]), "max_new_tokens": 4, "do_sample": False}
    with pytest.raises(specdec.RequestError, match="Few can't end rows of a batch"):
        llama.generate(**batch(3), **given, pad_token_id=0, custom_generate=SPECDEC)


@pytest.mark.parametrize("lengths", [(7, 7, 7), LENGTHS])
def test_each_row_counts_by_a_criterion_of_its_own(llama: PreTrainedModel, lengths: tuple[int, ...]) -> None:
    class AfterTen(StoppingCriteria):
        num_calls = 0

        def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
            self.num_calls += 1
            return torch.full((len(input_ids),), self.num_calls == 10)

    inputs = batch(3)
    if lengths == (7, 7, 7):
        inputs = {name: value[:1].expand(3, -1)[:, -7:] for name, value in inputs.items()}
    given = {"max_new_tokens": 24, "eos_token_id": 94, "pad_token_id": 0, "do_sample": False}
    ids = llama.generate(
        **inputs, **given, stopping_criteria=StoppingCriteriaList([AfterTen()]), custom_generate=SPECDEC
    )
    assert ids.shape[1] - inputs["input_ids"].shape[1] == 10

    def counting(input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        return torch.full((len(input_ids),), False)

    with pytest.raises(specdec.RequestError, match="counting is a function, which may have state"):
        llama.generate(**inputs, **given, stopping_criteria=[counting], custom_generate=SPECDEC)


def test_the_generator_is_made_once_and_goes_with_the_model() -> None:
    model = families.make(*families.TREES["llama"])
    call = {**batch(1), "max_new_tokens": 8, "do_sample": False, "pad_token_id": 0}
    for _ in range(2):
        model.generate(**call, custom_generate=specdec.custom_generate("prompt_lookup", numerics="fast"))
    key = specdec.custom_generate("prompt_lookup", numerics="fast").options
    generator = kept_generator(model, key, lambda: pytest.fail("it was not kept"))
    copied = copy.deepcopy(model)
    assert pickle.loads(pickle.dumps(model)).generate(**call).tolist() == copied.generate(**call).tolist()
    remembered = weakref.ref(model), weakref.ref(generator)
    del model, generator
    gc.collect()
    assert [one() for one in remembered] == [None, None]


def test_release_gives_the_model_back() -> None:
    model = families.make(
        "LlamaConfig", {**families.SMALL, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    )
    layer = model.get_submodule("model.layers.0.mlp.up_proj")
    plain = type(layer.weight)
    packed = specdec.custom_generate("prompt_lookup", numerics="fast", weights="packed")
    model.generate(**batch(1), max_new_tokens=4, do_sample=False, pad_token_id=0, custom_generate=packed)
    assert type(layer.weight) is not plain
    release(model)
    assert type(layer.weight) is plain


def test_calls_with_other_weights_take_turns() -> None:
    model = families.make(
        "LlamaConfig", {**families.SMALL, "hidden_size": 256, "intermediate_size": 512, "head_dim": 64}
    )
    layer = model.get_submodule("model.layers.0.mlp.up_proj")
    plain, kinds = type(layer.weight), list[bool]()
    for weights in ("packed", "stock", "packed"):
        own = specdec.custom_generate("prompt_lookup", numerics="fast", weights=weights)
        model.generate(**batch(1), max_new_tokens=4, do_sample=False, pad_token_id=0, custom_generate=own)
        kinds.append(type(layer.weight) is plain)
    assert kinds == [False, True, False]


def test_a_pipeline_takes_it() -> None:
    tokenizer = trained()
    model = families.make("LlamaConfig", {**families.SMALL, "vocab_size": len(tokenizer)})
    write = pipeline("text-generation", model=model, tokenizer=tokenizer)
    call = {"max_new_tokens": 16, "do_sample": False}
    assert write("the hat", **call, custom_generate=SPECDEC) == write("the hat", **call)


def test_rows_are_drafted_from_their_references(llama: PreTrainedModel) -> None:
    inputs = batch(3)
    own = llama.generate(**inputs, max_new_tokens=NUM_NEW, do_sample=False, pad_token_id=0)
    texts = own[:, LENGTHS[0] :].tolist()
    for reference in ([texts[0], None, texts[1]], texts[2], [[1] * 99, [], texts[2][5:]]):
        decode = specdec.custom_generate("reference", numerics="fast", reference=reference)
        drafted = llama.generate(
            **inputs, max_new_tokens=NUM_NEW, do_sample=False, pad_token_id=0, custom_generate=decode
        )
        assert drafted.tolist() == own.tolist()
    with pytest.raises(specdec.RequestError, match="2 references were given for 3 prompts"):
        llama.generate(
            **inputs, max_new_tokens=2, custom_generate=specdec.custom_generate("reference", reference=texts[:2])
        )
    with pytest.raises(specdec.RequestError, match="a text as reference needs a tokenizer"):
        llama.generate(**inputs, max_new_tokens=2, custom_generate=specdec.custom_generate(reference="text"))
    release(llama)


def test_a_reference_saves_steps_of_a_row(llama: PreTrainedModel) -> None:
    inputs, passes = batch(1), list[int]()
    own = llama.generate(**inputs, max_new_tokens=NUM_NEW, do_sample=False, pad_token_id=0)
    hook = llama.register_forward_pre_hook(lambda *_: passes.append(1))
    for reference in (None, own[0, LENGTHS[0] :]):
        decode = specdec.custom_generate("reference", numerics="fast", reference=reference)
        llama.generate(**inputs, max_new_tokens=2, do_sample=False, pad_token_id=0, custom_generate=decode)
        passes.clear()
        llama.generate(**inputs, max_new_tokens=NUM_NEW, do_sample=False, pad_token_id=0, custom_generate=decode)
        assert len(passes) <= (NUM_NEW if reference is None else 3)
    hook.remove()
    release(llama)
