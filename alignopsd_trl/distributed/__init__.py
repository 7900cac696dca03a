"""The processes of a run, and how the policy is sharded over them."""
