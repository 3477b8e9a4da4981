"""What an engine leaves behind, and what it doesn't: state, detach, copies, files, memory."""

from __future__ import annotations

import copy
import gc as garbage
import io
import json
import pickle
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import groupclip as gc
from check_engine import CORE, ENTRIES, clipped_by_engine, faults, gradients, grouped
from groupclip.errors import BudgetExceeded, CoverageError, PrivacyViolation
from groupclip.private import PrivateParameter, PrivateTensor
from oracle import clipped_sum

ENTRY = ENTRIES["mlp"]


def plan(steps: int = 6, sigma: float = 1.0) -> gc.Mechanism:
    return gc.Mechanism(dataset_size=40, expected_batch_size=8, steps=steps, noise_multiplier=sigma)


def attached(
    model: nn.Module | None = None, style: str = "layer-wise", mechanism: gc.Mechanism | None = None, **options: Any
) -> tuple[nn.Module, torch.optim.Optimizer, gc.Engine]:
    model = ENTRY.model() if model is None else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    return model, optimizer, gc.attach(model, optimizer, style, mechanism or plan(), **options)


def train(model: nn.Module, optimizer: torch.optim.Optimizer, engine: gc.Engine, steps: int, first: int = 0) -> None:
    for seed in range(first, first + steps):
        engine.backward(ENTRY.losses(model, ENTRY.batch(8, next(model.parameters()).dtype, seed=seed)))
        optimizer.step()
        optimizer.zero_grad()


# ------------------------------------------------------------------ state_dict


def test_state_is_plain_and_survives_json_and_weights_only() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 2)
    state = engine.state_dict()
    assert json.loads(json.dumps(state)) == state
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    assert torch.load(file, weights_only=True) == state


def test_state_holds_no_number_that_depends_on_the_data() -> None:
    """Two runs on different data of different sizes have equal states."""
    states = []
    for size, seed in ((8, 0), (3, 5)):
        model, optimizer, engine = attached()
        engine.backward(ENTRY.losses(model, ENTRY.batch(size, seed=seed)))
        optimizer.step()
        states.append(engine.state_dict())
    assert states[0] == states[1]


def test_a_resumed_run_has_the_ledger_of_an_uninterrupted_one() -> None:
    whole = attached()
    train(*whole, 5)
    first = attached()
    train(*first, 2)
    state = json.loads(json.dumps(first[2].state_dict()))
    second = attached()
    second[2].load_state_dict(state)
    assert second[2].epsilon(delta=1e-5) == first[2].epsilon(delta=1e-5)
    train(*second, 3, first=2)
    assert second[2].state_dict() == whole[2].state_dict()
    assert second[2].epsilon(delta=1e-5) == whole[2].epsilon(delta=1e-5)
    train(*second, 1, first=5)
    with pytest.raises(BudgetExceeded, match="all 6 planned steps are released"):
        train(*second, 1, first=6)


def test_a_resumed_run_without_noise_is_the_uninterrupted_one() -> None:
    """Weights, optimizer and ledger, step for step."""
    mechanism = plan(sigma=0.0)
    whole = attached(ENTRY.model(torch.float64), mechanism=mechanism)
    train(*whole, 4)
    model, optimizer, engine = attached(ENTRY.model(torch.float64), mechanism=mechanism)
    train(model, optimizer, engine, 2)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict(), engine.state_dict()], file)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    model, optimizer, engine = attached(ENTRY.model(torch.float64, seed=3), mechanism=mechanism)
    for part, state in zip((model, optimizer, engine), saved, strict=True):
        part.load_state_dict(state)
    train(model, optimizer, engine, 2, first=2)
    for p, q in zip(model.parameters(), whole[0].parameters(), strict=True):
        assert torch.equal(p.detach(), q.detach())
    assert engine.state_dict() == whole[2].state_dict()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thresholds": 2.0}, "the saved run had other thresholds than this engine: attach with the same settings"),
        ({"style": "param-wise", "thresholds": {}}, "the saved run had other (thresholds|partition) than this engine"),
        ({"clip": "abadi"}, "the saved run had other clip than this engine"),
        ({"clip": gc.clipping.Automatic(gamma=0.1)}, "the saved run had other clip than this engine"),
        ({"mechanism": plan(sigma=1.1)}, "the saved ledger is of another plan: noise_multiplier 1.0"),
        ({"mechanism": plan(steps=7)}, "the saved ledger is of another plan: steps 6"),
    ],
)
def test_a_state_of_another_run_is_refused(options: dict[str, Any], message: str) -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 2)
    if options.get("thresholds") == {}:
        options = options | {"thresholds": 1.0}
    other = attached(**options)[2]
    with pytest.raises(PrivacyViolation, match=message):
        other.load_state_dict(engine.state_dict())
    assert other.ledger is not None and other.ledger.steps == 0


