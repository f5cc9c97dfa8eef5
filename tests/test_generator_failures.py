"""Requests that fail: alone they raise, in a list they end by themselves, and the others never notice."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from specdec import (
    ROOT,
    Budget,
    Drafter,
    DraftTree,
    Engine,
    Generator,
    ModelError,
    PluginError,
    PromptLookupProposer,
    Proposer,
    Request,
    RequestError,
    ToyModel,
)
from specdec.errors import NumericsError
from specdec.record import Outcome, StepRecord
from specdec.strategies.auto.merged import MergedProposer
from specdec.target import PassOutput
from tests.support import families
from tests.support.scripted import Scripted

VOCAB = 8
BAD = 7  # a prompt that begins with it is the one that fails
PROMPTS = [[3, 1], [BAD, 2], [5], [2, 2]]
SETTINGS = {"max_new_tokens": 12, "temperature": 1.0, "seed": 6}


def toy(max_positions: int | None = 40) -> ToyModel:
    made = ToyModel.random(VOCAB, order=1, seed=3)
    made.max_positions = max_positions
    return made


def is_bad(request: Request) -> bool:
    return request.tokens[0] == BAD


def assert_fails_alone(generator: Generator, error: type[Exception], fault: str) -> None:
    """The bad prompt has the error, is raised when given alone, and the others equal plain decoding."""
    results = generator.generate(PROMPTS, **SETTINGS)
    plain = Generator(toy(), proposer="autoregressive").generate(PROMPTS, **SETTINGS)
    bad = PROMPTS.index([BAD, 2])
    assert results[bad].finish_reason == "error"
    assert isinstance(results[bad].error, error)
    assert fault in str(results[bad].error)
    for index in {*range(len(PROMPTS))} - {bad}:
        assert results[index].token_ids == plain[index].token_ids
        assert (results[index].finish_reason, results[index].error) == ("length", None)
    for call in (generator.generate, lambda *given, **settings: list(generator.stream(*given, **settings))):
        with pytest.raises(error) as caught:
            call([BAD, 2], **SETTINGS)
        assert fault in str(caught.value)
    assert [result.token_ids for result in generator.generate(PROMPTS[2:], **SETTINGS)] == [
        result.token_ids for result in plain[2:]
    ]


def test_a_bad_prompt_among_good_ones_fails_alone() -> None:
    generator = Generator(toy())
    good = generator.generate([3, 1], **SETTINGS).token_ids
    results = generator.generate([[3, 1], [], [99], "text", None, [3, 1]], **SETTINGS)
    assert [result.finish_reason for result in results] == ["length", *["error"] * 4, "length"]
    assert results[0].token_ids == results[5].token_ids == good
    assert all(isinstance(result.error, RequestError) for result in results[1:5])
    assert (results[1].token_ids, results[1].text) == ((), None)
    with pytest.raises(RequestError, match="the prompt is empty"):
        generator.generate([], **SETTINGS)


def test_a_prompt_too_long_for_the_models_positions_fails_alone() -> None:
    generator = Generator(toy(max_positions=10))
    fits, too_long = generator.generate([[1, 2, 3, 4, 5], [1, 2, 3, 4, 5, 6]], max_new_tokens=6)
    assert (len(fits.token_ids), fits.finish_reason) == (6, "length")
    assert str(too_long.error) == (
        "the prompt has 6 tokens and max_new_tokens=6 would need 11 positions, but the model supports "
        "10: shorten one of them"
    )


def test_a_text_without_end_is_refused_by_a_model_without_a_limit() -> None:
    limit = "would need 1000000000000000000000000000000 positions, but the model supports 16777216"
    with pytest.raises(RequestError, match=limit):
        Generator(toy(max_positions=None)).generate([1], max_new_tokens=10**30)


@pytest.mark.parametrize(
    ("name", "value"), [("eos_token_id", 8), ("eos_token_id", [1, -1]), ("bad_words_ids", [[1, 2], [3, 99]])]
)
@pytest.mark.parametrize("prompt", [[3], [[3], [1]]])
def test_an_id_in_the_settings_that_is_outside_the_vocabulary_is_refused(name: str, value: Any, prompt: Any) -> None:
    with pytest.raises(RequestError, match=rf"{name}: (8|-1|99) is outside the vocabulary of 8"):
        Generator(toy()).generate(prompt, **{name: value})


@pytest.mark.parametrize("stage", ["start", "observe"])
def test_a_proposer_that_raises_for_one_request_fails_it_alone(stage: str) -> None:
    def during(where: str, request: Request) -> None:
        if where == stage and is_bad(request):
            raise ZeroDivisionError("by nought")

    fault = "proposer Scripted failed with ZeroDivisionError: by nought"
    assert_fails_alone(Generator(toy(), proposer=Scripted(during=during)), PluginError, fault)


Script = Callable[[Request, Budget], Any]


def chain(*tokens: int) -> Script:
    def script(request: Request, budget: Budget) -> DraftTree:
        tree = DraftTree(request.root)
        tree.add_chain(ROOT, tokens)
        return tree

    return script


def tampered(name: str, index: int, value: Any) -> Script:
    def script(request: Request, budget: Budget) -> DraftTree:
        tree: DraftTree = chain(1, 2, 3)(request, budget)
        getattr(tree, name)[index] = value
        return tree

    return script


def shortened(name: str) -> Script:
    def script(request: Request, budget: Budget) -> DraftTree:
        tree: DraftTree = chain(1, 2, 3)(request, budget)
        getattr(tree, name).pop()
        return tree

    return script


def raising(request: Request, budget: Budget) -> DraftTree:
    raise KeyError("lost")


def nothing(request: Request, budget: Budget) -> None:
    return None


NOT_ADDED = "was not made by add(), which keeps parents before children"


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        (raising, "proposer Scripted failed with KeyError: 'lost'"),
        (nothing, "proposer Scripted returned None, which isn't a DraftTree"),
        (tampered("tokens", ROOT, VOCAB), "illegal tree: its root is token 8, but the last committed token is"),
        (chain(1, VOCAB), "node 2 has token 8, outside the vocabulary of 8"),
        (chain(-1), "node 1 has token -1, outside the vocabulary of 8"),
        (chain(*[1] * 40), "is 33 deep, but the budget allows 32"),
        (tampered("parents", 1, 2), f"node 1 below 2 {NOT_ADDED}"),
        (tampered("parents", 3, 3), f"node 3 below 3 {NOT_ADDED}"),
        (tampered("parents", 3, -1), f"node 3 below -1 {NOT_ADDED}"),
        (tampered("parents", 3, 1), f"node 3 below 1 {NOT_ADDED}"),
        (tampered("tokens", 2, 5), f"node 2 below 1 {NOT_ADDED}"),
        (tampered("depths", 2, 9), f"node 2 below 1 {NOT_ADDED}"),
        (tampered("depths", 3, 0), f"node 3 below 2 {NOT_ADDED}"),
        (shortened("roles"), "lists of tokens, parents, depths and roles differ in length"),
        (shortened("depths"), "lists of tokens, parents, depths and roles differ in length"),
    ],
)
def test_a_proposal_that_breaks_a_law_fails_its_request_alone_by_name(script: Script, fault: str) -> None:
    def for_one(request: Request, budget: Budget) -> Any:
        return (script if is_bad(request) else chain(1, 2))(request, budget)

    assert_fails_alone(Generator(toy(), proposer=Scripted(script=for_one)), PluginError, fault)


def test_a_tree_of_too_many_nodes_is_refused() -> None:
    scripted = Scripted(script=chain(*[1] * 513))
    with pytest.raises(PluginError, match="proposer Scripted returned an illegal tree: 513 nodes below the root, but"):
        Generator(toy(max_positions=None), proposer=scripted).generate([3], **SETTINGS)


PLACE = " (propose_many, test_generator_failures.py line N)"


class _Broken(Engine):
    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        raise ZeroDivisionError("by nought")


class _Stray(Engine):
    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        DraftTree(3).add(57, 4)
        return []


class _Reading(Engine):
    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        return list(json.loads("{\n{"))


class _Short(Engine):
    def propose_many(self, drafters: Sequence[Drafter], budgets: Sequence[Budget]) -> list[DraftTree | Exception]:
        forgets = len(drafters) > 1
        return super().propose_many(drafters[forgets:], budgets[forgets:])


@pytest.mark.parametrize(
    ("engine", "fault"),
    [
        (_Broken, "proposer Scripted failed with ZeroDivisionError: by nought" + PLACE),
        (  # whose own line is named, and not the one of the tree that refused
            _Stray,
            "proposer Scripted failed with IndexError: no node 57 to add below: this tree has nodes 0 to 0" + PLACE,
        ),
        (  # a library's own lines are nobody's business
            _Reading,
            "proposer Scripted failed with JSONDecodeError: Expecting property name enclosed in double quotes: line 2 "
            "column 1 (char 2)" + PLACE,
        ),
        (_Short, "proposer Scripted gave 1 tree for 2 requests"),
    ],
)
def test_an_engine_that_fails_fails_its_requests_by_name(engine: type[Engine], fault: str) -> None:
    generator = Generator(toy(), proposer=Scripted(engine=engine))
    results = generator.generate(PROMPTS[:2], **SETTINGS)
    assert [re.sub(r"line \d+\)$", "line N)", str(result.error)) for result in results] == [fault, fault]
    assert all(isinstance(result.error, PluginError) for result in results)


class _Absent(Proposer):
    def start(self, request: Request) -> Any:
        return None


def test_a_strategy_that_starts_no_drafter_is_named() -> None:
    fault = "failed with TypeError: start returned None, which isn't a Drafter"
    with pytest.raises(PluginError, match=f"^proposer _Absent {fault}$"):
        Generator(toy(), proposer=_Absent()).generate([3, 1], **SETTINGS)
    merged = MergedProposer(proposers=(_Absent(), PromptLookupProposer()))
    result = Generator(toy(), proposer=merged).generate([3, 1], **SETTINGS)
    assert any(note.startswith("drafting goes on without ") and fault in note for note in result.notes)


def test_a_logits_processor_that_raises_for_one_request_fails_it_alone() -> None:
    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids[0, 0] == BAD and input_ids.shape[1] > 4:
            raise ZeroDivisionError("by nought")
        return scores

    processor.is_path_pure = True  # type: ignore[attr-defined]  # so that a list may share it
    plain = Generator(toy()).generate(PROMPTS, **SETTINGS)
    results = Generator(toy()).generate(PROMPTS, logits_processor=processor, **SETTINGS)
    assert [result.finish_reason for result in results] == ["length", "error", "length", "length"]
    assert "a logits processor failed with ZeroDivisionError: by nought" in str(results[1].error)
    assert results[1].token_ids == plain[1].token_ids[: len(results[1].token_ids)]
    assert [results[index].token_ids for index in (0, 2, 3)] == [plain[index].token_ids for index in (0, 2, 3)]


@pytest.mark.parametrize("fault", [float("nan"), float("inf")])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_no_numbers_fail_their_request_alone_naming_step_and_position(
    fault: float, temperature: float
) -> None:
    healthy = toy()

    def law(context: tuple[int, ...]) -> Sequence[float]:
        return [fault] * VOCAB if context[0] == BAD and len(context) >= 4 else healthy.probs(context)

    generator = Generator(ToyModel(law, VOCAB), proposer="autoregressive")
    settings = {**SETTINGS, "temperature": temperature}
    results = generator.generate(PROMPTS, **settings)
    plain = Generator(healthy, proposer="autoregressive").generate(PROMPTS, **settings)
    assert isinstance(results[1].error, NumericsError)
    assert str(results[1].error).startswith("step 3: the logits for position 4 are NaN or infinite.")
    assert results[1].token_ids == plain[1].token_ids[:2]
    assert [results[index].token_ids for index in (0, 2, 3)] == [plain[index].token_ids for index in (0, 2, 3)]


def test_the_chunks_of_a_request_that_fails_on_the_way_join_to_its_tokens() -> None:
    def during(stage: str, request: Request) -> None:
        if stage == "observe" and len(request.tokens) == 6:
            raise ZeroDivisionError

    chunks = list(Generator(toy(), proposer=Scripted(during=during)).stream([[3, 1]], **SETTINGS))
    result = chunks[-1].result
    assert result is not None
    assert (len(result.token_ids), result.finish_reason) == (4, "error")
    assert sum((chunk.token_ids for chunk in chunks), ()) == result.token_ids


def test_a_drafter_is_stopped_exactly_once_whatever_ends_its_request() -> None:
    events: list[tuple[str, int]] = []

    def script(request: Request, budget: Budget) -> DraftTree:
        if is_bad(request):
            raise ZeroDivisionError
        if request.tokens[0] == 2 and len(request.tokens) > 5:
            raise KeyboardInterrupt
        return DraftTree(request.root)

    generator = Generator(toy(), proposer=Scripted(script=script, events=events))
    generator.generate([[3], [BAD], [5]], **SETTINGS)
    once = sorted([("start", token) for token in (3, 5, BAD)] + [("stop", token) for token in (3, 5, BAD)])
    assert sorted(events) == once
    events.clear()
    stream = generator.stream([[3], [5], [4]], **SETTINGS)
    for _ in range(4):
        next(stream)
    assert sorted(events) == [("start", 3), ("start", 4), ("start", 5)]
    stream.close()  # type: ignore[attr-defined]
    assert sorted(events) == [(stage, token) for stage in ("start", "stop") for token in (3, 4, 5)]
    events.clear()
    with pytest.raises(KeyboardInterrupt):
        generator.generate([[3], [2]], **SETTINGS)
    assert sorted(events) == [(stage, token) for stage in ("start", "stop") for token in (2, 3)]
    assert len(generator.generate([3], **SETTINGS).token_ids) == 12


def test_a_model_or_tokenizer_that_can_not_be_driven_is_refused_with_the_reason(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match="no backend supports an object of type int: pass a transformers causal language model"
    ):
        Generator(5)
    with pytest.raises(ModelError, match=r"tokenizer=5 is not a transformers tokenizer"):
        Generator(toy(), 5)
    for path in (tmp_path, str(tmp_path)):
        with pytest.raises(ModelError, match=rf"can't load '{tmp_path}': .*\. Give a folder with safetensors weights"):
            Generator(path)


def test_a_tokenizer_with_more_ids_than_the_model_is_refused() -> None:
    class Wide(dict[str, int]):
        def __call__(self, text: str) -> dict[str, list[int]]:
            return {"input_ids": [0]}

        def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
            return ""

    wide = Wide({str(index): index for index in range(VOCAB + 1)})
    with pytest.raises(ModelError, match="the tokenizer has 9 ids but the model's vocabulary is 8"):
        Generator(toy(), wide)


def test_processors_that_leave_no_token_are_named_with_the_position() -> None:
    def forbid_all(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, -torch.inf) if input_ids.shape[1] == 5 else scores

    generator = Generator(ToyModel.random(6))
    with pytest.raises(NumericsError, match="leave no token possible at position 5"):
        generator.generate([1, 2, 3], max_new_tokens=9, logits_processor=forbid_all)
    assert len(generator.generate([1, 2, 3], max_new_tokens=9).token_ids) == 9


def test_a_checkpoint_with_missing_weights_is_refused(tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    from specdec.models.loading import load_pretrained

    families.make("LlamaConfig", families.SMALL).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelError,
        match=r"of LlamaForCausalLM 1 are missing from it, among them model\.layers\.1\.mlp\.up_proj\.weight",
    ):
        load_pretrained(str(tmp_path), tokenizer=object())


def spoil(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, is_due: Callable[..., bool]) -> None:
    """Make a function raise where a test says so."""
    original = getattr(owner, name)

    def failing(*args: Any, **kwargs: Any) -> Any:
        if is_due(*args, **kwargs):
            raise MemoryError("no room")
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, failing)


NO_ROOM = "backend ToyBackend with ExactCompiler failed: memory ran out (MemoryError: no room): free memory, or load"


def test_a_request_that_the_cache_has_no_room_for_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    events: list[tuple[str, int]] = []
    generator = Generator(toy(), proposer=Scripted(events=events))
    plain = generator.generate(PROMPTS[2:], **SETTINGS)
    events.clear()
    spoil(monkeypatch, generator._binding.target.backend, "open", lambda capacity: capacity > 20)
    results = generator.generate([[3] * 10, *PROMPTS[2:]], **SETTINGS)
    assert [result.finish_reason for result in results] == ["error", "length", "length"]
    assert str(results[0].error).startswith(NO_ROOM)
    assert [result.token_ids for result in results[1:]] == [result.token_ids for result in plain]
    assert ("start", 3) not in events
    with pytest.raises(PluginError, match=re.escape(NO_ROOM)):
        generator.generate([3] * 10, **SETTINGS)


def test_logits_that_cannot_be_copied_to_the_host_fail_the_step_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    generator, calls = Generator(toy(), proposer="autoregressive", max_batch_size=2), list[int]()
    plain = generator.generate(PROMPTS[:3], **SETTINGS)
    spoil(monkeypatch, PassOutput, "fetch", lambda *_: calls.append(1) or len(calls) == 3)  # type: ignore[func-returns-value]
    results = generator.generate(PROMPTS[:3], **SETTINGS)
    assert [result.finish_reason for result in results] == ["error", "error", "length"]
    assert all(str(result.error).startswith(NO_ROOM) for result in results[:2])
    assert results[2].token_ids == plain[2].token_ids


def test_a_figure_that_the_backend_fails_to_give_costs_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = Generator(toy(), proposer="autoregressive")
    plain = generator.generate(PROMPTS, **SETTINGS)

    def failing(backend: Any) -> int:
        raise MemoryError("no room")

    monkeypatch.setattr(type(generator._binding.target.backend), "row_bytes", property(failing))
    with pytest.warns(UserWarning, match=re.escape(NO_ROOM)):
        results = generator.generate(PROMPTS, **SETTINGS)
    assert [(result.token_ids, result.error) for result in results] == [(result.token_ids, None) for result in plain]


def test_behind_a_row_that_stays_in_the_cache_nothing_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The other rows' numbers would be wrong, and so would their texts."""
    generator = Generator(toy(), proposer="autoregressive", max_batch_size=2)
    plain = generator.generate(PROMPTS[:3], **SETTINGS)
    spoil(monkeypatch, generator._binding.target.backend, "release", lambda _: True)
    with pytest.warns(UserWarning, match=re.escape(NO_ROOM)):
        results = generator.generate(PROMPTS[:3], **SETTINGS)
    assert [result.finish_reason for result in results] == ["length", "length", "error"]
    assert [result.token_ids for result in results[:2]] == [result.token_ids for result in plain[:2]]
    assert str(results[2].error).endswith("has 2 rows, 0 expected: make another generator")


