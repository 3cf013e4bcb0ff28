"""What the bodies of each path ask for: every field read, none left over, and all that is wrong with them refused.

Runs before anything waits in line, in a thread of its own, since texts are turned into tokens here.
"""

import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hdlm.config.sampling import MAX_SEED
from hdlm.config.schedule import ScheduleConfig
from hdlm.sampling.company import Seat
from hdlm.sampling.gaps import Gaps, read_gaps
from hdlm.sampling.prompts import Pieces, decode, pieces_of
from hdlm.sampling.request import Request
from hdlm.serve import asking
from hdlm.serve.asking import Asked, Decoding
from hdlm.serve.chat import chat_prompt, read_messages
from hdlm.serve.engine import Engine
from hdlm.serve.limits import Limits
from hdlm.serve.openai import Chat, Completion
from hdlm.serve.refusal import Fields, RefusalError, about, whole
from hdlm.theory import numbers
from hdlm.theory.custom import Custom

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

DECODING = ("sampler", "eta", "threshold", "temperature", "top_k", "top_p", "seed", "speculate")
_SCHEDULE = ("hyperschedule", "width", "rate", "levels", "max_tokens", "n")
_MOST_DRAWS = 64


@dataclass(frozen=True)
class Wished:
    """Texts that are to be written in OpenAI's form, all at once or as a stream, with what it took or without."""

    asked: Asked
    form: Completion
    stream: bool
    usage: bool


@dataclass(frozen=True)
class Filling:
    """A text whose gaps are to be filled, in `count` ways."""

    model: str
    bundle: "Bundle"
    text: str
    gaps: Gaps
    how: Decoding
    count: int

    @property
    def draws(self) -> dict[str, Any]:
        """As arguments of `infill_request`."""
        return {"num_samples": self.count, "rate": self.how.schedule["rate"], "settings": self.how.settings}

    @property
    def given(self) -> int:
        """Tokens around the gaps."""
        return sum(map(len, self.gaps.parts))

    def choice(self, seat: Seat) -> dict[str, Any]:
        """One way that was found, as it is answered."""
        tokens, found, start = seat.written().tokens, [], 0
        pieces = pieces_of(self.bundle.tokenizer, tokens)
        lengths = seat.batch.gaps or [known[0] for known in self.gaps.lengths if known is not None]
        for part, length in zip(self.gaps.parts, lengths, strict=False):
            start += len(part)
            stop = start + length
            found.append({"text": "".join(pieces[start:stop]), "tokens": tokens[start:stop]})
            start = stop
        text = decode(self.bundle.tokenizer, tokens)
        return {"index": seat.number, "text": text, "gaps": found, "finish_reason": "stop"}


@dataclass(frozen=True)
class Scoring:
    """A text whose likelihood is asked for; `how`: arguments of `score`."""

    model: str
    bundle: "Bundle"
    text: Any
    how: dict[str, Any]


