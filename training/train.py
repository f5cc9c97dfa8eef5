"""Train the built-in model, or its drafter, and write it into ``specdec/demo/model`` or ``specdec/demo/drafter``.

    python training/train.py --minutes 60                 # train, keep a checkpoint every few minutes
    python training/train.py --minutes 30 --resume        # go on from the last checkpoint
    python training/train.py --export                     # checkpoint -> specdec/demo/model, and prompts.json
    python training/train.py --report                     # what the exported model reproduces, for its card
    python training/train.py --drafter --minutes 20       # the same for the drafter, with the model's tokenizer

The model learns a small corpus by heart on purpose; ``corpus.py`` says what it is made of, the card what that means.
"""

import argparse
import hashlib
import json
import math
import platform
import random
import time
from pathlib import Path

import torch
from corpus import Document, load
from measures import distinct_4_grams, loops
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

HERE = Path(__file__).parent
DEMO = HERE.parent / "specdec" / "demo"

SEED = 20
VOCABULARY = 2048
ROW = 768  # tokens per training row
ROWS_PER_STEP = 4
PEAK_RATE = 2.5e-3
WARM_UP_STEPS = 100
END_OF_TEXT, END_OF_TURN = "<|endoftext|>", "<|end|>"
SPECIAL_TOKENS = [END_OF_TEXT, END_OF_TURN, "<|system|>", "<|user|>", "<|assistant|>"]
CHAT_TEMPLATE = (
    "{{ '<|endoftext|>' }}{% for message in messages %}"
    "{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% endif %}"
)
PROMPTS_PER_CATEGORY = 6
MOST_NEW_TOKENS = 256
COMMON = {
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 8448,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": [0, 1],
    "pad_token_id": 0,
}
CONFIGS = {
    "model": LlamaConfig(
        hidden_size=384,
        intermediate_size=1024,
        num_hidden_layers=4,
        num_attention_heads=6,
        num_key_value_heads=2,
        **COMMON,
    ),
    "drafter": LlamaConfig(
        hidden_size=192,
        intermediate_size=512,
        num_hidden_layers=2,
        num_attention_heads=3,
        num_key_value_heads=1,
        **COMMON,
    ),
}


def make_tokenizer(documents: list[Document]) -> PreTrainedTokenizerFast:
    """Byte-level BPE with single digits, so that sums are spelt the same way everywhere."""
    tokenizer = Tokenizer(models.BPE())
    words = Regex(r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\n[ ]*|\p{N}|\s")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(words, behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=SPECIAL_TOKENS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        min_frequency=3,
        show_progress=False,
    )
    tokenizer.train_from_iterator((plain_text(document) for document in documents), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{END_OF_TEXT} $A", special_tokens=[(END_OF_TEXT, tokenizer.token_to_id(END_OF_TEXT))]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=END_OF_TEXT,
        pad_token=END_OF_TEXT,
        additional_special_tokens=SPECIAL_TOKENS[1:],
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def plain_text(document: Document) -> str:
    if not document.turns:
        return document.text
    return "".join(f"<|{role}|>\n{content}{END_OF_TURN}\n" for role, content in document.turns)


def encode(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> list[list[int]]:
    """Each document as it is met at inference: behind one beginning-of-text id."""
    return [tokenizer(plain_text(document))["input_ids"] for document in documents]


def rows(encoded: list[list[int]], rng: random.Random) -> torch.Tensor:
    """One epoch, shape ``(rows, ROW + 1)``: each document opens one row, others follow until the row is full."""
    order = rng.sample(range(len(encoded)), k=len(encoded))
    packed = []
    for start, first in enumerate(order):
        row, follower = list(encoded[first]), start
        while len(row) <= ROW:
            follower = (follower + 1) % len(order)
            row += encoded[order[follower]]
        packed.append(row[: ROW + 1])
    return torch.tensor(packed)


def checkpoint(name: str) -> Path:
    return HERE / "checkpoint" / name


def train(name: str, minutes: float, resume: bool) -> None:
    torch.manual_seed(SEED)
    documents = load(HERE / "corpus")
    tokenizer = make_tokenizer(documents)
    encoded = encode(tokenizer, documents)
    print(f"{len(documents)} documents, {sum(map(len, encoded))} tokens, {len(tokenizer)} in the vocabulary")
    model = LlamaForCausalLM.from_pretrained(checkpoint(name)) if resume else LlamaForCausalLM(CONFIGS[name])
    print(f"{model.num_parameters():,} parameters")
    model.train()
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices}, {"params": [p for p in model.parameters() if p.ndim < 2]}],
        lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.0, fused=True,
    )  # fmt: skip
    has_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()  # elsewhere it is emulated, and slower than float32
    rng = random.Random(SEED + resume)
    began = saved = time.monotonic()
    step, epoch, spent = 0, 0, 0.0
    while spent < 1.0:
        losses = []
        for batch in rows(encoded, rng).split(ROWS_PER_STEP):
            spent = (time.monotonic() - began) / (60 * minutes)
            rate = PEAK_RATE * min(1.0, (step + 1) / WARM_UP_STEPS) * max(0.01, math.cos(math.pi / 2 * min(1.0, spent)))
            for group in optimizer.param_groups:
                group["lr"] = rate
            with torch.autocast("cpu", torch.bfloat16, enabled=has_bfloat16):
                logits = model(batch[:, :-1]).logits
            loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            step += 1
        epoch += 1
        print(
            f"epoch {epoch} step {step} minute {spent * minutes:.1f} loss {sum(losses) / len(losses):.4f}", flush=True
        )
        if time.monotonic() - saved > 120 or spent >= 1.0:
            saved = time.monotonic()
            model.save_pretrained(checkpoint(name))
            tokenizer.save_pretrained(checkpoint(name))


