"""Measures turn credit: `measurement` compares methods with Monte Carlo advantages, `tune` and `skill_worth` tell
what skills are worth.

    alignopsd measure --model tiny --environment webshop_tiny --methods grpo,align_opsd --output DIR
    alignopsd measure webshop_tiny --tasks 16

A deterministic environment can be replayed from (row, seed, actions). V(s), the value of a state, is the mean outcome
of the policy's Monte Carlo rollouts from s. A turn's true advantage A_MC is V(next state) - V(state); after the last
turn the outcome replaces V(next state). `rollout.monte_carlo` plays them.

    commands                     the command line
    setup, variants              objects from names; methods and settings that share a teacher
    kept                         what was played, in a folder
    metrics                      agreement of credit and advantage, success with and without skills, with intervals
    measurement, training        ``measure --model``, its page, several folders together; the same of a training round
    tune, skill_worth            ``measure RECIPE``; ``measure --each_skill``
"""
