"""Measures turn credit: `fidelity` compares methods with Monte Carlo advantages, `tune` ranks them before training.

    alignopsd fidelity --model tiny --environment webshop_tiny --methods grpo,align_opsd --output DIR
    alignopsd tune webshop_tiny --tasks 16 --rollouts 6

A deterministic environment can be replayed from (row, seed, actions). V(s), the value of a state, is the mean outcome
of the policy's Monte Carlo rollouts from s, and a turn's true advantage is V(next state) - V(state). After the last
turn the outcome takes the place of V(next state).

    tree, plan, mc_rollouts      states of a batch, how many rollouts start in which, replay and play
    policy, variants             sampling and scoring; credit of methods and settings over one batch
    measurement, training        the whole measurement without files; the same of a training round
    metrics, pooling             agreement of credit and advantage with intervals; several folders in one table
    options, setup, session      the command lines; from names to objects; the cache of a folder
    fidelity, report             the command ``fidelity`` and its page
    tune, batches, ranking, tune_page  the command ``tune``: batches of tasks, advice, its page
"""
