"""What somebody without hdlm does with exported folders: run as a process of its own by `test_alone.py`.

python -I alone.py JOBS ANSWERS: folders, tokens and prompts to try, and what transformers makes of them.
"""

import importlib.abc
import json
import sys
from contextlib import redirect_stdout
from io import StringIO


class Refuses(importlib.abc.MetaPathFinder):
    """Nobody has hdlm here."""

    def find_spec(self, fullname, path=None, target=None):
        if fullname.split(".")[0] == "hdlm":
            raise ImportError("hdlm is not here")


sys.meta_path.insert(0, Refuses())


def answer(job):
    """Logits and texts of one folder."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast, pipeline

    folder, found = job["folder"], {}
    model = AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()
    if "tokens" in job:
        with torch.no_grad():
            found["logits"] = model(torch.tensor(job["tokens"])).logits.tolist()
        found["ids"] = model.generate(torch.tensor(job["tokens"]), max_new_tokens=8, do_sample=False).tolist()
    if "prompts" not in job:
        return found
    tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    assert PreTrainedTokenizerFast.from_pretrained(folder)("One").input_ids == tokenizer("One").input_ids
    named = ("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id")
    found["special"] = [getattr(tokenizer, name) for name in named]
    inputs = tokenizer(job["prompts"], return_tensors="pt", padding=True)

    def texts(batch=inputs, **how):
        rows = model.generate(**batch, do_sample=False, **how)
        return tokenizer.batch_decode(rows, skip_special_tokens=True)

    found["ar"] = texts(max_new_tokens=24)
    found["block"] = texts(max_new_tokens=24, hdlm_schedule="block:16")
    found["gap"] = texts(tokenizer(job["gap"], return_tensors="pt"), hdlm_schedule="flat")
    write = pipeline("text-generation", model=folder, trust_remote_code=True)
    how = {"max_new_tokens": 24, "do_sample": False}
    found["pipeline"] = [write(prompt, **how)[0]["generated_text"] for prompt in job["prompts"]]
    found["blocks"] = write(job["prompts"][0], **how, hdlm_schedule="block:16")[0]["generated_text"]
    found["drawn"] = write(job["prompts"][0], max_new_tokens=9)[0]["generated_text"]
    with redirect_stdout(StringIO()) as said:
        for code in job["code"]:
            exec(compile(code, "code", "exec"), globals())
    found["said"] = said.getvalue().splitlines()
    if "chat" in job:
        found["chat"] = tokenizer.apply_chat_template(job["chat"], tokenize=False, add_generation_prompt=True)
    return found


if __name__ == "__main__":
    with open(sys.argv[1]) as jobs, open(sys.argv[2], "w") as answers:
        json.dump([answer(job) for job in json.load(jobs)], answers)
    assert "hdlm" not in sys.modules
