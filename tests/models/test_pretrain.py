"""Public pretraining on drawn letters."""

import json
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F

from groupclip.models import build_model, pretrain_on_letters
from groupclip.tasks.letters import FONTS, LETTERS, distort, draw_letters, fit


def micro(name="vit-micro", shape=(1, 8, 8)):
    return build_model(name, input_shape=shape, num_classes=10, seed=0)


def test_every_letter_of_every_font_is_drawn_and_no_digit_is():
    glyphs, classes = draw_letters()
    assert glyphs.shape == (52 * len(FONTS), 1, 32, 32) and classes.bincount().tolist() == [len(FONTS)] * 52
    assert not any(letter.isdigit() for letter in LETTERS)
    assert (glyphs.amin(), glyphs.amax()) == (0, 1)
    # each reaches both ends of its longer side, so nothing was cut off or left empty
    rows, columns = (glyphs > 0).any(3)[:, 0], (glyphs > 0).any(2)[:, 0]  # [N, 32] each
    assert ((rows[:, 0] & rows[:, -1]) | (columns[:, 0] & columns[:, -1])).all()


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 28, 28), (1, 64, 64)])
def test_distorted_letters_fit_the_model(shape):
    glyphs, _ = draw_letters()
    images = fit(distort(glyphs[:50], torch.Generator().manual_seed(0)), shape)
    assert images.shape == (50, *shape) and images.abs().amax() <= 1
    again = fit(distort(glyphs[:50], torch.Generator().manual_seed(0)), shape)
    other = fit(distort(glyphs[:50], torch.Generator().manual_seed(1)), shape)
    assert torch.equal(images, again) and not torch.equal(images, other)


def test_the_body_learns_letters_and_the_head_is_left_alone():
    model = micro()
    head = [parameter.clone() for parameter in model.head.parameters()]
    seen = []
    facts = pretrain_on_letters(model, (1, 8, 8), steps=25, on_step=seen.append)
    assert seen == list(range(1, 26))
    assert all(torch.equal(old, new) for old, new in zip(head, model.head.parameters(), strict=True))
    assert model.head.out_features == 10 and all(parameter.grad is None for parameter in model.parameters())
    assert facts["private_records"] == 0 and "25 steps" in facts["what"] and json.dumps(facts)

    # what the features are worth: a nearest-mean rule on letters they weren't fitted to, against an untrained body
    glyphs, classes = draw_letters()

    def score(body):
        body.head = torch.nn.Identity()
        with torch.no_grad():
            parts = [body(fit(distort(glyphs, torch.Generator().manual_seed(n)), (1, 8, 8))) for n in (7, 8)]
        means = torch.zeros(52, parts[0].shape[1]).index_add_(0, classes, parts[0])
        match = F.normalize(parts[1] - parts[0].mean(0)) @ F.normalize(means / len(FONTS) - parts[0].mean(0)).T
        return (match.argmax(1) == classes).float().mean().item()

    assert score(model) > score(micro()) + 0.1


def test_the_seed_fixes_everything():
    first, second, third = micro("cnn-small"), micro("cnn-small"), micro("cnn-small")
    for model, seed in ((first, 0), (second, 0), (third, 1)):
        pretrain_on_letters(model, (1, 8, 8), steps=2, seed=seed)
    weights = [next(model.parameters()) for model in (first, second, third)]
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


def test_an_exception_on_the_way_leaves_the_head_in_place():
    model = micro()
    head = model.head

    def stop(step):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pretrain_on_letters(model, (1, 8, 8), steps=5, on_step=stop)
    assert model.head is head


def test_what_is_refused():
    with pytest.raises(ValueError, match="ImageMLP can't be pretrained on letters; only the ViTs and cnn-small can"):
        pretrain_on_letters(micro("mlp"), (1, 8, 8))
    with pytest.raises(ValueError, match="steps=0 must be at least 1"):
        pretrain_on_letters(micro(), (1, 8, 8), steps=0)


def test_importing_tasks_and_models_stays_light():
    code = (
        "import sys, groupclip.tasks, groupclip.models; "
        "print([name for name in ('sklearn', 'matplotlib', 'PIL', 'scipy', 'pandas') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
