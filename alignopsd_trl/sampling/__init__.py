"""Back ends that sample responses from the policy and from its teacher."""
