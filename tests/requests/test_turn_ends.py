"""The end of an assistant's turn ends the answers of a chat, and nothing else."""

import copy
from pathlib import Path
from typing import Any

import pytest
from transformers import AddedToken, GenerationConfig

from specdec import Generator, ToyModel
from specdec.apps.auditing import audit
from specdec.apps.comparison import EvaluationPrompt, compare
from specdec.apps.comparison.ties import ScoredText
from specdec.apps.comparison.trial import Trial
from specdec.apps.comparison.tune import Tuner
from specdec.apps.pictures.trace import Recorder
from specdec.models.loading import load_pretrained_tokenizer
from specdec.requests.turn_ends import ends_in_chat, ends_of_turn
from specdec.tree import DraftTree
from specdec.verifiers.base import Verdict
from specdec.verifiers.match import MatchVerifier
from tests.apps.serving.serving import serving
from tests.support.byte_tokenizer import END, trained

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKERS = "<|im_start|>", "<|im_end|>", "<|eot|>", "<|user|>", "<|return|>", "<|END_RESPONSE|>"
CHAT = [{"role": "user", "content": "the hat"}]
SETTINGS: dict[str, Any] = {"max_new_tokens": 40}
# Templates that write an answer's end as those of published models do, and the end.
TEMPLATES = {
    "ChatML": (CHATML, "<|im_end|>"),
    "Llama 2, whose end is the tokenizer's": (
        "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %}"
        " {{ m.content }} <|end|>{% endif %}{% endfor %}",
        None,
    ),
    "Phi-4-mini, with an end of text after the last turn": (
        "{% for m in messages %}<|user|>{{ m.content }}<|eot|>{% endfor %}"
        "{% if add_generation_prompt %}<|user|>{% else %}<|end|>{% endif %}",
        "<|eot|>",
    ),
    "Command-R7B, with an end of the response before that of the turn": (
        "{% for m in messages %}<|im_start|>{% if m.role == 'assistant' %}{{ m.content }}<|END_RESPONSE|>{% else %}"
        "{{ m.content }}{% endif %}<|eot|>{% endfor %}",
        "<|eot|>",
    ),
    "gpt-oss, with another end of the last turn": (
        "{% for m in messages %}<|im_start|>{{ m.role }}: {{ m.content }}"
        "{% if loop.last and m.role == 'assistant' %}<|return|>{% else %}<|eot|>{% endif %}{% endfor %}",
        None,
    ),
    "GLM-4, without an end": ("{% for m in messages %}<|user|>{{ m.content }}{% endfor %}", None),
    "Solar Open, whose reasoning ends as its answer does": (
        "{% for m in messages %}<|im_start|>{{ m.role }}{% if m.reasoning %}<|user|>{{ m.reasoning }}<|eot|>"
        "<|im_start|>{{ m.role }}{% endif %}<|im_end|>{{ m.content }}<|eot|>{% endfor %}",
        None,
    ),
    "one whose reasoning ends otherwise": (
        "{% for m in messages %}<|user|>{{ m.reasoning_content }}<|im_end|>{{ m.content }}<|eot|>{% endfor %}",
        "<|eot|>",
    ),
    "one that writes answers in capitals": ("{% for m in messages %}<|eot|>{{ m.content | upper }}{% endfor %}", None),
    "one that leaves answers out": ("{% for m in messages %}<|eot|>{{ m.role }}{% endfor %}", None),
    "one that writes the first message alone": ("<|eot|>{{ messages[0].content }}<|eot|>", None),
    "plain text": ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", None),
    "one that refuses answers": ("{{ raise_exception('no') if messages | length > 1 }}{{ messages[0].content }}", None),
    "one with an option": ("{% for m in messages %}{{ m.content }}{{ end }}{% endfor %}", "<|eot|>"),
}


def tokenizer_of(template: str = CHATML) -> Any:
    tokenizer = copy.deepcopy(trained())
    tokenizer.add_tokens([AddedToken(text, special=True) for text in MARKERS], special_tokens=True)
    tokenizer.chat_template = template
    return tokenizer


def writer(text: str, tokenizer: Any, ends: Any = None) -> ToyModel:
    """A model that writes a text again and again, from position 0 of its answer on, after every prompt."""
    ids = tokenizer(text)["input_ids"]

    def law(context: tuple[int, ...]) -> list[float]:
        p = [0.0] * len(tokenizer)
        place = next((at for at in range(len(ids), 0, -1) if list(context[-at:]) == ids[:at]), 0)
        p[ids[place % len(ids)]] = 1.0
        return p

    model = ToyModel(law, len(tokenizer))
    model.generation_config = GenerationConfig(eos_token_id=ends)  # type: ignore[attr-defined]
    return model


