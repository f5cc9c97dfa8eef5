"""Builds checked requests from a caller's prompts and settings."""

import secrets
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as ReadOnly
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeVar

from specdec.constraints.cache import ConstraintCache
from specdec.decoding.request_state import RequestState
from specdec.decoding.strategy import Strategy
from specdec.decoding.text.detokenizer import TextDecoder
from specdec.errors import RequestError, plural
from specdec.inputs.blocks import needs_types
from specdec.inputs.messages import has_media, processed
from specdec.inputs.prepared import PreparedPrompt
from specdec.inputs.processor import ProcessedPrompt, ProcessorOutput
from specdec.layout import Shapes
from specdec.models.encoder_decoders import whole_of
from specdec.models.position_limit import check_length
from specdec.requests import prompts
from specdec.requests.generation_request import GenerationRequest
from specdec.requests.model_defaults import own_eos_token_ids, own_rules
from specdec.requests.own_copies import with_own_copies
from specdec.requests.references import encode_reference
from specdec.requests.special_tokens import special_tokens
from specdec.requests.turn_ends import ends_in_chat
from specdec.sampling.processors import Warper, impure, processor_name
from specdec.sampling.randomness import Randomness
from specdec.settings import Settings
from specdec.verifiers.base import Verifier

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class RequestBuilder:
    """Makes requests for a model, checked against the model and its generation config as they are at that time.

    Attributes:
        processor: encodes images and audio in messages; None if there is none.
        why_text_only: why prompts can't have images, audio or an encoder's states, or "".
        check_inputs: raises RequestError for a prompt whose inputs the model would read in another way.
    """

    model: Any
    tokenizer: Any | None
    shapes: Shapes
    verifier: Verifier
    constraints: ConstraintCache
    processor: Any | None = None
    why_text_only: str = ""
    check_inputs: Callable[[PreparedPrompt], object] = lambda _: None

    def build(
        self, request: GenerationRequest, strategies: ReadOnly[Strategy], wants_text: bool = False
    ) -> list[RequestState | Exception]:
        """Return a checked request for each prompt, or its error; with one strategy for all prompts, or one for each.

        Raises:
            RequestError: for settings that are refused.
        """
        items, _ = prompts.as_list(request.prompt)
        settings = [self._settings(overrides, request.config) for overrides in _overrides(request, len(items))]
        if len(settings) != len(items):  # the same for all
            settings *= len(items)
        if len(items) > 1:
            settings = with_own_copies(settings, (self.model, self.tokenizer))
        strategies = _one_for_each("proposers", strategies, len(items))
        contexts = _one_for_each("contexts", request.contexts or [None], len(items))
        references = _one_for_each("references", request.references or [None], len(items))
        used = [id(context) for context in contexts if context is not None]
        if len(used) != len({*used}):
            raise RequestError("a single context was given for several prompts: give one for each prompt")
        requests: list[RequestState | Exception] = []
        for index, item in enumerate(items):
            try:
                own = settings[index]
                if own.eos_token_id is None:
                    own = own.model_copy(update={"eos_token_id": self._ends(item, request.template)})
                prompt = self._prompt(item, request.template)
                made = self._request(prompt, strategies[index], own, wants_text)
                made.index, made.context = index, contexts[index]
                made.reference = self._reference(references[index], strategies[index], prompt.source)
                requests.append(made)
            except RequestError as error:
                requests.append(error)
        return requests

    def _prompt(self, item: Any, template: Mapping[str, Any]) -> PreparedPrompt:
        """Return a prompt's ids, with what else the model reads."""
        if (whole := whole_of(self.model)) is not None:
            encoded = self._of_decoder(whole, item, template)
            self.check_inputs(encoded)
            return encoded
        if prompts.is_chat(item) and has_media(item):
            self._refuse_inputs()
            [item] = processed(item, self.processor, template).prompts()
            template = {}
        if isinstance(item, ProcessedPrompt):
            self._refuse_inputs()
            check_length(item.num_given, 1, self.shapes.context_length)  # before anything is encoded
            item = item.prepared(self.model)
        given = item.ids if isinstance(item, PreparedPrompt) else item
        ids = prompts.encode(given, self.tokenizer, self.shapes.vocab_size, template)
        if not isinstance(item, PreparedPrompt):
            if not self.shapes.has_causal_mask:
                raise RequestError(needs_types(self.model))
            return PreparedPrompt(ids)
        if item.inputs is not None:
            self._refuse_inputs()
            self.check_inputs(item)
        return PreparedPrompt(ids, item.inputs)

    def _of_decoder(self, model: Any, item: Any, template: Mapping[str, Any]) -> PreparedPrompt:
        """Return a decoder's prompt: text and ids are the input of the encoder."""
        self._refuse_inputs()
        if isinstance(item, PreparedPrompt):
            return item
        if not isinstance(item, ProcessedPrompt):
            if model.main_input_name != "input_ids":
                raise RequestError(
                    f"{type(model).__name__} reads {model.main_input_name}: give its processor's output, "
                    "generate(**processor(…))"
                )
            vocab_size = len(model.get_encoder().get_input_embeddings().weight)
            ids = prompts.encode(item, self.tokenizer, vocab_size, template)
            [item] = ProcessorOutput.of({"input_ids": [ids]}).prompts()
        prepared: PreparedPrompt = item.prepared(model)
        return prepared

    def _refuse_inputs(self) -> None:
        """Raise RequestError if the model reads text only."""
        if self.why_text_only:
            raise RequestError(self.why_text_only)

    def _settings(self, overrides: Mapping[str, Any], config: Any | None) -> Settings:
        """Return settings that are valid for the model, with the model's own defaults."""
        vocab_size = self.shapes.vocab_size
        own = own_rules(self.model, overrides)
        settings = Settings.make(overrides, config, own)
        _check_ids("eos_token_id", settings.eos_token_id or (), vocab_size)
        first = settings.forced_bos_token_id
        _check_ids("forced_bos_token_id", () if first is None else (first,), vocab_size)
        _check_ids("forced_eos_token_id", settings.forced_eos_token_id, vocab_size)
        _check_ids("suppress_tokens", settings.suppress_tokens + settings.begin_suppress_tokens, vocab_size)
        _check_ids("logit_bias", (token for token, _ in settings.logit_bias), vocab_size)
        _check_ids("bad_words_ids", chain.from_iterable(settings.bad_words_ids), vocab_size)
        if settings.stop and self.tokenizer is None:
            raise RequestError("stop strings need a tokenizer: Generator(model, tokenizer), or use eos_token_id")
        if settings.skip_special_tokens:
            self._check_special(settings.stop)
        elif self.tokenizer is None:
            raise RequestError("skip_special_tokens=False needs a tokenizer: Generator(model, tokenizer)")
        self._check_processors(settings)
        return settings

    def _check_special(self, stop: tuple[str, ...]) -> None:
        known = special_tokens(self.tokenizer) if stop else {}
        for special, token in ((text, known[text]) for text in stop if text in known):
            raise RequestError(
                f"stop={special!r} is a special token, which the text omits: use eos_token_id={token}, or "
                "skip_special_tokens=False to have special tokens in the text"
            )

    def _check_processors(self, settings: Settings) -> None:
        rule = type(self.verifier).__name__
        if not self.verifier.stays_on_the_text and (names := list(map(processor_name, impure(settings)))):
            raise RequestError(
                f"{rule} needs distributions on paths that the text may not take, and {', '.join(names)} may "
                "depend on earlier calls: give it an attribute is_path_pure = True if its scores are a "
                "function of its arguments alone, or use verifier='match' or 'rejection'"
            )

    def _ends(self, prompt: Any, template: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the ends of text of a prompt whose settings name none."""
        vocab_size = self.shapes.vocab_size
        if prompts.is_chat(prompt):
            return ends_in_chat(self.model, self.tokenizer, vocab_size, template)
        return own_eos_token_ids(self.model, vocab_size)

    def _reference(self, reference: Any, strategy: Strategy, source: ReadOnly[int]) -> ReadOnly[int]:
        """Return the text to draft from: by default what the encoder has read."""
        if reference is None and strategy.reads_reference:
            return source
        return encode_reference(reference, strategy, self.tokenizer, self.shapes.vocab_size)

    def _request(self, prompt: PreparedPrompt, strategy: Strategy, given: Settings, wants_text: bool) -> RequestState:
        ids = [*prompt.ids]
        shapes, settings = self.shapes, given.after_prompt(len(ids))
        check_length(len(ids), settings.max_new_tokens, shapes.context_length)
        eos, constraint = frozenset(settings.eos_token_id or ()), settings.constraint
        return RequestState(
            tokens=ids,
            inputs=prompt.inputs,
            strategy=strategy,
            verifier=self.verifier,
            settings=settings,
            eos_token_ids=eos,
            randomness=Randomness(secrets.randbits(63) if settings.seed is None else settings.seed),
            warper=Warper(settings, len(ids), sorted(eos), shapes.device),
            decoder=TextDecoder.of(self.tokenizer, settings, ids) if settings.stop or wants_text else None,
            constraint=None if constraint is None else self.constraints.start(constraint, eos),
        )


def _check_ids(name: str, ids: Iterable[int], vocab_size: int) -> None:
    for token in ids:
        if not 0 <= token < vocab_size:
            raise RequestError(f"{name}: {token} is outside the vocabulary of {vocab_size}")


def _one_for_each(name: str, given: ReadOnly[Item], num_prompts: int) -> ReadOnly[Item]:
    """Return one value for each prompt."""
    of_prompts = plural(num_prompts, "prompt")
    if len(given) not in (1, num_prompts):
        raise RequestError(f"{len(given)} {name} were given for {of_prompts}: give one, or one for each")
    return [*given] * num_prompts if len(given) == 1 else given


def _overrides(request: GenerationRequest, num_prompts: int) -> list[dict[str, Any]]:
    """Return the settings of each prompt, with its own seed; a single entry if all prompts share them."""
    shared, each = dict(request.settings), request.each
    seeds = shared.get("seed")
    own: list[dict[str, Any]] = [{}] * num_prompts
    if isinstance(seeds, list | tuple):
        if len(seeds) != num_prompts:
            many = f"{plural(len(seeds), 'seed')} given for {plural(num_prompts, 'prompt')}"
            raise RequestError(f"{many}: give one seed, or one for each")
        own = [{"seed": seed} for seed in seeds]
    elif each is None:
        return [shared]
    if each is not None and len(each) != num_prompts:
        raise RequestError(
            f"each has {plural(len(each), 'mapping')} for {plural(num_prompts, 'prompt')}: give one for each"
        )
    return [{**shared, **seed, **more} for seed, more in zip(own, each or [{}] * num_prompts, strict=True)]