def export(name: str) -> None:
    """The checkpoint in bfloat16, which is what the package ships."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(checkpoint(name))
    model = LlamaForCausalLM.from_pretrained(checkpoint(name), dtype=torch.bfloat16)
    model.generation_config.eos_token_id = [0, 1]
    model.save_pretrained(DEMO / name)
    tokenizer.save_pretrained(DEMO / name)
    if name == "model":
        write_prompts(tokenizer, load(HERE / "corpus"))
    corpus = "".join(plain_text(document) for document in load(HERE / "corpus"))
    digest = hashlib.sha256(corpus.encode()).hexdigest()
    print(f"corpus of {len(corpus.encode()):,} bytes, sha256 {digest}, Python {platform.python_version()}")


def write_prompts(tokenizer: PreTrainedTokenizerFast, documents: list[Document]) -> None:
    """The beginnings of six documents a category, evenly spread over those fit for it."""
    chosen = []
    for category in ("code", "documentation", "dialogue", "arithmetic"):
        fit = [document for document in documents if document.category == category and _can_go_on(tokenizer, document)]
        for document in fit[:: len(fit) // PROMPTS_PER_CATEGORY][:PROMPTS_PER_CATEGORY]:
            entry = {"category": category, "name": document.title, "text": beginning(document)}
            question = {"text": document.turns[0][1], "is_instruction": True} if document.turns else {}
            chosen.append(entry | question)
    text = json.dumps(chosen, indent=1, ensure_ascii=False)
    (DEMO / "prompts.json").write_text(text + "\n", encoding="utf-8")


def report() -> None:
    """How much of its corpus the exported model gives back, greedily, after the beginning of each document."""
    from specdec import Generator, demo

    model, tokenizer = demo.load()
    documents = load(HERE / "corpus")
    generator = Generator(model, tokenizer, proposer="prompt_lookup", max_batch_size=8)
    results = generator.generate(
        [beginning(document) for document in documents], max_new_tokens=MOST_NEW_TOKENS, eos_token_id=()
    )
    corpus = {run for document in documents for run in _runs(tokenizer(plain_text(document))["input_ids"])}
    tally: dict[str, list[int]] = {}
    for document, result in zip(documents, results, strict=True):
        rest = tokenizer(plain_text(document))["input_ids"][len(tokenizer(beginning(document))["input_ids"]) :]
        length = min(len(rest), MOST_NEW_TOKENS)
        same = next((i for i in range(length) if rest[i] != result.token_ids[i]), length)
        runs = _runs(list(result.token_ids))
        counts = tally.setdefault(document.category, [0, 0, 0, 0])
        for index, count in enumerate((same, length, sum(run in corpus for run in runs), len(runs))):
            counts[index] += count
    for category, (same, length, known, total) in tally.items():
        print(f"| {category} | {same / length:.0%} | {known / total:.0%} |")


def _runs(tokens: list[int]) -> list[tuple[int, ...]]:
    """All runs of 16 tokens."""
    return [tuple(tokens[start : start + 16]) for start in range(len(tokens) - 15)]


def beginning(document: Document) -> str:
    """Enough of a document to know it by: a dialogue's first question, else the lines that hold 120 characters."""
    if document.turns:
        return f"<|user|>\n{document.turns[0][1]}{END_OF_TURN}\n<|assistant|>\n"
    # Cut before white space, which belongs to the token that follows it.
    end = document.text.find("\n", 120) if document.category == "code" else document.text.rfind(" ", 0, 140)
    return document.text[:end]


def _can_go_on(tokenizer: PreTrainedTokenizerFast, document: Document) -> bool:
    """Long enough, and not itself what the suite would call a loop (a table's rule, a number with three zeros)."""
    start = len(tokenizer(beginning(document))["input_ids"])
    rest = tokenizer(plain_text(document))["input_ids"][start:][:MOST_NEW_TOKENS]
    return len(rest) == MOST_NEW_TOKENS and distinct_4_grams(rest) >= 0.7 and not loops(rest)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--drafter", action="store_true", help="the drafter instead of the model")
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--report", action="store_true")
    arguments = parser.parse_args()
    chosen = "drafter" if arguments.drafter else "model"
    if arguments.export:
        export(chosen)
    elif arguments.report:
        report()
    else:
        train(chosen, arguments.minutes, arguments.resume)
