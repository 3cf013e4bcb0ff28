"""The official client, which knows nothing of hdlm, is content."""

import openai
import pytest
from support.bundles import bundle, letters
from support.server import serving

import hdlm
from hdlm.bundle import Bundle
from hdlm.serve.guard import Access

pytestmark = pytest.mark.filterwarnings("ignore:.*trained on.*:UserWarning")
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}{{ message.role[0] }} {{ message.content }} {% endfor %}"
    "{% if messages[0].content == 'j' %}{{ raise_exception('no j') }}{% endif %}"
    "{% if add_generation_prompt %}a {% endif %}"
)
MESSAGES = [
    {"role": "assistant", "content": "abc"},
    {"role": "assistant", "content": [{"type": "text", "text": "bad"}]},
]


@pytest.fixture(scope="module")
def chatty():
    plain = bundle(process="absorbing", eos_id=2)
    return Bundle(plain.model, plain.config, letters(), chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def client(chatty):
    models = {"chatty": chatty, "plain": bundle(process="absorbing")}
    with (
        serving(models, access=Access(keys=["k"])) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="k", max_retries=0) as found,
    ):
        yield found


def test_completions(client, chatty):
    answer = client.completions.create(model="chatty", prompt="ab", max_tokens=9, seed=3, n=2, logprobs=2, echo=False)
    alone = chatty.generate("ab", length=9, seed=3, num_samples=2)
    assert [choice.text for choice in answer.choices] == alone.new_text
    assert answer.usage.completion_tokens == alone.stats.tokens
    assert answer.choices[0].logprobs.tokens == list(answer.choices[0].text)
    how = {"hyperschedule": "slide", "width": 4, "rate": 0.5, "sampler": "posterior"}
    answer = client.completions.create(model="chatty", prompt="ab", max_tokens=9, seed=3, extra_body=how)
    alone = chatty.generate("ab", length=9, seed=3, kind="slide", width=4, rate=0.5, sampler="posterior")
    assert answer.choices[0].text == alone.new_text[0]


def test_streamed_completions(client, chatty):
    parts = list(client.completions.create(model="chatty", prompt="ab", max_tokens=9, seed=3, stream=True))
    assert "".join(part.choices[0].text for part in parts) == chatty.generate("ab", length=9, seed=3).new_text[0]
    assert parts[-1].choices[0].finish_reason in ("stop", "length")


def test_chat_is_the_completion_of_what_the_template_makes(client, chatty):
    how = {"model": "chatty", "seed": 5, "max_completion_tokens": 8, "n": 2, "logprobs": True, "top_logprobs": 2}
    answer = client.chat.completions.create(messages=MESSAGES, **how)
    alone = chatty.generate("a abc a bad a ", length=8, seed=5, num_samples=2)
    assert [choice.message.content for choice in answer.choices] == alone.new_text
    assert {choice.message.role for choice in answer.choices} == {"assistant"}
    for choice in answer.choices:
        assert "".join(token.token for token in choice.logprobs.content) == choice.message.content
        assert all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in choice.logprobs.content)
    parts = list(
        client.chat.completions.create(messages=MESSAGES, stream=True, stream_options={"include_usage": True}, **how)
    )
    said = ["", ""]
    for part in parts:
        for choice in part.choices:
            said[choice.index] += choice.delta.content or ""
    assert said == alone.new_text
    assert parts[0].choices[0].delta.role == "assistant"
    assert parts[-1].usage.completion_tokens == answer.usage.completion_tokens == alone.stats.tokens


def test_errors_are_those_that_the_client_knows(client):
    ask = client.chat.completions.create
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        ask(model="plain", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="no j"):
        ask(model="chatty", messages=[{"role": "user", "content": "j"}])
    with pytest.raises(openai.NotFoundError, match="there is no model 'other'"):
        ask(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="'tools' is no field here"):
        ask(model="chatty", messages=MESSAGES, tools=[])
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    assert [model.id for model in client.models.list()] == ["chatty", "plain"]


def test_a_template_that_would_leave_its_sandbox_is_refused(chatty):
    for template in (
        "{{ messages.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{% for x in range(10**9) %}{% endfor %}",
    ):
        with serving({"one": Bundle(chatty.model, chatty.config, letters(), chat_template=template)}) as server:
            status, error = server.refused("/v1/chat/completions", {"messages": MESSAGES})
            assert (status, error["param"]) == (400, "messages"), template


def test_a_template_is_saved_and_read_with_its_model(chatty, tmp_path):
    chatty.save(tmp_path / "model")
    assert hdlm.load(tmp_path / "model").chat_template == TEMPLATE
    bundle(process="absorbing").save(tmp_path / "model")
    assert hdlm.load(tmp_path / "model").chat_template is None
    for text, found in (
        ('{"chat_template": "x {{ messages }}"}', "x {{ messages }}"),
        ('{"chat_template": [{"name": "tool", "template": "t"}, {"name": "default", "template": "d"}]}', "d"),
        ("{}", None),
    ):
        (tmp_path / "model" / "tokenizer_config.json").write_text(text)
        assert hdlm.load(tmp_path / "model").chat_template == found
    (tmp_path / "model" / "tokenizer_config.json").write_text('{"chat_template": 3}')
    with pytest.raises(ValueError, match="sets chat_template to int"):
        hdlm.load(tmp_path / "model")