class _Learning(Engine):
    """An engine that fails to learn once its request is to have come to some number of tokens."""

    at = 12

    def learn(self, record: StepRecord, outcomes: Sequence[Outcome]) -> None:
        if len(outcomes[0].request.new_tokens) == self.at:
            raise ZeroDivisionError("by nought")


class _LearningEarly(_Learning):
    at = 4


def test_a_finished_text_stays_one_though_its_engine_fails_to_learn_of_it() -> None:
    records = list[StepRecord]()
    generator = Generator(toy(), proposer=Scripted(engine=_Learning))
    with pytest.warns(UserWarning, match="proposer Scripted failed with ZeroDivisionError: by nought"):
        result = generator.generate([3, 1], on_step=records.append, **SETTINGS)
    assert (len(result.token_ids), result.finish_reason) == (12, "length")
    assert (records[-1].outcomes[0].finish_reason, records[-1].outcomes[0].error) == ("length", None)


def test_a_request_whose_engine_fails_to_learn_ends_once_and_its_record_says_so() -> None:
    records = list[StepRecord]()
    generator = Generator(toy(), proposer=Scripted(engine=_LearningEarly))
    chunks = list(generator.stream([[3, 1]], on_step=records.append, **SETTINGS))
    assert [chunk.result is not None for chunk in chunks] == [False] * 4 + [True]
    result = chunks[-1].result
    assert result is not None
    assert (len(result.token_ids), result.finish_reason) == (4, "error")
    assert [record.outcomes[0].finish_reason for record in records] == [None] * 4 + ["error"]
    assert records[-1].outcomes[0].error is result.error


