"""A model with all that is needed to use it: network, tokenizer, process and hyperschedule, in one folder.

`model.safetensors`, `config.json`, `tokenizer.json` and `README.md` (the model card). `load` also takes the folders of
published checkpoints and of Llama-layout models, and the names of either on the Hugging Face hub. Knows no training.
"""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer

from hdlm import weights
from hdlm.config import FORMAT, BundleConfig, ScheduleConfig
from hdlm.files import written_aside
from hdlm.nn.transformer import Denoiser
from hdlm.sampling.frame import Frame
from hdlm.theory import checks
from hdlm.theory.hyperschedule import Hyperschedule, Quench
from hdlm.theory.process import Process
from hdlm.writing.prompts import Prompt
from hdlm.writing.request import gap_request, prompt_request
from hdlm.writing.write import Samples, exhaust, frames, write

if TYPE_CHECKING:
    from hdlm.evaluate.bound import Bound

_SHIPPED = Path(__file__).parent / "models"
_OURS = ("config.json", "trainer")  # by which a folder is known to be a model's or a run's


@dataclass
class Bundle:
    """A network and what its outputs mean."""

    model: Denoiser
    config: BundleConfig
    tokenizer: Tokenizer | None = None

    def __post_init__(self) -> None:
        if self.model.config != self.config.model:
            raise ValueError("model and config.model differ: a bundle needs the config that its network was built from")
        self.process: Process = self.config.process.build(self.config.model.vocab_size)
        self.hyperschedule: Hyperschedule = self.config.hyperschedule.build()
        size = self.config.model.vocab_size
        masks = self.process.mask_id is not None and not isinstance(self.hyperschedule, Quench)
        if masks and not self.config.model.mask_embedding:
            raise ValueError(f"{self.process!r} feeds MASK: the network needs mask_embedding = true")
        if self.tokenizer is not None and self.tokenizer.get_vocab_size() != size:
            entries = self.tokenizer.get_vocab_size()
            raise ValueError(f"the tokenizer has {entries} entries: the network's vocabulary needs {size}")

    def generate(self, prompt: Prompt = None, **settings: Any) -> Samples:
        """Texts after each prompt, which may be one text, several, or token rows; None: from nothing.

        Settings: `num_samples` for each prompt; `length`, new tokens (default: what fills the context);
        `hyperschedule`, whose length counts new tokens, or `width` and `rate` of the network's own; and those of
        `hdlm.writing.request.Options`: sampler, eta, threshold, temperature, top_k, top_p, cache, draws,
        stop_at_eos, seed, batch_size.
        """
        return exhaust(write(self, prompt_request(self, prompt, **settings), watched=False))

    def stream(self, prompt: Prompt = None, **settings: Any) -> Iterator[Frame]:
        """As `generate`, but one `Frame` a step: tokens, levels, what changed, what is settled."""
        return frames(write(self, prompt_request(self, prompt, **settings)))

    def infill(self, text: str, **settings: Any) -> Samples:
        """A text whose gaps are filled: "Once [[gap:12]] upon [[gap:3]] end", a gap's number counting tokens.

        Refused where the network cannot see what is right of a gap. Settings: `num_samples`, `rate`, and those of
        `hdlm.writing.request.Options`.
        """
        return exhaust(write(self, gap_request(self, text, **settings), watched=False))

    def perplexity(
        self,
        texts: str | Path | Sequence[str],
        *,
        samples: int = 4,
        seed: int = 0,
        schedule: ScheduleConfig | None = None,
        batch_size: int = 8,
    ) -> "Bound":
        """A likelihood bound: `.value` in nats per token, `.error`, `.perplexity`, `.per("bytes")`.

        `.name` says which bound it is, and `.schedule` by which hyperschedule.

        `texts`: a text or several, each on its own; a path of a file or folder, or the name of a set as a `Path`.
        `samples`: noise draws per row; `schedule`: another than the network's own.
        """
        from hdlm.evaluate.likelihood import estimate
        from hdlm.evaluate.texts import one_or_several, rows_of_set, rows_of_texts

        checks.integer("samples", samples, low=1)
        if isinstance(texts, Path):
            rows = rows_of_set(self, str(texts))
        else:
            rows = rows_of_texts(self, one_or_several(texts), joined=False)
        found = estimate(self, rows.tokens, draws=samples, seed=seed, schedule=schedule, batch_size=batch_size)
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


def choose_device(name: str | None) -> torch.device:
    """A device by its name; None: CUDA where there is one."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ValueError(f"device = {name!r} is not accepted: it must be cpu or cuda") from None
    if device.type not in ("cpu", "cuda"):
        raise ValueError(f"device = {name!r} is not accepted: it must be cpu or cuda")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"device = {name!r} is not accepted: there is no CUDA here")
    return device


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
    if torch.device(device).type == "cpu" and dtype in (torch.bfloat16, torch.float16):
        raise ValueError(f"dtype = {dtype} is not accepted on the CPU: use torch.float32 or torch.float64")
    bundle.model = bundle.model.to(device=device, dtype=dtype).eval()
    return bundle


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
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise ValueError(f"{name} is no folder here and could not be had from the hub: {first}") from None
