"""From nothing to a policy that learns: a task's scaffold, its check, demonstrations and a first policy."""
