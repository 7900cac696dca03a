"""What the teacher may read of a task; a bank in a file or a column of the dataset would do as well."""


def hint(task_text, row):
    return "Ask for the middle of what is left."
