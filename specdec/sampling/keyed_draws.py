"""Draws of tokens on a GPU, in Triton, by the noise of ``randomness.py``: no logits are copied to the host."""

import torch
import triton
import triton.language as tl

_NUM_PARTS = 16  # of a vocabulary; each is searched by a program of its own
_BLOCK = 256  # of numbers that Philox makes at once, four to a counter

# Philox 4x64-10 (Salmon et al. 2011, table 2 and section 4.3); Triton takes numbers from 2**63 on as uint64.
_M0, _M1 = tl.constexpr(0xD2E7470EE14C6C93), tl.constexpr(0xCA5A826395121157)
_W0, _W1 = tl.constexpr(0x9E3779B97F4A7C15), tl.constexpr(0xBB67AE8584CAA73B)


@triton.jit
def _philox(counter, position, seed):
    """The four outputs of each counter ``(counter, position, 0, 0)`` under the key ``(seed, 0)``."""
    c0, c1 = counter, tl.zeros_like(counter) + position
    c2, c3 = tl.zeros_like(counter), tl.zeros_like(counter)
    k0, k1 = tl.zeros_like(counter) + seed, tl.zeros_like(counter)
    for _ in tl.static_range(10):
        high0, low0 = tl.umulhi(c0, tl.full(c0.shape, _M0, tl.uint64)), c0 * tl.full(c0.shape, _M0, tl.uint64)
        high1, low1 = tl.umulhi(c2, tl.full(c0.shape, _M1, tl.uint64)), c2 * tl.full(c0.shape, _M1, tl.uint64)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0 += tl.full(c0.shape, _W0, tl.uint64)
        k1 += tl.full(c0.shape, _W1, tl.uint64)
    return c0, c1, c2, c3


@triton.jit(do_not_specialize=["vocab_size", "part", "num_columns"])
def _draw(
    logits, positions, seeds, temperatures, best_out, token_out,
    vocab_size, part, num_columns, row_stride, column_stride,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """The largest sum of score and noise in one part of the vocabulary at one node, and its token."""
    node, number = tl.program_id(0), tl.program_id(1)
    row, column = node // num_columns, node % num_columns
    logits += row.to(tl.int64) * row_stride + column.to(tl.int64) * column_stride
    position = (tl.load(positions + node) + 1).to(tl.uint64)
    seed, temperature = tl.load(seeds + row).to(tl.uint64), tl.load(temperatures + row)
    best, token = tl.full([BLOCK], float("-inf"), tl.float64), tl.zeros([BLOCK], tl.int32)
    begin = number * part
    while begin < min((number + 1) * part, vocab_size):
        first = begin + 4 * tl.arange(0, BLOCK)
        counter = (first // 4 + 1).to(tl.uint64)
        outputs = _philox(counter, position, seed)
        for entry in tl.static_range(4):
            tokens = first + entry
            score = tl.load(logits + tokens, mask=tokens < vocab_size, other=float("-inf")).to(tl.float64) / temperature
            uniform = ((outputs[entry] >> 12).to(tl.float64) + 0.5) * 2.220446049250313e-16
            score -= tl.log(-tl.log(uniform))
            is_better = score > best
            best, token = tl.where(is_better, score, best), tl.where(is_better, tokens, token)
        begin += 4 * BLOCK
    top = tl.max(best, 0)
    tl.store(best_out + node * tl.num_programs(1) + number, top)
    tl.store(token_out + node * tl.num_programs(1) + number, tl.min(tl.where(best == top, token, vocab_size), 0))


def draw(
    logits: torch.Tensor, positions: torch.Tensor, seeds: torch.Tensor, temperatures: torch.Tensor
) -> torch.Tensor:
    """Return a draw from softmax(logits / temperature) at each node by the noise of the next position, (rows, columns).

    Args:
        logits: (rows, columns, vocab).
        positions: of the nodes, (rows, columns).
        seeds: (rows,), int64.
        temperatures: (rows,), float64.
    """
    rows, columns, size = logits.shape
    part = -(-size // (_NUM_PARTS * 4 * _BLOCK)) * 4 * _BLOCK
    best = torch.empty(rows * columns, _NUM_PARTS, dtype=torch.float64, device=logits.device)
    tokens = torch.empty(rows * columns, _NUM_PARTS, dtype=torch.int32, device=logits.device)
    logits = logits if logits.stride(2) == 1 else logits.contiguous()
    with torch.cuda.device_of(logits):  # type: ignore[no-untyped-call]  # Triton launches on the current GPU
        _draw[rows * columns, _NUM_PARTS](
            logits, positions.contiguous(), seeds, temperatures, best, tokens, size, part, columns,
            *logits.stride()[:2], BLOCK=_BLOCK,
        )  # fmt: skip
    return tokens.gather(1, best.argmax(1, keepdim=True)).view(rows, columns).long()
