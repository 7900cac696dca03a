"""Is the credit right? Turn credit of any method held against Monte Carlo advantages of the same turns.

    python -m alignopsd_trl.fidelity --model tiny --environment webshop_tiny --methods grpo,align_opsd --output DIR

A deterministic environment can be replayed from (row, seed, actions), so that the policy itself says what a state is
worth: V(s) is the mean outcome of Monte Carlo rollouts from s, and a turn's true advantage is V(next state) - V(state).
After the last turn the outcome takes the place of V(next state).

    tree         states of a batch, rollouts through them, values backed up, their errors
    plan         how many rollouts start in which state
    mc_rollouts  replay, verification, play
    variants  methods and settings over one batch, the teacher's calls cached
    metrics   agreement of credit and advantage, with intervals over tasks
    pooling   several measurements in one table
    report    files, figures and the page of text
"""
