"""What other processes do with corpora: they find functions by their module's name."""

from hdlm.data.packed import load_rows
from hdlm.data.tokenizer import make_tokenizer


def token_rows(data):
    """The training rows of a corpus as bytes, 32 a row."""
    return load_rows(data, "train", make_tokenizer("bytes", []), 32).tokens[:].tolist()