class Bodies:
    """Reads bodies for the models of a server, within its limits."""

    def __init__(self, engine: Engine, limits: Limits) -> None:
        self._engine, self._limits = engine, limits

    def completion(self, fields: Fields) -> Wished:
        """Of `/v1/completions`."""
        model, bundle = self._bundle(fields)
        told, echo = fields.get("logprobs", whole(0, 20)), fields.flag("echo")
        if echo and told is not None:
            raise RefusalError(400, "echo is not accepted with logprobs: use /v1/score for those of a prompt", "echo")
        fields.idle("best_of", 1)
        fields.idle("suffix", "")
        prompt = fields.get("prompt", lambda name, value: value)
        stream = _streamed(fields)
        asked = self._asked(fields, model, bundle, prompt, ("max_tokens",), "prompt", told)
        prefixes = []
        if echo:
            given = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt or ""]
            each = len(asked.seats) // len(given)
            prefixes = [_as_text(bundle, one) for one in given for _ in range(each)]
        form = Completion(_id("cmpl"), int(time.time()), model, told is not None, Pieces(bundle.tokenizer), prefixes)
        return Wished(asked, form, *stream)

    def chat(self, fields: Fields) -> Wished:
        """Of `/v1/chat/completions`."""
        model, bundle = self._bundle(fields)
        messages = fields.needed("messages", read_messages)
        fields.idle("store", False)
        wanted, others = fields.flag("logprobs"), fields.get("top_logprobs", whole(0, 20))
        if others is not None and not wanted:
            raise RefusalError(400, "top_logprobs are not accepted without logprobs: true", "top_logprobs")
        stream = _streamed(fields)
        with about("messages"):
            tokens = chat_prompt(bundle, messages)
        names, told = ("max_completion_tokens", "max_tokens"), (others or 0) if wanted else None
        asked = self._asked(fields, model, bundle, [tokens], names, "messages", told)
        form = Chat(_id("chatcmpl"), int(time.time()), model, wanted, Pieces(bundle.tokenizer))
        return Wished(asked, form, *stream)

    def _asked(
        self,
        fields: Fields,
        model: str,
        bundle: "Bundle",
        prompt: Any,
        lengths: tuple[str, ...],
        name: str,
        told: int | None = None,
        **watching: Any,
    ) -> Asked:
        """Continuations, whatever asks for them; no field is left unread. `told`: alternatives, with logprobs."""
        how, count = asking.decoding(fields), asking.count_of(fields, self._limits)
        length = asking.length_of(fields, lengths, bundle, self._limits)
        fields.idle("frequency_penalty", 0, 0.0)
        fields.idle("presence_penalty", 0, 0.0)
        fields.idle("logit_bias", {})
        stop = asking.stops_of(fields, bundle)
        fields.get("user", lambda name, value: numbers.text(name, value))
        fields.end()
        rows = asking.prompts_of(bundle, prompt, self._limits, name=name)
        watching = watching or {"logprobs": told is not None, "likeliest": told or 0}

        def build() -> Request:
            return asking.continuations(bundle, rows, count, length, how, self._limits)

        watching |= {"beside": self._engine.running, "given": sum(map(len, rows)), "stop": stop}
        return asking.seated(model, bundle, build, self._limits, (*DECODING, *_SCHEDULE, name), **watching)

    def watched(self, fields: Fields, **watching: Any) -> Asked:
        """Of `/v1/stream`, with a prompt; `watching`: as of `seats_of`."""
        model, bundle = self._bundle(fields)
        prompt = fields.get("prompt", lambda name, value: value)
        return self._asked(fields, model, bundle, prompt, ("max_tokens",), "prompt", **watching)

    def filling(self, fields: Fields) -> Filling:
        """Of `/v1/fill`, and of `/v1/stream` with a text."""
        model, bundle = self._bundle(fields)
        text = fields.needed("text", numbers.text)
        how, count = asking.decoding(fields, filling=True), asking.count_of(fields, self._limits)
        fields.get("user", lambda name, value: numbers.text(name, value))
        fields.end()
        context, size = bundle.config.context, bundle.config.model.vocab_size
        with about("text"):
            gaps = read_gaps(text, bundle.tokenizer, size, longest=context)
            longest = sum(map(len, gaps.parts)) + sum(lengths[-1] for lengths in gaps.lengths if lengths is not None)
            most = self._limits.tokens(context)
            if longest > max(most, self._limits.prompt(context)):
                raise ValueError(f"a text of {longest:,} tokens is not accepted: {most:,} is the most here")
        return Filling(model, bundle, text, gaps, how, count)

    def scoring(self, fields: Fields) -> Scoring:
        """Of `/v1/score`."""
        model, bundle = self._bundle(fields)
        text = fields.needed("text", lambda name, value: value)
        how: dict[str, Any] = {"samples": fields.get("samples", whole(1, _MOST_DRAWS)) or 16}
        how["seed"] = fields.get("seed", whole(0, MAX_SEED)) or 0
        words = {word: kind for word, kind in asking.HYPERSCHEDULES.items() if kind != Custom.kind}
        kind = fields.get("hyperschedule", lambda name, value: words[numbers.choice(name, value, words)])
        width = fields.get("width", whole(1))
        fields.end()
        rows = asking.prompts_of(bundle, text, self._limits, name="text")
        if len(rows) != 1 or not rows[0]:
            raise RefusalError(400, "text is not accepted: one text with something in it is scored at a time", "text")
        if width is not None and kind is None:
            raise RefusalError(400, "width is not accepted without hyperschedule", "width")
        if kind is not None:
            with about("hyperschedule", "width"):
                how["hyperschedule"] = ScheduleConfig(kind, width or 1, width=width).build()
        return Scoring(model, bundle, text, how)

    def _bundle(self, fields: Fields) -> tuple[str, "Bundle"]:
        """The model that is asked for; the first one where none is."""
        names = list(self._engine.models)
        name = fields.get("model", lambda name, value: numbers.instance(name, value, str)) or names[0]
        if name not in names:
            shown = f"{name[:200]!r}: there are {', '.join(names)}"
            raise RefusalError(404, f"there is no model {shown}", "model", code="model_not_found")
        return name, self._engine.models[name]


def _streamed(fields: Fields) -> tuple[bool, bool]:
    """Whether to send what is settled as it comes, and what it took in the end."""
    stream = fields.flag("stream")
    options = fields.get("stream_options", lambda name, value: numbers.instance(name, value, dict))
    if options is None:
        return stream, False
    if not stream or set(options) - {"include_usage"}:
        raise RefusalError(400, "stream_options are for streams, and have include_usage alone", "stream_options")
    inner = Fields(options)
    return stream, inner.flag("include_usage")


def _id(kind: str) -> str:
    return f"{kind}-{secrets.token_hex(12)}"


def _as_text(bundle: "Bundle", prompt: Any) -> str:
    return prompt if isinstance(prompt, str) else decode(bundle.tokenizer, prompt)
