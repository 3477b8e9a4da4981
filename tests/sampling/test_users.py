"""A user's samples are clipped as one: against a loop over users in float64."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

import groupclip as gc
from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling.batches import logical_batches
from groupclip.sampling.users import PerUser, user_losses

KEY = bytes(range(32))


class Small(nn.Module):
    """Convolution, normalisation, a residual, a head: samples along dimension 0."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(2, 4, 3, padding=1)
        self.norm = nn.LayerNorm(6)
        self.scale = nn.Parameter(torch.randn(4, 1))
        self.head = nn.Linear(24, 3)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.tanh(self.norm(self.conv(x))) * self.scale
        return self.head(hidden.flatten(1))


def looped(
    model: nn.Module, x: Tensor, y: Tensor, groups: gc.Partition, thresholds: dict[str, float]
) -> dict[str, Tensor]:
    """Sum over users of the clipped gradients of their mean losses, one user at a time."""
    named = dict(model.named_parameters())
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    for own, target in zip(x, y, strict=True):
        loss = F.cross_entropy(model.model(own), target, reduction="none").mean()
        grads = dict(zip(named, torch.autograd.grad(loss, list(named.values())), strict=True))
        for group in groups.names:
            norm = torch.sqrt(sum(grads[name].square().sum() for name in groups[group]))
            for name in groups[group]:
                total[name] += grads[name] * torch.clamp(thresholds[group] / norm, max=1.0)
    return total


@pytest.mark.parametrize("users", [1, 3, 5])
@pytest.mark.parametrize("owned", [1, 2, 5])
@pytest.mark.parametrize("style", ["all-layer", "layer-wise"])
def test_users_are_clipped_as_one(users, owned, style):
    torch.manual_seed(0)
    model = PerUser(Small().double())
    x, y = torch.randn(users, owned, 2, 6).double(), torch.randint(3, (users, owned))
    groups = gc.partition(model, style)
    thresholds = dict.fromkeys(groups.names, 0.05)
    expected = looped(model, x, y, groups, thresholds)
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=thresholds)
    losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none").unflatten(0, (users, owned))
    engine.backward(user_losses(losses))
    found = {name: p.grad.clone() for name, p in model.named_parameters()}
    engine.detach()
    for name, grad in expected.items():
        assert torch.allclose(found[name], grad, rtol=0, atol=1e-10), name


def test_samples_clipped_one_by_one_are_something_else():
    """The twin: were the k samples of a user clipped as k units, the sum would exceed what one user may add."""
    torch.manual_seed(0)
    model = Small().double()
    x, y = torch.randn(1, 5, 2, 6).double(), torch.zeros(1, 5, dtype=torch.long)
    engine = gc.attach(model, None, "all-layer", None, clip="abadi", thresholds=0.05)
    engine.backward(F.cross_entropy(model(x.flatten(0, 1)), y.flatten(), reduction="none"))
    norm = torch.sqrt(sum(p.grad.square().sum() for p in model.parameters()))
    engine.detach()
    assert norm > 0.1  # a user adds 0.05 at most


OWNERS = [user for user in range(40) for _ in range(1 + user % 4)]  # 1 to 4 samples each
PLAN = Mechanism(dataset_size=40, expected_batch_size=10, steps=30, unit="user", noise_multiplier=1.0)


def test_users_are_drawn_whole():
    rows = torch.arange(len(OWNERS))
    seen = set()
    for batch in logical_batches(TensorDataset(rows), PLAN, 5, users=OWNERS, key=KEY):
        drawn: list[int] = []
        for (owned,) in batch:
            assert owned.dim() == 2 and owned.shape[0] * owned.shape[1] <= 5
            for user in owned:
                (owner,) = {OWNERS[row] for row in user.tolist()}
                assert [OWNERS[row] for row in range(len(OWNERS)) if row in user.tolist()] == [owner] * (1 + owner % 4)
                drawn.append(owner)
        assert len(set(drawn)) == len(drawn)
        seen |= set(drawn)
    assert seen == set(range(40))  # missed by chance: 40 * 0.75^30 = 0.7 %, but the key is fixed


def test_a_run_of_users_is_counted_as_drawn_by_groupclip():
    torch.manual_seed(0)
    model = PerUser(nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = gc.attach(model, optimizer, "all-layer", PLAN)
    data = TensorDataset(torch.randn(len(OWNERS), 3), torch.randint(2, (len(OWNERS),)))
    for batch in logical_batches(data, PLAN, 8, users=OWNERS, samples_per_user=2):
        optimizer.zero_grad()
        for x, y in batch:
            losses = F.cross_entropy(model(x).flatten(0, 1), y.flatten(), reduction="none").unflatten(0, y.shape)
            engine.backward(user_losses(losses))
        optimizer.step()
    assert engine.ledger.steps_by_sampler == {"groupclip": 30, "user": 0}
    assert "one user" in engine.statement(delta=1e-5)
    engine.detach()


def test_most_samples_of_a_user():
    rows = torch.arange(len(OWNERS))
    counts = {
        owned.shape[1]
        for batch in logical_batches(TensorDataset(rows), PLAN, users=OWNERS, samples_per_user=2, key=KEY)
        for (owned,) in batch
    }
    assert counts == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "planned for unit='user': pass users="),
        ({"users": OWNERS[1:]}, "users has 99 entries for 100 samples"),
        ({"users": [0] * 100}, "the samples are of 1 users, the mechanism was planned for dataset_size=40"),
        ({"users": OWNERS, "samples_per_user": 0}, "samples_per_user=0 must be >= 1"),
        ({"users": OWNERS, "padded": True}, "padded=True isn't available for users"),
    ],
)
def test_wrong_users(arguments, message):
    with pytest.raises(ValueError, match=message):
        logical_batches(list(range(100)), PLAN, **arguments)


def test_users_for_a_plan_of_samples():
    plan = Mechanism(dataset_size=100, expected_batch_size=10, steps=3)
    with pytest.raises(ValueError, match=r"users= .* need a mechanism that was planned for users"):
        logical_batches(list(range(100)), plan, users=OWNERS)


def test_losses_that_are_not_of_users():
    with pytest.raises(ValueError, match=r"losses has shape \(6,\); give the losses of each user's samples"):
        user_losses(torch.zeros(6))
    with pytest.raises(ValueError, match=r"an input of PerUser has shape \(6,\)"):
        PerUser(nn.Identity())(torch.zeros(6))


def test_text_that_is_not_a_tensor():
    with pytest.raises(
        TypeError, match=r"must be made of tensors with one row a sample; the collate function gave str"
    ):
        list(next(iter(logical_batches(["a"] * 100, PLAN, users=OWNERS, key=KEY))))


@pytest.mark.parametrize("users", [torch.arange(40) // 10, [float("nan")] * 40], ids=["tensor", "nan"])
def test_users_that_do_not_equal_themselves_are_refused(users):
    """Each entry would be a user of its own, and the plan of samples be told as one of users."""
    data = TensorDataset(torch.zeros(40, 2))
    plan = gc.Mechanism(dataset_size=40, expected_batch_size=4, steps=1, noise_multiplier=1.0, unit="user")
    with pytest.raises(ValueError, match="doesn't equal itself as another entry"):
        gc.logical_batches(data, plan, users=users)
