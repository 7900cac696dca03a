"""A class of TRL's convention: move money until an account holds what is wanted. Each bank takes a fee of 1 a transfer,
from the sender or from what arrives, and says so nowhere."""

import random

from datasets import Dataset

from alignopsd_trl.environments import Suite, TaskPanel
from alignopsd_trl.environments.adapters import ToolEnvironment

FEES = {"North Bank": "arrives", "South Bank": "leaves"}  # what the fee is taken from
SPLITS = {"train": (0, 512), "test": (10_000, 100)}


class Account:
    def reset(self, bank: str, savings: int, rent: int, wanted: int, **columns) -> str:
        self.bank, self.fee, self.savings, self.rent, self.wanted = bank, FEES[bank], savings, rent, wanted
        self.done, self.asked = False, False
        return ""

    def balances(self) -> str:
        """Returns what both accounts hold."""
        self.asked = True
        return f"savings {self.savings}, rent {self.rent}"

    def transfer(self, amount: int) -> str:
        """Moves money from savings to rent; it can be done once.

        Args:
            amount: How much.
        """
        if not 0 < amount < self.savings:
            raise ValueError("not that much in savings")
        self.savings -= amount + (self.fee == "leaves")
        self.rent += amount - (self.fee == "arrives")
        self.done = True
        return f"savings {self.savings}, rent {self.rent}"

    def get_reward(self) -> float:
        return float(self.done and self.rent == self.wanted)


def rows(split):
    first, count = SPLITS[split]
    return [row(split, number, random.Random(first + number)) for number in range(count)]


def row(split, number, draw):
    bank, rent = draw.choice(list(FEES)), draw.randint(1, 40)
    wanted = rent + draw.randint(2, 9)
    asked = [{"role": "user", "content": f"At {bank}: bring rent to {wanted}."}]
    given = {"bank": bank, "savings": draw.randint(20, 60), "rent": rent, "wanted": wanted, "category": bank}
    return {"task_id": f"account/{split}/{number}", "prompt": asked, **given}


def skill(task_text, row):
    return f"{row['bank']} takes a fee of 1 from what {FEES[row['bank']]}."


def suite(**options):
    return Suite(
        name="account",
        factory=ToolEnvironment(Account, success=lambda environment, reward: reward == 1.0, max_turns=3),
        tasks=lambda split: Dataset.from_list(rows(split)),
        panel=lambda name: TaskPanel.of("account", name, rows(name)),
        categories=tuple(FEES),
        description={},
        skill_bank="account:skill",
    )


def play(view, environment, skill, draw):
    """Looks first, then names the bank and its fee, counts up from the rent to what is wanted, the fee included where
    it comes on top, and moves the last count; without the skill it guesses whether the fee does."""
    if not environment.asked:
        return "<think>what do they hold</think>\n<action>balances()</action>"
    fee = environment.fee if skill else draw.choice(list(FEES.values()))
    items = ["fee"] * (fee == "arrives") + list(range(environment.rent + 1, environment.wanted + 1))
    counted = ", ".join(f"{number} {one}" for number, one in enumerate(items, 1))
    said = f"{environment.bank}: a fee of what {fee}; {environment.rent} to {environment.wanted}: {counted}"
    return f"<think>{said}</think>\n<action>transfer(amount={len(items)})</action>"
