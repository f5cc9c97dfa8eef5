"""Turns request bodies into calls: prompts as token ids, and settings, checked against the model and the limits."""

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from specdec.apps.serving.answer_constraints import AnswerPlan, AnswerPlanner, RequestedAnswer
from specdec.apps.serving.body_checks import check_chat, check_without_stream
from specdec.apps.serving.chat_template import is_continuation, template_options
from specdec.apps.serving.content_parts import text_of
from specdec.apps.serving.echo import Echo
from specdec.apps.serving.errors import ApiError
from specdec.apps.serving.options import ServerOptions
from specdec.apps.serving.prompt_encoder import PromptEncoder
from specdec.apps.serving.sampling_settings import settings_of
from specdec.apps.serving.schemas import ChatBody, CompletionBody, Sampling
from specdec.apps.serving.strategy_aliases import StrategyAliases
from specdec.apps.serving.text_ends import TextEnds
from specdec.apps.serving.tool_arguments import with_parsed_arguments
from specdec.constraints.base import Vocabulary
from specdec.generator import Generator
from specdec.inputs.processor import ProcessedPrompt
from specdec.requests.model_defaults import own_eos_token_ids
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
        inputs: the prompt of a chat with images or audio, which the model hasn't encoded yet; None for text alone.
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
    inputs: ProcessedPrompt | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of all prompts, each prompt counted once."""
        return sum(map(len, self.prompts[:: self.num_samples]))


class RequestParser:
    """Turns bodies into calls.

    Args:
        generator: whose model and strategy serve.
        tokenizer, processor: used by no other thread.
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
        processor: Any,
        aliases: StrategyAliases,
        options: ServerOptions,
        own_strategy: str,
        vocabulary: Vocabulary,
    ) -> None:
        self._generator, self._tokenizer = generator, tokenizer
        self._planner = AnswerPlanner(tokenizer, vocabulary, options.tool_parser)
        self._aliases, self._options, self._own_strategy = aliases, options, own_strategy
        self._shapes = generator.shapes
        self._encoder = PromptEncoder(tokenizer, processor, generator.shapes, options.max_prompt_tokens)
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
        prompts = [self._encoder.ids(prompt, "prompt") for prompt in body.prompt]
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
        prompt, inputs = self._encoder.chat(messages, template_options(body))
        requested = body.max_completion_tokens or body.max_tokens
        room = self._shapes.context_length - len(prompt) + 1  # the last token takes no position
        most = requested or max(1, min(self._options.default_max_tokens, room))
        num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
        named = "max_completion_tokens" if body.max_completion_tokens else "max_tokens" if requested else "messages"
        begun = text_of(messages[-1]["content"]) if is_continuation(body) else None
        plan = self._planner.chat(wanted, prompt, begun, shows_special=body.skip_special_tokens is False)
        call = replace(self._call(body, [prompt], (most, named), num_logprobs, plan), inputs=inputs)
        if body.prediction is None:
            return call
        reads_reference = (call.proposer or self._generator.proposer).reads_reference
        return replace(call, reference=self._encoder.reference(body.prediction.content) if reads_reference else [])

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
        most = self._encoder.most_tokens  # before each id is looked at
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
