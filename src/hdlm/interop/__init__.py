"""Checkpoints of other people's layouts, in and out of our denoiser."""
