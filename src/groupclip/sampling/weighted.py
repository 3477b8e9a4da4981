"""Records that shall weigh more than others: why no weighted sampler may draw them, and what may stand in its place."""

WEIGHTED = (
    "a WeightedRandomSampler draws some records more often than others, and the same one several times in a batch, while epsilon "
    "is for batches that hold each record once at most, at the planned rate. Three ways work (docs/data.md has each): weigh the "
    "losses, engine.backward(losses * weight[labels]); plan for the largest rate and leave the other records out by chance, "
    "losses * (torch.rand(len(labels)) < share[labels]); or add public records of the rare class as often as you like"
)
