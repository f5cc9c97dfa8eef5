"""Turns request bodies into calls: prompts as token ids, and settings, checked against the model and the limits."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specdec.apps.serving.answer_constraints import AnswerPlan, AnswerPlanner, RequestedAnswer
from specdec.apps.serving.body_checks import check_chat, check_without_stream
from specdec.apps.serving.chat_template import is_continuation, template_field, template_options
from specdec.apps.serving.echo import Echo
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.sampling_settings import settings_of
from specdec.apps.serving.schemas import ChatBody, CompletionBody, Prediction, Sampling
from specdec.apps.serving.strategy_aliases import StrategyAliases
from specdec.apps.serving.text_ends import TextEnds
from specdec.apps.serving.tool_arguments import with_parsed_arguments
from specdec.constraints.base import Vocabulary
from specdec.errors import RequestError
from specdec.generator import Generator
from specdec.requests.model_defaults import own_eos_token_ids
from specdec.requests.prompts import encode, text_ids
from specdec.requests.special_tokens import special_tokens
from specdec.requests.turn_ends import ends_in_chat
from specdec.sampling.randomness import seed_of_sample
from specdec.strategies.base import Proposer
from specdec.verifiers.base import Verifier

_COMPLETION_TOKENS = 16  # OpenAI's default
_ROLES = {"developer": "system"}  # that templates don't read


@dataclass(frozen=True, slots=True)
class Call:
    """A request, ready to be decoded.

    Attributes:
        prompts: token ids; each prompt occurs ``num_samples`` times in a row.
        settings: the settings of all prompts, by their names in ``Settings``.
        seeds: one for each prompt.
        strategy: the strategy's name as given by the request or the server's operator.
        proposer, verifier: None for the server's own.
        num_logprobs: top tokens to report with each token; None for no log-probabilities.
        reports_steps: report each step's draft as well.
        plan: what the answers may contain; its constraint isn't among the settings until it is compiled.
        echoes: of each prompt, to be reported in front of its text; empty if prompts aren't reported.
        reference: token ids that each text is expected to resemble; None without a prediction.
        params: the fields of the request that have the prompts, and to which the length of the answer is due.
        has_completion: False if the prompts alone are reported. One token is decoded all the same: the pass over the
            prompt decides it at no cost.
    """

    prompts: Sequence[list[int]]
    num_samples: int
    settings: Mapping[str, Any]
    seeds: Sequence[int]
    strategy: str
    proposer: Proposer | None
    verifier: Verifier | None
    num_logprobs: int | None
    reports_steps: bool
    plan: AnswerPlan
    echoes: Sequence[Echo] = ()
    reference: Sequence[int] | None = None
    params: tuple[str, str] = ("prompt", "max_tokens")
    has_completion: bool = True

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each prompt counted once."""
        return sum(map(len, self.prompts[:: self.num_samples]))


