"""How good a model is: likelihood bounds, the quality and diversity of its samples, sweeps and reports. No training."""
