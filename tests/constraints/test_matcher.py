"""States on llguidance: values that share one matcher, masks as wide as the logits, limits and refusals."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, datetime, time
from threading import Event, Thread
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
from pydantic import BaseModel
from transformers import AddedToken

from specdec import RequestError
from specdec.constraints import (
    Choice,
    Constraint,
    ConstraintState,
    Grammar,
    JsonObject,
    JsonSchema,
    Regex,
    StructuralTags,
    Tag,
    Vocabulary,
    matcher,
)  # fmt: skip
from specdec.constraints.cache import ConstraintCache
from specdec.constraints.matcher import BusyError, SlowGrammarError, _library_tokens
from specdec.constraints.refusals import place_of_refusal, refused_part
from specdec.testing import check_constraint, toy_tokenizer
from tests.support.byte_tokenizer import byte_ids, trained

llguidance = pytest.importorskip("llguidance")

CONSTRAINTS = {
    "schema": JsonSchema({"type": "object", "properties": {"naïve": {"type": "boolean"}}, "required": ["naïve"]}),
    "object": JsonObject(),
    "regex": Regex("[0-9]{2}-(abc)*x"),
    "choice": Choice(["the cat", 'the "hat"\n', "東京"]),
    "grammar": Grammar('start: "(" start ")" | "the"'),
    "tags": StructuralTags([Tag(begin="<a>", content=JsonSchema({"type": "boolean"}), end="</a>")]),
}


def texts(state: Any, tokenizer: Any) -> list[str]:
    return [tokenizer.decode([token]) for token in state.mask().nonzero().flatten().tolist()]


@pytest.mark.parametrize("name", CONSTRAINTS)
@pytest.mark.parametrize("extra", [0, 37])
def test_states_are_values_and_masks_have_the_width_of_the_logits(name: str, extra: int) -> None:
    check_constraint(CONSTRAINTS[name], trained(), len(trained()) + extra)


def test_a_mask_is_the_librarys_own_after_the_same_tokens() -> None:
    """A walk with branches, beside a matcher of the library that consumes each path from the start."""
    from llguidance.hf import from_tokenizer

    tokenizer = trained()
    library, rng = from_tokenizer(tokenizer), np.random.default_rng(4)
    grammar = llguidance.LLMatcher.grammar_from_regex("[a-c]{3}(,[a-c]{3})*")
    states: dict[tuple[int, ...], Any] = {
        (): Regex("[a-c]{3}(,[a-c]{3})*").start(Vocabulary(tokenizer, len(tokenizer)))
    }
    for _ in range(60):
        path = list(states)[int(rng.integers(len(states)))]
        matcher = llguidance.LLMatcher(library, grammar)
        assert matcher.consume_tokens(list(path))
        bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")[: len(tokenizer)]
        bits[tokenizer.eos_token_id] = 0
        assert states[path].mask().tolist() == bits.astype(bool).tolist()
        assert states[path].is_accepting == matcher.is_accepting()
        token = int(rng.choice(np.flatnonzero(bits)))
        states[*path, token] = states[path].advance(token)
    assert max(map(len, states)) > 5


def test_forced_text_is_spelled_as_the_tokenizer_spells_it() -> None:
    tokenizer = trained()
    state = Choice(["the cat sat on the mat"]).start(Vocabulary(tokenizer, len(tokenizer)))
    assert list(state.forced()) == tokenizer("the cat sat on the mat")["input_ids"]
    state = Choice(["the cat", "the hat"]).start(Vocabulary(tokenizer, len(tokenizer)))
    assert tokenizer.decode(state.forced()).strip() == "the"


def is_complete(constraint: Constraint, text: str) -> bool:
    """True if the text, as the tokenizer spells it, is allowed as a whole."""
    return is_walk(constraint.start(Vocabulary(trained(), len(trained()))), trained()(text)["input_ids"])


def is_walk(state: ConstraintState, tokens: list[int]) -> bool:
    """True if the tokens are allowed as a whole text."""
    for token in tokens:
        if not state.mask()[token]:
            return False
        state = state.advance(token)
    return state.is_accepting


LIMITS = (2**53, 10**17, 2**60, 2**63, 2**64, 10**20)
COMPARED: dict[str, Callable[[int, int], bool]] = {
    "const": int.__eq__,
    "minimum": int.__ge__,
    "maximum": int.__le__,
    "exclusiveMinimum": int.__gt__,
    "exclusiveMaximum": int.__lt__,
}


@pytest.mark.parametrize("keyword", COMPARED)
def test_numbers_beyond_a_double_are_exact_or_refused(keyword: str) -> None:
    vocabulary, num_exact = Vocabulary(trained(), len(trained())), 0
    near = {sign * limit + step for limit in LIMITS for step in (-1, 0, 1) for sign in (1, -1)}
    for limit in sorted(near):
        schema = {keyword: limit} if keyword == "const" else {"type": "integer", keyword: limit}
        try:
            start = JsonSchema(schema).start(vocabulary)
        except RequestError:
            continue
        num_exact += 1
        for value in range(limit - 2, limit + 3):
            allowed = is_walk(start, trained()(str(value))["input_ids"])
            assert allowed == COMPARED[keyword](value, limit), (limit, value)
    assert num_exact > 5


@pytest.mark.parametrize("constraint", [JsonSchema({}), JsonSchema(dict[str, int]), JsonObject()])
def test_long_integers_are_parsed_with_all_digits(constraint: Constraint) -> None:
    text = '{"a": 1234567890123456789012345678901234567890}'
    assert is_complete(constraint, text)
    assert constraint.parse(text) == {"a": 1234567890123456789012345678901234567890}
    if isinstance(constraint, JsonObject):
        with pytest.raises(ValueError, match="1e400 is beyond the range of a double"):  # not infinity
            constraint.parse('{"a": 1e400}')


class Open(BaseModel):
    """A model whose objects may have further properties."""

    a: int


@pytest.mark.parametrize(
    "constraint",
    [
        JsonSchema({"type": "object", "properties": {"a": {"type": "integer"}}}),
        JsonSchema({"type": "object", "patternProperties": {"^a": {"type": "integer"}}}),
        Grammar('start: one | %json {"enum": ["%json {}"]}\none: %json {"properties": {"a": {"type": "integer"}}}'),
    ],
)
def test_a_key_has_no_other_spelling_that_escapes_its_schema(constraint: Constraint) -> None:
    assert is_complete(constraint, '{"a": 1}')
    assert is_complete(constraint, '{"b": "x"}')
    assert is_complete(constraint, r'{"b": "\n\\\""}')
    assert not is_complete(constraint, r'{"\u0061": "x"}')


def test_a_text_that_looks_like_a_schema_is_text() -> None:
    assert is_complete(Grammar('start: "%json {}" | /b/'), "%json {}")


def test_a_type_that_takes_further_properties_has_each_of_its_own_once() -> None:
    constraint = JsonSchema(Open)
    assert is_complete(constraint, '{"a": 1, "b": 2}')
    assert not is_complete(constraint, r'{"a": 1, "\u0061": "x"}')


def test_between_tags_there_is_json_and_elsewhere_any_text() -> None:
    tokenizer = trained()
    content = JsonSchema({"type": "array", "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 2})
    tags = [Tag(begin=begin, content=content, end="</t>", trigger="<t") for begin in ("<t=a>", "<t=b>")]
    state = StructuralTags(tags).start(Vocabulary(tokenizer, len(tokenizer)))
    steps = {
        "the ": "",
        "<t": "=",
        "=": "ab",
        "b": ">",
        ">": "[",
        "[": "12",
        "2": ",]",
        ", 1": "]",
        "]": "<",
        "</t>": "",
    }
    for text, following in steps.items():  # each with the characters that may follow, nothing for any
        for token in byte_ids(text):
            assert state.mask()[token], text
            state = state.advance(token)
        assert state.is_accepting == (not following), text
        assert not following or {found[0] for found in texts(state, tokenizer)} == set(following), text


def test_triggers_that_are_special_tokens_are_these_tokens_and_others_are_text() -> None:
    tokenizer = copy.deepcopy(trained())
    tokenizer.add_tokens([AddedToken("<call>", special=True), AddedToken("[CALL]", special=True)])
    angled, bracketed = tokenizer.convert_tokens_to_ids(["<call>", "[CALL]"])
    tags = [Tag(begin=begin, content={"const": index}) for index, begin in enumerate(("<call>", "[CALL]", "<t>"))]
    first = StructuralTags(tags).start(Vocabulary(tokenizer, len(tokenizer)))
    for value, begin in ((0, [angled]), (1, [bracketed]), (2, byte_ids("<t>"))):
        state = first
        for token in (*byte_ids("the "), *begin):
            assert state.mask()[token]
            state = state.advance(token)
        assert texts(state, tokenizer) == [str(value)]


def test_special_tokens_are_these_tokens_throughout_a_tag() -> None:
    tokenizer = copy.deepcopy(trained())
    tokenizer.add_tokens([AddedToken(name, special=True) for name in ("<call>", "<sep>", "</call>")])
    call, sep, end = tokenizer.convert_tokens_to_ids(["<call>", "<sep>", "</call>"])
    tag = Tag(begin="<call>the <sep>", content={"const": 1}, end=".</call>", trigger="<call>the ")
    state = StructuralTags([tag]).start(Vocabulary(tokenizer, len(tokenizer)))
    tokens = [*byte_ids("a"), call, *trained()("the ")["input_ids"], sep, *byte_ids("1."), end]
    for place, token in enumerate(tokens):
        assert state.mask()[token], place
        assert place < 2 or state.mask().sum() < 9, place  # nothing else within the tag
        assert token in (sep, end) or not state.mask()[[sep, end]].any(), place
        state = state.advance(token)
        assert state.is_accepting == (token in (tokens[0], end))
    late = StructuralTags([Tag(begin="the <sep>", content={})])
    with pytest.raises(RequestError, match="'the <sep>' has the special token '<sep>' after text"):
        late.start(Vocabulary(tokenizer, len(tokenizer)))


TAGS_REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "empty": (lambda: Tag(begin="", content={}), "Tag refused: begin='': string should"),
    "no schema": (lambda: Tag(begin="a", content=3), "give a pydantic model"),
    "trigger": (lambda: Tag(begin="<a>", content={}, trigger="<b"), "'<a>' doesn't start with trigger='<b'"),
    "none": (lambda: StructuralTags(None), "StructuralTags refused: tags=None: input should"),
    "large": (lambda: StructuralTags([Tag(begin="a", content={}, end="b" * 300_000)]), "at most 262,144"),
}


@pytest.mark.parametrize("name", TAGS_REFUSED)
def test_tags_that_cannot_be_are_refused_when_they_are_made(name: str) -> None:
    make, reason = TAGS_REFUSED[name]
    with pytest.raises(RequestError, match=reason):
        make()


def test_a_text_ends_where_nothing_may_follow() -> None:
    tokenizer = trained()
    state = Choice(["the cat"]).start(Vocabulary(tokenizer, len(tokenizer)))
    for token in tokenizer("the cat")["input_ids"]:
        assert not state.is_accepting
        state = state.advance(token)
    assert state.is_accepting
    assert texts(state, tokenizer) == []


def test_equal_constraints_are_compiled_once_and_their_texts_stay_apart() -> None:
    tokenizer = trained()
    cache = ConstraintCache(Vocabulary(tokenizer, len(tokenizer)))
    one, other = (cache.start(Regex("[ab]*"), [0]) for _ in range(2))
    assert one.state is other.state
    a, b = (tokenizer(letter)["input_ids"][0] for letter in "ab")
    for state, token in ((one, a), (other, b), (one, b)):
        after = state.follow(token)
        assert after is not None
        assert after.is_accepting


REFUSED: dict[str, tuple[Constraint, str]] = {
    "regex": (Regex("a("), "unclosed group"),
    "lookahead": (Regex("(?=a)b"), "look-around"),
    "rule": (Grammar("start: foo"), "unknown name"),
    "unsatisfiable": (JsonSchema({"type": "string", "minLength": 3, "maxLength": 2}), "Unsatisfiable"),
    "format": (JsonSchema({"type": "string", "format": "colour"}), "colour"),
    "oneOf": (JsonSchema({"oneOf": [{"type": "number"}, {"type": "integer"}]}), "oneOf"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_library_refuses_is_an_error_in_one_line(name: str) -> None:
    constraint, reason = REFUSED[name]
    with pytest.raises(RequestError, match=reason) as caught:
        constraint.start(Vocabulary(trained(), len(trained())))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "constraint",
    [
        Grammar('start: start "a"'),
        Grammar("start: @x", parts={"x": Grammar("start: start start")}),
        Grammar("start: T\nT: /a/ & /b/"),
        Regex(r"a[^\s\S]"),
    ],
    ids=str,
)
def test_a_grammar_that_no_text_can_meet_is_refused_in_a_sentence_with_the_remedy(constraint: Constraint) -> None:
    remedy = (
        "no text can be whole: a rule that refers to itself needs an alternative that ends, and an expression a match"
    )
    with pytest.raises(RequestError, match=f"^the constraint is refused: {remedy}$"):
        ConstraintCache(Vocabulary(trained(), len(trained()))).start(constraint, [0])


NESTED = {"items": {"anyOf": [{"type": "string", "format": "colour"}, {"$ref": "#/$defs/a"}]}, "$defs": {"a": {}}}


def test_a_schema_that_the_library_refuses_is_refused_with_the_place(monkeypatch: pytest.MonkeyPatch) -> None:
    vocabulary = Vocabulary(trained(), len(trained()))
    place = "at #/properties/a/items/anyOf/0: Unknown format"
    for constraint in (
        JsonSchema({"properties": {"a": NESTED, "b": {"$ref": "#/$defs/a"}}, "$defs": {"a": True}}),
        StructuralTags([Tag(begin="a", content={"properties": {"a": NESTED | {"$defs": {}}}, "$defs": {"a": {}}})]),
    ):
        with pytest.raises(RequestError, match=place):
            constraint.start(vocabulary)
    with pytest.raises(RequestError, match=r"at #/\$defs/a: Unsatisfiable"):
        JsonSchema({"$ref": "#/$defs/a", "$defs": {"a": False}}).start(vocabulary)
    monkeypatch.setattr("specdec.constraints.refusals._MOST_SECONDS", -1.0)
    with pytest.raises(RequestError, match="at #: Unknown format"):
        JsonSchema({"items": {"format": "colour"}}).start(vocabulary)


def test_dates_and_times_are_those_that_exist() -> None:
    """Python's own notion of them, on dates near each end of a month, and on times near each limit."""
    days = [f"{year}-{month:02}-{day:02}" for year in ("1900", "2000", "2023", "2024") for month in (1, 2, 4) for day in
            (28, 29, 30, 31)]  # fmt: skip
    texts = {"date": [*days, "0000-01-01", "0001-01-01"]}
    texts["time"] = ["00:00:00Z", "23:59:59.5+01:00", "23:59:60Z", "24:00:00Z", "01:02:03z"]
    texts["date-time"] = [f"{day}T{hour}" for day in ("2023-02-29", "2024-02-29") for hour in texts["time"]]
    for name, read in (
        ("date", date.fromisoformat),
        ("time", time.fromisoformat),
        ("date-time", datetime.fromisoformat),
    ):
        for schema in ({"format": name}, {"anyOf": [{"type": "string", "format": name}]}):
            constraint = JsonSchema(schema)
            for text in texts[name]:
                assert is_complete(constraint, f'"{text}"') == exists(read, text), text


