"""A model runs with every sample alone, and all that can at once."""
