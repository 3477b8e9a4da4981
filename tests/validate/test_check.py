"""``groupclip.check``: models and losses that mix samples are named, their cured twins pass, and nothing is left behind."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import groupclip as gc
from groupclip.autograd.operation import Call
from groupclip.validate.values import another_order
from models import CATALOGUE
from small import Made, cross_entropy, images

STYLES = ("all-layer", "layer-wise", "param-wise")


class Standardised(nn.Module):
    """Batch normalisation that somebody wrote by hand."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(0)) / (1 + x.square().mean(0))


class Sequence(nn.Module):
    """A recurrent layer that is told, rightly or not, where the batch is."""

    def __init__(self, batch_first: bool, average: int) -> None:
        super().__init__()
        self.inside, self.average = nn.GRU(4, 6, batch_first=batch_first), average
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inside(x)[0].mean(self.average))


class Mixup(nn.Module):
    def __init__(self, mix: bool) -> None:
        super().__init__()
        self.head, self.mix = nn.Linear(4, 3), mix

    def forward(self, x: Tensor) -> Tensor:
        other = x[torch.randperm(len(x))] if self.mix else x
        return self.head(0.7 * x + 0.3 * other)


class Straight(torch.autograd.Function):
    """Values of single samples, gradients averaged over the batch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad.mean(0, keepdim=True).expand_as(grad)


class StraightBesideOthers(torch.autograd.Function):
    """The same with a rule for torch.vmap, under which all samples are in sight again."""

    @staticmethod
    def forward(x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return x.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return grad.mean(0, keepdim=True).expand_as(grad)

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Tensor) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        return StraightBesideOthers.apply(x.movedim(in_dims[0], 0)), 0


class Averaging(nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        self.body, self.head, self.function = nn.Linear(4, 5), nn.Linear(5, 3), function

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.body(x))
        return self.head(self.function.apply(h) if self.function else h)


def net(middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), middle, nn.Linear(8, 3))


# name -> model, loss, batch that mix samples; the same cured; words of the message
MIXED: dict[str, tuple[Callable[[], Any], Callable[[], Any], str]] = {}


def case(name: str, words: str) -> Callable[[Callable[[bool], Any]], Callable[[bool], Any]]:
    def keep(make: Callable[[bool], Any]) -> Callable[[bool], Any]:
        MIXED[name] = (lambda: make(True), lambda: make(False), words)
        return make

    return keep


@case("batch norm", r"module '1' is BatchNorm1d .* GroupNorm")
def _(mixed: bool) -> Any:
    return net(nn.BatchNorm1d(8) if mixed else nn.GroupNorm(2, 8)), cross_entropy, images()


@case("statistics by hand", r"module '1' \(Standardised\) mixes")
def _(mixed: bool) -> Any:
    return net(Standardised() if mixed else nn.Tanh()), cross_entropy, images()


@case("mean over the batch's tokens", r"loss_fn divides by a count over the batch")
def _(mixed: bool) -> Any:
    x, _ = images(6, 5, 4)
    y = torch.randint(0, 3, (6, 5), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(5) < torch.tensor([[5], [2], [3], [4], [1], [5]])).float()

    def losses(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        each = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none") * mask
        return each.sum(1) / (mask.sum() if mixed else mask.sum(1))

    return nn.Linear(4, 3), losses, (x, y, mask)


@case("contrastive loss", r"compares samples with each other")
def _(mixed: bool) -> Any:
    x, _ = images(6, 4)

    def losses(model: nn.Module, x: Tensor, z: Tensor) -> Tensor:
        a, b = model(x), model(z)
        scores = a @ b.t()
        return F.cross_entropy(scores, torch.arange(len(a)), reduction="none") if mixed else -(a * b).sum(1)

    return nn.Linear(4, 8), losses, (x, x.flip(1))


@case("recurrence over the batch", r"module 'inside' \(GRU\) mixes .* batch_first=True")
def _(mixed: bool) -> Any:
    return Sequence(batch_first=not mixed, average=1), cross_entropy, images(6, 5, 4)


@case("sequence first", r"transpose it so that the sample comes first")
def _(mixed: bool) -> Any:
    x, y = images(6, 5, 4)
    return (
        Sequence(batch_first=not mixed, average=0 if mixed else 1),
        cross_entropy,
        (x.transpose(0, 1) if mixed else x, y),
    )


@case("sequence first, as long as the batch", r"sequence-first tensors must be transposed")
def _(mixed: bool) -> Any:
    x, y = images(5, 5, 4)
    return Sequence(batch_first=not mixed, average=0 if mixed else 1), cross_entropy, (x, y)


@case("mixup at random", r"the forward method of Mixup itself")
def _(mixed: bool) -> Any:
    return Mixup(mixed), cross_entropy, images()


@case(
    "gradients mixed beside others, values not",
    r"clipped gradient of body\.weight, body\.bias.* isn't the sum .* the vmap\(\)",
)
def _(mixed: bool) -> Any:
    return Averaging(StraightBesideOthers if mixed else None), cross_entropy, images()


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", MIXED)
def test_what_mixes_samples_is_named(name: str, style: str) -> None:
    mixed, _, words = MIXED[name]
    with pytest.raises(gc.PrivacyViolation, match=words) as error:
        gc.check(*mixed(), style)
    assert "of no sample" not in str(error.value)


@pytest.mark.one_in(3)
@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("name", MIXED)
def test_its_cured_twin_passes(name: str, style: str) -> None:
    _, cured, _ = MIXED[name]
    report = gc.check(*cured(), style)
    assert len(report.replayed) >= 4


@pytest.mark.parametrize("style", STYLES)
def test_gradients_that_mix_in_a_batch_do_no_harm(style: str) -> None:
    """The engine runs such a function on one sample at a time, so its gradients are those of single samples."""
    report = gc.check(Averaging(Straight), cross_entropy, images(), style)
    assert any("one sample at a time" in w for w in report.warnings)
    assert all("one by one" in [way for _, way in use.operations] for use in report.uses)


@pytest.mark.parametrize("style", STYLES)
def test_a_second_call_in_another_order_is_seen(style: str) -> None:
    """Row i of every call counts for sample i of the losses."""

    def losses(m: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(m(x) + m(x.flip(0) ** 2).flip(0), y, reduction="none")

    with pytest.raises(
        gc.PrivacyViolation, match=r"isn't the sum .* with the samples in another order the second time"
    ):
        gc.check(net(nn.Tanh()), losses, images(), style)
    gc.check(net(nn.Tanh()), lambda m, x, y: cross_entropy(lambda x: m(x) + m(x**2), x, y), images(), style)


class From(nn.Module):
    """Samples are mixed when the batch is as large: smaller ones don't show it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.head, self.size = nn.Linear(4, 3), size

    def forward(self, x: Tensor) -> Tensor:
        return self.head(x - x.mean(0) if len(x) >= self.size else x)


