"""The paper's experiments: its tables and figures, what they train on, and what was run."""
