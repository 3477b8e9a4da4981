"""Opacus's own tests of its layers, which its wheel ships, run against groupclip.

Opacus draws the layer, its options and its input; only ``run_test`` is replaced: norms and clipped sums of the engine
against single samples in float64 (``oracle.py``), for one group and for one group a parameter.

groupclip's samples are dimension 0 of the model's first tensor input. So what Opacus gives in another form is wrapped
as a user would wrap it: sequence-first layers between two transposes (:class:`SamplesFirst`), packed sequences packed
inside the model (:class:`Packs`), bags put end to end inside the model (:class:`Bags`).

Layers that Opacus replaces before training (attention, recurrent ones) are run twice: its replacement, and torch's
own, which needs none here.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import TestCase, mock

import opacus.tests.grad_samples
import pytest
import torch
from hypothesis import HealthCheck, settings
from opacus.layers import DPGRU, DPLSTM, DPRNN
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence, pad_sequence

import groupclip as gc
import oracle
from check_engine import Clipped, clipped_by_engine, faults, members
from groupclip.errors import UnsupportedOperation
from models import Batch

# torch, of even kernels; the input is copied, which changes no number
pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths:UserWarning")

TOLERANCE = 1e-10  # float64
LEAST = 1e-6  # threshold: gradients that are zero but for rounding (the bias of an attention's keys) aren't blown up


class SamplesFirst(nn.Module):
    """A sequence-first module for batches whose samples come first."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, *inputs: Tensor) -> Tensor:
        out = self.module(*[x.transpose(0, 1) for x in inputs])
        return (out[0] if isinstance(out, tuple) else out).transpose(0, 1)


class Recurs(nn.Module):
    """A recurrent module for ``[B, T, d]``, the lengths ``[B]`` if they differ, and states ``[B, layers, h]`` if given."""

    def __init__(self, module: nn.Module, batch_first: bool, packs: bool) -> None:
        super().__init__()
        self.module, self.batch_first, self.packs = module, batch_first, packs

    def forward(self, x: Tensor, *rest: Tensor) -> Tensor:
        x, length = (x if self.batch_first else x.transpose(0, 1)), x.shape[1]
        if self.packs:
            lengths, *rest = rest
            x = pack_padded_sequence(x, lengths, batch_first=self.batch_first, enforce_sorted=False)
        states = tuple(s.transpose(0, 1).contiguous() for s in rest)
        arguments = () if not states else (states[0] if len(states) == 1 else states,)
        out = self.module(x, *arguments)
        out = out[0] if type(out) is tuple else out
        if isinstance(out, PackedSequence):
            return pad_packed_sequence(out, batch_first=True, total_length=length)[0]
        return out if self.batch_first else out.transpose(0, 1)


class Bags(nn.Module):
    """An ``EmbeddingBag`` on bags of different sizes, for padded ids ``[B, L]`` and sizes ``[B]``."""

    def __init__(self, bag: nn.Module) -> None:
        super().__init__()
        self.bag = bag

    def forward(self, ids: Tensor, sizes: Tensor) -> Tensor:
        inside = torch.arange(ids.shape[1]) < sizes[:, None]
        return self.bag(ids[inside], sizes.cumsum(0) - sizes)


def as_a_user_would(x: Any, module: nn.Module, batch_first: bool) -> tuple[nn.Module, Batch]:
    """The model to attach, and the batch to call it with."""
    if isinstance(x, PackedSequence):
        return Recurs(module, batch_first, packs=True), pad_packed_sequence(x, batch_first=True)
    if isinstance(x, tuple):
        ids, offsets = x
        bags = torch.tensor_split(ids, offsets[1:])
        return Bags(module), (pad_sequence(bags, batch_first=True), torch.tensor([len(bag) for bag in bags]))
    return (module, (x,)) if batch_first else (SamplesFirst(module), (x.transpose(0, 1),))


def loss(model: nn.Module, batch: Batch) -> Tensor:
    """The mean over a sample's own outputs."""
    out = model(*batch).flatten(1)
    return (out - 0.5).square().sum(1) / max(1, out.shape[1])


def inexact(model: nn.Module, batch: Batch, losses: oracle.Losses = loss) -> list[str]:
    """Where the engine and single samples disagree."""
    model = model.double()
    batch = tuple(t.double() if t.is_floating_point() else t for t in batch)
    found = []
    for style in ("all-layer", "param-wise"):
        groups = gc.partition(model, style)
        norms = oracle.clipped_sum(model, losses, batch, members(groups)).norms
        middle = {group: max(LEAST, n.median().item() if len(n) else 1.0) for group, n in norms.items()}
        want = oracle.clipped_sum(model, losses, batch, members(groups), "abadi", middle)
        got = clipped_by_engine(model, losses, batch, groups, "abadi", middle)
        if not len(batch[0]):  # no group takes part: the engine reports no norms
            got = Clipped(got.sums, want.norms)
        found += [f"{style}: {fault}" for fault in faults(got, want, groups, middle, TOLERANCE)]
    return found


