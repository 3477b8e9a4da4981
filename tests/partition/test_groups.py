"""A partition holds each trainable parameter once, is a value, and says what doesn't fit."""

import copy
import dataclasses
import json
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from groupclip.errors import CoverageError
from groupclip.partition.choose import partition
from groupclip.partition.groups import Partition, check_covers
from models import CATALOGUE, CORE, Entry
from networks import CNN, GPT, MLP


def trainable(model: nn.Module) -> list[str]:
    return [name for name, p in model.named_parameters() if p.requires_grad]


STYLES = ("all-layer", "layer-wise", "param-wise", "type-wise", "per-device")
CASES = [(entry, style) for entry in CATALOGUE for style in STYLES]
CASES += [(entry, style) for entry in CORE for style in ("uniform:2", "boundaries:1")]


@pytest.mark.parametrize(("entry", "style"), CASES, ids=[f"{entry.name} {style}" for entry, style in CASES])
def test_each_trainable_parameter_is_in_one_group(entry: Entry, style: str) -> None:
    model = entry.model()
    groups = partition(model, style)
    assert sorted(name for group in groups for name in groups[group]) == sorted(trainable(model))
    assert all(groups.group_of(name) == group for group in groups for name in groups[group])
    for group in groups:
        assert groups.sizes[group] == sum(model.get_parameter(name).numel() for name in groups[group]) > 0
    check_covers(groups, model)
    assert groups.style == style


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_any_function_gives_a_partition_in_registration_order(data: st.DataObject) -> None:
    model = MLP()
    names = trainable(model)
    group_of = {name: data.draw(st.sampled_from("abc")) for name in names}
    groups = partition(model, group_of.__getitem__)
    assert groups.names == tuple(dict.fromkeys(group_of[name] for name in names))
    assert {name: groups.group_of(name) for name in names} == group_of
    assert partition(model, group_of).groups == groups.groups, "exact names in a mapping say the same"
    assert Partition.from_json(groups.to_json()) == groups


def test_nothing_trains() -> None:
    with pytest.raises(ValueError, match="MLP has no trainable parameters"):
        partition(MLP().requires_grad_(False), "all-layer")
    with pytest.raises(ValueError, match="ReLU has no trainable parameters"):
        partition(nn.ReLU(), "all-layer")


def test_a_lazy_module_must_run_first() -> None:
    with pytest.raises(ValueError, match=r"0\.weight, 0\.bias: not shaped yet"):
        partition(nn.Sequential(nn.LazyLinear(3)), "all-layer")


@pytest.mark.parametrize("style", [4, None, ("all-layer",), ["0.weight"]])
def test_a_style_of_another_type(style: object) -> None:
    """A tuple must not count as a style of as many groups as it is long."""
    with pytest.raises(TypeError, match="style must be a string, a mapping or a function, not"):
        partition(MLP(), style)


@pytest.mark.parametrize("style", [lambda _: None, lambda _: [1], {"*": 3}], ids=["none", "list", "number"])
def test_group_names_are_strings(style: object) -> None:
    with pytest.raises(TypeError, match=r"of parameter '0\.weight' must be a string"):
        partition(MLP(), style)


def test_not_a_module() -> None:
    with pytest.raises(TypeError, match=r"model must be a torch\.nn\.Module, not dict"):
        partition({}, "all-layer")


# ------------------------------------------------------------------ the value


def test_it_is_a_frozen_value() -> None:
    groups, again = partition(MLP(), "layer-wise"), partition(MLP(), "layer-wise")
    assert groups == again and hash(groups) == hash(again) and len({groups, again}) == 1
    assert groups != partition(MLP(), "param-wise")
    assert groups != partition(MLP(), {"0.*": "0", "2.*": "2", "4.*": "4"}), "the style is part of it"
    assert groups != groups.with_methods({"0.weight": "gram"})
    assert pickle.loads(pickle.dumps(groups)) == groups == copy.deepcopy(groups)
    with pytest.raises(dataclasses.FrozenInstanceError):
        groups.style = "other"
    with pytest.raises(TypeError):
        groups.sizes["0"] = 1


def test_looking_up() -> None:
    groups = partition(MLP(), "layer-wise")
    assert list(groups) == ["0", "2", "4"] and len(groups) == 3 and "2" in groups and "1" not in groups
    with pytest.raises(KeyError, match=r"no group '1'; groups: 0, 2, 4"):
        groups["1"]
    with pytest.raises(KeyError, match=r"'1\.weight' is in no group"):
        groups.group_of("1.weight")


def test_table() -> None:
    assert str(partition(CNN(), "type-wise")) == "\n".join(
        [
            "group   parameters                          coordinates  threshold",
            "conv    9: body.0.weight, body.0.bias, ...          528     0.5774",
            "norm    6: body.1.weight, body.1.bias, ...           28     0.5774",
            "linear  2: head.weight, head.bias                    21     0.5774",
            "total   17                                          577",
            "style type-wise, M = 3; threshold R/sqrt(M) at R = 1, the default of attach",
        ]
    )
    short = "<Partition 'uniform:2': 2 groups, 5 parameters, 105 coordinates>"
    assert repr(partition(MLP(), "uniform:2")) == short


