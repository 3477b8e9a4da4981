"""The library's messages in the command line's words: ``batch_size=7`` is ``--batch-size=7`` here.

The library writes a setting in a message as ``NAME=VALUE``, which is right in Python and close to a line of ``run.yaml``.
"""

from __future__ import annotations

import re

import click

from .options import MODEL_OPTIONS, TASK_OPTIONS

#: Calls that the library advises, and what a person at the command line does instead.
_CALLS = {
    "mechanism.calibrate(epsilon=, delta=)": "groupclip calibrate",
    "groupclip.default_delta(dataset_size)": "the default, min(1e-5, 1 / (2 * number of samples)),",
}
_ALIASES = {"expected_batch_size": "batch_size"}
_OF_TASK = {name for options in TASK_OPTIONS.values() for name in options}
# what stands before a setting's name, so that it isn't the end of a longer word, of a path or of a flag
_START = r"(?<![\w./=-])(?<!--task-option )(?<!--model-option )"


def in_flags(message: str, command: click.Command) -> str:
    """Return ``message`` with the settings that ``command`` has options for named as those; others stay as they are."""
    flags = {p.name: p.opts[0] for p in command.params if isinstance(p, click.Option) and p.name}
    switches = {p.name for p in command.params if isinstance(p, click.Option) and p.is_flag}
    flags |= {name: flags[option] for name, option in _ALIASES.items() if option in flags}

    for call, instead in _CALLS.items():
        message = message.replace(call, instead)

    def flag(match: re.Match[str]) -> str:
        name = match[1]
        if name in switches:
            return flags[name] if match[2] else match[0]
        if name in flags:
            return f"{flags[name]}={match[2] or ''}"
        for option, names in (("model_option", MODEL_OPTIONS), ("task_option", _OF_TASK)):
            if option in flags and name in names:
                return f"{flags[option]} {name}={match[2] or ''}"
        return match[0]

    for option in ("task_option", "model_option"):
        if option in flags:  # of the settings "task_options.NAME=", and "task option NAME=" in the words of tasks
            words = rf"{_START}(?:{option}s(?:\.| (?=has no option))|{option.replace('_', ' ')} (?=[a-z_]+=))"
            message = re.sub(words, f"{flags[option]} ", message)
    if "adaptive" in flags:
        message = re.sub(rf"{_START}adaptive(?:\.| (?=has no option))", "--adaptive ", message)
    words = re.split(r"(\w\([^()]*\))", message)  # every second one is a call in Python's words
    return "".join(
        part if i % 2 else re.sub(rf"{_START}(?<!--adaptive )([a-z_]+)=([Tt]rue\b)?", flag, part)
        for i, part in enumerate(words)
    )
