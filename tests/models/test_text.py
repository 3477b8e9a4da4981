"""Models of texts: a word is a word wherever it stands, and padding is nothing, whatever noise made of its row."""

import pytest
import torch

from groupclip.models import build_model

IDS = torch.tensor([[3, 5, 5, 0, 0, 0], [7, 0, 0, 0, 0, 0], [0, 0, 0, 0, 0, 0]])


def model_of(name):
    torch.manual_seed(0)
    model = build_model(name, input_shape=(6,), num_classes=3, vocabulary=20).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("name", ["linear", "mlp", "text-small"])
def test_noise_on_the_row_of_padding_changes_no_text(name):
    """A private step moves every row of a table. The row of padding must not be added to short texts, least of all many times."""
    model = model_of(name)
    before = model(IDS)
    with torch.no_grad():
        model.embed.weight[0] = 100.0
    assert torch.equal(model(IDS), before)


def test_the_linear_model_adds_weights_of_words_and_divides_by_the_root_of_their_number():
    model = model_of("linear")
    weight = model.embed.weight
    expected = torch.stack([(weight[3] + 2 * weight[5]) / 3**0.5, weight[7], torch.zeros(3)])
    torch.testing.assert_close(model(IDS), expected)
    assert [name for name, _ in model.named_parameters()] == ["embed.weight"]


def test_the_linear_model_starts_at_zero():
    model = build_model("linear", input_shape=(6,), num_classes=3, vocabulary=20)
    assert torch.equal(model(IDS), torch.zeros(3, 3))