@pytest.mark.parametrize("size", [4, 6])
def test_what_only_large_batches_show_is_seen_in_the_batch_that_was_given(size: int) -> None:
    for samples in (2, 3):
        with pytest.raises(gc.PrivacyViolation, match=r"the forward method of From itself.* mixes the samples"):
            gc.check(From(size), cross_entropy, images(), "all-layer", samples=samples)
    smaller = images(size - 1)
    assert (
        "losses in the whole batch, its order shuffled"
        in gc.check(From(size), cross_entropy, smaller, "all-layer").replayed
    )


@pytest.mark.parametrize(
    "arrange",
    [
        lambda h: torch.cat([h[:5], h[5:] + 0.1 * h[:1]]) if len(h) > 5 else h,  # the sixth meets the first
        lambda h: torch.cat([h[:1], h[1:] + 0.1 * h.roll(1, 0)[1:]]) if len(h) > 3 else h,  # each its neighbour
        lambda h: torch.cat(
            [h[:3], h[3:] * (1 + h[:1].mean())]
        ),  # whatever stands in the first three places is left alone
    ],
)
def test_what_hangs_on_the_place_is_seen(arrange: Callable[[Tensor], Tensor]) -> None:
    """All samples of the batch are held against what they are alone, and stand elsewhere than in small ones."""
    with pytest.raises(gc.PrivacyViolation, match="mixes the samples"):
        gc.check(Made(lambda m, x: m.head(arrange(x))), cross_entropy, images(), "all-layer")
    gc.check(Made(lambda m, x: m.head(arrange(x[:3]))), cross_entropy, images(3), "all-layer")


@pytest.mark.parametrize("known", [2, 3, 5])
@pytest.mark.parametrize("size", [5, 6, 64])
def test_the_other_order_moves_the_samples_that_are_looked_at(size: int, known: int) -> None:
    order = another_order(size, known)
    assert sorted(order) == list(range(size))
    assert all(order[i] != i for i in range(known))
    assert order == another_order(size, known)


