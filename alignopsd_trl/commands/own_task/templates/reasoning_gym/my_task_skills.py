"""What the teacher reads of a question and the policy does not: its answer."""

from my_task import question

from alignopsd_trl.environments import RandomStream


def hint(task_text, row):
    with RandomStream(row["number"]).lent():  # as in reset
        return f"The answer is: {question(row['number'])[1]['answer']}"
