"""Records that shall weigh more than others: why no weighted sampler may draw them, and what may stand in its place."""

WEIGHTED = (
    "a WeightedRandomSampler draws some records more often than others, and the same one several times in a batch, while epsilon "
    "is for batches that hold each record once at most, at the planned rate. Three ways work: weigh the losses "
    "(engine.backward(losses * weight[labels])); plan for the largest rate, and thin the other records out by chance; or add "
    "public records of the rare class, which cost nothing"
)