def test_methods_are_remembered() -> None:
    groups = partition(MLP(), "layer-wise")
    assert groups.methods == {}
    planned = groups.with_methods({"4.weight": "gram", "0.weight": "instantiated"})
    assert planned == groups.with_methods({"0.weight": "instantiated", "4.weight": "gram"}), "in any order"
    assert planned.groups == groups.groups and Partition.from_json(planned.to_json()) == planned
    with pytest.raises(ValueError, match=r"'1\.weight', which is in no group"):
        groups.with_methods({"1.weight": "gram"})
    with pytest.raises(ValueError, match=r"'ghost' of '0\.weight' is unknown; methods: auto, gram"):
        groups.with_methods({"0.weight": "ghost"})


CONTRADICTIONS = [
    ({"groups": ()}, "at least one group"),
    ({"groups": (("a", ()), ("b", ("x",)))}, "group 'a' is empty"),
    ({"groups": (("a", ("x",)), ("b", ("x",)))}, "parameter 'x' is in two groups, 'a' and 'b'"),
    ({"groups": (("a", ("x",)), ("a", ("y",)))}, "two groups have one name: a, a"),
    ({"groups": (("", ("x",)), ("b", ("y",)))}, "the group of x has an empty name"),
    ({"numbers": (1,)}, "1 sizes for 2 groups"),
    ({"norm_methods": (("x", "gram"), ("x", "auto"))}, "names a parameter twice"),
]


@pytest.mark.parametrize(("changed", "message"), CONTRADICTIONS, ids=[m for _, m in CONTRADICTIONS])
def test_contradictions_are_refused(changed: dict, message: str) -> None:
    facts = {"style": "mapping", "groups": (("a", ("x",)), ("b", ("y",))), "numbers": (1, 1)}
    Partition(**facts)
    with pytest.raises(ValueError, match=message):
        Partition(**(facts | changed))


def _edited(change: dict) -> str:
    return json.dumps(json.loads(partition(MLP(), "layer-wise").to_json()) | change)


GROUP = {"name": "a", "numbers": 1, "parameters": ["x"]}
SPOILT = [
    ("{", "isn't JSON"),
    ("[]", "'format' must be 'groupclip-partition-1'"),
    (_edited({"format": "groupclip-partition-2"}), "'format' must be"),
    (_edited({"extra": 1}), "unexpected keys"),
    (_edited({"style": 1}), "'style' must be a string"),
    (_edited({"groups": {}}), "'groups' must be a list"),
    (_edited({"groups": [{**GROUP, "numbers": 1.5}]}), "a group has"),
    (_edited({"groups": [{**GROUP, "numbers": True}]}), "a group has"),
    (_edited({"groups": [{**GROUP, "numbers": -1}]}), "a group has"),
    (_edited({"groups": [{**GROUP, "parameters": "x"}]}), "a group has"),
    (_edited({"groups": [{**GROUP, "name": None}]}), "a group has"),
    (_edited({"groups": [{"name": "a"}]}), "a group has"),
    (_edited({"groups": [GROUP, GROUP]}), "in two groups"),
    (_edited({"groups": []}), "at least one group"),
    (_edited({"methods": []}), "'methods' must map"),
    (_edited({"methods": {"0.weight": 1}}), "'methods' must map"),
    (_edited({"methods": {"0.weight": "ghost"}}), "'ghost' of '0.weight' is unknown"),
]


@pytest.mark.parametrize(("text", "message"), SPOILT, ids=[str(i) for i in range(len(SPOILT))])
def test_json_is_validated(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Partition.from_json(text)


# ------------------------------------------------------------------ against a model


def test_covers_names_what_is_missing_on_either_side() -> None:
    model = MLP()
    groups = partition(model, "layer-wise")
    model.append(nn.Linear(3, 1))
    del model[2]
    model = nn.Sequential(*model, nn.Linear(1, 1))
    with pytest.raises(CoverageError) as caught:
        check_covers(groups, model)
    message = str(caught.value)
    assert "doesn't fit Sequential" in message and "partition(model, style)" in message
    missing = [name for name in trainable(model) if name not in trainable(MLP())]
    assert missing
    assert all(f"trainable parameter {name!r} is in no group" in message for name in missing)
    gone = [name for name in trainable(MLP()) if name not in trainable(model)]
    assert gone
    assert all(f"the model has no parameter {name!r}" in message for name in gone)


def test_unfreezing_uncovers_and_freezing_does_not() -> None:
    model = MLP()
    model[0].requires_grad_(False)
    groups = partition(model, "all-layer")
    model[4].requires_grad_(False)
    check_covers(groups, model)
    model[0].bias.requires_grad_(True)
    with pytest.raises(CoverageError, match=r"trainable parameter '0\.bias' is in no group"):
        check_covers(groups, model)


def test_tying_after_the_partition_is_seen() -> None:
    """Else one parameter would be clipped in two groups."""
    groups = partition(GPT(), "layer-wise")
    with pytest.raises(CoverageError, match=r"'lm_head\.weight' is tied to 'wte\.weight': one parameter"):
        check_covers(groups, GPT(tied=True))
    check_covers(partition(GPT(tied=True), "layer-wise"), GPT(tied=True))
