"""From a recipe to the objects of a run: text, rows, process, network, and the folder they end in.

Everything that can be wrong with a run is found here, before its first step.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from hdlm import files
from hdlm.bundle import Bundle, check_place, load
from hdlm.config.build import check_recipe
from hdlm.config.bundle import BundleConfig
from hdlm.config.model import DenoiserConfig
from hdlm.config.recipe import Recipe
from hdlm.data.corpus import Corpus, locate, open_corpus
from hdlm.data.encoding import UTF_8, Encoding
from hdlm.data.listing import NO_FILES, Listing
from hdlm.data.packed import NotTokenisedError, Rows, is_matrix, load_rows
from hdlm.data.places import is_prepared
from hdlm.data.prepare import command_for
from hdlm.data.prepared import Prepared
from hdlm.data.remote import open_prepared
from hdlm.data.tokenizer import CorpusTokenizer, locate_tokenizer, make_tokenizer
from hdlm.nn.transformer import Denoiser
from hdlm.theory.process import Process

_COPIES = 4  # a checkpoint holds the weights, their average and two moments


@dataclass(frozen=True)
class Job:
    """All that a run needs but its state."""

    recipe: Recipe
    tokenizer: CorpusTokenizer
    train_rows: Rows
    valid_rows: Rows
    process: Process
    config: BundleConfig
    start: Bundle | None
    files: Listing
    prepared: Prepared | None = None

    def data_record(self) -> dict[str, Any]:
        """What was read, for data.json: by `content` a resumed run knows its data again."""
        splits = {"train": self.train_rows, "valid": self.valid_rows}
        counts = {
            name: {"documents": rows.documents, "rows": len(rows), "tokens": rows.tokens.size}
            for name, rows in splits.items()
        }
        return {
            "content": {name: rows.content for name, rows in splits.items()},
            "files": len(self.files.read),
            "skipped": len(self.files.skipped),
            "first_skipped": dict(self.files.skipped[:20]),
            **counts,
            "held_out": self._held_out,
            "replaced": self._replaced,
        }

    def data_words(self) -> list[str]:
        """The same for a person, in a few lines."""
        train, valid = self.train_rows, self.valid_rows
        about = f": {self.files}" if self.files.read else f": {self.prepared}" if self.prepared is not None else ""
        lines = [f"data: {self.recipe.data}{about}"]
        tokens = (
            f"{rows.tokens.size:,} tokens" + (f" of {rows.documents:,} documents" if rows.documents else "")
            for rows in (train, valid)
        )
        lines.append(f"data: {' to learn from, '.join(tokens)} held out ({self._held_out:.1%})")
        if self._replaced:
            encoding = self.recipe.encoding
            lines.append(f"data: {self._replaced:,} characters are U+FFFD, for what {encoding} could not decode")
        return lines

    @property
    def _held_out(self) -> float:
        return self.valid_rows.tokens.size / (self.train_rows.tokens.size + self.valid_rows.tokens.size)

    @property
    def _replaced(self) -> int:
        rows = (self.train_rows, self.valid_rows)
        return sum(each.replaced for each in rows) if Encoding.named(self.recipe.encoding).replaces else 0

    def has_data_of(self, record: dict[str, Any]) -> bool:
        """Whether the data is that of a run's data.json; older ones hold checksums of some rows only."""
        if "content" in record:
            return record["content"] == self.data_record()["content"]
        found = {}
        for name, rows in (("train", self.train_rows), ("valid", self.valid_rows)):
            picked = rows.take(torch.linspace(0, len(rows) - 1, 64).long())
            found |= {f"{name}_rows": len(rows), f"{name}_sum": int((picked * torch.arange(1, 65).unsqueeze(1)).sum())}
        return record == found

    def validation_rows(self) -> list[list[int]]:
        """The rows that bounds are measured on during training, each up to its end."""
        rows = self.valid_rows.take(torch.arange(min(self.recipe.eval_rows, len(self.valid_rows))))
        return [row[row >= 0].tolist() for row in rows]

    def build_model(self) -> Denoiser:
        """The network, new or from the checkpoint that the recipe starts from."""
        torch.manual_seed(self.recipe.seed)
        model = Denoiser(self.config.model)
        if self.start is not None:
            model.load_state_dict(self.start.model.state_dict())
        return model

    def bundle(self, model: Denoiser) -> Bundle:
        """The model with what it needs to be used."""
        return Bundle(model, self.config, self.tokenizer.tokenizer)


def anchored(recipe: Recipe) -> Recipe:
    """The recipe with files and folders by absolute paths, so that a run goes on from any folder."""
    start = recipe.init_from
    if start is not None and (Path(start) / "config.json").is_file():
        start = str(Path(start).absolute())
    return replace(recipe, data=locate(recipe.data), tokenizer=locate_tokenizer(recipe.tokenizer), init_from=start)


