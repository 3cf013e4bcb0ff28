"""Print the numbers of docs/theory.md: `python docs/checks.py`. `--update` writes them into the page."""

import argparse
import re
import sys
from pathlib import Path

import torch

import hdlm
from hdlm.objectives.hdce import HDCE
from hdlm.objectives.score_entropy import score_entropy
from hdlm.theory.parameterization import clean_to_score
from hdlm.theory.reading import HDCEReading

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "tests"))

from support.enumeration import Joint, integrated_loss  # noqa: E402
from support.tabular import TabularDenoiser, exact_bound, exact_log_likelihood  # noqa: E402


def mixed_formulas(process, log_score, xt, x0, t):
    """What must not be done: the absorbing loss where xt is MASK, the uniform loss where it is a token."""
    n = process.vocab_size
    absorbing, uniform = hdlm.Absorbing(n, process.noise), hdlm.Uniform(n, process.noise)
    is_mask = process.is_mask(xt)
    from_mask = score_entropy(absorbing, log_score, torch.full_like(xt, n), x0, t)
    from_token = score_entropy(uniform, log_score, torch.where(is_mask, 0, xt), x0, t)
    return torch.where(is_mask, (1 - process.gamma) * from_mask, process.gamma * from_token)


def path() -> str:
    """Section 2: every path gives the same information; the mixed formulas do not."""
    torch.manual_seed(3)
    joint = Joint(hdlm.GammaHybrid(2, 0.2, hdlm.LogLinear(0.05)), 3)
    ends = [torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)]
    clean, noise = (joint.information(end) for end in ends)
    rows = {
        "entropy of the law": clean,
        "information destroyed by the noise": clean - noise,
        "flat": integrated_loss(joint, hdlm.Flat(3), score_entropy),
        "block, width 2": integrated_loss(joint, hdlm.Block(3, 2), score_entropy),
        "slide, width 2": integrated_loss(joint, hdlm.Slide(3, 2), score_entropy),
        "the mixed formulas, flat": integrated_loss(joint, hdlm.Flat(3), mixed_formulas),
    }
    return "\n".join(f"{name:<36}{value:>9.5f}" for name, value in rows.items())


def tau() -> str:
    """Section 4: tau-leaping against the posterior."""
    torch.manual_seed(0)
    process, count = hdlm.GammaHybrid(50, 0.1), 10_000
    t = 0.01 + 0.98 * torch.rand(count, dtype=torch.float64)
    s = t * torch.rand(count, dtype=torch.float64)
    xt = torch.randint(51, (count,))
    p0 = torch.randn(count, 50, dtype=torch.float64).softmax(-1)
    score = clean_to_score(process, p0.log(), xt, t).exp()
    difference = process.tau_leap(xt, score, s=s, t=t) - process.posterior(xt, p0, s=s, t=t)
    worst = difference.abs().max().item()
    return f"largest difference between tau-leaping and the posterior, 10,000 random states: {worst:.1e}"


def epsilon() -> str:
    """Section 6: the bound against the enumerated likelihood."""
    rows = ["epsilon    exact -log p    bound"]
    for value in (0.0, 0.01, 0.3):
        process, x0 = hdlm.EpsilonHybrid(2, value), torch.tensor([0, 1, 1])
        denoiser = TabularDenoiser(0)
        exact, bound = -exact_log_likelihood(denoiser, process, x0), exact_bound(denoiser, process, x0)
        rows.append(f"{value:<7.2f}{exact:>16.4f}{bound:>9.4f}")
    return "\n".join(rows)


def hdce() -> str:
    """Section 6: what minimises HDCE, taken for the law and read as what it is."""
    rows = ["epsilon    entropy    the true p(x0 | xt)    HDCE's minimiser as it is    its weights divided out"]
    for value in (0.01, 0.1, 0.3):
        process = hdlm.EpsilonHybrid(2, value)
        torch.manual_seed(3)
        joint, t = Joint(process, 3), torch.full((3,), 0.5, dtype=torch.float64)
        truth, xt, denoiser = joint.clean_given_noisy(t).log(), joint.noisy, TabularDenoiser(0)
        minimiser = (
            truth + torch.stack([HDCE(process).weights(xt, torch.full_like(xt, z), t) for z in (0, 1)], -1).log()
        )
        tables = truth, minimiser.log_softmax(-1), HDCEReading(process).log_p0(minimiser, xt, t.expand(xt.shape))
        bounds = []
        for denoiser.table in tables:
            found = [exact_bound(denoiser, process, x0) for x0 in joint.clean]
            bounds.append((joint.law * torch.tensor(found, dtype=torch.float64)).sum().item())
        entropy = -(joint.law * joint.law.log()).sum().item()
        rows.append(
            f"{value:<7.2f}{entropy:>11.4f}"
            + "".join(f"{bound:>{w}.4f}" for bound, w in zip(bounds, (23, 29, 27), strict=True))
        )
    return "\n".join(rows)


def main() -> None:
    """Print all checks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the numbers into docs/theory.md")
    update = parser.parse_args().update
    page = (HERE / "theory.md").read_text(encoding="utf-8")
    for check in (path, tau, epsilon, hdce):
        printed = check()
        print(f"{check.__name__}\n{printed}\n")
        block = rf"(<!-- checks: {check.__name__} -->\n```\n).*?(\n```)"
        page = re.sub(block, lambda found, text=printed: found[1] + text + found[2], page, flags=re.DOTALL)
    if update:
        (HERE / "theory.md").write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
