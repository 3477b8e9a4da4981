"""The terms of a statement: what units, mechanisms and samplings are called in it, and the software that it names."""

from importlib.metadata import version

SCHEMA = "groupclip-privacy-record-1"  # of the record as JSON: another one where a key changes its meaning
UNITS = {
    "sample": "one sample: one row of the training data",
    "user": "one user: all of that user's samples in the training data",
    "client": "one client of the federation: all that its updates were made from",
}
MECHANISMS = {
    "poisson": "Poisson-sampled Gaussian (DP-SGD with group-wise clipping)",
    "truncated-poisson": "Gaussian on truncated Poisson samples (DP-SGD with group-wise clipping)",
    "without-replacement": "Gaussian on samples without replacement (DP-SGD with group-wise clipping)",
    "full-batch": "Gaussian on full batches (DP-GD with group-wise clipping)",
}
CLIPPED = {"sample": "gradient", "user": "gradient", "client": "update"}  # what of one of them is clipped
LAST = "those after the last step"  # which weights are released, unless a run says otherwise
SAMPLINGS = {
    "poisson": "Poisson",
    "truncated-poisson": "truncated Poisson",
    "without-replacement": "without replacement",
    "full-batch": "full batches",
}


def mechanism_name(sampling: str, unit: str) -> str:
    """Return what the mechanism is called: DP-FedAvg where clients' updates are averaged."""
    name = MECHANISMS[sampling]
    return name if unit != "client" else name.replace("DP-SGD", "DP-FedAvg").replace("DP-GD", "DP-FedAvg")


def software() -> dict[str, str]:
    """Look up the versions of what the guarantee rests on."""
    return {name: version(name) for name in ("groupclip", "torch", "dp-accounting")}