@pytest.mark.parametrize("name", TEMPLATES)
def test_the_end_is_what_follows_an_answer_last_or_not(name: str) -> None:
    template, end = TEMPLATES[name]
    tokenizer = tokenizer_of(template)
    own = tokenizer.convert_tokens_to_ids(END)
    expected = (own,) if end is None else (own, tokenizer.convert_tokens_to_ids(end))
    options = {"end": "<|eot|>", "tools": [{}], "add_generation_prompt": True}
    assert ends_of_turn(tokenizer, options) == expected


def test_ends_that_a_tokenizer_names_count_as_well() -> None:
    tokenizer = tokenizer_of("{{ messages[0].content }}")
    tokenizer.eot_token_id, tokenizer.eom_token_id = 7, 9
    own = tokenizer.eos_token_id
    assert ends_of_turn(tokenizer, {}) == (own, 7, 9)
    model = writer("the cat", tokenizer, [5, 9])
    assert ends_in_chat(model, tokenizer, 8, {}) == (5, own, 7)  # of a vocabulary of 8


HARMONY = (
    "{% for m in messages %}{% if m.thinking and loop.last %}<|im_start|>analysis{{ m.thinking }}<|end|>{% endif %}"
    "<|im_start|>final{{ m.content }}{% if loop.last %}<|return|>{% else %}<|end|>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("template", "texts", "is_end"),
    [
        (HARMONY, (), False),
        (CHATML, ("<|return|>", "<|call|>"), False),
        (CHATML, ("<|calls|>", "<|flush|>"), False),
        (CHATML, ("<|return|>", "<|calls|>"), True),
        (CHATML.replace("im_end", "end"), ("<|call|>",), False),
        (CHATML.replace("im_end", "end"), (), True),
    ],
)
def test_an_end_of_a_part_of_a_turn_is_none_even_if_it_is_named(template: str, texts: Any, is_end: bool) -> None:
    """<|end|> ends reasoning as well as answers in harmony's and Solar Open's vocabularies, and turns in Phi's."""
    tokenizer = tokenizer_of(template)
    tokenizer.add_tokens([AddedToken(text, special=True) for text in texts], special_tokens=True)
    end = tokenizer.convert_tokens_to_ids(END)
    tokenizer.eos_token, tokenizer.eot_token_id = "<|user|>", end
    assert (end in ends_of_turn(tokenizer, {})) == is_end


