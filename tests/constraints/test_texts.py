"""Texts under constraints on the built-in model: those of plain decoding by another loop and matcher, and all valid."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field, field_validator

from specdec import Generator, ToyModel
from specdec.constraints import Choice, JsonObject, JsonSchema, Regex
from tests.support.byte_tokenizer import trained
from tests.support.examples import examples
from tests.support.plain import decode_model

pytest.importorskip("llguidance")
pytest.importorskip("jsonschema")
from tests.support.masks import allowed_by, grammar_of
from tests.support.schemas import SATISFIABLE, check_valid

PROMPTS = ["# heapq\n", "x", "# The members, as JSON, with all of their names\n"]
NUM_TOKENS = 60
SEED = 11


def closed(properties: dict[str, Any], required: list[str]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


@pytest.fixture(scope="module")
def generators(built_in: tuple[Any, Any]) -> dict[str, Generator]:
    names = ("auto", "prompt_lookup+grammar")
    return {name: Generator(*built_in, proposer=name, weights="stock", max_batch_size=2) for name in names}


@examples(2)  # `benchmarks schema_fuzz` runs hundreds
@given(schemas=st.lists(SATISFIABLE, min_size=3, max_size=3))
def test_schemas_made_at_random_have_plain_decodings_texts_which_are_valid(
    built_in: tuple[Any, Any], generators: dict[str, Generator], schemas: list[dict[str, Any]]
) -> None:
    model, tokenizer = built_in
    num_complete = 0
    each = [{"constraint": JsonSchema(schema)} for schema in schemas]
    for temperature, seed in ((0.0, None), (1.0, SEED)):
        expected = [
            decode_model(
                model,
                tokenizer(prompt)["input_ids"],
                NUM_TOKENS,
                seed,
                allowed=allowed_by(grammar_of(schema), tokenizer, len(tokenizer)),
            )
            for prompt, schema in zip(PROMPTS, schemas, strict=True)
        ]
        for name, generator in generators.items():
            results = generator.generate(
                PROMPTS, each=each, temperature=temperature, seed=SEED, max_new_tokens=NUM_TOKENS
            )
            assert [list(result.token_ids) for result in results] == expected, name
            for schema, result in zip(schemas, results, strict=True):
                if result.finish_reason == "stop":
                    num_complete += 1
                    assert result.parsed == json.loads(result.text)
                    check_valid(result.parsed, schema)
                else:
                    assert result.finish_reason == "length"
    assert num_complete


class Person(BaseModel, extra="forbid"):
    name: str = Field(max_length=8)
    age: int = Field(ge=0, le=120)


class Picky(Person):
    @field_validator("age")
    @classmethod
    def _refuse(cls, age: int) -> int:
        raise ValueError("no age is right")


def test_each_prompt_has_a_constraint_of_its_own_and_a_parsed_value(generators: dict[str, Generator]) -> None:
    generator = generators["auto"]
    constraints = [JsonSchema(Person), JsonSchema(list[bool]), Choice(["yes", "no"]), Regex("[0-9]{3}"), None]
    each = [{"constraint": constraint} for constraint in constraints]
    person, flags, choice, number, free = generator.generate(["# x"] * 5, each=each, max_new_tokens=60)
    assert isinstance(person.parsed, Person)
    assert flags.parsed is None or all(isinstance(flag, bool) for flag in flags.parsed)
    assert choice.parsed in ("yes", "no")
    assert number.text == number.parsed
    assert number.parsed.isdigit()
    assert free.parsed is None
    assert generator.generate(
        "# x", constraint=Regex("[0-9]+"), max_new_tokens=4
    ).parsed.isdigit()  # ends while it accepts


def test_a_stream_has_the_parsed_value_in_its_last_chunk(generators: dict[str, Generator]) -> None:
    chunks = list(generators["auto"].stream("# x", constraint=JsonSchema(Person), max_new_tokens=60))
    assert chunks[-1].result is not None
    assert Person.model_validate_json("".join(chunk.text for chunk in chunks)) == chunks[-1].result.parsed


def test_a_text_without_a_value_says_why(generators: dict[str, Generator]) -> None:
    cut = generators["auto"].generate("# x", constraint=JsonSchema(Person), max_new_tokens=5)
    assert (cut.finish_reason, cut.parsed) == ("length", None)
    assert cut.text.startswith("{")
    assert any("ended before the constraint was met" in note for note in cut.notes)
    picky = generators["auto"].generate("# x", constraint=JsonSchema(Picky), max_new_tokens=60)
    assert (picky.finish_reason, picky.parsed) == ("stop", None)
    assert any("no age is right" in note for note in picky.notes)


def test_a_value_is_of_the_text_without_its_end_and_none_of_a_text_that_was_cut() -> None:
    tokenizer, prompt = trained(), [0]
    script = [*tokenizer("12")["input_ids"], tokenizer.eos_token_id]

    def law(context: tuple[int, ...]) -> list[float]:
        token = script[min(len(context) - len(prompt), len(script) - 1)]
        return [float(token == each) for each in range(len(tokenizer))]

    generate = Generator(ToyModel(law, len(tokenizer)), tokenizer, proposer="autoregressive").generate
    end = {"eos_token_id": tokenizer.eos_token_id, "skip_special_tokens": False}
    for constraint, value in ((JsonSchema({"type": "integer"}), 12), (Regex("[0-9]+"), "12")):
        whole = generate(prompt, constraint=constraint, **end)
        assert (whole.text, whole.parsed) == (f"12{tokenizer.eos_token}", value)
        cut = generate(prompt, constraint=constraint, stop="2", **end)
        assert (cut.text, cut.parsed) == ("1", None)
        assert any("was cut at a stop string" in note for note in cut.notes)


def test_whitespace_is_as_asked_for(generators: dict[str, Generator]) -> None:
    schema = closed({"a": {"const": 1}, "b": {"const": [2, 3]}}, ["a", "b"])
    generate = generators["auto"].generate
    assert generate("# x", constraint=JsonSchema(schema)).text == '{"a": 1, "b": [2, 3]}'
    assert generate("# x", constraint=JsonSchema(schema, whitespace="none")).text == '{"a":1,"b":[2,3]}'
    assert json.loads(generate("# x", constraint=JsonSchema(schema, whitespace="any"), max_new_tokens=500).text) == {
        "a": 1,
        "b": [2, 3],
    }
    assert generate("# x", constraint=JsonObject(), max_new_tokens=9).text[0] == "{"


def test_forced_text_takes_few_steps(generators: dict[str, Generator]) -> None:
    schema = closed({"the_name_of_the_customer": {"const": "a customer of no name"}}, ["the_name_of_the_customer"])
    result = generators["auto"].generate("# x", constraint=JsonSchema(schema))
    assert result.stats.num_tokens > 3 * result.stats.steps


def test_transformers_generate_takes_a_constraint(built_in: tuple[Any, Any]) -> None:
    import specdec

    model, tokenizer = built_in
    encoded = tokenizer(["# x", "# a longer one"], return_tensors="pt", padding=True, padding_side="left")
    function = specdec.custom_generate(weights="stock", constraint=Regex("[0-9]{4}"), tokenizer=tokenizer)
    tokens = model.generate(**encoded, do_sample=False, max_new_tokens=9, custom_generate=function)
    texts = tokenizer.batch_decode(tokens[:, encoded["input_ids"].shape[1] :], skip_special_tokens=True)
    assert all(len(text) == 4 and text.isdigit() for text in texts)
