"""The results of a policy: evaluations on a fixed panel, the card, the push to the Hub, trajectories as a data set."""
