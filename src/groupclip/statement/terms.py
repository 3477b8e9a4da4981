"""The terms of a statement: what units, mechanisms and samplings are called in it, and the software that it names."""

from importlib.metadata import version

from groupclip.privacy.mechanism import Mechanism

CYCLIC = "cyclic-poisson"
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
    CYCLIC: "Gaussian with correlated noise on cyclic Poisson samples (DP-SGD with group-wise clipping and banded factorisation)",
}
CLIPPED = {"sample": "gradient", "user": "gradient", "client": "update"}  # what of one of them is clipped
NEIGHBOURS = {  # what they differ by
    "add-or-remove-one": "the presence of one {unit}",
    "zero-out": "one {unit}, which is replaced by one that adds nothing",
    "replace-one": "one {unit}, which is replaced by any other",
}
LAST = "those after the last step"  # which weights are released, unless a run says otherwise
SAMPLINGS = {
    "poisson": "Poisson",
    "truncated-poisson": "truncated Poisson",
    "without-replacement": "without replacement",
    "full-batch": "full batches",
    CYCLIC: "cyclic Poisson",
}


def kind_of(plan: Mechanism) -> str:
    """Return by which name a plan's sampling is told here: with bands it is another than it says."""
    return plan.sampling if plan.bands == 1 else CYCLIC


def mechanism_name(plan: Mechanism) -> str:
    """Return what the mechanism is called: DP-FedAvg where clients' updates are averaged."""
    name = MECHANISMS[kind_of(plan)]
    return name if plan.unit != "client" else name.replace("DP-SGD", "DP-FedAvg").replace("DP-GD", "DP-FedAvg")


def software() -> dict[str, str]:
    """Look up the versions of what the guarantee rests on."""
    return {name: version(name) for name in ("groupclip", "torch", "dp-accounting")}
