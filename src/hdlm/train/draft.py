"""Training a draft head for a network that stays as it is: what autoregression would say, told to windows of MASK.

No data is needed. The network writes texts by autoregression; at places chosen by lot, windows of MASK stand where the
text goes on, and the draft head learns to give what the settled slots of the same pass give for the same tokens,
knowing those before. So its drafts are kept as often as can be.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from hdlm.bundle import Bundle
from hdlm.nn.draft import DraftHead
from hdlm.nn.transformer import Denoiser
from hdlm.theory import checks
from hdlm.theory.layout import build_layout
from hdlm.theory.reading import NextTokenReading

TEMPERATURES = (1.0, 1.0, 0.6)  # of the texts, in turns
WINDOW = 6  # masks of a window
_TEXTS_AT_ONCE, _WARM_UP = 16, 50
_FADES = 0.1  # how much less a token of a window counts than the one before it


@dataclass(frozen=True)
class Windows:
    """Windows of texts, [n, WINDOW, width]: their features, those of the settled slots, and the token before each."""

    features: Tensor
    settled: Tensor
    previous: Tensor

    def __len__(self) -> int:
        return len(self.features)


def train_draft(
    bundle: Bundle,
    *,
    texts: int = 1440,
    epochs: int = 3,
    width: int = 256,
    batch_size: int = 256,
    lr: float = 2e-3,
    seed: int = 0,
    progress: Callable[[str, int, int], None] | None = None,
) -> Bundle:
    """A bundle with a draft head that was trained on so many texts of the network's own; all else is as it was.

    `width`: of the head's state. `progress` is told what is being done, how much of it is, and of how much.
    """
    for name, value in (("texts", texts), ("epochs", epochs), ("width", width), ("batch_size", batch_size)):
        checks.integer(name, value, low=1)
    if not bundle.config.shifted or bundle.process.mask_id is None:
        raise ValueError("a draft head is for shifted networks whose process masks: no other speculates")
    tell = progress if progress is not None else lambda *_: None
    generator = torch.Generator().manual_seed(seed)
    rows = _texts(bundle, texts, seed, tell)
    windows = _windows(bundle, rows, generator, tell)
    model = _with_draft(bundle, width, generator)
    assert model.draft is not None
    _fit(model, model.draft, windows, bundle, epochs, batch_size, lr, generator, tell)
    return Bundle(model.eval(), replace(bundle.config, model=model.config), bundle.tokenizer)


def _texts(bundle: Bundle, count: int, seed: int, tell: Callable[[str, int, int], None]) -> Tensor:
    """Texts that the network writes by autoregression, [count, context - 1]."""
    found: list[list[int]] = []
    length, turn = bundle.config.context - 1, 0
    while len(found) < count:
        samples = bundle.generate(
            kind="quench",
            num_samples=min(96, count - len(found)),
            length=length,
            temperature=TEMPERATURES[turn % len(TEMPERATURES)],
            top_p=1.0,
            batch_size=96,
            stop_at_eos=False,
            seed=seed * 2**16 + turn,
        )
        found, turn = found + samples.tokens, turn + 1
        tell("texts", len(found), count)
    return torch.tensor(found)


@torch.no_grad()
def _windows(
    bundle: Bundle, rows: Tensor, generator: torch.Generator, tell: Callable[[str, int, int], None]
) -> Windows:
    """Windows that tile each text, from an offset by lot; features in half precision, since there are many."""
    length, found = rows.shape[1], []
    for start in range(0, len(rows), _TEXTS_AT_ONCE):
        x0 = rows[start : start + _TEXTS_AT_ONCE].to(bundle.device)
        offset = int(torch.randint(1, WINDOW + 1, (), generator=generator))
        starts = list(range(offset, length - WINDOW + 1, WINDOW))
        layout = build_layout(length, [(at, at + WINDOW) for at in starts], shifted=True).to(bundle.device)
        masks, noise = torch.full_like(x0, bundle.process.mask_id), torch.ones(x0.shape, device=x0.device)  # pyright: ignore[reportArgumentType]
        slots = layout.fill(x0, masks, noise, bundle.process, bos_id=bundle.config.bos_id)
        features = bundle.model.trunk(slots)
        index = torch.tensor(starts, device=x0.device).unsqueeze(1) + torch.arange(WINDOW, device=x0.device)
        own = features[:, length + 1 :].unflatten(1, (len(starts), WINDOW + 1))[:, :, :WINDOW]
        parts = (own.half(), features[:, index].half(), x0[:, index - 1])  # slot i of the settled predicts token i
        found.append([part.flatten(0, 1).cpu() for part in parts])
        tell("windows", min(start + _TEXTS_AT_ONCE, len(rows)), len(rows))
    return Windows(*(torch.cat(parts) for parts in zip(*found, strict=True)))


def _with_draft(bundle: Bundle, width: int, generator: torch.Generator) -> Denoiser:
    """The network with an untrained draft head."""
    config = replace(bundle.config.model, draft_width=width)
    model = Denoiser(config).to(bundle.device, bundle.model.embedding.dtype)
    model.load_state_dict({**model.state_dict(), **bundle.model.state_dict()})
    assert model.draft is not None
    with torch.no_grad():
        fresh = torch.randn(model.draft.inner.weight.shape, generator=generator) * 0.03
        model.draft.inner.weight.copy_(fresh)
        model.draft.outer.weight.zero_()
    return model.requires_grad_(False)


def _fit(
    model: Denoiser,
    draft: DraftHead,
    windows: Windows,
    bundle: Bundle,
    epochs: int,
    batch_size: int,
    lr: float,
    generator: torch.Generator,
    tell: Callable[[str, int, int], None],
) -> None:
    """Cross-entropy of drafts against the network's own next-token law, AdamW, cosine to a twentieth."""
    draft.requires_grad_(True)
    optimizer = torch.optim.AdamW(draft.parameters(), lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
    share = torch.tensor([1 - _FADES * depth for depth in range(WINDOW - 1)], device=bundle.device)
    batches = max(1, len(windows) // batch_size)
    orders = [torch.randperm(len(windows), generator=generator) for _ in range(epochs)]
    for step in range(steps := epochs * batches):
        chosen = orders[step // batches][step % batches * batch_size :][:batch_size]
        slope = min(1.0, (step + 1) / _WARM_UP) * (0.05 + 0.475 * (1 + math.cos(math.pi * step / steps)))
        optimizer.param_groups[0]["lr"] = lr * slope
        optimizer.zero_grad()
        (draft_loss(model, draft, windows, chosen, bundle) * share).sum().div(share.sum()).backward()
        optimizer.step()
        tell("steps", step + 1, steps)
    draft.requires_grad_(False)


def draft_loss(model: Denoiser, draft: DraftHead, windows: Windows, chosen: Tensor, bundle: Bundle) -> Tensor:
    """Cross-entropy by depth, [WINDOW - 1], of the drafts of some windows against what the settled slots say.

    The first token of a window, which sees the one before it, is left to the window.
    """
    device, dtype = bundle.device, model.embedding.dtype
    features, settled = (x[chosen].to(device, dtype) for x in (windows.features, windows.settled))
    previous, state, found = windows.previous[chosen].to(device), draft.start(features), []
    for depth in range(features.shape[1]):
        known, state = draft(features[:, depth], model.embedding[previous[:, depth]], state)
        found.append(known)
    size = bundle.config.model.vocab_size
    with torch.no_grad():
        reading = NextTokenReading(bundle.process)
        law = reading.log_p0(model.head(settled[:, 1:]), previous, torch.zeros((), device=device)).exp()
    said = F.log_softmax(model.head(torch.stack(found[1:], dim=1))[..., :size].float(), dim=-1)
    return -(law * said).sum(-1).mean(0)
