"""Customer service with tools, a policy and a user, in the formats of τ-bench (Yao et al. 2024)."""
