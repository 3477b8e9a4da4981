"""What a run spends: its plan, what its steps amount to, and what was counted. Without torch."""
