"""Chooses before training: what the privileged view is worth, and which credit goes to the right turns.

    alignopsd tune webshop_tiny --tasks 16 --rollouts 6

Plays training tasks with the policy as it is, ranks methods and settings by their agreement with Monte Carlo
advantages, and writes a YAML file that ``alignopsd train RECIPE --config`` takes. The measuring is that of
`alignopsd_trl.fidelity`.
"""