def prepare(
    recipe: Recipe,
    *,
    tokenizer_file: Path | None = None,
    tell: Callable[[str], None] = lambda text: None,
    tokenise: bool = True,
) -> Job:
    """Read the data, make or find the tokenizer, and settle every size. `tokenizer_file` is that of a run resumed.

    `tell` is told how far all this is, in words. Without `tokenise`, text that is not tokenised yet is refused: none of
    several processes is to wait for one that does it.
    """
    check_recipe(recipe)
    prepared = _prepared(recipe, tell)
    corpus = None if prepared is not None else _corpus(recipe)
    start = load(recipe.init_from) if recipe.init_from else None
    if tokenizer_file is not None and tokenizer_file.exists():
        tokenizer = make_tokenizer(str(tokenizer_file), [])
    elif start is not None and start.tokenizer is not None:
        tokenizer = _tokenizer_of(start)
    elif prepared is not None:
        tokenizer = prepared.tokenizer
    elif recipe.tokenizer.startswith("bpe-") and (corpus is None or not tokenise):
        if corpus is not None:
            raise _unprepared(recipe)
        raise ValueError(
            f"data = {recipe.data!r} is a matrix of tokens: name the tokenizer that they are of (--tokenizer)"
        )
    else:
        tokenizer = make_tokenizer(recipe.tokenizer, [] if corpus is None else _training_text(corpus, tell))
    if prepared is not None and not prepared.tokenizer.is_same(tokenizer):
        raise ValueError(
            f"data = {recipe.data!r} is not accepted: it was prepared by another tokenizer "
            f"({prepared.source.tokenizer}) than the one that this run goes on with"
        )
    try:
        train_rows, valid_rows = (
            load_rows(
                prepared or corpus or recipe.data,
                split,
                tokenizer,
                recipe.length,
                tell=tell,
                make=tokenise,
            )
            for split in ("train", "valid")
        )
    except NotTokenisedError:
        raise _unprepared(recipe) from None
    config = config_of(recipe, tokenizer)
    if start is not None and start.config.model != config.model:
        theirs, ours = vars(start.config.model), vars(config.model)
        differ = islice((name for name in ours if theirs[name] != ours[name]), 4)
        words = (f"its model.{name} is {theirs[name]!r}, not {ours[name]!r}" for name in differ)
        raise ValueError(f"init_from = {recipe.init_from!r} is not accepted: {', '.join(words)}")
    with torch.device("meta"):
        outline = Denoiser(config.model)
    Bundle(outline, config, tokenizer.tokenizer)  # refused now, if what the run ends in could not be one
    process = recipe.process.build(tokenizer.vocab_size)
    files = NO_FILES if corpus is None else corpus.listing
    return Job(recipe, tokenizer, train_rows, valid_rows, process, config, start, files, prepared)


def _unprepared(recipe: Recipe) -> ValueError:
    word = recipe.tokenizer if recipe.init_from is None else recipe.init_from
    return ValueError(
        f"data = {recipe.data!r} is not accepted by several processes: it is not tokenised yet, and all would wait; "
        f"first run: {command_for(recipe.data, word, recipe.encoding)} ; then train with --data DIR"
    )


def _prepared(recipe: Recipe, tell: Callable[[str], None]) -> Prepared | None:
    """The folder of tokens to train on, where the data is one."""
    if not is_prepared(recipe.data):
        return None
    _check_plain(recipe, "is prepared tokens")
    return open_prepared(
        recipe.data, lambda what, done, total: tell(f"{what}: {done / 2**20:,.0f} of {total / 2**20:,.0f} MiB")
    )


def _check_plain(recipe: Recipe, what: str) -> None:
    """Refuse an encoding of what is no text."""
    if Encoding.named(recipe.encoding) != UTF_8:
        raise ValueError(f"encoding = {recipe.encoding!r} is not accepted: data = {recipe.data!r} {what}, and no text")


def _corpus(recipe: Recipe) -> Corpus | None:
    """The text to train on; None for a matrix of tokens."""
    if not is_matrix(recipe.data):
        return open_corpus(recipe.data, recipe.encoding)
    locate(recipe.data)
    _check_plain(recipe, "is a matrix of tokens")
    return None


def config_of(recipe: Recipe, tokenizer: CorpusTokenizer) -> BundleConfig:
    """What a run's model folder says of its model."""
    return BundleConfig(
        model=DenoiserConfig(vocab_size=tokenizer.vocab_size, **vars(recipe.model)),
        process=recipe.process,
        hyperschedule=recipe.schedules[0].schedule(recipe.length),
        shifted=recipe.shifted,
        parameterization=recipe.parameterization,
        bos_id=tokenizer.bos_id,
        eos_id=tokenizer.eos_id,
        mixture=tuple(member.schedule(recipe.length) for member in recipe.schedules[1:]),
        next_token=recipe.shifted and recipe.loss.beta1 > 0,
        sampling=recipe.sampling.settings,
    )


def _training_text(corpus: Corpus, tell: Callable[[str], None]) -> Iterator[str]:
    """Documents to train a tokenizer on; none are read for one that needs none."""
    for number, document in enumerate(corpus.documents("train"), start=1):
        yield document
        tell(f"training the tokenizer: {number:,} documents")


def _tokenizer_of(bundle: Bundle) -> CorpusTokenizer:
    assert bundle.tokenizer is not None
    eos = bundle.config.eos_id if bundle.config.eos_id is not None else bundle.config.bos_id
    if eos is None:
        raise ValueError("init_from is not accepted: its config names neither bos_id nor eos_id")
    bos = bundle.config.bos_id if bundle.config.bos_id is not None else eos
    return CorpusTokenizer(bundle.tokenizer, bos_id=bos, eos_id=eos)


def check_folder(folder: Path, job: Job) -> None:
    """Refuse a folder that cannot be written, or that has no room for the checkpoints to be kept; leaves nothing."""
    files.check_folder(folder)
    for place in (folder, folder / "best"):
        check_place(place)
    with torch.device("meta"):
        size = 4 * sum(p.numel() for p in Denoiser(job.config.model).parameters())
    needed = size * (_COPIES * (job.recipe.keep + 1) + 2)
    free = files.free_space(folder)
    if free < needed:
        raise ValueError(
            f"out = {str(folder)!r} has {free / 2**20:,.0f} MiB free: this run needs {needed / 2**20:,.0f}"
        )