class RequestParser:
    """Turns bodies into calls.

    Args:
        generator: whose model and strategy serve.
        tokenizer: used by no other thread.
        aliases: the strategies that a request may name.
        options: the server's limits.
        own_strategy: the name of the generator's strategy.
        vocabulary: the one that constraints are compiled for.

    Raises:
        RequestError: for an unknown format of tool calls among the options.
    """

    def __init__(
        self,
        generator: Generator,
        tokenizer: Any,
        aliases: StrategyAliases,
        options: ServerOptions,
        own_strategy: str,
        vocabulary: Vocabulary,
    ) -> None:
        self._generator, self._tokenizer = generator, tokenizer
        self._planner = AnswerPlanner(tokenizer, vocabulary, options.tool_parser)
        self._aliases, self._options, self._own_strategy = aliases, options, own_strategy
        self._shapes = generator.shapes
        self._longest_piece = max(map(len, tokenizer.get_vocab()))
        self._special = special_tokens(tokenizer)

    def check(self, body: Sampling) -> None:
        """Check everything that needs no tokenizer or model.

        Raises:
            ApiError: with the invalid field.
        """
        self._check_bounds(body)
        self._ends(body, ()).check()
        if isinstance(body, CompletionBody):
            self._check_completion(body)
        elif isinstance(body, ChatBody):
            check_chat(body)

    def completion(self, body: CompletionBody) -> Call:
        """Return the call of a checked completion body; raises ApiError if it is refused."""
        prompts = [self._encoded(prompt, "prompt") for prompt in body.prompt]
        most = _COMPLETION_TOKENS if body.max_tokens is None else max(1, body.max_tokens)
        length = most, "max_tokens" if body.max_tokens else "prompt"
        call = self._call(body, prompts, length, body.logprobs, self._planner.completion(body))
        if not body.echo:
            return call
        skips = body.skip_special_tokens is not False
        pairs = zip(body.prompt, prompts, strict=True)
        echoes = [Echo.of(prompt, ids, self._tokenizer, skips) for prompt, ids in pairs]
        repeated = [echo for echo in echoes for _ in range(call.num_samples)]
        settings = {**call.settings, "prompt_logprobs": body.logprobs}
        return replace(call, settings=settings, echoes=repeated, has_completion=body.max_tokens != 0)

    def chat(self, body: ChatBody) -> Call:
        """Return the call of a checked chat body; raises ApiError if it is refused."""
        wanted = RequestedAnswer.of_chat(body)
        messages = [
            with_parsed_arguments(message.model_dump(exclude_none=True), index)
            | {"content": message.content or message.refusal or "", "role": _ROLES.get(message.role, message.role)}
            for index, message in enumerate(body.messages)
        ]
        prompt = self._encoded(messages, "messages", template_options(body))
        requested = body.max_completion_tokens or body.max_tokens
        room = self._shapes.context_length - len(prompt) + 1  # the last token takes no position
        most = requested or max(1, min(self._options.default_max_tokens, room))
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        named = "max_completion_tokens" if body.max_completion_tokens else "max_tokens" if requested else "messages"
        begun = str(messages[-1]["content"]) if is_continuation(body) else None
        plan = self._planner.chat(wanted, prompt, begun, shows_special=body.skip_special_tokens is False)
        call = self._call(body, [prompt], (most, named), num_logprobs, plan)
        return call if body.prediction is None else replace(call, reference=self._reference(body.prediction, call))

    def _reference(self, prediction: Prediction, call: Call) -> list[int]:
        """Return the ids of a predicted answer; none if the call's strategy doesn't draft from it."""
        if not (call.proposer or self._generator.proposer).reads_reference:
            return []
        most = self._shapes.context_length  # tokens of the longest answer
        try:
            text = prediction.content[: most * self._longest_piece]
            return text_ids(text, self._tokenizer, add_special_tokens=False)[:most] if text else []
        except RequestError as error:
            raise ApiError(400, str(error), "prediction", "invalid_value") from None

    def _check_bounds(self, body: Sampling) -> None:
        options, count = self._options, body.n or 1
        if body.model != options.name:
            message = f"The model `{body.model}` does not exist: this server has `{options.name}`."
            raise ApiError(404, message, "model", "model_not_found")
        if count > options.max_n:
            raise ApiError(400, f"n={count} is above this server's limit of {options.max_n}.", "n", "invalid_value")
        if body.num_texts > options.max_texts:
            message = f"{body.num_prompts} prompts, n={count}: {body.num_texts} texts are above {options.max_texts}."
            raise ApiError(400, message, "prompt", "invalid_value")
        unknown = [token for token in body.logit_bias or () if token >= self._shapes.vocab_size]
        if unknown:
            message = f"logit_bias: {unknown[0]} is outside the vocabulary of {self._shapes.vocab_size}."
            raise ApiError(400, message, "logit_bias", "invalid_value")
        if not body.stream:
            check_without_stream(body)

    def _check_completion(self, body: CompletionBody) -> None:
        if body.best_of not in (None, body.n or 1):
            raise ApiError(400, "best_of must equal n: specdec ranks no texts.", "best_of", "unsupported_value")
        if body.max_tokens == 0 and not body.echo:
            message = "max_tokens=0 asks for an empty answer: give 1 or more, or echo: true for the prompt alone."
            raise ApiError(400, message, "max_tokens", "invalid_value")
        most = self._most_prompt_tokens()  # before each id is looked at
        longest = max((len(prompt) for prompt in body.prompt if isinstance(prompt, list)), default=0)
        if longest > most:
            whose = "this server takes" if self._options.max_prompt_tokens else "the model's maximum context length is"
            message = f"The prompt has {longest} tokens, and {whose} {most}."
            raise ApiError(400, message, "prompt", "context_length_exceeded")

    def _own_ends(self, body: Sampling) -> tuple[int, ...]:
        model, vocab_size = self._generator.model, self._shapes.vocab_size
        if isinstance(body, ChatBody):
            return ends_in_chat(model, self._tokenizer, vocab_size, template_options(body))
        return own_eos_token_ids(model, vocab_size)

    def _ends(self, body: Sampling, own: Sequence[int]) -> TextEnds:
        # If special tokens are part of the text, a special token in stop is an ordinary stop string.
        special = {} if body.skip_special_tokens is False else self._special
        return TextEnds.of(body, own, special, self._shapes.vocab_size)

    def _encoded(self, prompt: Any, param: str, template: Mapping[str, Any] | None = None) -> list[int]:
        most = self._most_prompt_tokens()
        size, longest = _size_of(prompt), most * self._longest_piece
        if size > longest:  # encoding it would take seconds
            message = f"The prompt has {size} characters, and none of {most} tokens has more than {longest}."
            raise ApiError(400, message, param, "context_length_exceeded")
        try:
            ids = encode(prompt, self._tokenizer, self._shapes.vocab_size, template or {})
        except RequestError as error:
            at_fault = template_field(template) if template and self._is_taken_bare(prompt) else param
            raise ApiError(400, str(error), at_fault, "invalid_value") from None
        if self._options.max_prompt_tokens is not None and len(ids) > self._options.max_prompt_tokens:
            message = f"The prompt has {len(ids)} tokens, and this server takes {self._options.max_prompt_tokens}."
            raise ApiError(400, message, param, "context_length_exceeded")
        return ids

    def _is_taken_bare(self, messages: Any) -> bool:
        """Return True if the template accepts the messages without options."""
        try:
            encode(messages, self._tokenizer, self._shapes.vocab_size)
        except RequestError:
            return False
        return True

    def _most_prompt_tokens(self) -> int:
        positions = self._shapes.context_length
        return min(self._options.max_prompt_tokens or positions, positions)

    def _call(
        self,
        body: Sampling,
        prompts: list[list[int]],
        length: tuple[int, str],
        num_logprobs: int | None,
        plan: AnswerPlan,
    ) -> Call:
        """Return a call; ``length`` is the number of new tokens, and the field that it is due to."""
        most, length_param = length
        params = "messages" if isinstance(body, ChatBody) else "prompt", length_param
        self._check_length(body, max(map(len, prompts)), most, params, plan)
        count = body.n or 1
        seed = secrets.randbits(48) if body.seed is None else body.seed % 2**62
        repeated = [prompt for prompt in prompts for _ in range(count)]
        ends = self._ends(body, self._own_ends(body))
        settings = settings_of(body) | ends.settings
        settings |= {"max_new_tokens": most, "keeps_logits": num_logprobs is not None}
        if plan.shows_special:
            settings |= {"skip_special_tokens": False, "hidden_token_ids": tuple(plan.hidden_token_ids)}
        return Call(
            prompts=repeated,
            num_samples=count,
            settings=settings,
            seeds=[seed_of_sample(seed, number) for number in range(len(repeated))],
            strategy=body.proposer or self._own_strategy,
            proposer=None if body.proposer is None else self._aliases.proposer(body.proposer),
            verifier=None if body.verifier is None else self._aliases.verifier(body.verifier),
            num_logprobs=num_logprobs,
            plan=plan,
            params=params,
            reports_steps=bool(body.include_steps),
        )

    def _check_length(self, body: Sampling, longest: int, most: int, params: tuple[str, str], plan: AnswerPlan) -> None:
        """Raise ApiError if the answer has no room, or its shortest length can't be honoured.

        Args:
            longest: tokens of the longest prompt.
            most: the number of new tokens.
            params: as in ``Call``.
        """
        positions = self._shapes.context_length
        if longest + most - 1 > positions:  # nothing follows the last token, so it takes no position
            most = 0 if body.max_tokens == 0 else most
            message = (
                f"This model's maximum context length is {positions} tokens. However, you requested {longest + most} "
                f"tokens ({longest} in the prompt, {most} in the completion)."
            )
            raise ApiError(400, message, params[longest <= positions], "context_length_exceeded")
        if (body.min_tokens or 0) > most:
            message = f"min_tokens={body.min_tokens} is above the {most} tokens that the answer may have."
            raise ApiError(400, message, "min_tokens", "invalid_value")
        if body.min_tokens and plan.constraint is not None:
            message = "min_tokens and a constraint both decide where the answer may end: leave one out."
            raise ApiError(400, message, "min_tokens", "invalid_value")


def _size_of(prompt: Any) -> int:
    """Return the number of characters of a text or of all messages; 0 for token ids."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(each["content"]) for each in prompt if isinstance(each, Mapping))