def test_a_finished_text_stays_one_though_its_drafter_fails_to_stop() -> None:
    def during(stage: str, request: Request) -> None:
        if stage == "stop" and is_bad(request):
            raise ZeroDivisionError("by nought")

    plain = Generator(toy(), proposer="autoregressive").generate(PROMPTS, **SETTINGS)
    with pytest.warns(UserWarning, match="proposer Scripted failed with ZeroDivisionError: by nought"):
        results = Generator(toy(), proposer=Scripted(during=during)).generate(PROMPTS, **SETTINGS)
    assert [(result.token_ids, result.error) for result in results] == [(result.token_ids, None) for result in plain]


class _Speller(dict[str, int]):
    """A tokenizer of single digits that has no text for one of them."""

    def __call__(self, text: str) -> dict[str, list[int]]:
        return {"input_ids": [int(digit) for digit in text]}

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        if 5 in ids:
            raise ZeroDivisionError("by nought")
        return "".join(map(str, ids))


@pytest.mark.parametrize(("stop", "num_tokens"), [((), 12), (("9",), 4)])
def test_a_tokenizer_that_raises_for_one_request_fails_it_alone(stop: tuple[str, ...], num_tokens: int) -> None:
    """Without stop strings the text is asked for at the end, and all tokens are there."""

    def law(context: tuple[int, ...]) -> list[float]:  # a prompt's fourth new token is its own, others are 0
        token = context[0] if len(context) == 4 else 0
        return [float(one == token) for one in range(VOCAB)]

    speller = _Speller({str(digit): digit for digit in range(VOCAB)})
    generator = Generator(ToyModel(law, VOCAB), speller, proposer=Scripted(script=chain(0, 0, 0, 0)))
    records = list[StepRecord]()
    results = generator.generate(["4", "5", "6"], max_new_tokens=12, stop=stop, on_step=records.append)
    assert [result.text for result in results] == ["000400000000", None, "000600000000"]
    assert [result.finish_reason for result in results] == ["length", "error", "length"]
    assert str(results[1].error).startswith("the tokenizer failed with ZeroDivisionError: by nought (decode, ")
    assert results[1].token_ids == (0, 0, 0, 5, *[0] * 8)[:num_tokens]
    told = [outcome.tokens for record in records for outcome in record.outcomes if outcome.request.index == 1]
    assert sum(told, ()) == results[1].token_ids
    with pytest.raises(PluginError, match="the tokenizer failed with ZeroDivisionError"):
        generator.generate("5", max_new_tokens=12, stop=stop)


class _Unclosable(Engine):
    def close(self) -> None:
        raise ZeroDivisionError("by nought")


def test_results_are_not_lost_though_an_engine_fails_to_close() -> None:
    proposers = [Scripted(engine=_Unclosable) for _ in range(10)]
    generator = Generator(toy(), proposer="autoregressive")
    with pytest.warns(UserWarning, match="closing proposer Scripted failed with ZeroDivisionError: by nought"):
        results = generator.generate([[3, 1]] * 10, proposer=proposers, **SETTINGS)
    assert [result.finish_reason for result in results] == ["length"] * 10
