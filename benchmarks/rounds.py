"""Times that can be compared: every way takes its turn in every round of one run. The code is the package's own."""

from groupclip.bench import interleaved, one_pass

__all__ = ["interleaved", "one_pass"]
