"""How many groupings there are: what a search over all of them would have to try."""


def bell(n: int) -> int:
    """Return how many groupings of n layers there are: the Bell number, by Bell's triangle (Bell 1938)."""
    row = [1]
    for _ in range(n):
        following = [row[-1]]
        for entry in row:
            following.append(following[-1] + entry)
        row = following
    return row[0]
