"""Monte Carlo rollouts of the policy from the states of played episodes, and the advantages that they show."""