def exists(read: Callable[[str], object], text: str) -> bool:
    try:
        read(text)
    except ValueError:
        return False
    return True


def test_a_constraint_that_takes_too_long_to_compile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specdec.constraints.matcher.MOST_SECONDS", 0.0)
    slow = JsonSchema({"type": "integer", "multipleOf": 24989, "minimum": 0, "maximum": 10**9})
    with pytest.raises(RequestError, match="takes longer than 0 s to compile"):
        slow.start(Vocabulary(trained(), len(trained())))


def test_few_compilations_go_on_after_they_were_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    release, num_begun = Event(), 0

    def make(*_: Any, **__: Any) -> None:
        nonlocal num_begun
        num_begun += 1
        release.wait(60)

    vocabulary = Vocabulary(trained(), len(trained()))
    Regex("warm").start(vocabulary)
    with monkeypatch.context() as slow:
        slow.setattr("specdec.constraints.matcher.MOST_SECONDS", 0.0)
        slow.setattr(llguidance, "LLMatcher", Mock(wraps=llguidance.LLMatcher, side_effect=make))
        for pattern, reason in (
            ("a", "takes longer"),
            ("a", "takes longer"),
            ("b", "takes longer"),
            ("c", "try again"),
        ):
            with pytest.raises(RequestError, match=reason):
                Regex(pattern).start(vocabulary)
    assert num_begun == 2
    release.set()
    for thread in vocabulary.once(_library_tokens).abandoned:
        thread.join()
    assert Regex("c").start(vocabulary).mask().any()


