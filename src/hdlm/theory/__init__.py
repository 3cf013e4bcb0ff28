"""The mathematics: noise, processes, hyperschedules, layouts.

Imports torch and nothing else. Knows no network, no tokenizer, no configuration file.
"""
