"""The ten data sets of the paper's tables: where they are, what a record is, and how records become batches."""
