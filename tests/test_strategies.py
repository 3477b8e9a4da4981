"""What the property tests draw is what they say it is."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oracle
from groupclip.partition.choose import partition
from models import Entry
from strategies import entries, groupings, splits


@settings(deadline=None, max_examples=30)
@given(entries(), st.data())
def test_drawn_models_run_and_keep_samples_apart(entry: Entry, data: st.DataObject) -> None:
    model, batch = entry.model(torch.float64), entry.batch(3, torch.float64)
    groups = partition(model, data.draw(groupings(model)))
    named = {group: groups[group] for group in groups}
    reference = oracle.clipped_sum(model, entry.losses, batch, named, "abadi", dict.fromkeys(named, 1e9))
    entry.losses(model, batch).sum().backward()
    for name, total in reference.sums.items():
        gradient = model.get_parameter(name).grad
        torch.testing.assert_close(total, gradient, rtol=1e-11, atol=1e-13)


@settings(deadline=None, max_examples=30)
@given(entries())
def test_no_drawn_gradient_is_rounding_errors(entry: Entry) -> None:
    model = entry.model()
    names = {name: [name] for name, p in model.named_parameters() if p.requires_grad}
    for norm in oracle.clipped_sum(model, entry.losses, entry.batch(2), names).norms.values():
        assert ((norm == 0) | (norm > 1e-9)).all(), norm


@given(st.integers(1, 9), st.data())
def test_splits_add_up(size: int, data: st.DataObject) -> None:
    parts = data.draw(splits(size))
    assert sum(parts) == size and min(parts) >= 1
