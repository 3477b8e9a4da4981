"""An entry of the OpenDP Deployments Registry from a privacy record: without the model, the data, or torch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from groupclip.privacy.figures import figure
from groupclip.statement.drawn import DrawnBudget
from groupclip.statement.terms import CLIPPED, NEIGHBOURS
from groupclip.statement.told import Told
from groupclip.statement.verified import differences, plan_of

TO_FILL_IN = "TO FILL IN: "


def registry_entry(record: Mapping[str, Any], *, slug: str, published: date) -> dict[str, Any]:
    """Return the entry as the registry's schema has it (of 2026, tier 3); what only the curator knows begins with ``TO_FILL_IN``.

    Args:
        record: a privacy record, as JSON.
        slug: of the entry's address.
        published: the day on which the model was published.

    Raises:
        ValueError: it is no record, claims no epsilon, or claims other than its facts give.
    """
    found = differences(record)
    if found:
        raise ValueError(f"the record claims other than its facts give: {'; '.join(found)}")
    if record["epsilon"] is None:
        raise ValueError(f"the record claims no epsilon, so there is nothing to register: {'; '.join(record['obstacles'])}")
    plan, told = plan_of(record), Told.from_dict(record["told"])
    several = ", ".join(f"{figure(value)} for {k}" for k, value in record["epsilon_by_samples_of_a_person"].items())
    unsafe = ", ".join(record["unsafe_statistics"])
    vouched = " Whoever trained the model vouches for the sampling." if record["sampling_vouched_by_user"] else ""
    budget = None if record.get("budget") is None else DrawnBudget.from_dict(record["budget"])
    count = len(record["groups"])
    groups = f"{count} {'group' if count == 1 else 'groups'}"
    software = ", ".join(f"{name} {version}" for name, version in record["software"].items())
    return {
        "url_slug": slug,
        "status": "Draft",
        "tier": 3,
        "deployment": {
            "basic": {
                "name": _blank("the name of the model"),
                "data_curators": [_blank("who publishes the model")],
                "intended_use": _blank("what the model is for, and what it isn't for"),
                "data_product_type": "Machine learning model",
                "data_product_region": _blank("where the people live whose data these are, or whose law applies"),
                "description": _blank("what the model does, and on what data it was trained"),
                "publication_date": published.isoformat(),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": f"Data sets of {plan.dataset_size:,} {plan.unit}s. " + _blank("what one of them holds"),
                "unprotected_quantities": (
                    f"The number of {plan.unit}s and all settings of the training are public."
                    + (f" Statistics that were looked at without noise: {unsafe}." if unsafe else "")
                    + " Figures that were measured on training data without noise aren't protected."
                ),
            },
            "privacy_loss": {
                "privacy_unit": f"{plan.unit}-level",
                "privacy_unit_details": (
                    f"{record['unit_of_privacy']}. Adjacent data sets differ by "
                    f"{NEIGHBOURS[plan.adjacency].format(unit=plan.unit)}."
                ),
                "privacy_parameters": {"epsilon": record["epsilon"], "delta": record["delta"]},
                "privacy_parameters_details": (
                    f"An upper bound by the {record['accountant']} accountant of {record['accounting_library']}."
                    + (f" For a person with several {plan.unit}s, at the same delta: {several}." if several else "")
                ),
            },
            "deployment_model": {
                "model_name": "Central",
                "actors": told.trust or _blank("who holds the data and trains, who may see what, and why they are trusted"),
                "release_type": "One release",
                "release_type_details": f"Covered: {record['released']}.",
                "data_source_type": "Static",
                "access_type": "Non-interactive",
            },
            "accounting": {
                "post_processing": "Whatever is computed from the weights alone is covered by the same figure.",
                "composition": (
                    f"{record['steps_taken']:,} steps of one plan. Other releases on these data aren't in the figure. "
                    + (f"{budget.told()}. " if budget else "")
                    + (told.others or _blank("which there are, or that there are none"))
                ),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": _before(told, record, budget),
                "mechanisms": (
                    f"{record['mechanism']}, noise multiplier {plan.noise_multiplier:.6g}, sample rate {plan.sample_rate:.6g}. "
                    f"Each {plan.unit}'s {CLIPPED[plan.unit]} is clipped ({record['clip']}) in {groups} "
                    f"({record['partition_style']}).{vouched} Noise: {record['noise_source']}. Hardened against attacks on "
                    f"floating point: {'the noise is' if record['hardened_against_floating_point_attacks'] else 'no'}. "
                    f"Timing isn't hidden. Software: {software}. Plan (SHA-256): {record['plan_hash']}."
                ),
                "justification": _blank("why this epsilon, this unit and these data"),
            },
            "administrative": {
                "sources": _blank("where the model, its card and privacy.json are published"),
                "registry_authors": [_blank("who writes this entry")],
            },
        },
    }


def blanks(entry: Mapping[str, Any], path: str = "") -> list[str]:
    """Return where an entry has to be filled in, by dotted names."""
    found = []
    for key, value in entry.items():
        where = f"{path}{key}"
        if isinstance(value, Mapping):
            found += blanks(value, f"{where}.")
        elif TO_FILL_IN in (value[0] if isinstance(value, list) else str(value)):
            found.append(where)
    return found


def _before(told: Told, record: Mapping[str, Any], budget: DrawnBudget | None) -> str:
    read = {
        "vocabulary": told.vocabulary,
        "constants": told.constants,
        "filters": told.filtering,
        "early stopping": told.early_stopping,
    }
    but = "" if budget is None else budget.contradicts(told.search)
    search = {
        "none": f"Whoever trained says that no settings were searched for on these data.{but and ' '}{but}",
        "not counted": "Settings were searched for on these data, which the figure doesn't count.",
        "counted": f"The whole search for settings spends epsilon {told.search_epsilon} at delta {record['delta']:g}.",
    }
    missing = [name for name, words in read.items() if not words] + ["earlier runs and their epsilon"] * (not told.search)
    return " ".join((
        "The figure doesn't count preprocessing on these data.",
        *(f"{name[0].upper()}{name[1:]}: {words}" for name, words in read.items() if words),
        *([search[told.search]] if told.search else []),
        *([_blank(f"what was read before training: {', '.join(missing)}")] if missing else []),
    ))  # fmt: skip


def _blank(what: str) -> str:
    return f"{TO_FILL_IN}{what}"
