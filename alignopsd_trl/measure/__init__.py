"""Measures turn credit: `fidelity` compares methods with Monte Carlo advantages, `tune` ranks them before training.

    alignopsd fidelity --model tiny --environment webshop_tiny --methods grpo,align_opsd --output DIR
    alignopsd tune webshop_tiny --tasks 16 --rollouts 6

A deterministic environment can be replayed from (row, seed, actions). V(s), the value of a state, is the mean outcome
of the policy's Monte Carlo rollouts from s. A turn's true advantage A_MC is V(next state) - V(state); after the last
turn the outcome replaces V(next state).

    tree, plan, mc_rollouts      states of a batch, number of rollouts from each, replay and play
    policy, variants             sampling and scoring; credit of methods and settings over one batch
    measurement, training        the whole measurement without files; the same of a training round
    metrics, pooling             agreement of credit and advantage with intervals; several folders in one table
    options, setup, session      the command lines; objects from names; the cache in a folder
    fidelity, report             the command ``fidelity`` and its page
    tune, batches, ranking, tune_page  the command ``tune``: batches of tasks, advice, its page
"""
