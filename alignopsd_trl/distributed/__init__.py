"""The processes of a run, and how the policy is spread over them."""