def test_a_state_without_a_ledger_is_refused_by_an_engine_with_one() -> None:
    engine = attached()[2]
    free = gc.attach(ENTRY.model(), None, "layer-wise", None)
    with pytest.raises(PrivacyViolation, match="must both have a mechanism, or neither"):
        engine.load_state_dict(free.state_dict())
    with pytest.raises(PrivacyViolation, match="must both have a mechanism, or neither"):
        free.load_state_dict(engine.state_dict())


def test_a_state_that_goes_back_is_refused() -> None:
    """Released steps can't be taken back."""
    model, optimizer, engine = attached()
    early = engine.state_dict()
    train(model, optimizer, engine, 2)
    with pytest.raises(PrivacyViolation, match="already counts 2 released steps and the saved one 0"):
        engine.load_state_dict(early)
    assert engine.ledger is not None and engine.ledger.steps == 2


def test_a_look_at_norms_is_remembered_across_a_resume() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    assert engine.state_dict()["unsafe"] == []
    engine.unsafe_norms()
    other = attached()[2]
    other.load_state_dict(engine.state_dict())
    assert other.state_dict()["unsafe"] == ["per-sample gradient norms"]


def test_thresholds_are_read_only() -> None:
    """Noise and clipping would else be told different ones."""
    engine = attached()[2]
    with pytest.raises(TypeError):
        engine.thresholds["0"] = 1e-6  # type: ignore[index]


# ------------------------------------------------------------------ attached, it still looks like the model


@pytest.mark.parametrize("name", CORE)
def test_attached_the_model_has_the_same_state_and_output(name: str) -> None:
    entry = ENTRIES[name]
    model = entry.model()
    plain, want = model.state_dict(), entry.losses(model, entry.batch(3))
    engine = gc.attach(model, None, "layer-wise", None)
    got = model.state_dict()
    assert list(got) == list(plain)
    assert all(type(value) is Tensor and torch.equal(value, plain[key]) for key, value in got.items())
    assert [n for n, _ in model.named_parameters()] == [n for n, _ in entry.model().named_parameters()]
    assert isinstance(next(model.parameters()), nn.Parameter)
    losses = entry.losses(model, entry.batch(3))
    assert type(losses) is Tensor and torch.allclose(losses, want, atol=1e-6)
    engine.backward(losses)
    assert all(type(p.grad) is Tensor and not p.grad.requires_grad for p in model.parameters() if p.grad is not None)
    with torch.no_grad():
        assert torch.allclose(entry.losses(model, entry.batch(3)), want, atol=1e-6)


def test_the_inputs_are_the_users_own_tensors_again() -> None:
    model, _, engine = attached()
    x, labels = ENTRY.batch(4)
    losses = ENTRY.losses(model, (x, labels))
    assert type(x) is Tensor and type(labels) is Tensor and not x.requires_grad
    engine.backward(losses)
    assert type(x) is Tensor and x.grad is None


