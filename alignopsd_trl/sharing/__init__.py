"""Shares the results of a run: a model card, one push of the model, trajectories as a data set."""
