"""Multi-turn rollouts: the `loop` plays episodes side by side, the `driver` resumes each as soon as it can go on. The
`player` makes the prompt of each turn from a view or a dialogue (`prompting`) or from an agent's own request
(`requests`) with the model's chat template (`renderer`, `conversations`), a `sampler` samples the response, and
`reading` takes thinking and action out of it."""