def native(module: nn.Module) -> nn.Module:
    """Torch's own layer for one of Opacus's recurrent layers, with its weights."""
    own = {DPRNN: nn.RNN, DPGRU: nn.GRU, DPLSTM: nn.LSTM}[type(module)]
    layer = own(
        module.input_size, module.hidden_size, num_layers=module.num_layers, bias=module.bias,
        batch_first=module.batch_first, bidirectional=module.bidirectional,
    )  # fmt: skip
    layer.load_state_dict(module.state_dict())
    return layer


class Checks(TestCase):
    """What replaces Opacus's comparison; its options choose among its own ways, or loosen it."""

    __test__ = False  # pytest: its subclasses below have the tests
    checked = 0

    def setUp(self) -> None:
        torch.manual_seed(0)  # the tests draw weights and inputs without Hypothesis

    def tearDown(self) -> None:
        torch.use_deterministic_algorithms(False)  # some tests leave it on
        assert self.checked >= 3, f"only {self.checked} of the drawn examples were checked"

    def check(self, model: nn.Module, batch: Batch, losses: oracle.Losses | None = None) -> None:
        self.checked += 1
        assert inexact(model, batch, losses or loss) == []

    def run_test(self, x: Any, module: nn.Module, batch_first: bool = True, **_: Any) -> None:
        self.check(*as_a_user_would(x, module, batch_first))


class OpacusRecurrence(Checks):
    """On ragged batches these layers write their last states into a plain tensor, which is refused by name."""

    def run_test(self, x: Any, module: nn.Module, batch_first: bool = True, **options: Any) -> None:
        try:
            super().run_test(x, module, batch_first, **options)
        except UnsupportedOperation as refusal:
            assert isinstance(x, PackedSequence)
            assert "__setitem__ changes a tensor in place" in str(refusal)


class NativeRecurrence(Checks):
    def run_test(self, x: Any, module: nn.Module, batch_first: bool = True, **options: Any) -> None:
        module.dp_rnn = native(module.dp_rnn)
        super().run_test(x, module, batch_first, **options)


class NativeAttention(Checks):
    module: ModuleType

    def setUp(self) -> None:
        super().setUp()
        patch = mock.patch.object(self.module, "DPMultiheadAttention", nn.MultiheadAttention)
        patch.start()
        self.addCleanup(patch.stop)


class Convolves(Checks):
    test_unfold2d = None  # of a function of Opacus's own

    def test_asymetric_dilation_and_kernel_size(self) -> None:
        self.checked = 2
        self.run_test(torch.randn(2, 1, 8, 1), nn.Conv2d(1, 1, (3, 1), dilation=(3, 1), bias=False))


class NormsOfLookups(Checks):
    """Opacus gives ids, output gradients and the norms that come of them; its function is replaced by the engine."""

    module: ModuleType

    def setUp(self) -> None:
        super().setUp()
        patch = mock.patch.object(self.module.embedding_norm_sample, "compute_embedding_norm_sample", self.norms)
        patch.start()
        self.addCleanup(patch.stop)

    def norms(self, layer: nn.Embedding, activations: list[Tensor], backprops: Tensor) -> dict[nn.Parameter, Tensor]:
        self.checked = 3
        (ids,) = activations
        engine = gc.attach(layer, None, "all-layer", None)
        engine.backward((layer(ids) * backprops).flatten(1).sum(1))
        norms = engine.unsafe_norms()["all"]
        engine.detach()
        return {layer.weight: norms}


class ComparesWithTorch(Checks):
    """Opacus compares its replacements with torch's layers; here the latter are trained as they are."""

    def compare_forward_outputs(self, *_: Any, **__: Any) -> None:
        pass  # Opacus's layer against torch's

    test_dp_attn_hook = None  # of the state_dict of Opacus's layer

    def compare_gradients(self, layer: nn.Module, _: nn.Module, __: Any, x: Any, *rest: Any, **___: Any) -> None:
        if isinstance(layer, nn.MultiheadAttention):
            self.check(SamplesFirst(layer), tuple(t.transpose(0, 1) for t in (x, *rest)))
            return
        assert isinstance(layer, nn.RNNBase)
        given = rest[0] if rest else ()
        states = [s.transpose(0, 1) for s in (given if isinstance(given, tuple) else (given,))]
        packs = isinstance(x, PackedSequence)
        padded = pad_packed_sequence(x, batch_first=True) if packs else ()
        inputs = padded or (x if layer.batch_first else x.transpose(0, 1),)
        self.check(Recurs(layer, layer.batch_first, packs), (*inputs, *states))


