"""A model with all that is needed to use it: network, tokenizer, process and hyperschedule, in one folder.

`model.safetensors`, `config.json`, `tokenizer.json` and `README.md` (the model card). `load` also takes the folders of
published checkpoints and of Llama-layout models, and the names of either on the Hugging Face hub. Knows no training.
"""

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer
from torch import Tensor

from hdlm import weights
from hdlm.config.build import build_rule
from hdlm.config.bundle import FORMAT, BundleConfig
from hdlm.config.sampling import DrawSettings
from hdlm.device import choose_device
from hdlm.errors import first_line
from hdlm.files import written_aside
from hdlm.nn.transformer import Denoiser
from hdlm.sampling.generate import exhaust, generate
from hdlm.sampling.prompts import Prompt
from hdlm.sampling.request import Request, gap_request, prompt_request
from hdlm.sampling.results import Frame, Samples
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Hyperschedule
from hdlm.theory.layout import next_token_layout
from hdlm.theory.process import Process

if TYPE_CHECKING:
    from hdlm.evaluate.bound import Bound
    from hdlm.sampling.rule import Rule

_SHIPPED = Path(__file__).parent / "models"
_OURS = ("config.json", "trainer")  # by which a folder is known to be a model's or a run's


class Bundle:
    """A network and what its outputs mean.

    `model`, `config`, `tokenizer` (None: token ids only), `process`, `hyperschedule` (the network's own), `device`.
    """

    def __init__(self, model: Denoiser, config: BundleConfig, tokenizer: Tokenizer | None = None) -> None:
        self.model, self.config, self.tokenizer = model, config, tokenizer
        if model.config != config.model:
            raise ValueError("model and config.model differ: a bundle needs the config that its network was built from")
        size = config.model.vocab_size
        self.process: Process = config.process.build(size)
        self.hyperschedule: Hyperschedule = config.hyperschedule.build()
        if (
            self.process.mask_id is not None
            and not self.hyperschedule.autoregressive
            and not config.model.mask_embedding
        ):
            raise ValueError(f"{self.process!r} feeds MASK: the network needs mask_embedding = true")
        if tokenizer is not None and tokenizer.get_vocab_size() != size:
            entries = tokenizer.get_vocab_size()
            raise ValueError(f"the tokenizer has {entries} entries: the network's vocabulary needs {size}")
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

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> "Bundle":
        """Move the network, in place, to a device and a precision; gives the bundle back."""
        device = self.device if device is None else choose_device(device)
        if device.type == "cpu" and dtype not in (None, torch.float32, torch.float64):
            raise ValueError(f"dtype = {dtype} is not accepted on the CPU: use torch.float32 or torch.float64")
        self.model = self.model.to(device=device, dtype=dtype)
        return self

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
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        precision: str = "float64",
        cache: bool = True,
        stop_at_eos: bool = True,
        seed: int | None = None,
        batch_size: int = 32,
        backend: str | None = None,
    ) -> Samples:
        """Texts after each prompt, which may be one text, several, or token rows; None: from nothing.

        `num_samples` for each prompt; `length`: new tokens (default: what fills the context); `hyperschedule`: its
        length counts new tokens, or `kind`, `width` and `rate` change the network's own. The rest is how to draw, as of
        `hdlm.config.sampling.DrawSettings`: where it is None, as the model wishes.
        """
        return exhaust(generate(self, self._request(prompt, locals()), watched=False))

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
        temperature: float | None = None,
        top_k: int | None = None,
        top_p: float | None = None,
        precision: str = "float64",
        cache: bool = True,
        stop_at_eos: bool = True,
        seed: int | None = None,
        batch_size: int = 32,
        backend: str | None = None,
    ) -> Iterator[Frame]:
        """As `generate`, but one `Frame` a step: tokens, levels, what changed, what is settled."""
        return iter(generate(self, self._request(prompt, locals())))

    def _request(self, prompt: Prompt, arguments: dict[str, Any]) -> Request:
        """What the keywords of `generate` ask for."""
        names = ("num_samples", "length", "hyperschedule", "kind", "width", "rate")
        how = {name: arguments[name] for name in names}
        return prompt_request(self, prompt, **how, settings=DrawSettings.among(arguments))

    def infill(
        self,
        text: str,
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
    ) -> Samples:
        """A text whose gaps are filled: "Once [[gap:12]] upon [[gap:3]] end", a gap's number counting tokens.

        Refused where the network cannot see what is right of a gap. How to draw as of `generate`.
        """
        settings = DrawSettings.among(locals())
        request = gap_request(self, text, num_samples=num_samples, rate=rate, settings=settings)
        return exhaust(generate(self, request, watched=False))

    @torch.no_grad()
    def logits(self, token_ids: Tensor) -> Tensor:
        """Next-token logits [batch, length, N] after each of the tokens [batch, length]; shifted networks only."""
        if not self.config.shifted:
            raise ValueError("this network is aligned: it predicts the tokens that it is given, not the next ones")
        checks.tokens("token_ids", token_ids, self.config.model.vocab_size)
        layout, t = next_token_layout(token_ids.shape[-1]).to(self.device), torch.zeros((), device=self.device)
        x = token_ids.to(self.device).view(-1, token_ids.shape[-1])
        slots = layout.fill(x, x, t.expand(x.shape), self.process, bos_id=self.config.bos_id)
        return self.model(slots)[:, 1:, : self.config.model.vocab_size]

    def perplexity(
        self,
        texts: str | Path | Sequence[str],
        *,
        samples: int = 4,
        seed: int = 0,
        hyperschedule: Hyperschedule | None = None,
        batch_size: int = 8,
    ) -> "Bound":
        """A likelihood bound: `.value` in nats per token, `.error`, `.perplexity`, `.per("bytes")`.

        `.name` says which bound it is, and `.schedule` by which hyperschedule.

        `texts`: a text or several, each on its own; a path of a file or folder, or the name of a set as a `Path`.
        `samples`: noise draws per row; `hyperschedule`: another than the network's own, for texts of any length.
        """
        from hdlm.evaluate.likelihood import estimate
        from hdlm.evaluate.texts import one_or_several, rows_of_set, rows_of_texts

        checks.integer("samples", samples, low=1)
        if isinstance(texts, Path):
            rows = rows_of_set(self, str(texts))
        else:
            rows = rows_of_texts(self, one_or_several(texts), joined=False)
        found = estimate(
            self, rows.tokens, draws=samples, seed=seed, hyperschedule=hyperschedule, batch_size=batch_size
        )
        return found.counted(rows.counts)

    def save(self, path: str | Path, *, notes: str = "") -> Path:
        """Write the folder, `notes` ending its model card; each file is written aside and renamed, config.json last."""
        folder = _path("path", path)
        if folder.exists() and not folder.is_dir():
            raise ValueError(f"{folder} is not accepted: it is a file, and a model is a folder")
        if folder.exists() and any(folder.iterdir()) and not any((folder / name).exists() for name in _OURS):
            raise ValueError(f"{folder} is not accepted: it holds other files and no model")
        with written_aside(folder / "model.safetensors") as aside:
            save_file(weights.contents(self.model), aside, metadata={"format": "pt", "config": self.config.digest})
        for stale in ("model.safetensors.index.json", *(() if self.tokenizer is not None else ("tokenizer.json",))):
            (folder / stale).unlink(missing_ok=True)
        if self.tokenizer is not None:
            with written_aside(folder / "tokenizer.json") as aside:
                self.tokenizer.save(str(aside))
        with written_aside(folder / "README.md") as aside:
            aside.write_text(self.card() + notes, encoding="utf-8")
        with written_aside(folder / "config.json") as aside:
            aside.write_text(json.dumps(self.config.to_json(), indent=2) + "\n", encoding="utf-8")
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


