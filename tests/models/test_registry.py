"""Every model by name: shapes, samples kept apart, seeds, and what is refused."""

import re

import pytest
import torch

import groupclip as gc
from groupclip.models import MODELS, build_model

SMALL_IMAGES = ((1, 8, 8), (1, 28, 28), (3, 32, 32))
CHEAP = [name for name in MODELS if name not in ("vit-small", "vit-base", "vit-large")]
CASES = [(name, shape) for name in CHEAP if "image" in MODELS[name].kinds for shape in SMALL_IMAGES] + [
    (name, (9,)) for name in CHEAP if "text" in MODELS[name].kinds
]


def build(name, shape, **options):
    vocabulary = 50 if len(shape) == 1 else None
    return build_model(name, input_shape=shape, num_classes=5, vocabulary=vocabulary, seed=1, **options)


def inputs(shape, count=4):
    generator = torch.Generator().manual_seed(0)
    if len(shape) == 1:
        return torch.randint(0, 50, (count, *shape), generator=generator)
    return torch.randn(count, *shape, generator=generator)


def moved_from_zero(model):
    """Heads start at zero, where nothing could be told from the logits."""
    torch.manual_seed(0)
    *_, weight, _ = [next(model.parameters()), *model.parameters()]  # the last but one, or the only one
    torch.nn.init.normal_(weight, std=0.1)
    return model


@pytest.mark.parametrize(("name", "shape"), CASES)
def test_logits_have_the_right_shape_and_samples_do_not_meet(name, shape):
    model = moved_from_zero(build(name, shape))
    x = inputs(shape)
    logits = model(x)
    assert logits.shape == (4, 5) and logits.isfinite().all()
    other = x.clone()
    other[2] = x[3]  # replace one sample: the others' logits may not notice, in training mode as well
    changed = (model(other) - logits).abs().amax(1)
    assert changed[[0, 1, 3]].max() < 1e-5 and changed[2] > 1e-3


@pytest.mark.parametrize("name", CHEAP)
def test_no_layer_mixes_samples_and_every_parameter_trains(name):
    spec = MODELS[name]
    shape = (1, 8, 8) if "image" in spec.kinds else (9,)
    model = build(name, shape)
    assert not any(isinstance(module, torch.nn.modules.batchnorm._BatchNorm) for module in model.modules())
    moved_from_zero(model)(inputs(shape)).square().sum().backward()
    assert [key for key, parameter in model.named_parameters() if parameter.grad is None] == []


@pytest.mark.parametrize(("name", "shape"), [("vit-micro", (1, 8, 8)), ("cnn-small", (1, 8, 8)), ("mlp", (9,)),
                                             ("text-small", (9,)), ("linear", (1, 8, 8))])  # fmt: skip
def test_groupclip_clips_every_model(name, shape):
    model = moved_from_zero(build(name, shape))
    groups = gc.partition(model, "layer-wise")
    x, labels = inputs(shape), torch.tensor([0, 1, 2, 3])
    engine = gc.attach(model, None, groups, None, clip="abadi", thresholds=1.0)
    engine.backward(torch.nn.functional.cross_entropy(model(x), labels, reduction="none"))
    clipped = {key: parameter.grad.clone() for key, parameter in model.named_parameters()}
    engine.detach()

    expected = {key: torch.zeros_like(grad) for key, grad in clipped.items()}
    for row in range(4):
        model.zero_grad()
        torch.nn.functional.cross_entropy(model(x[row : row + 1]), labels[row : row + 1]).backward()
        for group in groups:
            grads = {key: dict(model.named_parameters())[key].grad for key in groups[group]}
            norm = sum(grad.square().sum() for grad in grads.values()).sqrt()
            for key, grad in grads.items():
                expected[key] += grad * min(1.0, len(groups) ** -0.5 / norm.item())
    for key in clipped:
        assert torch.allclose(clipped[key], expected[key], rtol=1e-4, atol=1e-6), key


@pytest.mark.parametrize(("name", "groups"), [("vit-micro", 2), ("vit-tiny", 4)])
def test_transformers_have_blocks_to_group(name, groups):
    assert len(gc.partition(build(name, (1, 8, 8)), f"uniform:{groups}")) == groups


def test_padding_changes_nothing():
    for name in ("mlp", "text-small"):
        model = moved_from_zero(build(name, (9,))).eval()
        if name == "text-small":
            torch.nn.init.normal_(model.pos_embed)
        text = torch.tensor([[7, 8, 9, 0, 0, 0, 0, 0, 0]])
        other = torch.tensor([[7, 8, 5, 0, 0, 0, 0, 0, 0]])
        with torch.no_grad():
            before = model(text)
            if name == "mlp":  # its mean is over the words alone
                model.embed.weight[0] = 0
                assert torch.allclose(model(text[:, :3]), before, atol=1e-6)
            else:  # padding is masked, whatever its vector is
                model.embed.weight[0] = 100.0
                assert torch.allclose(model(text), before, atol=1e-5)
            assert not torch.allclose(model(other), before, atol=1e-3)


def test_a_text_without_words_has_finite_logits():
    for name in ("mlp", "text-small"):
        assert build(name, (9,))(torch.zeros(2, 9, dtype=torch.long)).isfinite().all()


def test_a_seed_fixes_the_weights_and_leaves_the_global_generator_alone():
    torch.manual_seed(3)
    expected = torch.rand(3)
    torch.manual_seed(3)
    first = build("cnn-small", (1, 8, 8))
    assert torch.equal(torch.rand(3), expected)
    second = build("cnn-small", (1, 8, 8))
    third = build_model("cnn-small", input_shape=(1, 8, 8), num_classes=5, seed=2)
    weights = [next(model.parameters()) for model in (first, second, third)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_cnn_can_use_tanh():
    kinds = lambda model: {type(module).__name__ for module in model.modules()}  # noqa: E731
    assert "Tanh" in kinds(build("cnn-small", (1, 8, 8), activation="tanh"))
    assert "Tanh" not in kinds(build("cnn-small", (1, 8, 8)))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("vit-tinny", {}, "unknown model 'vit-tinny'; did you mean vit-tiny"),
        ("resnet", {}, "unknown model 'resnet'; Models: vit-micro, vit-tiny"),
        ("cnn-small", dict(input_shape=(9,), vocabulary=50), "'cnn-small' is for image input, not text; models for "
         "text: mlp, linear, text-small"),
        ("text-small", {}, "model 'text-small' is for text input, not image; models for image: vit-micro"),
        ("text-small", dict(input_shape=(9,)), "is for text input, not features; models for features: mlp, linear"),
        ("mlp", dict(vocabulary=5), "vocabulary=5 doesn't fit image input"),
        ("mlp", dict(patch_size=2), "patch_size=2 means nothing to model 'mlp'; its options: none"),
        ("vit-micro", dict(activation="tanh"), "means nothing to model 'vit-micro'; its options: patch_size, image"),
        ("cnn-small", dict(activation="gelu"), "activation='gelu' must be 'relu' or 'tanh'"),
        ("cnn-small", dict(input_shape=(1, 3, 3)), "images of 3x3 are too small for cnn-small; 4x4 is the least"),
        ("mlp", dict(num_classes=1), "num_classes=1 must be at least 2"),
        ("mlp", dict(input_shape=(8, 8)), "input_shape=(8, 8) must be (channels, height, width) or (tokens,)"),
        ("mlp", dict(input_shape=(1, 0, 8)), "input_shape=(1, 0, 8) must be"),
    ],
)  # fmt: skip
def test_what_is_refused(name, options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        build_model(name, **{"input_shape": (1, 8, 8), "num_classes": 5, **options})
