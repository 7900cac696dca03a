"""What a run leaves, made worth sharing: a card of its own, one push of the model, trajectories as a data set."""