def test_the_end_is_found_without_a_list_of_all_special_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which takes milliseconds where a vocabulary has thousands of them, for each request."""
    tokenizer = tokenizer_of()
    for name in ("added_tokens_decoder", "added_tokens_encoder", "all_special_tokens", "all_special_ids"):
        monkeypatch.setattr(type(tokenizer), name, property(lambda _: pytest.fail("read")))
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") in ends_of_turn(tokenizer, {})


@pytest.mark.parametrize("strategy", ["autoregressive", "prompt_lookup", "auto"])
def test_a_chat_ends_with_its_turn_and_a_plain_prompt_doesnt(strategy: str) -> None:
    tokenizer = tokenizer_of()
    generator = Generator(writer("the cat sat<|im_end|>and", tokenizer), tokenizer, proposer=strategy)
    result = generator.generate(CHAT, **SETTINGS)
    assert (result.text, result.finish_reason) == ("the cat sat", "stop")
    assert result.token_ids[-1] == tokenizer.convert_tokens_to_ids("<|im_end|>")
    ids = tokenizer.apply_chat_template(CHAT, add_generation_prompt=True, return_dict=False)
    plain = generator.generate(ids, **SETTINGS)
    assert (len(plain.token_ids), plain.finish_reason) == (40, "length")
    mixed = generator.generate(["the hat", CHAT], **SETTINGS)
    assert [each.finish_reason for each in mixed] == ["length", "stop"]
    given = {"eos_token_id": tokenizer("and")["input_ids"]}
    assert generator.generate(CHAT, **SETTINGS, **given).text == "the cat satand"
    assert generator.generate(CHAT, **SETTINGS, generation_config=GenerationConfig(**given)).text == "the cat satand"
    for none in ((), None):
        assert len(generator.generate(CHAT, **SETTINGS, eos_token_id=none).token_ids) == 40


def test_the_tokenizers_end_of_text_ends_a_chat_of_a_model_that_names_another() -> None:
    tokenizer = tokenizer_of()
    generator = Generator(writer(f"the cat{END}sat", tokenizer, ends=5), tokenizer, proposer="prompt_lookup")
    assert generator.generate(CHAT, **SETTINGS).text == "the cat"
    assert generator.generate("the hat", **SETTINGS).finish_reason == "length"


def test_a_template_of_the_request_is_the_one_that_counts() -> None:
    tokenizer = tokenizer_of()
    generator = Generator(writer("the cat<|eot|>sat<|im_end|>", tokenizer), tokenizer, proposer="autoregressive")
    assert generator.generate(CHAT, **SETTINGS).text == "the catsat"
    template = CHATML.replace("im_end", "eot")
    assert generator.generate(CHAT, **SETTINGS, chat_template=template).text == "the cat"
    chosen = CHATML.replace("<|im_end|>", "{{ end }}")
    options = {"chat_template": chosen, "chat_template_kwargs": {"end": "<|eot|>"}}
    assert generator.generate(CHAT, **SETTINGS, **options).text == "the cat"


def test_a_servers_chats_and_responses_end_with_their_turn() -> None:
    tokenizer = tokenizer_of()
    generator = Generator(writer("the cat sat<|im_end|>and", tokenizer), tokenizer, proposer="prompt_lookup")
    body = {"model": "demo", "messages": CHAT, "max_tokens": 40, "temperature": 0}
    with serving(generator) as served:
        (choice,) = served.post("/v1/chat/completions", body).json()["choices"]
        assert (choice["message"]["content"], choice["finish_reason"]) == ("the cat sat", "stop")
        (choice,) = served.post("/v1/chat/completions", {**body, "ignore_eos": True}).json()["choices"]
        assert choice["finish_reason"] == "length"
        asked = {"model": "demo", "input": "the hat", "max_output_tokens": 40, "temperature": 0}
        answer = served.post("/v1/responses", asked).json()
        assert answer["output"][0]["content"][0]["text"] == "the cat sat"
        plain = {"model": "demo", "prompt": "the hat", "max_tokens": 40, "temperature": 0}
        assert served.post("/v1/completions", plain).json()["choices"][0]["finish_reason"] == "length"


def test_traces_and_comparisons_of_chats_end_with_their_turn() -> None:
    tokenizer = tokenizer_of()
    model = writer("the cat sat<|im_end|>and", tokenizer)
    trace = Recorder(model, tokenizer, "prompt_lookup").trace(CHAT, **SETTINGS)
    assert trace.result.text == "the cat sat"
    comparison = compare(model, {"a": "prompt_lookup"}, [CHAT, "the hat"], tokenizer=tokenizer, repeats=1, **SETTINGS)
    lengths = {(run.prompt, len(run.tokens)) for run in comparison.runs}
    num_tokens = len(trace.result.token_ids)
    assert lengths == {(0, num_tokens), (1, 40)}
    findings = audit(Generator(model, tokenizer, proposer="prompt_lookup"), [CHAT, "the hat"], **SETTINGS).findings
    assert [(each.verdict, each.num_tokens) for each in findings] == [("identical", num_tokens), ("identical", 40)]
    heard: list[Trial] = []
    chats = [EvaluationPrompt("toy", str(number), CHAT) for number in range(8)]
    tuner = Tuner(model, "jacobi", chats, tokenizer=tokenizer, space={"n": [2, 4]}, clock=lambda: 0.0, **SETTINGS)
    tuner.run(heard.append)
    assert {trial.num_tokens for trial in heard} == {4 * num_tokens}


def test_a_chats_difference_is_judged_with_the_ends_that_it_was_written_with(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(MatchVerifier):
        def verify(self, tree: DraftTree, target: Any, chances: Any) -> Verdict:
            verdict = super().verify(tree, target, chances)
            return Verdict(verdict.path, (*verdict.tokens[:-1], verdict.tokens[-1] ^ 1))

    tokenizer = tokenizer_of()
    model, ends = writer("the cat sat<|im_end|>and", tokenizer), []
    decode = ScoredText.decode

    def noting(generator: Generator, prompt: Any, settings: Any) -> ScoredText:
        ends.append(settings["eos_token_id"])
        return decode(generator, prompt, settings)

    monkeypatch.setattr(ScoredText, "decode", noting)
    wrong = Generator(model, tokenizer, proposer="jacobi", verifier=Wrong())
    assert compare(model, {"a": wrong}, [CHAT], tokenizer=tokenizer, repeats=1, **SETTINGS).defects
    assert ends == [ends_in_chat(model, tokenizer, len(tokenizer), {})]


def test_a_gguf_file_names_the_ends_of_turns(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="a GGUF file is read with gguf and accelerate")
    from tests.demo import tiny_gguf

    path = tmp_path / "tiny.gguf"
    tiny_gguf.write(path, more=lambda writer: (writer.add_eot_token_id(3), writer.add_eom_token_id(4)))
    tokenizer = load_pretrained_tokenizer(str(path))
    assert ends_of_turn(tokenizer, {}) == (2, 3, 4)
