"""What a record as JSON must look like before anything is computed of it: its fields, their types, and numbers that can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from groupclip.arguments import number, positive, whole
from groupclip.privacy.ledger import SAMPLERS
from groupclip.statement.terms import SCHEMA
from groupclip.statement.told import Told

Check = Callable[[str, object], object]


def check_shape(record: Mapping[str, Any]) -> None:
    """Raise ValueError, naming the field, unless the record has every field, of its type, with numbers that a run can have."""
    if record.get("schema") != SCHEMA:
        raise ValueError(f"not a privacy record of this version: its schema is {record.get('schema')!r}, and not {SCHEMA!r}")
    for name, check in _FIELDS.items():
        if name in record:
            _checked(name, check, record[name])
        elif name not in _LATER:
            raise ValueError(f"the record can't be read: the record has no {name!r}; it was cut, or isn't one")


def _checked(name: str, check: Check, value: object) -> None:
    try:
        check(name, value)
    except (TypeError, ValueError, OverflowError) as error:
        told = str(error)
        raise ValueError(f"the record can't be read: {told if name in told else f'{name}: {told}'}") from error


def _text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name}={value!r} must be text")


def _flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name}={value!r} must be true or false")


def _count(name: str, value: object) -> None:
    whole(name, value, least=0)


def _some(name: str, value: object) -> None:
    whole(name, value, least=1)


def _least_zero(name: str, value: object) -> None:
    if number(name, value) < 0:
        raise ValueError(f"{name}={value!r} must be >= 0")


def _delta(name: str, value: object) -> None:
    if not 0 < number(name, value) < 1:
        raise ValueError(f"{name}={value!r} must be in (0, 1)")


def _or_none(check: Check) -> Check:
    return lambda name, value: None if value is None else check(name, value)


def _list_of(check: Check) -> Check:
    def checked(name: str, value: object) -> None:
        if not isinstance(value, list):
            raise TypeError(f"{name} must be a list, not {type(value).__name__}")
        for place, each in enumerate(value):
            check(f"{name}[{place}]", each)

    return checked


def _map_of(check: Check) -> Check:
    def checked(name: str, value: object) -> None:
        for key, each in _mapping(name, value).items():
            check(f"{name}.{key}", each)

    return checked


def _fields(**checks: Check) -> Check:
    """Check a mapping with these keys and no other."""

    def checked(name: str, value: object) -> None:
        found = _mapping(name, value)
        if set(found) != set(checks):
            raise ValueError(f"{name} must have {', '.join(checks)}, and has {', '.join(map(str, found)) or 'nothing'}")
        for key, check in checks.items():
            check(f"{name}.{key}", found[key])

    return checked


def _mapping(name: str, value: object) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a mapping, not {type(value).__name__}")
    return value


def _named_once(check: Check) -> Check:
    """Check a list of mappings with names, none of which is there twice: a reader would see one, and a program the other."""

    def checked(name: str, value: object) -> None:
        _list_of(check)(name, value)
        assert isinstance(value, list)
        names = [each["name"] for each in value]
        twice = sorted({each for each in names if names.count(each) > 1})
        if twice:
            raise ValueError(f"{name}: {', '.join(map(repr, twice))} is there more than once")

    return checked


def _groups(name: str, value: object) -> None:
    _named_once(_fields(name=_text, threshold=positive, noise_std=_least_zero))(name, value)
    if not value:
        raise ValueError(f"{name} is empty: every run has a group")


def _told(name: str, value: object) -> None:
    Told.from_dict(_mapping(name, value))


def _budget(name: str, value: object) -> None:
    _fields(epsilon=_least_zero, delta=_delta, entries=_some)(name, value)


def _earlier(name: str, value: object) -> None:
    found = dict(_mapping(name, value))
    if "rounds" in found:
        _count(f"{name}.rounds", found.pop("rounds"))
    _fields(mechanism=_mapping, steps=_count, obstacle=_text, changed=_flag, epsilon=_or_none(_least_zero))(name, found)


_LATER = {"bands", "rounds", "budget"}  # fields that the first records of this schema haven't
_FIELDS: dict[str, Check] = {
    "private": _flag,
    "obstacles": _list_of(_text),
    "unit_of_privacy": _text,
    "adjacency": _text,
    "epsilon": _or_none(_least_zero),
    "delta": _delta,
    "epsilon_by_samples_of_a_person": _map_of(_least_zero),
    "mechanism": _text,
    "dataset_size": _some,
    "expected_batch_size": positive,
    "sample_rate": positive,
    "steps_taken": _count,
    "steps_planned": _some,
    "noise_multiplier": _least_zero,
    "clip": _text,
    "views": _some,
    "partition_style": _text,
    "groups": _groups,
    "losses_assumed": _text,
    "sampling_assumed": _text,
    "bands": _some,
    "rounds": _count,
    "max_batch_size": _or_none(_some),
    "other_releases": _named_once(_fields(name=_text, noise_multiplier=positive)),
    "sampling_used": _fields(**dict.fromkeys(SAMPLERS, _count)),
    "sampling_vouched_by_user": _flag,
    "accountant": _or_none(_text),
    "epsilon_rdp": _or_none(_least_zero),
    "epsilon_pld": _or_none(_least_zero),
    "epsilon_exact": _or_none(_least_zero),
    "accountant_note": _text,
    "accounting_library": _text,
    "released": _text,
    "weights": _text,
    "normalised_by": positive,
    "tuning_accounted": _flag,
    "told": _told,
    "budget": _or_none(_budget),
    "delta_curve": _list_of(_fields(epsilon=_least_zero, delta=_least_zero)),
    "gdp_mu_estimate": _or_none(_least_zero),
    "earlier_trainings": _list_of(_earlier),
    "secure_noise": _flag,
    "noise_source": _text,
    "unsafe_statistics": _list_of(_text),
    "hardened_against_floating_point_attacks": _flag,
    "software": _map_of(_text),
    "plan_hash": _text,
}
