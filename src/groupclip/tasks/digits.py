"""``digits``: the 1,797 real handwritten digits, 8x8, that ship with scikit-learn."""

import torch
from torch.utils.data import TensorDataset

from .spec import Task
from .split import TEST_SHARE, order


def load_digits() -> Task:
    """Load the digits: 1,437 to train on and 360 held out, the classes balanced, the split always the same.

    Inputs are ``(x / 16 - 0.5) / 0.5``, so in [-1, 1]: 16 is the largest grey value of the format.

    Raises:
        ModuleNotFoundError: scikit-learn isn't installed.
    """
    try:
        from sklearn import datasets
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "task 'digits' reads the images that ship with scikit-learn, which isn't installed; "
            "run: pip install 'groupclip[cli]'"
        ) from error
    pixels, digits = datasets.load_digits(return_X_y=True)
    labels = torch.from_numpy(digits).long()  # [N]
    images = torch.from_numpy(pixels).float().div(16).sub(0.5).div(0.5).reshape(-1, 1, 8, 8)  # [N, 1, 8, 8]
    # sorted by class, in a fixed pseudo-random order within each: every fifth makes a stratified test set
    rows = sorted(range(len(labels)), key=lambda row: (int(labels[row]), order(f"digits {row}")))
    test_rows = torch.tensor(rows[::TEST_SHARE])
    train_rows = torch.tensor([row for place, row in enumerate(rows) if place % TEST_SHARE])
    test = TensorDataset(images[test_rows], labels[test_rows])
    return Task(
        name="digits",
        kind="image",
        train=TensorDataset(images[train_rows], labels[train_rows]),
        test=test,
        public=test,  # a published data set: its test images need no protection
        input_shape=(1, 8, 8),
        classes=tuple(str(digit) for digit in range(10)),
        description={
            "name": "digits",
            "train_size": len(train_rows),
            "test_size": len(test_rows),
            "source": "scikit-learn's load_digits: UCI Optical Recognition of Handwritten Digits "
            "(E. Alpaydin, C. Kaynak, 1998), the test part",
            "licence": "CC BY 4.0",
            "preprocessing": "(x / 16 - 0.5) / 0.5, fixed beforehand",
            "split": "every fifth image of each class, in a fixed public order; writers occur on both sides",
        },
    )
