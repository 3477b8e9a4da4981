"""What a run guarantees: the record, its words, the model card and the report."""