def test_threads_may_abandon_compilations_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The second is given up while the first still waits: none of them may be forgotten."""
    release = Event()
    vocabulary = Vocabulary(trained(), len(trained()))
    Regex("warm").start(vocabulary)
    abandoned = vocabulary.once(_library_tokens).abandoned
    ended = Thread(target=lambda: None)
    ended.start()
    ended.join()
    abandoned[ended] = "ended"

    def start_one(pattern: str, seconds: float) -> None:
        with pytest.raises(RequestError, match="takes longer"):
            matcher.start(Regex(pattern).grammar(vocabulary), vocabulary, seconds)

    with monkeypatch.context() as slow:
        slow.setattr(
            llguidance, "LLMatcher", Mock(wraps=llguidance.LLMatcher, side_effect=lambda *_, **__: release.wait(60))
        )
        first = Thread(target=start_one, args=("a", 0.2))
        first.start()
        start_one("b", 0.01)
        first.join()
        assert len(abandoned) == 2
        with pytest.raises(BusyError, match="try again"):
            Regex("c").start(vocabulary)
    release.set()
    for thread in [*abandoned]:
        thread.join()
    assert Regex("c").start(vocabulary).mask().any()
    assert not abandoned


def test_the_search_for_the_place_of_a_refusal_ends_in_time() -> None:
    """With a clock of its own: each part may take what is left of the second, if it is enough to compile most."""
    limits = list[float]()

    def start(_: Any, seconds: float) -> None:
        limits.append(seconds)
        clock[0] += 0.3

    clock = [0.0]
    schema = {"anyOf": [{"minLength": number} for number in range(9)]}
    with patch("specdec.constraints.refusals.time.monotonic", lambda: clock[0]):
        assert place_of_refusal(schema, "reason", start) == "#"
    assert limits == pytest.approx([1.0, 0.7, 0.4])


@pytest.mark.parametrize(("num_parts", "limits"), [(2, [2.0, 1.05]), (128, [2.0, 1.05])])
def test_the_search_for_a_refused_part_ends_in_time_however_many_parts_there_are(
    num_parts: int, limits: list[float]
) -> None:
    given, clock, vocabulary = list[float](), [0.0], Vocabulary(None, 1)

    class Slow:
        def start(self, _: Vocabulary, seconds: float) -> Any:
            given.append(seconds)
            clock[0] += 0.95

    with patch("specdec.constraints.refusals.time.monotonic", lambda: clock[0]):
        assert refused_part([(str(number), Slow()) for number in range(num_parts)], vocabulary) is None
    assert given == pytest.approx(limits)


def test_a_part_that_the_search_has_no_time_for_is_not_blamed() -> None:
    started = list[str]()

    @dataclass
    class Part:
        error: RequestError | None

        def start(self, *_: Any) -> Any:
            started.append(str(self.error))
            if self.error is not None:
                raise self.error

    wrong, vocabulary = Part(RequestError("wrong")), Vocabulary(None, 1)
    for error in (SlowGrammarError("slow"), BusyError("busy")):
        started.clear()
        assert refused_part([("a", Part(None)), ("b", Part(error)), ("c", wrong)], vocabulary) is None
        assert started == ["None", str(error)]
    found = refused_part([("a", Part(None)), ("c", wrong)], vocabulary)
    assert found is not None
    assert (found[0], str(found[1])) == ("c", "wrong")


def test_a_constraint_whose_tokens_all_end_the_text_is_refused() -> None:
    cache = ConstraintCache(Vocabulary(trained(), len(trained())))
    with pytest.raises(RequestError, match="can't write any text"):
        cache.start(Choice(["the"]), range(len(trained())))


def test_a_constraint_with_a_field_that_cannot_be_hashed_is_refused() -> None:
    class Listed(Constraint):
        texts: list[str]

        def start(self, vocabulary: Vocabulary) -> ConstraintState:
            raise AssertionError("refused before")

    with pytest.raises(RequestError, match="Listed has a field that can't be hashed: use tuples"):
        ConstraintCache(Vocabulary(trained(), len(trained()))).start(Listed(texts=["a"]), [0])


def test_a_constraint_that_allows_no_text_is_refused() -> None:
    with pytest.raises(RequestError, match="allows the empty text alone"):
        ConstraintCache(Vocabulary(trained(), len(trained()))).start(Regex(""), [0])


def test_text_needs_a_tokenizer_that_the_library_can_read() -> None:
    with pytest.raises(RequestError, match=r"needs a tokenizer: Generator\(model, tokenizer\)"):
        Regex("a").start(Vocabulary(None, 6))
    with pytest.raises(RequestError, match="llguidance can't use this tokenizer"):
        Regex("a").start(Vocabulary(toy_tokenizer, 6))
