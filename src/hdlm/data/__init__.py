"""Text in, rows of tokens out: corpora, tokenizers, packing and a stream that is a pure function of (seed, index)."""
