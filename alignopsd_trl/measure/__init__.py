"""Measures turn credit: `fidelity` compares methods with Monte Carlo advantages, `tune` ranks them for a recipe.

    alignopsd measure --model tiny --environment webshop_tiny --methods grpo,align_opsd --output DIR
    alignopsd measure webshop_tiny --tasks 16 --rollouts 6

A deterministic environment can be replayed from (row, seed, actions). V(s), the value of a state, is the mean outcome
of the policy's Monte Carlo rollouts from s. A turn's true advantage A_MC is V(next state) - V(state); after the last
turn the outcome replaces V(next state). `rollout.monte_carlo` plays them.

    commands                     the command line
    setup, policy, variants      objects from names; sampling and scoring; methods and settings that share a teacher
    measurement, training        a measurement, with its cache in a folder; a callback for training
    metrics                      agreement of credit and advantage with intervals
    fidelity, report             ``measure --model``; its page, and several folders in one table
    tune, ranking                ``measure RECIPE``: batches of tasks, its page; advice
"""
