"""Two ways to say what a denoiser knows, and the maps between them, in log space.

`clean`: pi = p(x0 given xt), a law over the N real tokens. `score`: the ratios s_z = p_t(z) / p_t(xt). Both
describe the same function for the gamma-hybrid family (absorbing and uniform included). Everything here
is [..., N] log values in, [..., N] log values out, for sigma from 1e-4 to 20 and N up to 200,000 in float32.
Knows no network: a network's raw output becomes one or the other through `output_to_clean` and `output_to_score`.
"""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from hdlm.theory import checks

if TYPE_CHECKING:
    from hdlm.theory.gamma_hybrid import GammaHybrid
    from hdlm.theory.process import Process


MAX_EVIDENCE = 1e4  # e^10000: certainty


def log_expm1(x: Tensor) -> Tensor:
    """log(e^x - 1) for x >= 0: -infinity at 0, x itself far out."""
    return x + torch.log(-torch.expm1(-x))


def _log_boost(process: "GammaHybrid", replacing: Tensor) -> Tensor:
    """log of N b / (1 - b), by how much the noisy token's being z speaks for its having been z."""
    return math.log(process.vocab_size) - log_expm1(replacing)


def score_offset(process: "GammaHybrid", xt: Tensor, t: Tensor) -> Tensor:
    """What a score network's raw output leaves out, known in closed form from the state and the time.

    Where xt is MASK the scores of a uniform clean token, a / (1 - a) / N; where it is a token, the score of any other
    if xt is the clean one, (1 - b) / (N b + 1 - b). So an untrained network (all outputs 0) begins with a loss of about
    log N and not of N.
    """
    masking, _ = process.split(process.noise.sigma(t))
    from_mask = -log_expm1(masking) - math.log(process.vocab_size)
    return torch.where(process.is_mask(xt), from_mask, -log_evidence(process, t))


def log_evidence(process: "GammaHybrid", t: Tensor) -> Tensor:
    """log P[x | x] / P[x | y] = log(1 + N b / (1 - b)): infinite where nothing is ever replaced."""
    _, replacing = process.split(process.noise.sigma(t))
    return torch.nn.functional.softplus(_log_boost(process, replacing))


def output_to_score(process: "GammaHybrid", output: Tensor, xt: Tensor, t: Tensor) -> Tensor:
    """Log score from a score network's raw output [..., N]: offset added, the current token's own ratio 1."""
    checks.distribution("output", output, process.vocab_size)
    _check_state(process, xt, t)
    output, xt, t = _expanded(output, xt, t)
    return with_own(output + score_offset(process, xt, t).unsqueeze(-1), xt, torch.zeros_like(t))


def output_to_clean(process: "Process", output: Tensor, xt: Tensor, t: Tensor) -> Tensor:
    """Log pi from a clean network's raw output [..., N]: a softmax, the evidence of the noisy token itself added.

    Seeing x speaks for x having been the clean token by the factor P[x | x] / P[x | y], which is known. With it an
    untrained network (all outputs equal) already gives the right law for a uniform clean token, where a plain softmax
    would have to learn a factor that grows without bound as noise goes to 0, and loses without bound until then.
    """
    checks.distribution("output", output, process.vocab_size)
    _check_state(process, xt, t)
    output, xt, t = _expanded(output, xt, t)
    return with_evidence(process, output, xt, process.evidence(t)).log_softmax(-1)


def with_evidence(process: "Process", output: Tensor, xt: Tensor, evidence: Tensor) -> Tensor:
    """Outputs [..., N] with `evidence` [...] added to the current token's own; MASK has none: unchanged."""
    own = output.gather(-1, _index(process, xt)).squeeze(-1)
    return with_own(output, xt, own + evidence.clamp(max=MAX_EVIDENCE).to(output.dtype))