def test_inputs_of_a_model_that_raises_are_the_users_own_again() -> None:
    class Fails(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            raise KeyError("no luck")

    model, _, _ = attached(Fails())
    x = torch.randn(4, 5)
    with pytest.raises(KeyError, match="no luck"):
        model(x)
    assert type(x) is Tensor


def test_the_gradient_of_an_input_is_untouched() -> None:
    """An adversarial example, a prompt: it may have a gradient, and it is that of the sum of losses."""
    model, _, engine = attached()
    x, labels = ENTRY.batch(4)
    (want,) = torch.autograd.grad(ENTRY.losses(ENTRY.model(), (x.requires_grad_(), labels)).sum(), x)
    engine.backward(ENTRY.losses(model, (x, labels)))
    torch.testing.assert_close(x.grad, want)


@pytest.mark.parametrize("seed", [0, 1])
def test_random_numbers_are_drawn_as_without_an_engine(seed: int) -> None:
    """Dropout drops the same, also in the first pass; and what comes after the pass is the same too."""
    model = nn.Sequential(nn.Linear(5, 50), nn.Dropout(0.5), nn.Linear(50, 3))
    x = torch.randn(4, 5)
    torch.manual_seed(seed)
    want, after = model(x), torch.rand(3)
    engine = gc.attach(model, None, "layer-wise", None)
    torch.manual_seed(seed)
    got = model(x)
    assert torch.equal(got, want) and torch.equal(torch.rand(3), after)
    engine.detach()


def test_buffers_are_written_once_a_pass() -> None:
    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.python = nn.Linear(5, 3), 0
            self.register_buffer("passes", torch.zeros(()))

        def forward(self, x: Tensor) -> Tensor:
            self.passes += 1
            self.python += 1
            return self.layer(x).square().sum(1)

    model, _, engine = attached(Counts())
    for passes in (1, 2):
        engine.backward(model(torch.randn(4, 5)))
        assert (model.passes.item(), model.python) == (passes, passes)  # type: ignore[operator, union-attr]


# ------------------------------------------------------------------ detach


def facts(model: nn.Module, optimizer: torch.optim.Optimizer) -> Mapping[str, Any]:
    hooks = [name for name in vars(model) if "hooks" in name]
    return {
        "parameters": [(n, id(p), type(p), p.requires_grad, dict(p.__dict__)) for n, p in model.named_parameters()],
        "gradients": [(p.grad, p._backward_hooks) for p in model.parameters()],
        "modules": [(n, type(m), list(m.__dict__)) for n, m in model.named_modules()],
        "hooks": [[list(getattr(m, name)) for name in hooks] for m in model.modules()],
        "state": list(model.state_dict()),
        "optimizer": [type(optimizer), sorted(optimizer.__dict__), list(optimizer.state_dict()["param_groups"])],
        "optimizer hooks": [list(optimizer._optimizer_step_pre_hooks), list(optimizer._optimizer_step_post_hooks)],
        "groups": [[id(p) for p in group["params"]] for group in optimizer.param_groups],
    }


@pytest.mark.parametrize("used", ["never", "forward", "backward", "step"])
@pytest.mark.parametrize("name", [*CORE, "weight-norm", "frozen-halves"])
def test_detach_leaves_everything_as_it_was(name: str, used: str) -> None:
    entry = ENTRIES[name]
    model = entry.model()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    before = facts(model, optimizer)
    engine = gc.attach(model, optimizer, "layer-wise", plan())
    if used != "never":
        losses = entry.losses(model, entry.batch(3))
        if used != "forward":
            engine.backward(losses)
        if used == "step":
            optimizer.step()
    engine.detach()
    after = facts(model, optimizer)
    for key, value in before.items():
        # a hook once registered leaves an empty dict on the tensor
        assert _bare(after[key]) == _bare(value), key
    entry.losses(model, entry.batch(3)).sum().backward()
    optimizer.step()


def _bare(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return [_bare(item) for item in value]
    return None if isinstance(value, dict) and not value else value


def test_detached_it_trains_as_a_plain_model() -> None:
    model, optimizer, engine = attached(ENTRY.model(torch.float64))
    train(model, optimizer, engine, 1)
    engine.detach()
    twin = ENTRY.model(torch.float64)
    twin.load_state_dict(model.state_dict())
    batch = ENTRY.batch(4, torch.float64)
    for m in (model, twin):
        ENTRY.losses(m, batch).sum().backward()
    assert all(torch.equal(g, gradients(twin)[n]) for n, g in gradients(model).items())


def test_gradients_without_noise_do_not_outlive_the_engine() -> None:
    model, _, engine = attached()
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    engine.detach()
    assert all(p.grad is None for p in model.parameters())


# ------------------------------------------------------------------ copies and files


@pytest.mark.parametrize("way", ["save", "pickle"])
def test_a_saved_model_is_a_plain_one(way: str) -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    if way == "save":
        file = io.BytesIO()
        torch.save(model, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=False)
    else:
        loaded = pickle.loads(pickle.dumps(model))
    assert [type(p) for p in loaded.parameters()] == [nn.Parameter] * 5
    assert all(torch.equal(p, q.detach()) for p, q in zip(loaded.parameters(), model.parameters(), strict=True))
    ENTRY.losses(loaded, ENTRY.batch(4)).sum().backward()  # no engine in its way
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))  # and the original goes on
    again = gc.attach(loaded, None, "layer-wise", None)
    loaded.zero_grad()
    again.backward(ENTRY.losses(loaded, ENTRY.batch(4)))


