"""Messages as the prompt that a model was taught to answer: its own chat template, rendered in a sandbox."""

from typing import TYPE_CHECKING, Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from hdlm.errors import first_line
from hdlm.sampling.prompts import encode
from hdlm.serve.refusal import listed
from hdlm.theory import numbers

if TYPE_CHECKING:
    from hdlm.bundle import Bundle

ROLES = ("system", "developer", "user", "assistant")


def read_messages(name: str, value: Any) -> list[dict[str, str]]:
    """A check for messages: each a role and a content, which is a text or parts of type text."""
    messages = listed(name, value)
    if not messages:
        raise ValueError(f"{name} = [] is not accepted: it must have a message in it")
    found = []
    for number, message in enumerate(messages):
        where = f"{name}.{number}"
        if not isinstance(message, dict) or set(message) - {"role", "content", "name"}:
            raise ValueError(f"{where} is not accepted: it must be an object of role and content alone")
        role = numbers.choice(f"{where}.role", message.get("role"), ROLES)
        found.append({"role": role, "content": _content(f"{where}.content", message.get("content"))})
        if message.get("name") is not None:
            raise ValueError(f"{where}.name is not accepted: templates here have no names")
    return found


def _content(where: str, value: Any) -> str:
    if not isinstance(value, list):
        return numbers.text(where, value)
    texts = []
    for part in value:
        if not isinstance(part, dict) or set(part) != {"type", "text"} or part["type"] != "text":
            raise ValueError(f"{where} is not accepted: its parts must be {{type: text, text: ...}}")
        texts.append(numbers.text(where, part["text"]))
    return "".join(texts)


def chat_prompt(bundle: "Bundle", messages: list[dict[str, str]]) -> list[int]:
    """The tokens of a conversation, up to where the answer begins."""
    if bundle.chat_template is None or bundle.tokenizer is None:
        raise ValueError("messages are not accepted: this model has no chat template; use /v1/completions")
    marks = {f"{name}_token": _token(bundle, getattr(bundle.config, f"{name}_id")) for name in ("bos", "eos")}
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    try:
        template = environment.from_string(bundle.chat_template)
        text = template.render(messages=messages, add_generation_prompt=True, **marks)
    except (TemplateError, ArithmeticError, LookupError, TypeError) as error:
        raise ValueError(f"messages are not accepted: the model's chat template says: {first_line(error)}") from None
    tokens = encode(bundle.tokenizer, text)
    begins = bundle.config.shifted and tokens[:1] == [bundle.config.bos_id]
    return tokens[1:] if begins else tokens  # a shifted network starts from BOS by itself


def _token(bundle: "Bundle", token: int | None) -> str:
    assert bundle.tokenizer is not None
    return "" if token is None else bundle.tokenizer.id_to_token(token) or ""


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
