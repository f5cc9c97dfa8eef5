"""Put known mistakes into the code, one at a time, and see the suite turn red.

    python -m tests.mutations [NAME …]

Each mistake is one of those that have made published implementations lossy. It is applied to a copy of the repository,
where the tests that are there for it must then fail, having passed without it. Exit code 1 if a mistake goes unseen.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
LAWS = "tests/laws/test_exact_laws.py"
RULES = "tests/verifiers/test_rules.py"
DRAFTS = "tests/strategies/draft_model/test_proposer.py"
NOISE = "tests/sampling/test_randomness.py"
EXACT = "tests/masks/test_exact.py"
SPLIT = "plugins/specdec-flash/tests/test_split.py"
SIGNALS = "tests/laws/test_signal_laws.py"
ROWS = "tests/laws/test_backend_laws.py"
STATES = "tests/backends/test_stateful_cache.py"
JOINED = "tests/backends/test_chain_passes.py"
KEPT = "test_kept_tokens_equal_a_fresh_pass_for_any_drafts_and_rollbacks"
TEXTS = "test_every_strategys_text_is_that_of_transformers"
SCHEDULER = "tests/decoding/test_scheduler.py"
REUSE = "tests/laws/test_reuse_laws.py::test_texts_are_those_alone_and_positions_are_shown_once"
PROMPTS = "tests/decoding/test_prompt_logprobs.py"
CONSTRAINTS = "tests/laws/test_constraint_laws.py"
HEADS = "tests/heads/strategies/test_eagle3.py::test_drafts_are_the_references_fed_with_transformers_hidden_states"
OTHER_HEADS = "tests/heads/strategies/test_other_heads.py"
MTP, P_EAGLE = "tests/heads/strategies/test_mtp.py", "tests/heads/strategies/test_p_eagle.py"
BLOCKS = "tests/heads/test_block_folders.py::test_log_probabilities_are_the_references"
TRAINED = "tests/heads/training/test_eagle3_training.py"
SERVING = "tests/apps/serving"
FUSED = "tests/backends/fused/test_fused_backend.py"
INPUTS = "tests/laws/test_input_laws.py::test_a_prompt_in_chunks_and_trees_behind_it_have_generates_logits"
INPUT_ROWS = "tests/laws/test_input_laws.py::test_rows_with_other_images_or_none_stay_apart_in_any_order"
PREFIXES = "tests/decoding/test_prefixes_with_inputs.py"
DECODERS = "tests/models/test_decoder_view.py"
DECODER_ROWS = f"{DECODERS}::test_trees_of_ragged_rows_equal_the_models_own_forward_on_each_path"
ENCODERS = "tests/apps/in_transformers/test_encoder_decoders.py"
IMAGES = "tests/apps/in_transformers/test_images_and_audio.py"
MOST_SECONDS = 1800


@dataclass(frozen=True)
class Mutation:
    """A mistake: some text of a file that is replaced, each piece exactly once; and the tests that must see it."""

    name: str
    file: str
    changes: tuple[tuple[str, str], ...]
    tests: tuple[str, ...]


MUTATIONS = (
    Mutation(
        "a head trained for the token after",
        "specdec/heads/training/eagle3_training.py",
        (("[batch.indices - 2 - step]", "[batch.indices - 3 - step]"),),
        (TRAINED,),
    ),
    Mutation(
        "a written head without the factors on the states",
        "specdec/heads/training/eagle3_training.py",
        (("other.scales = self.scales", "pass"),),
        (TRAINED,),
    ),
    Mutation(
        "no renormalisation of q without replacement",
        "specdec/strategies/draft_model/drafts.py",
        (("return rest / rest.sum()", "return rest"),),
        (DRAFTS,),
    ),
    Mutation(
        "siblings sorted by p",
        "specdec/verifiers/rejection.py",
        (
            (
                "for draw in tree.draws.get(node, ()):",
                "for draw in sorted(tree.draws.get(node, ()), key=lambda d: -float(r[tree.tokens[d.child]])):",
            ),
        ),
        (LAWS,),
    ),
    Mutation(
        "siblings sorted by p, in traversal",
        "specdec/verifiers/traversal.py",
        (
            (
                "for draw in self._tree.draws.get(node, ()):",
                "for draw in sorted(\n            self._tree.draws.get(node, ()),"
                " key=lambda d: -float(r[self._tree.tokens[d.child]])\n        ):",
            ),
        ),
        (LAWS,),
    ),
    Mutation(
        "duplicate draws dropped",
        "specdec/tree.py",
        (
            (
                "        node = self._place(parent, token, role)\n"
                "        if role is Role.CANDIDATE or role & Role.CANDIDATE:",
                "        known = len(self)\n        node = self._place(parent, token, role)\n"
                "        if (role is Role.CANDIDATE or role & Role.CANDIDATE) and len(self) > known:",
            ),
        ),
        (LAWS,),
    ),
    Mutation(
        "soft q on top-k picks",
        "specdec/strategies/draft_model/drafts.py",
        (
            (
                "*((token, None) for token in most_likely.tolist())",
                "*((token, probs) for token in most_likely.tolist())",
            ),
        ),
        (DRAFTS,),
    ),
    Mutation(
        "bonus drawn from p in place of the residual",
        "specdec/verifiers/rejection.py",
        (("source.categorical(r, ", "source.categorical(target.probs(node), "),),
        (LAWS,),
    ),
    Mutation(
        "bonus drawn from p in place of the residual, in traversal",
        "specdec/verifiers/traversal.py",
        (("self._source.categorical(r, ", "self._source.categorical(self._target.probs(node), "),),
        (LAWS,),
    ),
    Mutation(
        "block verification that stops at the first failure",
        "specdec/verifiers/traversal.py",
        (
            ("        r = self._target.probs(node)\n", "        if not self._source.accept(a, 1.0):\n"
             "            return None\n        r = self._target.probs(node)\n"),
            ("return self._bonus(node, r) if self._source.accept(a, 1.0) else None", "return self._bonus(node, r)"),
        ),
        (LAWS,),
    ),
    Mutation(
        "a draw discarded for low confidence",
        "specdec/strategies/draft_model/drafts.py",
        (
            (
                "        self._tree.add(last, token, q=probs if self._distribution.samples else None)\n",
                "        if float(probs[token]) < self._confidence:\n"
                "            self.is_done = True\n            return\n"
                "        self._tree.add(last, token, q=probs if self._distribution.samples else None)\n",
            ),
        ),
        (DRAFTS,),
    ),
    Mutation(
        "a repetition penalty from the committed prefix only",
        "specdec/sampling/distributions.py",
        (("[*self._committed[: self._length], *self._tree.path(node)]", "[*self._committed[: self._length]]"),),
        (LAWS,),
    ),
    Mutation(
        "noise not keyed by position",
        "specdec/sampling/randomness.py",
        (("noise = self.gumbel(position, weights.numel())", "noise = self.gumbel(0, weights.numel())"),),
        (NOISE,),
    ),
    Mutation(
        "<= in place of <, with a token of probability zero",
        "specdec/sampling/randomness.py",
        (("return self._acceptance.random() * q < r", "return self._acceptance.random() * q <= r"),),
        (RULES,),
    ),
    Mutation(
        "open slots summed in the order of the tree",
        "specdec/masks/exact/kernel.py",
        (
            ("dtype=torch.float64, device=p.device", "dtype=torch.float32, device=p.device"),
            ("return p.double()", "return p"),
            ("_round_to(values.float(), grid.values).double()", "values.float()"),
        ),
        (EXACT,),
    ),
    Mutation(
        "weights that are on no grid",
        "specdec/masks/exact/kernel.py",
        (("p = _round_to(p, grid.weights[-1])", "p = p"),),
        (EXACT,),
    ),
    Mutation(
        "closed regions aligned to the tree's root",
        "specdec/masks/exact/compiler.py",
        (("closed_region(0, length + max(tree.depths))", "closed_region(0, length)"),),
        (EXACT,),
    ),
    Mutation(
        "no open region",
        "specdec/masks/exact/regions.py",
        (("stop = (position - OPEN) //", "stop = position //"),),
        (EXACT,),
    ),
    Mutation(
        "prefix and tail merged half and half",
        "plugins/specdec-flash/specdec_flash/kernel.py",
        (("torch.sigmoid(part.lse - lse)", "torch.sigmoid(0 * part.lse)"),),
        (SPLIT,),
    ),
    Mutation(
        "a node whose window has left the prefix sees it",
        "plugins/specdec-flash/specdec_flash/kernel.py",
        (("by_node.masked_fill_(mask.blind[:, None, None], -torch.inf)", "pass"),),
        (SPLIT,),
    ),
    Mutation(
        "a signal of another pair",
        "specdec/decoding/signals.py",
        (("what is What.DRAW and shows_draws", "shows_draws"),),
        (SIGNALS,),
    ),
    Mutation(
        "a signal of the node before",
        "specdec/backends/output.py",
        (("column = column_of[node + self.num_prefix]", "column = column_of[max(0, node - 1) + self.num_prefix]"),),
        (SIGNALS,),
    ),
    Mutation(
        "a map of nodes off by one",
        "specdec/tree.py",
        (
            (
                "self.sources.append((tree, place))",
                "self.sources.append((tree, {node: max(0, there - 1) for node, there in place.items()}))",
            ),
        ),
        (SIGNALS,),
    ),
    Mutation(
        "a cancelled request's row is still another's when it is given away",
        "specdec/target.py",
        (("self.backend.release(number)", "self.backend.release(len(self._rows))"),),
        (SCHEDULER,),
    ),
    Mutation(
        "settings of a neighbour's plan",
        "specdec/decoding/step.py",
        (("constraint = request.warper, request.", "constraint = drafting[0].request.warper, request."),),
        (SCHEDULER,),
    ),
    Mutation(
        "a row's answers taken from its neighbour",
        "specdec/target.py",
        (("for number, row in enumerate(planned.rows)", "for number, row in enumerate(reversed(planned.rows))"),),
        (SCHEDULER,),
    ),
    Mutation(
        "the last row gets a closed row's number without its keys and values",
        "specdec/backends/cache.py",
        (("layer.move(last, row, held)", "pass"),),
        (ROWS,),
    ),
    Mutation(
        "paths kept in the first rows, whichever the pass was of",
        "specdec/backends/hf.py",
        (("zip(self._kept, paths, strict=True)", "enumerate(paths)"),),
        (ROWS,),
    ),
    Mutation(
        "a draft that the balance can't lose whole",
        "specdec/strategies/auto/sizer.py",
        ((" or not self.budget.may_spend(table.costs[size + 1] - 1.0)", ""),),
        ("tests/strategies/auto/test_sizer.py",),
    ),
    Mutation(
        "the size of drafts ignores how fast the steps nearby are",
        "specdec/strategies/auto/sizer.py",
        (("return max(1.0, self._tokens / self._time)", "return 1.0"),),
        ("tests/strategies/auto/test_sizer.py",),
    ),
    Mutation(
        "what drafts have gained pays for no stretch of hard text",
        "specdec/strategies/auto/loss_budget.py",
        (("_FIRST, _MOST = 2.0, 16.0", "_FIRST, _MOST = 2.0, 2.0"),),
        ("tests/strategies/auto/test_sizer.py", "tests/strategies/auto/test_pass_pricing.py"),
    ),
    Mutation(
        "passes of a head run whatever they cost",
        "specdec/strategies/auto/pass_pricing.py",
        (("> self._speed_up * price", "> 0.0"),),
        ("tests/strategies/auto/test_pass_pricing.py",),
    ),
    Mutation(
        "the time of a head's passes is lost to no budget",
        "specdec/strategies/auto/pass_pricing.py",
        (("self._budget.spend(price)", "pass"), ("self._budget.spend(taken - self.cost)", "pass")),
        ("tests/strategies/auto/test_pass_pricing.py",),
    ),
    Mutation(
        "drafts that turned out expensive are charged what was believed",
        "specdec/strategies/auto/sizer.py",
        (("self.budget.spend(self._costs.table(num_rows).at(self._size) - self.cost)", "pass"),),
        ("tests/strategies/auto/test_sizer.py", "tests/strategies/auto/test_busy_machine.py"),
    ),
    Mutation(
        "the checkpoint of a recurrent model is never moved for its cost",
        "specdec/backends/states/state_costs.py",
        (("if self._reread + of_step[2] - table.at(2) > move:", "if False:"),),
        ("tests/backends/test_state_costs.py",),
    ),
    Mutation(
        "probabilities without their parents'",
        "specdec/strategies/auto/growth.py",
        (("probability = path_probability * rate.value", "probability = rate.value"),),
        ("tests/strategies/auto/test_growth.py",),
    ),
    Mutation(
        "texts remembered from one repeat to the next",
        "specdec/apps/comparison/session.py",
        (("if name not in self.plan.warm:", "if name in self.plan.warm:"),),
        ("tests/apps/comparison/test_memory.py",),
    ),
    Mutation(
        "the mask of a node's parent",
        "specdec/sampling/distributions.py",
        (("self._constraint.after(self._tree.path(node))", "self._constraint.after(self._tree.path(node)[:-1])"),),
        (CONSTRAINTS,),
    ),
    Mutation(
        "a constraint's state that isn't forked where a draft branches",
        "specdec/constraints/matcher.py",
        (("self._matcher.rollback(self._at.depth - here.depth)", "pass"),),
        ("tests/constraints/test_matcher.py",),
    ),
    Mutation(
        "an end of text before the constraint is met",
        "specdec/constraints/path_state.py",
        (("allowed[ends] = self.is_accepting", "allowed[ends] = True"),),
        (CONSTRAINTS,),
    ),
    Mutation(
        "forced tokens committed unverified",
        "specdec/decoding/request_state.py",
        (
            (
                "for token in tokens:",
                "for token in (*tokens, *(self.constraint.forced[:1] if self.constraint else ())):",
            ),
        ),
        (CONSTRAINTS,),
    ),
    Mutation(
        "a mask after the truncation",
        "specdec/sampling/distributions.py",
        (
            ("self._scores[node] = self._masked(node, scores)", "self._scores[node] = scores"),
            (
                "scores = self._warper.warped(self._path(node), self._processed(node))",
                "scores = self._masked(node, self._warper.warped(self._path(node), self._processed(node)))",
            ),
        ),
        (CONSTRAINTS,),
    ),
    Mutation(
        "a head's drafted tokens one position on",
        "specdec/heads/drafting.py",
        (("(self.lengths + num_levels - 1)[:, None]", "(self.lengths + num_levels)[:, None]"),),
        (HEADS,),
    ),
    Mutation(
        "drafts drawn outside of inference mode",
        "specdec/heads/strategies/sampled_candidates.py",
        (("    @torch.inference_mode()\n    def propose_many", "    def propose_many"),),
        ("tests/heads/strategies/test_eagle3.py::test_rules_that_read_q_take_its_drafts",),
    ),
    Mutation(
        "hidden states of the layers before a head's",
        "specdec/heads/strategies/engine.py",
        (("Hidden(tuple(layers))", "Hidden(tuple(layer - 1 for layer in layers))"),),
        (HEADS,),
    ),
    Mutation(
        "a head's draft vocabulary as absolute ids",
        "specdec/heads/eagle3.py",
        (("return self.d2t + torch.arange(len(self.d2t), device=self.d2t.device)", "return self.d2t"),),
        (HEADS,),
    ),
    Mutation(
        "Medusa reads the hidden state of the step's first token",
        "specdec/heads/strategies/medusa_engine.py",
        (
            ("frozenset({(Nodes.LAST, self.state)})", "frozenset({(Nodes.PATH, self.state)})"),
            (
                "feedback.signals[Nodes.LAST, self._engine.state].tensor().flatten(1)",
                "feedback.signals[Nodes.PATH, self._engine.state].tensor().flatten(1)[:1]",
            ),
        ),
        (f"{OTHER_HEADS}::test_medusas_drafts_are_the_references_fed_with_transformers_hidden_states",),
    ),
    Mutation(
        "Medusa's heads one depth on",
        "specdec/heads/strategies/levels.py",
        (("push(0.0, -1, 0, 0)", "push(0.0, -1, 1, 0)"),),
        (f"{OTHER_HEADS}::test_paths_come_by_the_product_of_the_heads_probabilities",),
    ),
    Mutation(
        "Medusa's noise of the positions before",
        "specdec/heads/strategies/candidates.py",
        (("map(self.at, range(count))", "map(self.at, range(-1, count - 1))"),),
        (f"{OTHER_HEADS}::test_noise_is_that_of_the_positions_which_the_heads_predict",),
    ),
    Mutation(
        "Medusa's blocks without their input",
        "specdec/heads/medusa.py",
        (("z = z + silu(", "z = silu("),),
        ("tests/heads/test_medusa.py",),
    ),
    Mutation(
        "Medusa's reduced vocabulary as the target's ids",
        "specdec/heads/medusa.py",
        (("self._target_ids[draft_ids]", "draft_ids"),),
        ("tests/heads/test_medusa.py",),
    ),
    Mutation(
        "EAGLE's hidden state before the embedding",
        "specdec/heads/eagle.py",
        (("torch.cat((embedded, features), -1)", "torch.cat((features, embedded), -1)"),),
        (f"{OTHER_HEADS}::test_eagles_drafts_are_the_references_fed_with_transformers_hidden_states",),
    ),
    Mutation(
        "EAGLE reads the layer before the last",
        "specdec/heads/config.py",
        (("return (num_layers,)", "return (num_layers - 1,)"),),
        (f"{OTHER_HEADS}::test_eagles_drafts_are_the_references_fed_with_transformers_hidden_states",),
    ),
    Mutation(
        "MTP: the hidden state before the embedding",
        "specdec/heads/mtp.py",
        (("normed[::-1] if self.hidden_first else normed", "normed if self.hidden_first else normed[::-1]"),),
        (f"{MTP}::test_drafts_are_the_references_fed_with_transformers_hidden_states",),
    ),
    Mutation(
        "MTP: features without the last norm",
        "specdec/heads/mtp.py",
        (("self.norm(self.layer(rows, **arguments))", "self.layer(rows, **arguments)"),),
        (f"{MTP}::test_drafts_are_the_references_fed_with_transformers_hidden_states",),
    ),
    Mutation(
        "MTP: the mask off by a branch",
        "specdec/heads/mtp.py",
        (("visible=pairs.visible)", "visible=None)"),),
        (f"{MTP}::test_drafts_are_the_references_fed_with_transformers_hidden_states",),
    ),
    Mutation(
        "P-EAGLE: one layer's keys and values for all",
        "specdec/heads/p_eagle.py",
        (("number * heads : (number + 1) * heads", ":heads"),),
        (f"{P_EAGLE}::test_drafts_are_the_references_fed_with_transformers_hidden_states",),
    ),
    Mutation(
        "P-EAGLE: mask pairs without their state",
        "specdec/heads/p_eagle.py",
        (("self.head.mask_hidden.repeat(requests, count, 1)", "self.head.mask_hidden.repeat(requests, count, 1) * 0"),),
        (f"{P_EAGLE}::test_drafts_are_the_references_fed_with_transformers_hidden_states",),
    ),
    Mutation(
        "P-EAGLE: no room for mask pairs",
        "specdec/heads/first_pass.py",
        (("+ 1 + num_slots))", "+ 1))"),),
        (f"{P_EAGLE}::test_a_pass_of_a_ragged_batch_is_the_references",),
    ),
    Mutation(
        "a resumed training begins with a new optimizer",
        "specdec/heads/training/loop.py",
        (('"state": moments', '"state": {}'),),
        ("tests/heads/training/test_optimizer.py",),
    ),
    Mutation(
        "rates that don't fall",
        "specdec/heads/training/loop.py",
        (("(1 - done) / (1 - flat)", "1.0"),),
        ("tests/heads/training/test_optimizer.py",),
    ),
    Mutation(
        "a training of another kind of head goes on",
        "specdec/heads/training/checkpoint.py",
        (('facts.get("kind") == _KIND and ', ""),),
        ("tests/heads/training/test_head_training.py::test_a_run_that_named_the_kind_of_its_head_goes_on_if_that_is_eagle3",),
    ),
    Mutation(
        "time for text that was lost counts",
        "specdec/heads/training/own_text.py",
        (("0.0 if is_complete else rollout", "0.0 * rollout"),),
        ("tests/heads/training/test_head_training.py::test_an_interrupted_run_keeps_the_best_head_and_goes_on_with_its_text",),
    ),
    Mutation(
        "another model's head",
        "specdec/heads/local_heads.py",
        (("samples.add(_sample(tensor))", 'samples.add(b"")'),),
        ("tests/heads/training/test_head_training.py::test_eagle3_takes_the_head_of_this_very_model_alone",),
    ),
    Mutation(
        "auto asks for hidden states that the target can't report",
        "specdec/strategies/auto/proposer.py",
        (("            host.expect_hidden(", "            id("),),
        ("tests/heads/strategies/test_auto_head.py",),
    ),
    Mutation(
        "a head keeps the keys and values of its draft",
        "specdec/heads/first_pass.py",
        (
            (
                "cache.advance(last + 1)",
                "cache.advance(last + 2)",
            ),
        ),
        ("tests/heads/test_eagle3.py",),
    ),
    Mutation(
        "a block drafter's slots one position on",
        "specdec/heads/block_runner.py",
        (("[:, self.block_size - self.num_drafted :]", "[:, : self.num_drafted]"),),
        (f"{BLOCKS}[z-lab-96]",),
    ),
    Mutation(
        "a block drafter's context normed again by its layers",
        "specdec/heads/block_head.py",
        (("layer.keys_and_values(c, cos, sin)", "layer.keys_and_values(layer.input_layernorm(c), cos, sin)"),),
        (f"{BLOCKS}[z-lab-96]",),
    ),
    Mutation(
        "a block's own keys kept as the text's",
        "specdec/heads/block_runner.py",
        (("self._visible = None\n", "self._visible = [cache.advance(1) for cache in caches] and None\n"),),
        ("tests/heads/strategies/test_block.py::"
         "test_drafts_are_the_references_fed_with_transformers_hidden_states[z-lab]",),
    ),
    Mutation(
        "a block's rotation by slot",
        "specdec/heads/block_runner.py",
        (("np.stack((block.tokens, block.positions))",
          "np.stack((block.tokens, block.positions - block.starts[:, None]))"),),
        (f"{BLOCKS}[z-lab-96]",),
    ),
    Mutation(
        "the Markov head of another parent",
        "specdec/heads/block_runner.py",
        (("self._runner.after(self._slots, level, tokens, features,",
          "self._runner.after(self._slots, level, tokens[:, ::-1].copy(), features,"),),
        (f"{BLOCKS}[DeepSpec, vanilla-96]",),
    ),
    Mutation(
        "a block drafter's window one position longer",
        "specdec/heads/block_runner.py",
        (("np.abs(own - slots) < window", "np.abs(own - slots) <= window"),),
        (f"{BLOCKS}[z-lab, sliding-96]",),
    ),
    Mutation(
        "a head without its last norm",
        "specdec/heads/eagle3.py",
        (("self._products.lm_head(self.norm(out))", "self._products.lm_head(out)"),),
        (HEADS,),
    ),
    Mutation(
        "a drafted node sees another branch",
        "specdec/heads/drafting.py",
        (("self._visible[self._rows, parents]", "self._visible[self._rows, (parents + 1) % self.width]"),),
        (HEADS,),
    ),
    Mutation(
        "log-probabilities of a prompt's tokens one place too early",
        "specdec/decoding/signals.py",
        (
            (
                "request.tokens[first + 1 : min(first + _BLOCK, stop) + 1]",
                "request.tokens[first : min(first + _BLOCK, stop)]",
            ),
        ),
        (PROMPTS,),
    ),
    Mutation(
        "a prompt that is scored although its prefix is cached",
        "specdec/decoding/prefix_cache.py",
        (("if request.settings.prompt_logprobs is not None:", "if False:"),),
        (PROMPTS,),
    ),
    Mutation(
        "a row that is reused past its common prefix with the prompt",
        "specdec/decoding/prefix_cache.py",
        (("        self._target.rollback(row, num_reused)\n", ""),),
        (REUSE,),
    ),
    Mutation(
        "a strategy's state reused at the last common token, whose successor differs",
        "specdec/decoding/prefix_cache.py",
        (("num_reused = 0 if state is None else num_reused - 1", "num_reused = 0 if state is None else num_reused"),),
        (REUSE,),
    ),
    Mutation(
        "a strategy's state retained with another text",
        "specdec/decoding/prefix_cache.py",
        (("        context.states.clear()\n", ""),),
        ("tests/laws/test_reuse_laws.py::test_a_strategys_state_leaves_a_context_with_its_text",),
    ),
    Mutation(
        "a block reused after another text",
        "specdec/decoding/prefix_cache.py",
        (
            (
                "block = self._blocks.get((block, content_of(text, inputs, end - BLOCK, end)))",
                "key = content_of(text, inputs, end - BLOCK, end)\n"
                "            block = {each: one for (_, each), one in self._blocks.items()}.get(key)",
            ),
        ),
        (REUSE,),
    ),
    Mutation(
        "a pass changes its checkpoint",
        "specdec/backends/states/layer_states.py",
        (("torch.cat(recurrent) if", "recurrent[0] if len(recurrent) == 1 else torch.cat(recurrent) if"),),
        ("tests/backends/test_layer_states.py::test_layers_are_given_copies_which_their_code_may_change",),
    ),
    Mutation(
        "pending tokens read twice",
        "specdec/backends/states/stateful_cache.py",
        (("fed = [*own.tokens[begin:], *tokens]", "fed = [*own.tokens[max(0, begin - 1) :], *tokens]"),),
        (f"{STATES}::{KEPT}[qwen3_next]",),
    ),
    Mutation(
        "a convolution's state off by one token",
        "specdec/backends/states/layer_states.py",
        (("self.inputs.shape[-1] - num_tokens]", "self.inputs.shape[-1] - max(0, num_tokens - 1)]"),),
        (f"{STATES}::{KEPT}[lfm2]",),
    ),
    Mutation(
        "the states of another row",
        "specdec/backends/states/stateful_cache.py",
        (("self._rows[row] = self._rows[-1]\n", "pass\n"),),
        (f"{STATES}::{KEPT}[lfm2]",),
    ),
    Mutation(
        "a pass changes its checkpoint's convolution",
        "specdec/backends/states/layer_states.py",
        (("torch.cat(inputs) if", "inputs[0] if len(inputs) == 1 else torch.cat(inputs) if"),),
        ("tests/backends/test_layer_states.py::test_layers_are_given_copies_which_their_code_may_change",),
    ),
    Mutation(
        "time steps of drafts that are limited like those of a prompt",
        "specdec/backends/wide_passes.py",
        (("if not is_prompt and self.limited:", "if False:"),),
        (f"{STATES}::{TEXTS}[nemotron_h]",),
    ),
    Mutation(
        "time steps of a prompt without their limit",
        "specdec/backends/wide_passes.py",
        (("if not is_prompt and self.limited:", "if self.limited:"),),
        (f"{STATES}::{TEXTS}[nemotron_h]",),
    ),
    Mutation(
        "a checkpoint after a rejected draft",
        "specdec/backends/states/layer_states.py",
        (("if dropped and not is_cuttable:", "if False:"),),
        (f"{STATES}::{KEPT}[qwen3_next]",),
    ),
    Mutation(
        "a prefix cut between checkpoints",
        "specdec/backends/states/stateful_cache.py",
        (("if checkpoint.length <= most]", "if checkpoint.length <= most + 2]"),),
        (f"{STATES}::{KEPT}[qwen3_next]",),
    ),
    Mutation(
        "a state that has seen padding tokens",
        "specdec/backends/states/stateful_cache.py",
        (("if is_cuttable or not num_padding:", "if True:"),),
        (f"{JOINED}::test_a_padded_row_keeps_its_checkpoint",),
    ),
    Mutation(
        "rows padded although there is no room for the states after each token",
        "specdec/backends/states/stateful_cache.py",
        (("and not (is_cuttable and self._has_room)", "and not is_cuttable"),),
        (f"{JOINED}::test_a_prompt_and_a_plain_step_move_every_rows_checkpoint_whatever_room_states_have",),
    ),
    Mutation(
        "the state of another row of the same pass",
        "specdec/backends/states/stateful_cache.py",
        (("state.of_row(index, num_padding)", "state.of_row(0, num_padding)"),),
        (f"{STATES}::{KEPT}[lfm2]",),
    ),
    Mutation(
        "the state after a rejected token of those after each",
        "specdec/backends/states/layer_states.py",
        (("self.each[:, -1 - num_tokens]", "self.each[:, -1]"),),
        (f"{STATES}::test_rejected_drafts_cost_at_most_the_pending_tokens[mamba2]",),
    ),
    Mutation(
        "a state after padding tokens of those after each",
        "specdec/backends/states/layer_states.py",
        ((": each.shape[1] - num_padding]", ":]"),),
        (f"{STATES}::{KEPT}[mamba2]",),
    ),
    Mutation(
        "a mask as if all rows were as long as the first",
        "specdec/backends/chain_passes.py",
        (("own = (torch.tensor(starts,", "own = (torch.tensor(starts[:1],"),),
        (f"{JOINED}::test_each_node_sees_its_rows_tokens_before_it",),
    ),
    Mutation(
        "pending tokens that a draft's size ignores",
        "specdec/backends/states/state_costs.py",
        (("self._costs_of_step(table, pending or [0], num_rows)", "self._costs_of_step(table, [0], num_rows)"),),
        ("tests/backends/test_state_costs.py",),
    ),
    Mutation(
        "passes of rows that share none, for nothing",
        "specdec/backends/states/state_costs.py",
        (("return [0.0, cost(plain, 0, num_others), *drafted]", "return [0.0, 1.0, *drafted]"),),
        ("tests/backends/test_state_costs.py",),
    ),
    Mutation(
        "a kernel with wrong products, used",
        "specdec/models/weights/pack_model.py",
        (("<= allowed).all()", "<= allowed).any()"),),
        ("tests/runtime/test_lease.py::test_a_kernel_that_fails_is_not_used",),
    ),
    Mutation(
        "a kernel whose rows depend on one another, without padding",
        "specdec/models/weights/row_independence.py",
        (("return rows.multiple(is_quick=False) or 1", "return 1"),),
        ("tests/models/weights/test_row_multiples.py",),
    ),
    Mutation(
        "weights packed in another way while a generator uses them",
        "specdec/runtime/lease.py",
        (("        if self._has_others(model):\n", "        if not self._has_others(model):\n"),),
        ("tests/runtime/test_lease.py::test_two_generators_that_contradict_each_other",),
    ),
    Mutation(
        "an answer that has ended keeps its place in the queue",
        "specdec/apps/serving/admission.py",
        (("self.num_texts -= num_texts", "pass"),),
        (f"{SERVING}/test_robustness.py::test_a_place_is_free_once_decoding_is_over_whoever_reads",),
    ),
    Mutation(
        "the token after the draft counts as accepted",
        "specdec/apps/serving/usage.py",
        (("range(outcome.num_accepted_tokens)", "range(len(outcome.tokens))"),),
        (f"{SERVING}/test_middleware.py::test_counts_of_drafts_agree_with_the_answers_own_figures",),
    ),
    Mutation(
        "a stop string that is a special token ends nothing",
        "specdec/apps/serving/text_ends.py",
        (("*(token for token in named if token < vocab_size)", ""),),
        (f"{SERVING}/test_texts.py::test_special_tokens_come_where_they_are_wanted_and_can_stop_a_text",),
    ),
    Mutation(
        "log-probabilities after an echoed prompt point into it",
        "specdec/apps/serving/logprobs.py",
        (("_tops(ids, values, texts), num_before + offset)", "_tops(ids, values, texts), offset)"),),
        (f"{SERVING}/test_echo.py::test_each_offset_is_where_the_tokens_text_begins",),
    ),
    Mutation(
        "a client that leaves ends the texts of others",
        "specdec/apps/serving/engine.py",
        (("for handle, text in self._texts.items() if text.job is job]", "for handle in self._texts]"),),
        (f"{SERVING}/test_streams.py::test_whoever_comes_and_goes_each_answer_is_the_requests_own",),
    ),
    Mutation(
        "several texts of one prompt share the first one's seed",
        "specdec/apps/serving/engine.py",
        (('"seed": [*call.seeds]', '"seed": [call.seeds[0]] * len(call.seeds)'),),
        (f"{SERVING}/test_openai_client.py::test_several_texts_have_the_seeds_of_samples",),
    ),
    Mutation(
        "any key is taken for one of the server's",
        "specdec/apps/serving/middleware.py",
        (("or not any(is_known)", "or not is_known"),),
        (f"{SERVING}/test_middleware.py::test_with_keys_a_request_needs_one_of_them",),
    ),
    Mutation(
        "a token's text without the space before it",
        "specdec/apps/serving/token_texts.py",
        (("self._decode([*self._before, token])[len(self._known) :]", "self._decode([token])"),),
        (f"{SERVING}/test_token_texts.py::test_the_bytes_of_a_texts_tokens_are_those_of_the_text",),
    ),
    Mutation(
        "the newest connection without a request makes room",
        "specdec/apps/serving/connections.py",
        (("next(iter(self._waiting)).drop()", "next(reversed(self._waiting)).drop()"),),
        (f"{SERVING}/test_connections.py::test_the_oldest_connection_without_a_request_makes_room",),
    ),
    Mutation(
        "waits count from when a request was sent",
        "specdec/apps/loadtest/client.py",
        (
            (
                "    url, body = address.request(prompt)\n    try:",
                "    url, body = address.request(prompt)\n    began = time.perf_counter() - due\n    try:",
            ),
        ),
        (f"{SERVING}/test_load.py::test_waits_count_from_when_a_request_was_due",),
    ),
    Mutation(
        "answers that came too late count for goodput",
        "specdec/apps/loadtest/figures.py",
        (("kept = list(filter(goal.is_met, good))", "kept = good"),),
        (f"{SERVING}/test_load.py::test_the_figures_of_a_run",),
    ),
    Mutation(
        "intervals of few prompts as narrow as those of many",
        "specdec/apps/comparison/statistics.py",
        (("stats.t.ppf(tail, num_prompts - 1)", "stats.norm.ppf(tail)"),),
        ("tests/apps/comparison/test_statistics.py",),
    ),
    Mutation(
        "a text that ends early counts as plain decoding's",
        "specdec/apps/comparison/differences.py",
        (("return None if len(first) == len(second) else min(len(first), len(second))", "return None"),),
        ("tests/apps/comparison/test_results.py::test_the_first_difference_from_plain_decoding_is_found",),
    ),
    Mutation(
        "every repeat draws the same text",
        "specdec/apps/comparison/runs.py",
        (("prompt, seed_of_sample(plan.seed, repeat))", "prompt, plan.seed)"),),
        ("tests/apps/comparison/test_runs.py",),
    ),
    Mutation(
        "prompts that one strategy hasn't run count for the others",
        "specdec/apps/comparison/results.py",
        (
            (
                "if all((name, *pair) in self._by_key for name in plan.strategies)",
                "if (plan.baseline, *pair) in self._by_key",
            ),
        ),
        ("tests/apps/comparison/test_results.py::test_only_prompts_that_every_strategy_has_run_are_counted",),
    ),
    Mutation(
        "a comparison whose texts are wrong leaves with 0",
        "specdec/apps/cli/evaluate.py",
        (("if any(comparison.defects or comparison.failure for", "if any(comparison.failure for"),),
        ("tests/apps/cli/test_evaluate.py::test_a_wrong_token_is_told_with_its_place_and_in_the_exit_code",),
    ),
    Mutation(
        "plain decoding of an answer in a chat reads the answer itself",
        "specdec/apps/chat/session.py",
        (("ChatAnswer(self.last.conversation,", "ChatAnswer(self.conversation,"),),
        ("tests/apps/chat/test_session.py::test_plain_decoding_writes_the_same_and_a_planted_difference_is_seen",),
    ),
    Mutation(
        "a retried answer reads the one that it replaces",
        "specdec/apps/chat/session.py",
        (("self._turn(self.conversation.without_last(), last", "self._turn(self.conversation, last"),),
        ("tests/apps/chat/test_session.py::test_undo_and_retry",),
    ),
    Mutation(
        "a processor of a batch answers for its first row",
        "specdec/apps/in_transformers/rows.py",
        (("answers[self.row.number : self.row.number + 1]", "answers[:1]"),),
        ("tests/apps/in_transformers/test_custom_generate.py::test_allowed_tokens_may_depend_on_the_row",),
    ),
    Mutation(
        "a padded row is longer by its padding",
        "specdec/apps/in_transformers/arguments.py",
        (("length = len(row.padding) + len(row.prompt)", "length = len(row.prompt)"),),
        ("tests/apps/in_transformers/test_custom_generate.py::test_greedy_text_is_generates_own_for_every_family",),
    ),
    Mutation(
        "assisted generation's candidates without feedback",
        "specdec/apps/in_transformers/candidates.py",
        (("            self._drafter.receive(feedback)\n", ""), ("self._drafter.observe(feedback)", "pass")),
        ("tests/apps/in_transformers/test_candidates.py::test_a_drafter_receives_the_path_and_the_tokens_that_followed_its_chain",),
    ),
    Mutation(
        "a prefix that another model has read",
        "specdec/decoding/prefix_cache.py",
        (("if not self._is_checked and (context", "if False and (context"),),
        ("tests/decoding/test_changed_models.py",),
    ),
    Mutation(
        "the row of a request that failed is gone on from",
        "specdec/decoding/prefix_cache.py",
        (("context.is_closed or request.error is not None or not", "context.is_closed or not"),),
        ("tests/decoding/test_contexts.py::test_a_request_that_fails_leaves_no_row",),
    ),
    Mutation(
        "the beginning of a long text makes room for its end",
        "specdec/decoding/prefix_cache.py",
        (("if oldest is None or oldest in path:", "if oldest is None:"),),
        ("tests/decoding/test_prefix_cache.py",),
    ),
    Mutation(
        "a finding of another number of threads",
        "specdec/runtime/probes/findings.py",
        (("facts_in((fingerprint, torch.get_num_threads()))", "facts_in((fingerprint, 0))"),),
        ("tests/runtime/probes/test_findings.py::test_threads_are_part_of_the_question",),
    ),
    Mutation(
        "an unclear finding serves every later process",
        "specdec/runtime/probes/findings.py",
        (("known is None and keeps(facts[question])", "known is None"),),
        ("tests/runtime/probes/test_findings.py::test_a_finding_that_is_unclear_serves_its_own_process_alone",),
    ),
    Mutation(
        "a damaged file of cached facts is believed",
        "specdec/machine/cache_files.py",
        (("return value if file.digest == _digest(value) else None", "return value"),),
        ("tests/machine/test_cache_files.py",),
    ),
    Mutation(
        "cheap facts of a former state of a model",
        "specdec/models/notes.py",
        (("known = notes.facts_in(state)", "known = notes.facts_in(())"),),
        ("tests/test_changed_models.py::test_a_fact_is_found_once_for_each_state",),
    ),
    Mutation(
        "a fused layer's MLP added to the layer's input",
        "specdec/backends/fused/layer.py",
        (('self._added(gated, down, after_mlp, own, own)', 'self._added(gated, down, after_mlp, x, own)'),),
        (FUSED,),
    ),
    Mutation(
        "angles in a fused layer without positions",
        "specdec/backends/fused/reading.py",
        (('bool(getattr(self._attention, "use_rope", True))', 'True'),),
        (FUSED,),
    ),
    Mutation(
        "a norm after attention taken for the one before the MLP",
        "specdec/backends/fused/reading.py",
        (('has_both = hasattr(self.layer, "post_feedforward_layernorm")', 'has_both = False'),),
        (FUSED,),
    ),
    Mutation(
        "norms whose weights are around zero",
        "specdec/backends/fused/reading.py",
        (("[(0.0, False), (0.0, True), (1.0, True), (1.0, False)]", "[(0.0, False), (0.0, True)]"),),
        (FUSED,),
    ),
    Mutation(
        "fused layers of modules that were replaced",
        "specdec/backends/fused/backend.py",
        (("if self._state is not state:", "if not state:"),),
        (FUSED,),
    ),
    Mutation(
        "a factor on residuals left out",
        "specdec/backends/fused/layer.py",
        (("residual, out, factor)", "residual, out)"),),
        (FUSED,),
    ),
    Mutation(
        "a layer with an adapter added without its factor",
        "specdec/backends/fused/layer.py",
        (("product if factor == 1.0 else product * factor", "product"),),
        (FUSED,),
    ),
    Mutation(
        "hidden states of fused layers where the model's own run",
        "specdec/backends/fused/backend.py",
        (("            self._hidden_states = self._own_states\n", ""),),
        (FUSED,),
    ),
    Mutation(
        "a faster way is asked for where the race was lost",
        "specdec/runtime/attempts.py",
        (("yield replace(slow, is_last=True)", "yield slow"),),
        ("tests/runtime/test_attempts.py",),
    ),
    Mutation(
        "what replaces layers is tried again with another compiler",
        "specdec/runtime/attempts.py",
        (("and each.name not in replaced", ""),),
        ("tests/runtime/test_attempts.py",),
    ),
    Mutation(
        "the pass draws by the noise of the node's own position",
        "specdec/sampling/keyed_draws.py",
        (("tl.load(positions + node) + 1", "tl.load(positions + node)"),),
        ("tests/sampling/test_keyed_draws.py",),
    ),
    Mutation(
        "logits are fetched although the pass draws",
        "specdec/decoding/step.py",
        ((" and output.rows[turn.row].drawn(ROOT) is None", ""),),
        ("tests/decoding/test_static_steps.py",),
    ),
    Mutation(
        "a drafted node sees another branch than its own",
        "specdec/heads/graph_runner.py",
        (("visible = visible[rows, parents] &", "visible = visible[rows, 0 * parents] &"),),
        ("tests/heads/test_graph_runner.py",),
    ),
    Mutation(
        "memory that runs out in a capture isn't told",
        "specdec/machine/cuda_graphs.py",
        (("self.fault = memory, bool(short), short or in_one_line(error)", "self.fault = memory, bool(short), \"\""),),
        ("tests/decoding/test_static_steps.py",),
    ),
    Mutation(
        "a graph for each length of a text",
        "specdec/backends/static.py",
        (("place.visible, needed = 0, needed if needed > held else 0", "place.visible = slot_bucket(needed)"),),
        ("tests/backends/test_static.py",),
    ),
    Mutation(
        "moved nodes a slot too far",
        "specdec/backends/slot_moves.py",
        (("to = tl.load(move + 1) + number", "to = tl.load(move + 1) + number + 1"),),
        ("tests/backends/test_slot_moves.py",),
    ),
    Mutation(
        "only the first stretch of a row's slots moved",
        "specdec/backends/slot_moves.py",
        (("            begin += SLOTS\n", "            begin += count\n"),),
        ("tests/backends/test_slot_moves.py",),
    ),
    Mutation(
        "the first row's slots moved alone",
        "specdec/backends/static_cache.py",
        (("moves, self._waiting = self._waiting, []", "moves, self._waiting = self._waiting[:1], []"),),
        ("tests/backends/test_slot_moves.py",),
    ),
    Mutation(
        "top-p without the token that reaches the mass",
        "specdec/sampling/processors.py",
        (("tokens[: 1 + bisect_left(reached, self._top_p)]", "tokens[: max(1, bisect_left(reached, self._top_p))]"),),
        ("tests/sampling/test_top_p.py",),
    ),
    Mutation(
        "noise of the neighbouring block of four",
        "specdec/sampling/randomness.py",
        (("philox.advance(number - num_read)", "philox.advance(number)"),),
        ("tests/sampling/test_randomness.py",),
    ),
    Mutation(
        "the offset of another row behind an image",
        "specdec/backends/row_inputs.py",
        (
            (
                "inputs.offset for inputs in found]",
                "inputs.offset for inputs in found[::-1]]",
            ),
        ),
        (f"{INPUT_ROWS}[qwen2_vl]",),
    ),
    Mutation(
        "features shifted by one placeholder",
        "specdec/inputs/features.py",
        (("all_rows.rows[start:stop]", "all_rows.rows.roll(1, 0)[start:stop]"),),
        (f"{INPUTS}[llava-dense]",),
    ),
    Mutation(
        "an image's block cut by a chunk",
        "specdec/inputs/base.py",
        (("if stretch.start < end < stretch.stop), default=end)", "if stretch.start < end < end), default=end)"),),
        ("tests/laws/test_input_laws.py::test_an_image_anywhere_between_chunks_has_generates_logits[gemma3]",),
    ),
    Mutation(
        "a window's blocks in all layers",
        "specdec/target.py",
        (("grown[number].block_kinds = row.inputs.block_kinds", "grown[number].block_kinds = None"),),
        (f"{INPUTS}[gemma4-slot_table]",),
    ),
    Mutation(
        "a prefix reused with another image",
        "specdec/inputs/base.py",
        (("if start <= mark.position < stop)", "if start <= mark.position < start)"),),
        (f"{PREFIXES}::test_a_prefix_is_reused_with_the_same_images_only[llava]",),
    ),
    Mutation(
        "a context continued behind another image",
        "specdec/inputs/base.py",
        (("min((mark.position for mark in first ^ second), default=math.inf)", "math.inf"),),
        (f"{PREFIXES}::test_a_conversations_images_are_read_once_and_again_when_one_changes[llava]",),
    ),
    Mutation(
        "a recording's reading begun again within it",
        "specdec/decoding/prefix_cache.py",
        (("request.inputs.resume_at(start) == start", "True"),),
        (f"{PREFIXES}::test_reading_begins_again_anywhere_but_within_a_recording[False-voxtral]",),
    ),
    Mutation(
        "an image's placeholder drafted",
        "specdec/decoding/drafting.py",
        (("tree = without_tokens(tree, request.inputs.placeholders)", "pass"),),
        (f"{IMAGES}::test_what_followed_the_same_words_isnt_drafted_if_it_was_an_image[llava]",),
    ),
    Mutation(
        "inputs that stay where their row was",
        "specdec/backends/row_inputs.py",
        (("self.set(row, moved)", "self.set(row, None)"),),
        (f"{INPUT_ROWS}[qwen2_vl]",),
    ),
    Mutation(
        "a stack of cross-attention's states reused for other rows",
        "specdec/models/cross_states.py",
        (("[each() for each in self._rows] != [*rows]", "len(self._rows) != len(rows)"),),
        (f"{DECODER_ROWS}[bart]",),
    ),
    Mutation(
        "the padding of another row's encoder seen",
        "specdec/models/cross_states.py",
        (("_of_layers(layers, lengths, _mask_of(lengths, layers[0][0]))", "_of_layers(layers, lengths, None)"),),
        (f"{DECODER_ROWS}[marian]",),
    ),
    Mutation(
        "the padding of another row's encoder in exact attention",
        "specdec/masks/exact/encoder_states.py",
        (('getattr(mask, "num_states", [key.shape[2]] * len(query))', "[key.shape[2]] * len(query)"),),
        (f"{ENCODERS}::test_exact_bits_depend_neither_on_drafts_nor_on_other_prompts_of_a_batch[bart]",),
    ),
    Mutation(
        "a padding token that counts as a position",
        "specdec/models/decoder_positions.py",
        (("torch.where(ids == table.padding_idx, table.padding_idx, counted)", "counted"),),
        (f"{DECODERS}::test_a_padding_token_in_a_draft_is_decoded_as_generate_decodes_it",),
    ),
    Mutation(
        "biases by slots of the cache",
        "specdec/models/decoder_positions.py",
        (("(right - taken).to(mask.dtype)", "(right - right).to(mask.dtype)"),),
        (f"{DECODER_ROWS}[t5]",),
    ),
    Mutation(
        "no argument that generate alone prepares",
        "specdec/requests/builder.py",
        (("self.check_inputs(encoded)", "pass"),),
        ("tests/runtime/probes/test_input_check.py::"
         "test_an_encoders_output_that_the_decoder_reads_otherwise_is_refused[argument]",),
    ),
)  # fmt: skip


def is_seen(mutation: Mutation, copy: Path) -> bool:
    """Return True if the suite fails with the mistake in it."""
    path = copy / mutation.file
    original = text = path.read_text(encoding="utf-8")
    for before, after in mutation.changes:
        if text.count(before) != 1:
            sys.exit(f"{mutation.name}: {mutation.file} no longer has, just once, {before!r}")
        text = text.replace(before, after)
    path.write_text(text, encoding="utf-8")
    try:
        return fails(copy, mutation.tests)
    finally:
        path.write_text(original, encoding="utf-8")


def fails(copy: Path, tests: tuple[str, ...]) -> bool:
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    folders = [copy, *(path for path in copy.glob("plugins/*") if path.is_dir())]  # before those that are installed
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        command, cwd=copy, env=environment, capture_output=True, text=True, check=False, timeout=MOST_SECONDS
    )
    if done.returncode not in (0, 1):
        sys.exit(f"pytest itself failed:\n{done.stdout}\n{done.stderr}")
    for line in done.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"    {line}")
    return done.returncode == 1


def main() -> None:
    if unknown := {*sys.argv[1:]} - {mutation.name for mutation in MUTATIONS}:
        sys.exit(f"unknown names: {'; '.join(sorted(unknown))}\n\n{__doc__}")
    chosen = [mutation for mutation in MUTATIONS if not sys.argv[1:] or mutation.name in sys.argv[1:]]
    unseen = []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for name in ("specdec", "tests", "benchmarks", "plugins", "docs"):
            shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "CHANGELOG.md"):
            shutil.copy(ROOT / name, copy / name)
        if fails(copy, tuple({name: None for mutation in chosen for name in mutation.tests})):
            sys.exit("the tests fail without any mistake in the code")
        for mutation in chosen:
            print(mutation.name, flush=True)
            if not is_seen(mutation, copy):
                unseen.append(mutation.name)
    print(f"{len(chosen) - len(unseen)} of {len(chosen)} mistakes turn the suite red")
    if unseen:
        sys.exit(f"unseen: {'; '.join(unseen)}")


if __name__ == "__main__":
    main()
