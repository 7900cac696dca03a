"""Multi-turn rollouts: `player` plays episodes side by side, `driver` resumes each as soon as it can go on, `prompting`
makes the prompt of each turn with the model's chat template (`prompts`, `conversations`), a `sampler` samples the
response, and `reading` takes thinking and action out of it."""
