"""Losses and their gradients over the vocabulary, one row a program, for training in half precision on a GPU.

A row of logits is read from memory once and then, while it is near, two or three times more; its gradient is written
over it. What depends on time alone comes as numbers per row. `gradients.py` chooses between these and plain autograd,
and tests hold the two equal, on a CPU by Triton's interpreter. Imported only where Triton is.
"""

# pyright: reportIndexIssue=false, reportOperatorIssue=false, reportArgumentType=false, reportCallIssue=false
import torch
import triton
import triton.language as tl
from torch import Tensor

# Tokens a program works on at a time, found by trial on an H200 with four warps (docs/performance-log.md).
_CROSS_ENTROPY_BLOCK, _GAMMA_BLOCK, _WARPS = 4096, 1024, 4
_MOST_LIFT = tl.constexpr(40.0)  # two factors of 1 + e^40 still have a product


@triton.jit
def _cross_entropy(logits_ptr, target_ptr, weight_ptr, loss_ptr, count, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    line = logits_ptr + row * stride
    weight = tl.load(weight_ptr + row)
    target = tl.load(target_ptr + row).to(tl.int32)
    column = tl.arange(0, BLOCK)
    best = -float("inf")
    total = 0.0
    if weight != 0:
        for start in range(0, count, BLOCK):
            at = start + column
            x = tl.load(line + at, mask=at < count, other=-float("inf")).to(tl.float32)
            higher = tl.maximum(best, tl.max(x, axis=0))
            total = total * tl.exp(best - higher) + tl.sum(tl.exp(x - higher), axis=0)
            best = higher
        norm = best + tl.log(total)
        tl.store(loss_ptr + row, weight * (norm - tl.load(line + target).to(tl.float32)))
    else:
        norm = float("inf")
        tl.store(loss_ptr + row, 0.0)
    for start in range(0, stride, BLOCK):
        at = start + column
        x = tl.load(line + at, mask=at < count, other=-float("inf")).to(tl.float32)
        gradient = weight * (tl.exp(x - norm) - tl.where(at == target, 1.0, 0.0))
        tl.store(line + at, gradient.to(logits_ptr.dtype.element_ty), mask=at < stride)


def cross_entropy_gradient(logits: Tensor, target: Tensor, weight: Tensor, count: int) -> Tensor:
    """Losses weight * -log softmax(logits)[target], [n], of logits [n, at least count]: overwritten by gradients."""
    loss = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    _cross_entropy[(len(logits),)](
        logits,
        target,
        weight.float(),
        loss,
        count,
        logits.stride(0),
        BLOCK=_block(_CROSS_ENTROPY_BLOCK, count),
        num_warps=_WARPS,
    )
    return loss


@triton.jit
def _log_add_exp(a, b):
    high = tl.maximum(a, b)
    return high + tl.log(1.0 + tl.exp(tl.minimum(a, b) - high))


@triton.jit
def _gamma(
    logits_ptr,
    own_ptr,
    target_ptr,
    scale_ptr,
    boost_ptr,
    gain_ptr,
    other_ptr,
    aim_ptr,
    loss_ptr,
    count,
    stride,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    line = logits_ptr + row * stride
    own, target = tl.load(own_ptr + row).to(tl.int32), tl.load(target_ptr + row).to(tl.int32)
    is_mask = own >= count
    has_target = is_mask | (own != target)
    scale, boost, gain = tl.load(scale_ptr + row), tl.load(boost_ptr + row), tl.load(gain_ptr + row)
    log_other, log_aim = tl.load(other_ptr + row), tl.load(aim_ptr + row)
    column = tl.arange(0, BLOCK)

    # log of the sum of e^logit over all but the own token.
    best = -float("inf")
    total = 0.0
    for start in range(0, count, BLOCK):
        at = start + column
        x = tl.load(line + at, mask=(at < count) & (at != own), other=-float("inf")).to(tl.float32)
        higher = tl.maximum(best, tl.max(x, axis=0))
        total = total * tl.exp(best - higher) + tl.sum(tl.exp(x - higher), axis=0)
        best = higher
    beyond = best + tl.log(total)
    at_target = tl.load(line + target).to(tl.float32)
    at_own = tl.load(line + tl.where(is_mask, 0, own)).to(tl.float32)
    evidence = at_own + gain
    norm = tl.where(is_mask, beyond, _log_add_exp(beyond, evidence))
    share = tl.where(is_mask, 0.0, tl.exp(evidence - norm))  # of the own token
    rest = tl.exp(beyond - norm)
    floor = tl.where(is_mask, log_other, tl.log(share * tl.exp(-gain) + rest))
    lift = tl.minimum(boost - floor, _MOST_LIFT) - norm  # log s_z = floor + log(1 + e^(logit_z + lift))

    # Over all tokens that are neither own nor target: of log(1 + e^.), of two tokens at once, and of its derivative.
    excess = 0.0
    derivatives = 0.0
    for start in range(0, count, 2 * BLOCK):
        at = start + column
        inside = (at < count) & (at != own) & (at != target)
        first = tl.exp(tl.load(line + at, mask=inside, other=-float("inf")).to(tl.float32) + lift)
        at += BLOCK
        inside = (at < count) & (at != own) & (at != target)
        second = tl.exp(tl.load(line + at, mask=inside, other=-float("inf")).to(tl.float32) + lift)
        either, product = first + second, first * second
        excess += tl.sum(tl.log(1.0 + either + product), axis=0)
        derivatives += tl.sum((either + 2.0 * product) / (1.0 + either + product), axis=0)

    other, aim = tl.exp(log_other), tl.where(has_target, tl.exp(log_aim), 0.0)
    raised = tl.exp(at_target + lift)
    log_target = floor + tl.log(1.0 + raised)
    rising = raised / (1.0 + raised)
    others = count - 1.0 - tl.where(is_mask | (own == target), 0.0, 1.0)
    # Of MASK, `boost` holds log(a b / (1 - a)) and `log_other` log(a (1 - b) / (N (1 - a))): the scores sum to
    # N e^log_other + e^boost.
    scores = tl.where(is_mask, count * other + tl.exp(boost), (count - 1.0) * tl.exp(floor) + tl.exp(boost) * rest)
    loss = scores - other * (others * (floor - log_other + 1.0) + excess) + aim * (log_aim - 1.0 - log_target)
    tl.store(loss_ptr + row, scale * loss)

    # d floor / d logit_z = -pull (1[z = own] - pi_z); the rest follows by the chain rule.
    pull = (1.0 - tl.exp(-gain)) * share * tl.exp(-floor)
    pull = tl.where(is_mask, 0.0, pull)
    common = pull * (other * others + aim * (1.0 - rising) - (count - 1.0) * tl.exp(floor))
    common = tl.where(is_mask, 0.0, common - tl.exp(boost) * share)
    to_share = scale * (-common + other * derivatives * (1.0 + pull) + aim * rising)
    to_own = scale * (common - other * derivatives * pull)
    to_other = scale * other
    shrink = to_share * tl.exp(-lift - norm)
    for start in range(0, stride, BLOCK):
        at = start + column
        x = tl.load(line + at, mask=at < count, other=-float("inf")).to(tl.float32)
        grown = tl.exp(x + lift)
        gradient = grown * (shrink - to_other / (1.0 + grown))
        tl.store(line + at, gradient.to(logits_ptr.dtype.element_ty), mask=at < stride)
    tl.debug_barrier()  # the own token and the clean one are written once more, by whichever thread
    kind = logits_ptr.dtype.element_ty
    gradient = to_share * tl.exp(at_target - norm) - scale * aim * rising
    tl.store(line + target, gradient.to(kind), mask=own != target)
    tl.store(line + own, (to_share * share + to_own).to(kind), mask=own < count)


def gamma_gradient(
    logits: Tensor,
    own: Tensor,
    target: Tensor,
    *,
    scale: Tensor,
    boost: Tensor,
    gain: Tensor,
    log_other: Tensor,
    log_target: Tensor,
    count: int,
) -> Tensor:
    """Losses [n] of a `ScoreBound` over clean outputs, times what `scale` makes of them: logits become their gradient.

    `own` is a token or, for MASK, anything from `count` on. Numbers per row: `scale` all that multiplies the sum over
    states; `boost` log(N b / (1 - b)) of a token and log(a b / (1 - a)) of MASK; `gain` its softplus; the true log
    ratios of the clean token and of the others.
    """
    loss = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    numbers = (x.float().contiguous() for x in (scale, boost, gain, log_other, log_target))
    _gamma[(len(logits),)](
        logits,
        own,
        target,
        *numbers,
        loss,
        count,
        logits.stride(0),
        BLOCK=_block(_GAMMA_BLOCK, count),
        num_warps=_WARPS,
    )
    return loss


def _block(most: int, count: int) -> int:
    return min(most, 1 << (count - 1).bit_length())  # the next power of two
