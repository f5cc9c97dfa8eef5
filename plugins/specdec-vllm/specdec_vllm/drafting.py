"""A specdec strategy in another engine's loop: it receives texts, and what was accepted of its drafts."""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from specdec import Budget, DraftTree, Feedback, Proposer, Request
from specdec.costs import Costs
from specdec.errors import ModelError, PluginError
from specdec.plugins import load_plugins
from specdec.record import Outcome, StepRecord
from specdec.strategies import AutoProposer, Engine, GrammarProposer, Host, MergedProposer
from specdec.tree import ROOT
from specdec_vllm.packed_cost_model import PackedCostModel, group_of
from specdec_vllm.rows import Text
from specdec_vllm.sizer_by_rows import SizerByRows

# Until steps were measured, a further token is assumed to cost little, as on a GPU.
_NOMINAL = Costs(sizes=(1, 201), seconds=(1.0, 2.0), plain=1.0)
_MOST_LEFT_OUT = 96  # calls in a row: a text that has grown by more than 1,024 tokens meanwhile isn't recognised


class Drafting:
    """Drafts chains for several texts, by one strategy.

    Args:
        strategy: its name and options, as everywhere in specdec.
        vocab_size, eos_token_ids: the model's.
        tokenizer: the model's, or None.
        num_tokens: maximum tokens of a chain.
        max_length: maximum tokens of a text.
        clock: returns seconds.

    Raises:
        PluginError: for a strategy that is unknown, or needs more than tokens.
    """

    def __init__(
        self,
        strategy: str,
        *,
        vocab_size: int,
        eos_token_ids: Sequence[int] = (),
        tokenizer: Any = None,
        num_tokens: int,
        max_length: int,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        proposer: Proposer = load_plugins().make("proposers", strategy)
        if isinstance(proposer, AutoProposer):
            proposer = _from_tokens_alone(proposer)
        if wanted := proposer.wants():
            signals = ", ".join(sorted(f"{nodes.name.lower()} {what}" for nodes, what in wanted))
            raise PluginError(
                f"{strategy} drafts by what the model thinks ({signals}), and vLLM tells its drafters tokens alone: "
                "use auto, or suffix, prompt_lookup, datastore, or several of these three joined by +"
            )
        self._name, self._vocab_size, self._eos = strategy, vocab_size, frozenset(eos_token_ids)
        self._num_tokens, self._max_length, self._clock = num_tokens, max_length, clock
        host = Host.of_tokens(vocab_size, tokenizer, _refuse, costs=lambda: _NOMINAL)
        if isinstance(proposer, MergedProposer):
            self._sizer: SizerByRows | None = _sizer(proposer, host)
            self._engine = proposer.bind_with(host, self._sizer)
        else:
            self._sizer, self._engine = None, proposer.bind(host)
        self._learns = type(self._engine).learn is not Engine.learn
        self._called = 0.0  # when the call under way began
        self._began: float | None = None  # when the step under way did, with the call for its drafts
        self._searching = 0.0  # seconds of that call
        self._num_left_out = 0  # calls since the last one that read texts
        self._groups = set[range]()  # of the sizes of passes so far: kernels are made at the first of a size

    def rests(self, num_rows: int) -> bool:
        """Begin a call for drafts; return True if nothing will be drafted, and the texts needn't be reported.

        Args:
            num_rows: number of texts that have emitted tokens.
        """
        if not num_rows:  # of prompts alone: texts that weren't reported before needn't be now
            is_left_out = self._num_left_out > 0
        else:
            may_rest = self._sizer is not None and self._num_left_out < _MOST_LEFT_OUT
            is_left_out = may_rest and self._sizer.rests(num_rows)  # type: ignore[union-attr]  # not None
            self._num_left_out = self._num_left_out + 1 if is_left_out else 0
        if is_left_out:
            self._began = None
        else:
            self._called = self._clock()
        return is_left_out

    def begin(self, text: Text) -> None:
        """Start drafting for a text."""
        text.drafter = self._engine.start(
            Request(
                tokens=text.tokens,
                prompt_length=text.prompt_length,
                vocab_size=self._vocab_size,
                eos_token_ids=self._eos,
                temperature=0.0,
                rng=np.random.default_rng(0),
            )
        )

    def end(self, text: Text) -> None:
        """Stop drafting for a text."""
        drafter, text.drafter = text.drafter, None
        if drafter is not None:
            drafter.stop()

    def learn(self, emitted: Mapping[Text, Sequence[int]], is_plain_step: bool) -> None:
        """Append the tokens that texts have emitted since their drafts, and give drafters their feedback.

        Args:
            is_plain_step: nothing else was computed since then, such as prompts.
        """
        outcomes = list[Outcome]()
        for text, tokens in emitted.items():
            tree = text.draft or DraftTree(text.tokens[-1])
            text.tokens += tokens
            path = _accepted(tree, tokens)
            if text.drafter is not None and text.draft is not None:
                feedback = Feedback(tree, path, tuple(tokens))
                text.drafter.receive(feedback)
                text.drafter.observe(feedback)
            made = tokens if text.draft is not None else tokens[-1:]  # others came in steps that weren't reported
            text.draft = None
            if self._learns:
                outcome = Outcome(request=None, tree=tree, path=path, tokens=tuple(made))  # type: ignore[arg-type]
                outcomes.append(outcome)
        if outcomes:
            self._report(outcomes, is_plain_step)
        self._began = self._called

    def _report(self, outcomes: Sequence[Outcome], is_plain_step: bool) -> None:
        """Report the step under way to the engine."""
        if self._began is None:
            return
        widths = [len(outcome.tree or ()) for outcome in outcomes]
        group = group_of(sum(widths))
        seconds = {"propose": self._searching, "forward": self._called - self._began - self._searching}
        is_warm = group in self._groups
        record = StepRecord(
            "step" if is_plain_step else "prompt", tuple(outcomes), seconds, max(widths), is_warm=is_warm
        )
        if is_plain_step:
            self._groups.add(group)
        self._engine.learn(record, outcomes)

    def propose(self, texts: Sequence[Text]) -> list[list[int]]:
        """Return a chain after each text; an empty one where no draft pays."""
        chains = dict[Text, list[int]]()
        asked = [text for text in texts if len(text.tokens) < self._max_length - 1]
        for text in asked:
            if text.drafter is None:
                self.begin(text)
        budgets = [self._budget(text) for text in asked]
        drafters = [text.drafter for text in asked if text.drafter is not None]
        trees = self._engine.propose_many(drafters, budgets) if asked else []
        for text, budget, tree in zip(asked, budgets, trees, strict=True):
            if isinstance(tree, Exception):
                raise tree
            tree.check(text.tokens[-1], self._vocab_size, budget, self._name)
            text.draft = tree.longest_chain()
            chains[text] = text.draft.tokens[1 : self._num_tokens + 1]
        self._searching = self._clock() - self._called
        return [chains.get(text, []) for text in texts]

    def _budget(self, text: Text) -> Budget:
        left = self._max_length - len(text.tokens)
        most = min(self._num_tokens, left - 1)
        return Budget(num_nodes=most, depth=most, num_tokens=left)


def _accepted(tree: DraftTree, tokens: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes of a chain that were accepted; the last emitted token is the bonus token."""
    path = [ROOT]
    for node, token in zip(range(1, len(tree)), tokens[:-1], strict=False):
        if tree.tokens[node] != token:
            break
        path.append(node)
    return tuple(path)


def _from_tokens_alone(auto: AutoProposer) -> MergedProposer:
    """Return the merge of ``auto`` without what vLLM doesn't tell: predictions, constraints and references."""
    merged = auto.merged()
    told = [each for each in merged.proposers if not each.wants() and not each.reads_reference]
    parts = (each for each in told if not isinstance(each, GrammarProposer))
    return merged.model_copy(update={"proposers": tuple(parts)})


def _sizer(merged: MergedProposer, host: Host) -> SizerByRows:
    costs = PackedCostModel(host.costs(), merged.num_nodes, merged.clock)
    return SizerByRows(costs, merged.loss)


def _refuse(*_: Any) -> Any:
    raise ModelError("a strategy with a model of its own can't draft inside vLLM: use vLLM's own draft models")