@pytest.mark.parametrize("style", STYLES)
def test_norms_credited_to_the_wrong_samples_are_seen(style: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows that changed places unseen are clipped by norms of their own, and the sum of a lone use comes out right."""
    model = Made(lambda m, x: m.head(m.body(x).tanh()), body=nn.Linear(4, 4))
    gc.check(model, cross_entropy, images(), style)
    turned_by_rules(monkeypatch)
    words = r"isn't the sum" if style == "all-layer" else r"the norms of gradients in group body.* in their order"
    with pytest.raises(gc.PrivacyViolation, match=words):
        gc.check(model, cross_entropy, images(), style)


def turned_by_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules get the samples in the wrong order: a layer turns them around, and the next one turns them back."""
    right = Call.samples
    monkeypatch.setattr(Call, "samples", lambda self, operand: right(self, operand).flip(0))


@pytest.mark.one_in(3)
@pytest.mark.parametrize("name", [entry.name for entry in CATALOGUE])
def test_every_model_of_the_catalogue_passes(name: str) -> None:
    entry = next(e for e in CATALOGUE if e.name == name)
    model = entry.model()
    report = gc.check(model, lambda m, *batch: entry.losses(m, batch), entry.batch(4), "param-wise")
    trainable = [n for n, p in model.named_parameters() if p.requires_grad]
    assert [use.parameter for use in report.uses] == trainable
    idle = [use.parameter for use in report.uses if not use.operations or not use.norm]
    assert all(any(n in w for w in report.warnings) for n in idle)
    assert not idle or name == "unused"
    assert all(use.parameter in report.table() for use in report.uses)


def test_dropout_and_noise_of_the_model_are_no_mixing() -> None:
    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Sequential(
                nn.Linear(4, 8), nn.Dropout(0.5), nn.ReLU(), nn.AlphaDropout(0.3), nn.Linear(8, 3)
            )

        def forward(self, x: Tensor) -> Tensor:
            x = x + torch.randn_like(x) * torch.rand(len(x), 1)
            return self.body(x) * torch.bernoulli(torch.full((len(x), 1), 0.8))

    gc.check(Noisy().train(), cross_entropy, images(), "layer-wise")


def test_nothing_is_left_behind() -> None:
    torch.manual_seed(3)
    model = net(nn.BatchNorm1d(8).eval())
    loss = cross_entropy(model, *images()).sum()
    loss.backward()
    before = {n: (p.detach().clone(), p.grad) for n, p in model.named_parameters()}
    buffers = {n: b.clone() for n, b in model.named_buffers()}
    state = torch.get_rng_state()
    gc.check(model, cross_entropy, images(), "layer-wise")
    assert torch.equal(torch.get_rng_state(), state)
    for name, p in model.named_parameters():
        assert type(p) is nn.Parameter
        assert torch.equal(p, before[name][0])
        assert p.grad is before[name][1]
    assert all(torch.equal(b, buffers[n]) for n, b in model.named_buffers())
    assert not model._forward_pre_hooks


@pytest.mark.parametrize("name", ["statistics by hand", "gradients mixed beside others, values not"])
def test_nothing_is_left_behind_by_a_refusal(name: str) -> None:
    """Before the model is attached, and while it is."""
    model, loss_fn, batch = MIXED[name][0]()
    with pytest.raises(gc.PrivacyViolation):
        gc.check(model, loss_fn, batch, "layer-wise")
    assert all(type(p) is nn.Parameter and p.grad is None for p in model.parameters())
    gc.attach(model, None, "layer-wise", None).detach()


def test_coverage_says_which_way_each_operation_goes(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.scale = nn.Parameter(torch.randn(3, 4)), nn.Parameter(torch.ones(3))
            self.idle = nn.Parameter(torch.ones(2))

        def forward(self, x: Tensor) -> Tensor:
            return torch.cdist(x, self.weight) * (1 + self.scale)

    with caplog.at_level(logging.ERROR):
        report = gc.check(Odd(), cross_entropy, images(), {"weight": "a", "*": "b"})
    uses = {use.parameter: use for use in report.uses}
    assert uses["weight"].operations == (("cdist", "vmap"),)
    assert uses["weight"].group == "a"
    assert ("add", "derived") in uses["scale"].operations
    assert uses["idle"].operations == ()
    assert any("cdist has no closed form for weight" in w for w in report.warnings)
    assert any("no gradient reached idle" in w for w in report.warnings)
    assert "not used by these samples" in str(report)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype) -> None:
    x, y = images()
    model = net(nn.LayerNorm(8)).to(dtype)
    gc.check(model, cross_entropy, (x.to(dtype), y), "layer-wise")
    with pytest.raises(gc.PrivacyViolation, match="Standardised"):
        gc.check(net(Standardised()).to(dtype), cross_entropy, (x.to(dtype), y), "layer-wise")


def test_a_batch_may_be_a_mapping() -> None:
    x, y = images()
    gc.check(net(nn.Tanh()), lambda m, b: cross_entropy(m, b["x"], b["y"]), {"x": x, "y": y}, "layer-wise")


@pytest.mark.parametrize(
    ("loss_fn", "batch", "keywords", "error", "words"),
    [
        (lambda m, x, y: F.cross_entropy(m(x), y), images(), {}, ValueError, "reduction='none'"),
        (lambda m, x, y: 1.0, images(), {}, TypeError, "gave float"),
        (cross_entropy, images(2), {}, ValueError, "the batch has 2 samples, 3 are asked for"),
        (cross_entropy, images(), {"samples": 1}, ValueError, "at least 2"),
        (cross_entropy, images(), {"samples": True}, ValueError, "at least 2"),
        (cross_entropy, ("a", 3), {}, TypeError, "no tensor with a batch dimension"),
        (lambda m, x, y: 0 * cross_entropy(m, x, y), images(), {}, ValueError, "zero or not finite"),
        (lambda m, x, y: m(x), images(), {}, gc.PrivacyViolation, r"shape \(1, 3\)"),
    ],
)
def test_wrong_arguments_are_refused(
    loss_fn: Any, batch: Any, keywords: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        gc.check(net(nn.Tanh()), loss_fn, batch, "layer-wise", **keywords)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_a_reduced_loss_is_told_from_a_mean_over_tokens(reduction: str, dropout: float) -> None:
    x, _ = images(6, 5, 4)
    y = torch.randint(0, 3, (6, 5), generator=torch.Generator().manual_seed(1))
    mask = (torch.arange(5) < torch.tensor([[5], [2], [3], [4], [1], [5]])).float()
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(dropout), nn.Linear(8, 3)).train()

    def of_samples(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        each = F.cross_entropy(model(x).transpose(1, 2), y, reduction="none") * mask
        return getattr(each.sum(1) / mask.sum(1), reduction)()

    def of_tokens(model: nn.Module, x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        return F.cross_entropy(model(x).transpose(1, 2), y.masked_fill(mask == 0, -100))

    with torch.no_grad():
        for parameter in model[2].parameters():
            parameter.mul_(0.02)  # losses nearly alike, as those of a language model that has learnt nothing

    with pytest.raises(ValueError, match=f"for these samples the {reduction} of their losses"):
        gc.check(model, of_samples, (x, y, mask), "layer-wise")
    with pytest.raises(gc.PrivacyViolation, match=r"neither the mean nor the sum .* Hugging Face's language models"):
        gc.check(model, of_tokens, (x, y, mask), "layer-wise")


def test_an_attached_model_is_refused() -> None:
    model = net(nn.Tanh())
    engine = gc.attach(model, None, "all-layer", None)
    with pytest.raises(gc.GroupClipError, match="attached already"):
        gc.check(model, cross_entropy, images(), "all-layer")
    engine.detach()


def test_the_report_quotes_no_sample() -> None:
    x, y = images()
    x[:] = 271828.0 * torch.arange(1, 7).unsqueeze(1)
    report = str(gc.check(net(nn.Tanh()), cross_entropy, (x / 1e6, y), "layer-wise"))
    assert "271828" not in report
    assert "tensor" not in report


def test_what_mixes_three_samples_is_seen() -> None:
    class FromThree(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.head(x - x.mean(0) if len(x) > 2 else x)

    with pytest.raises(gc.PrivacyViolation, match="depends on"):
        gc.check(FromThree(), cross_entropy, images(), "layer-wise")


def test_autocast_is_judged_by_its_precision() -> None:
    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            out = model(x)
        return F.cross_entropy(out.float(), y, reduction="none")

    gc.check(
        nn.Sequential(nn.Linear(4, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 3)),
        losses,
        images(),
        "layer-wise",
    )
    with pytest.raises(gc.PrivacyViolation, match="Standardised"):
        gc.check(net(Standardised()), losses, images(), "layer-wise")


def test_inputs_that_the_model_cannot_take_are_noted() -> None:
    class Packed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inside, self.head = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 3)

        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            return self.head(self.inside(packed)[1][-1])

    x, y = images(6, 5, 4)
    report = gc.check(
        Packed(), lambda m, x, n, y: F.cross_entropy(m(x, n), y, reduction="none"),
        (x, torch.tensor([5, 3, 2, 4, 1, 5]), y), "layer-wise",
    )  # fmt: skip
    assert any("a sample zeroed out" in w for w in report.warnings)
    assert "a sample zeroed out" not in report.replayed


def test_a_sample_that_changes_others_when_it_is_large() -> None:
    def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y) * (1 + (x.norm(dim=1) > 1e3).any())

    with pytest.raises(
        gc.PrivacyViolation, match=r"a million times as large: the loss of another sample changes with it"
    ):
        gc.check(net(nn.Tanh()), losses, images(), "layer-wise")


@pytest.mark.parametrize("weight", [1e-7, 3e-5])
def test_a_little_mixing_is_seen(weight: float) -> None:
    gc.check(Made(lambda m, x: m.head(x + weight * x.mean(1, keepdim=True))), cross_entropy, images(), "layer-wise")
    with pytest.raises(gc.PrivacyViolation, match=r"mixes (the )?samples"):
        gc.check(Made(lambda m, x: m.head(x + weight * x.mean(0))), cross_entropy, images(), "layer-wise")


def test_a_little_mixing_of_words_is_seen() -> None:
    """In values alone: gradients of a large loss would show it."""

    def model(weight: float) -> nn.Module:
        torch.manual_seed(0)

        def forward(m: Any, ids: Tensor) -> Tensor:
            words = m.words(ids).mean(1)
            return m.head(words + weight * words.mean(0).detach())

        return Made(forward, words=nn.Embedding(9, 4))

    ids, y = torch.randint(1, 9, (6, 5), generator=torch.Generator().manual_seed(0)), images()[1]
    gc.check(model(0.0), cross_entropy, (ids, y), "layer-wise")
    with pytest.raises(gc.PrivacyViolation, match=r"mixes (the )?samples"):
        gc.check(model(3e-4), cross_entropy, (ids, y), "layer-wise")


def test_stochastic_depth_and_random_times_are_no_mixing() -> None:
    class Random(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            keep = (torch.rand(len(x), 1) < 0.5).to(x.dtype)
            time = torch.randint(1, 10, (len(x), 1)).to(x.dtype)
            return self.head(x + keep * self.body(x) / time)

    gc.check(Random(), cross_entropy, images(), "layer-wise")


def test_a_call_that_fails_anyway_is_no_violation() -> None:
    """Labels of a wrong dtype, say: the error is the user's own, and is there to be read."""
    x, y = torch.randn(4, 5), torch.arange(4) % 3
    with pytest.raises(ValueError, match="raises RuntimeError on the batch as it was given") as refusal:
        gc.check(
            nn.Linear(5, 3), lambda m, x, y: F.cross_entropy(m(x), y.float(), reduction="none"), (x, y), "layer-wise"
        )
    assert isinstance(refusal.value.__cause__, RuntimeError)


SEEN: list[int] = []  # samples in each call of ``counted``; no part of the function, whose own lists a check puts back


def counted(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    SEEN.append(len(x))
    return cross_entropy(model, x, y)


def test_a_pass_serves_several_comparisons() -> None:
    """Of which none is left out for that: each is refused where it fails, here and in the tests above."""

    def passes(forward: Callable[..., Tensor]) -> list[int]:
        SEEN.clear()
        gc.check(Made(forward).train(), counted, images(), "layer-wise")
        return list(SEEN)

    singles, beside, attached = [1, 1, 1], [2, 2], [6, 2, 2]
    assert passes(lambda m, x: m.head(F.dropout(x, 0.5))) == [2, 1, *singles, 6, *beside, *attached]
    several = passes(lambda m, x: m.head(x + torch.rand(len(x), 4)))  # which one pair doesn't tell from noise that is shared
    assert several == [2, 1, 2, *singles, 6, 2, *beside, *attached]
