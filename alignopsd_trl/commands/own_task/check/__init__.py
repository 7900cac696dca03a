"""What would ruin a run on a task, found without a policy: ``alignopsd check TASK``."""
