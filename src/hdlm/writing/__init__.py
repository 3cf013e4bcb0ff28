"""From a prompt to text: what a bundle does when it is asked to write. Knows tokenizers and configs, no terminal."""
