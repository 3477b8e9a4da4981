"""The batches of a run: which samples are drawn, how they are read, and what is claimed of a step's batch."""