def load(
    name: str | Path, *, device: torch.device | str = "cpu", dtype: torch.dtype | None = None, tokenizer: bool = True
) -> Bundle:
    """A bundle from a folder, of this package by its name, or from the Hugging Face hub ("owner/model").

    On the CPU weights become float32 unless `dtype` says float64: 16-bit arithmetic there is slow, or not there at all.
    """
    folder = _folder(name)
    data = weights.read_json(folder / "config.json")
    if data.get("format") == FORMAT:
        bundle = _load_own(folder, BundleConfig.from_json(data), tokenizer=tokenizer)
    elif data.get("model_type") == "llama":
        from hdlm.interop import llama

        bundle = llama.load_bundle(folder, tokenizer=tokenizer)
    else:
        from hdlm.interop import published

        bundle = published.load_bundle(folder, tokenizer=tokenizer)
    bundle.model.eval()
    return bundle.to(device, dtype)


def _load_own(folder: Path, config: BundleConfig, *, tokenizer: bool) -> Bundle:
    tensors = weights.read_folder(folder)
    model = Denoiser(config.model)
    weights.fill(model, tensors, source=folder / "model.safetensors")
    path = folder / "tokenizer.json"
    bundle = Bundle(model, config, read_tokenizer(path) if tokenizer and path.exists() else None)
    if weights.read_metadata(folder / "model.safetensors").get("config") not in (None, config.digest):
        raise ValueError(f"{folder} holds the weights of one save and the config.json of another")
    return bundle


def read_tokenizer(path: str | Path) -> Tokenizer:
    """A tokenizer from its tokenizer.json."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:
        raise ValueError(f"{path} is no tokenizer: {error}") from None


def shipped_models() -> list[str]:
    """Names of the models that come with this package."""
    return sorted(path.parent.name for path in _SHIPPED.glob("*/config.json"))


def _path(name: str, value: str | Path) -> Path:
    """`value` as a path, refused if it is no name of anything."""
    if not isinstance(value, str | os.PathLike):
        raise ValueError(f"{name} = {value!r} is not accepted: it must be a str or a Path")
    return Path(value)


def _folder(name: str | Path) -> Path:
    """A local folder, a model of this package, or owner/model from the hub, of which weights and JSON alone."""
    path = _path("name", name)
    if str(name) in shipped_models() and not (path / "config.json").exists():
        return _SHIPPED / str(name)
    if path.is_dir():
        return path
    if path.exists():
        raise ValueError(f"{name} is not accepted: it is a file, and a model is a folder")
    if str(name).count("/") != 1 or str(name).startswith((".", "/", "~")):
        known = "".join(f"{model}, " for model in shipped_models())
        raise ValueError(f"{name} does not exist: it must be {known}a model folder, or owner/model on the hub")
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ValueError(
            f"{name} is no folder here, and reading it from the hub needs: pip install 'hdlm[hub]'"
        ) from None
    patterns = ["*.json", "*.safetensors", *(f"*{suffix}" for suffix in weights.TORCH_SUFFIXES)]
    try:
        return Path(snapshot_download(str(name), allow_patterns=patterns))
    except Exception as error:
        raise ValueError(f"{name} is no folder here and could not be had from the hub: {first_line(error)}") from None
