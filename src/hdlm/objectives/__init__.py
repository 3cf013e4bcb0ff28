"""Losses: a corrupted batch and a network's outputs in, a loss per token out.

Imports the theory. Never calls a network and knows nothing of training.
"""
