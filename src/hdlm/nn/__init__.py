"""The denoiser: a transformer that reads slots. Knows no process, no schedule, no loss."""
