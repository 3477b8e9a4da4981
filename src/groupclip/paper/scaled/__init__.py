"""The paper's findings on real data small enough for two cores: one module an experiment, each with its cells."""