def test_a_file_of_the_model_holds_nothing_of_the_run() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    written = pickle.dumps(model)
    for word in (b"SecureNoise", b"Keystream", b"AdamW", b"Ledger", b"Mechanism", b"Engine"):
        assert word not in written, word


def test_a_deep_copy_has_no_engine_and_says_so() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    twin = copy.deepcopy(model)
    with torch.no_grad():  # an average of weights, an evaluation: fine
        assert torch.equal(twin(ENTRY.batch(4)[0]), model(ENTRY.batch(4)[0]))
    with pytest.raises(CoverageError, match=r"deep copy of an attached one.*call groupclip\.attach on the copy"):
        twin(ENTRY.batch(4)[0])
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert all(p.grad is None for p in twin.parameters())


def test_an_engine_that_is_dropped_is_collected() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 1)
    watched = weakref.ref(engine), weakref.ref(model)
    del model, optimizer, engine
    garbage.collect()
    assert [w() for w in watched] == [None, None]


@pytest.mark.parametrize("move", [lambda m: m.to("cpu"), lambda m: m.double(), lambda m: m.double().float()])
def test_moves_and_casts_keep_the_model_attached(move: Any) -> None:
    model, _, engine = attached()
    move(model)
    assert all(type(p) is PrivateParameter for p in model.parameters())
    dtype = next(model.parameters()).dtype
    engine.backward(ENTRY.losses(model, ENTRY.batch(4, dtype)))
    assert all(p.grad.dtype == dtype for p in model.parameters())  # type: ignore[union-attr]


def test_weights_can_be_loaded_and_set_in_place() -> None:
    model, _, engine = attached()
    other = ENTRY.model(seed=9)
    model.load_state_dict(other.state_dict())
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(0.5).clamp_(-1, 1)
    engine.backward(ENTRY.losses(model, ENTRY.batch(4)))
    assert all(p.grad is not None for p in model.parameters())


# ------------------------------------------------------------------ passes without a backward


