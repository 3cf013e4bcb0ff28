"""Training: from a recipe to a model folder, resumable at any moment, on one process or many."""