#: module of opacus.tests -> its class, and (what replaces the comparison, examples so that enough of them get that far)
FAMILIES: dict[str, tuple[str, list[tuple[type[Checks], int]]]] = {
    "grad_samples.linear_test": ("Linear_test", [(Checks, 12)]),
    "grad_samples.conv1d_test": ("Conv1d_test", [(Checks, 60)]),
    "grad_samples.conv2d_test": ("Conv2d_test", [(Convolves, 60)]),
    "grad_samples.conv3d_test": ("Conv3d_test", [(Checks, 60)]),
    "grad_samples.embedding_test": ("Embedding_test", [(Checks, 12)]),
    "grad_samples.embedding_bag_test": ("Embedding_bag_test", [(Checks, 6)]),
    "grad_samples.embedding_norm_sample_test": ("TestComputeEmbeddingNormSample", [(NormsOfLookups, 1)]),
    "grad_samples.layer_norm_test": ("LayerNorm_test", [(Checks, 12)]),
    "grad_samples.rms_norm_test": ("RMSNorm_test", [(Checks, 12)]),
    "grad_samples.group_norm_test": ("GroupNorm_test", [(Checks, 12)]),
    "grad_samples.instance_norm1d_test": ("InstanceNorm1d_test", [(Checks, 6)]),
    "grad_samples.instance_norm2d_test": ("InstanceNorm2d_test", [(Checks, 6)]),
    "grad_samples.instance_norm3d_test": ("InstanceNorm3d_test", [(Checks, 6)]),
    "grad_samples.dp_rnn_test": ("RNN_test", [(OpacusRecurrence, 8), (NativeRecurrence, 8)]),
    "grad_samples.dp_multihead_attention_test": ("MultiHeadAttention_test", [(Checks, 6), (NativeAttention, 8)]),
    "grad_samples.sequence_bias_test": ("SequenceBias_test", [(Checks, 6)]),
    "dp_layers.dp_multihead_attention_test": ("DPMultiheadAttention_test", [(ComparesWithTorch, 12)]),
    "dp_layers.dp_rnn_test": ("DPLSTM_test", [(ComparesWithTorch, 12)]),
}


def fresh(name: str, examples: int) -> ModuleType:
    """A copy of a module of ``opacus.tests``, whose tests draw so many examples."""
    before = settings.get_current_profile_name()
    settings.register_profile(
        "peer", derandomize=True, database=None, deadline=None, max_examples=examples,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    )  # fmt: skip
    settings.load_profile("peer")  # the tests take their settings from it when they are defined
    try:
        spec = importlib.util.find_spec(f"opacus.tests.{name}")
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    finally:
        settings.load_profile(before)
    return module


def collected(factor: int) -> dict[str, type]:
    """Test classes: Opacus's tests with our comparison, and so many times the usual number of examples."""
    classes: dict[str, type] = {}
    for name, (tests, ways) in FAMILIES.items():
        for way, examples in ways:
            module = fresh(name, examples * factor)
            title = f"{name.partition('.')[2]}_{way.__name__}_{factor}"
            classes[title] = type(
                title, (way, getattr(module, tests)), {"module": module, "__module__": __name__, "__test__": True}
            )
    return classes


globals().update(collected(1))
globals().update({name: pytest.mark.slow(tests) for name, tests in collected(5).items()})


def test_no_family_is_left_out() -> None:
    (folder,) = opacus.tests.grad_samples.__path__
    shipped = {f"grad_samples.{path.stem}" for path in Path(folder).glob("*_test.py")}
    assert len(shipped) == 16 and shipped <= set(FAMILIES)


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_a_packed_batch_of_one(kind: type[nn.RNNBase]) -> None:
    assert inexact(Recurs(kind(5, 3), batch_first=False, packs=True), (torch.randn(1, 4, 5), torch.tensor([4]))) == []


def test_twin_a_norm_that_is_slightly_off_is_seen() -> None:
    layer, x = nn.Linear(3, 2), torch.randn(4, 3)

    def slightly_off(model: nn.Module, batch: Batch) -> Tensor:
        losses = loss(model, batch)
        return losses * (1 + 1e-8 * (len(losses) > 1))  # the engine sees a batch, the oracle single samples

    assert inexact(layer, (x,)) == []
    assert inexact(layer, (x,), slightly_off) != []