class Box:
    """A tensor that autograd has saved for a backward pass."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = tensor


class Saved(torch.autograd.graph.saved_tensors_hooks):
    """What autograd holds on to: ``len`` of it counts the saved tensors that are alive."""

    def __init__(self) -> None:
        self.boxes: weakref.WeakSet[Box] = weakref.WeakSet()
        super().__init__(self.pack, lambda box: box.tensor)

    def pack(self, tensor: Tensor) -> Box:
        box = Box(tensor.detach())  # an output that an operation saves would hold its own graph
        self.boxes.add(box)
        return box

    def __enter__(self) -> Saved:
        super().__enter__()
        return self

    def __len__(self) -> int:
        garbage.collect()
        return len(self.boxes)


@pytest.fixture
def small_heap() -> Iterator[None]:
    """Counts look at what comes from here on: collecting all that a test session has piled up takes half a second."""
    garbage.collect()
    garbage.freeze()
    yield
    garbage.unfreeze()


def live_tensors() -> int:
    """Those that Python holds."""
    garbage.collect()
    return sum(1 for o in garbage.get_objects() if issubclass(type(o), Tensor))


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("name", CORE)
def test_evaluation_leaks_nothing_and_disturbs_no_pending_backward(name: str) -> None:
    """A hundred passes under no_grad between forward and backward."""
    entry = ENTRIES[name]
    model = entry.model(torch.float64)
    groups = grouped(model, "layer-wise")
    batch = entry.batch(4, torch.float64)
    want = clipped_by_engine(model, entry.losses, batch, groups)
    engine = gc.attach(model, None, groups, None)
    losses = entry.losses(model, batch)
    model.eval()
    with torch.no_grad(), Saved() as saved:
        entry.losses(model, entry.batch(7, torch.float64))
        before = live_tensors()
        for _ in range(100):
            entry.losses(model, entry.batch(7, torch.float64))
        assert live_tensors() == before and len(saved) == 0
    with torch.inference_mode():
        entry.losses(model, entry.batch(3, torch.float64))
    model.train()
    engine.backward(losses)
    for n, g in gradients(model).items():
        assert torch.equal(g, want.sums[n]), n
    assert all(torch.equal(n, want.norms[g]) for g, n in engine.unsafe_norms().items())


@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("name", CORE)
def test_a_forward_pass_thrown_away_changes_nothing(name: str, kept: bool) -> None:
    """With gradients recorded: a validation loss without no_grad, or an exception in the loss. Kept or dropped."""
    entry = ENTRIES[name]
    model = entry.model(torch.float64)
    groups = grouped(model, "layer-wise")
    batch = entry.batch(4, torch.float64)
    want = clipped_by_engine(model, entry.losses, batch, groups)
    engine = gc.attach(model, None, groups, None)
    thrown = [entry.losses(model, entry.batch(7, torch.float64, seed=s)) for s in range(3)]
    if not kept:
        thrown.clear()
    engine.backward(entry.losses(model, batch))
    for n, g in gradients(model).items():
        torch.testing.assert_close(g, want.sums[n], rtol=0, atol=1e-13)
    for group, norms in engine.unsafe_norms().items():
        torch.testing.assert_close(norms, want.norms[group], rtol=1e-13, atol=0)


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("name", CORE)
def test_no_pass_holds_memory(name: str) -> None:
    """Passes thrown away, failed losses, whole steps: what autograd and Python hold stays as it was."""
    entry = ENTRIES[name]
    model = entry.model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    engine = gc.attach(model, optimizer, "layer-wise", plan(steps=20))

    def step() -> None:
        entry.losses(model, entry.batch(4))  # thrown away
        with pytest.raises(ValueError, match="one loss per sample"):
            engine.backward(entry.losses(model, entry.batch(4)).sum())
        engine.backward(entry.losses(model, entry.batch(4)))
        optimizer.step()
        optimizer.zero_grad()

    step()
    step()
    before = live_tensors()
    with Saved() as saved:
        for _ in range(8):
            step()
        assert len(saved) == 0
    assert live_tensors() <= before


@pytest.mark.usefixtures("small_heap")
@pytest.mark.parametrize("name", CORE)
def test_memory_is_freed_in_the_backward_pass(name: str) -> None:
    """After it nothing is held though the losses are kept; before it, something is (or the test above shows nothing)."""
    entry = ENTRIES[name]
    model = entry.model()
    engine = gc.attach(model, None, "layer-wise", None)
    engine.backward(entry.losses(model, entry.batch(4)))
    with Saved() as saved:
        losses = entry.losses(model, entry.batch(4))
        assert len(saved) > 10
        engine.backward(losses)
        garbage.collect()
        assert not [box for box in saved.boxes if box.tensor.is_floating_point()]  # position ids may stay


# ------------------------------------------------------------------ two engines


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 5))

    def forward(self, z: Tensor) -> Tensor:
        return self.layers(z)


def test_two_engines_on_two_models() -> None:
    """A GAN: the discriminator is attached; so is a generator that is trained through it, its own part clipped alone."""
    torch.manual_seed(0)
    generator, critic = Generator().double(), nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    z, x = torch.randn(4, 3, dtype=torch.float64), torch.randn(4, 5, dtype=torch.float64)
    both = nn.ModuleDict({"generator": generator, "critic": critic})
    wanted = {}
    for part, model in both.items():
        for p in both.parameters():
            p.requires_grad_(False)
        model.requires_grad_(True)
        groups = {part: tuple(n for n, p in both.named_parameters() if p.requires_grad)}
        wanted |= clipped_sum(both, lambda m, b: m["critic"](m["generator"](*b)).squeeze(1), (z,), groups).sums
    both.requires_grad_(True)
    first = gc.attach(generator, None, "all-layer", None)
    second = gc.attach(critic, None, "all-layer", None)
    # Each takes its own step: losses that pass through both would be clipped by both engines at once.
    losses = critic(generator(z).detach()).squeeze(1)
    second.backward(losses)
    for n, p in critic.named_parameters():
        torch.testing.assert_close(p.grad, wanted[f"critic.{n}"], rtol=0, atol=1e-12)
    critic.requires_grad_(False)
    first.backward(critic(generator(z)).squeeze(1))
    for n, p in generator.named_parameters():
        torch.testing.assert_close(p.grad, wanted[f"generator.{n}"], rtol=0, atol=1e-12)
    critic.requires_grad_(True)
    critic.zero_grad()
    second.backward(critic(x).squeeze(1))
    assert all(p.grad is not None for p in critic.parameters())


def test_a_teacher_that_is_not_attached_stays_out() -> None:
    model, _, engine = attached()
    teacher = ENTRY.model(seed=4)
    x, _ = ENTRY.batch(4)
    engine.backward((model(x) - teacher(x).detach()).square().sum(1))
    assert all(p.grad is None for p in teacher.parameters())


# ------------------------------------------------------------------ whose sampling it was


def test_steps_by_hand_are_the_users_sampling() -> None:
    model, optimizer, engine = attached()
    train(model, optimizer, engine, 2)
    assert engine.ledger is not None and engine.ledger.steps_by_sampler == {"groupclip": 0, "user": 2}


def test_logical_batches_are_groupclips_sampling_unless_added_to() -> None:
    data = TensorDataset(*ENTRY.batch(40))
    model, optimizer, engine = attached()
    for step, logical in enumerate(gc.poisson_batches(data, plan(), microbatch=3)):
        for part in logical:
            engine.backward(ENTRY.losses(model, tuple(part)))
        if step == 4:  # samples that the sampler didn't draw
            engine.backward(ENTRY.losses(model, ENTRY.batch(2)))
        optimizer.step()
        optimizer.zero_grad()
    assert engine.ledger is not None and engine.ledger.steps_by_sampler == {"groupclip": 5, "user": 1}
    assert engine.ledger.sampling == "mixed"


# ------------------------------------------------------------------ types that must not escape


def test_no_private_tensor_comes_out_of_the_model() -> None:
    """Outputs are plain tensors even where parameters were used without the batch."""
    for name, entry in ENTRIES.items():
        model = entry.model(torch.float64)
        engine = gc.attach(model, None, "layer-wise", None)
        assert not isinstance(entry.losses(model, entry.batch(3, torch.float64)), PrivateTensor), name
        engine.detach()


def test_a_loss_with_a_regulariser_on_the_parameters() -> None:
    """Computed outside the model, without the batch: each sample's loss has it, and so has its gradient."""
    model, batch = ENTRY.model(torch.float64), ENTRY.batch(4, torch.float64)

    def losses(model: nn.Module, batch: tuple[Tensor, ...]) -> Tensor:
        return ENTRY.losses(model, batch) + 0.1 * model.get_parameter("2.weight").square().sum()

    groups = grouped(model, "layer-wise")
    thresholds = dict.fromkeys(groups, 0.5)
    want = clipped_sum(model, losses, batch, {g: groups[g] for g in groups}, "abadi", thresholds)
    got = clipped_by_engine(model, losses, batch, groups, "abadi", thresholds)
    assert faults(got, want, groups, thresholds, 1e-10) == []
