"""Undo the tokenised spelling of older benchmarks, so that they read as text does. One function per corpus."""

import re


def wikitext(text: str) -> str:
    """WikiText: spaced punctuation, ` @-@ ` inside words and numbers, spaced headings."""
    text = re.sub(r" @([-,.])@ ", r"\1", text)
    text = re.sub(r" ([;:.,!?)\]}])", r"\1", text)
    text = re.sub(r"([(\[{]) ", r"\1", text)
    text = re.sub(r'" ([^"\n]*?) "', r'"\1"', text)
    text = re.sub(r"(\w) (n't|'s|'re|'ve|'d|'m|'ll)\b", r"\1\2", text)
    text = re.sub(r"s ' ", "s' ", text)
    return re.sub(r"(?m)^ ?(=+) (.*?) (=+) ?$", r"\1 \2 \3", text).replace(" \n", "\n").replace("\n ", "\n")


def ptb(text: str) -> str:
    """Penn Treebank in Mikolov's form: split contractions and possessives; `N` and `<unk>` stay."""
    text = re.sub(r"(\w) (n't|'s|'re|'ve|'d|'m|'ll)\b", r"\1\2", text)
    text = re.sub(r"s ' ", "s' ", text)
    return re.sub(r"(\d) (\$|\#) ", r"\1\2", text).strip()


def lm1b(text: str) -> str:
    """One Billion Word: spaced punctuation, split contractions, paired quotes."""
    text = re.sub(r"(\w) '(s|re|ve|d|m|ll|t)\b", r"\1'\2", text)
    text = re.sub(r"(\w) (n't)\b", r"\1\2", text)
    text = re.sub(r" ([;:.,!?%)\]}])", r"\1", text)
    text = re.sub(r"([(\[{$£]) ", r"\1", text)
    return re.sub(r'" ([^"]*?) "', r'"\1"', text).strip()


def lambada(text: str) -> str:
    """LAMBADA as used for GPT-2: curly quotes made straight."""
    return text.replace("“", '"').replace("”", '"').replace("‘", "'").replace("’", "'")