def clean_to_score(process: "GammaHybrid", log_pi: Tensor, xt: Tensor, t: Tensor) -> Tensor:
    """Log score from log pi [..., N]: sums of positive terms only, so that nothing cancels.

    MASK: s_z = (a / (1 - a)) (b pi_z + (1 - b) / N). Token x: s_z = pi_x (1 - b) / D + (1 - pi_x) + pi_z N b / (1 - b)
    with D = N b + 1 - b, and s_x = 1; where nothing can have been replaced, pi_x counts as 1.
    """
    checks.distribution("log_pi", log_pi, process.vocab_size)
    _check_state(process, xt, t)
    log_pi, xt, t = _expanded(log_pi, xt, t)
    masking, replacing = process.split(process.noise.sigma(t))
    is_mask = process.is_mask(xt)
    # Where the token is certain every other score is 0. Finite stand-ins keep gradients finite until the end.
    certain = ~is_mask & (replacing == 0)
    boost = _log_boost(process, torch.where(certain, 1.0, replacing))

    own = log_pi.gather(-1, _index(process, xt)).squeeze(-1)
    rest = torch.logsumexp(with_own(log_pi, xt, torch.full_like(own, -math.inf)), dim=-1)
    mixed = torch.logaddexp(own - torch.nn.functional.softplus(boost), rest)
    spread = torch.log(-torch.expm1(-replacing)) - math.log(process.vocab_size) - log_expm1(masking)
    scale = torch.where(is_mask, -replacing - log_expm1(masking), boost)
    log_score = torch.logaddexp(log_pi + scale.unsqueeze(-1), torch.where(is_mask, spread, mixed).unsqueeze(-1))
    log_score = torch.where(certain.unsqueeze(-1), -math.inf, log_score)
    return with_own(log_score, xt, torch.zeros_like(own))


def score_to_clean(process: "GammaHybrid", log_score: Tensor, xt: Tensor, t: Tensor) -> Tensor:
    """Log pi from a log score [..., N], the inverse of `clean_to_score`.

    A score that no law gives (a learned one) is brought to the nearest that does: what would be negative
    becomes 0, and the rest is normalised. Where nothing can have been replaced a token is its own clean token, and
    MASK's scores are pi up to a factor. Subtracts nearly equal numbers at large noise, so it works in float64 inside.
    """
    checks.distribution("log_score", log_score, process.vocab_size)
    _check_state(process, xt, t)
    dtype = log_score.dtype
    log_score, xt, t = _expanded(log_score.double(), xt, t.double())
    _, replacing = process.split(process.noise.sigma(t))
    is_mask, certain = process.is_mask(xt), replacing == 0
    n = process.vocab_size
    if process.gamma == 0:
        itself = with_own(torch.full_like(log_score, -math.inf), xt, torch.zeros_like(t))
        return torch.where(is_mask.unsqueeze(-1), log_score.log_softmax(-1), itself).to(dtype)

    # MASK: the scores are proportional to b pi_z + (1 - b) / N.
    share = torch.softmax(log_score, dim=-1) * torch.exp(replacing).unsqueeze(-1)
    from_mask = share - (torch.expm1(replacing) / n).unsqueeze(-1)

    # Token x: s_z = base + boost pi_z for z != x, base = 1 - pi_x boost / (1 + boost); their sum gives pi_x.
    boost = torch.exp(_log_boost(process, torch.where(certain, 1.0, replacing)))
    others = with_own(log_score, xt, torch.full_like(t, -math.inf)).exp()
    total = others.sum(-1)
    not_own = ((total * (1 + boost) - (n - 1)) / (n + boost) / boost).clamp(0, 1)
    base = 1 / (1 + boost) + not_own * (boost / (1 + boost))
    from_token = (others - base.unsqueeze(-1)) / boost.unsqueeze(-1)
    from_token = torch.where(certain.unsqueeze(-1), 0.0, from_token)
    from_token = with_own(from_token, xt, torch.where(certain, 1.0, 1 - not_own))

    pi = torch.where(is_mask.unsqueeze(-1), from_mask, from_token).clamp(min=0)
    return torch.log(pi / pi.sum(-1, keepdim=True)).to(dtype)


def _check_state(process: "Process", xt: Tensor, t: Tensor) -> None:
    checks.tokens("xt", xt, process.num_states)
    checks.times("t", t)
    checks.together(xt=xt.shape, t=t.shape)
    if not checks.skips_values(xt, t) and (process.is_mask(xt) & (t == 0)).any():
        raise ValueError(f"xt holds MASK (id {process.mask_id}) at t = 0: a clean position has no score out of MASK")


def _expanded(values: Tensor, xt: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The three broadcast to one leading shape."""
    shape = checks.together(values=values.shape[:-1], xt=xt.shape, t=t.shape)
    return values.expand(*shape, -1), xt.expand(shape), t.expand(shape)


def _index(process: "Process", xt: Tensor) -> Tensor:
    return xt.long().clamp(max=process.vocab_size - 1).unsqueeze(-1)


def with_own(values: Tensor, xt: Tensor, own: Tensor) -> Tensor:
    """`values` [..., N] with the entry of the current token set to `own` [...]; MASK has none: unchanged.

    By comparison rather than by scattering, which a compiler can melt into whatever reads it.
    """
    is_own = torch.arange(values.shape[-1], device=values.device, dtype=torch.int32) == xt.int().unsqueeze(-1)
    return torch.where(is_own, own.to(values.dtype).unsqueeze(-1), values)
