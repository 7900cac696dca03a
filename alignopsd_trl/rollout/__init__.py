"""Multi-turn rollouts: `player` plays episodes side by side and makes the prompt of each turn with the model's chat
template (`renderer`, `conversations`), `driver` resumes each as soon as it can go on, a `sampler` samples the response,
and `reading` takes thinking and action out of it."""
