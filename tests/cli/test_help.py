"""``--help`` of every command: whole sentences that stand alone, for every option."""

import re
from collections.abc import Iterator

import click
import pytest

from groupclip.cli.app import app

VERBS = {
    "Allow", "Attack", "Audit", "Build", "Cap", "Check", "Choose", "Compare", "Compute", "Count", "Decode", "Draw", "Evaluate",
    "Find", "Give", "Go", "Hold", "Keep", "List", "Make", "Measure", "Move", "Name", "Pretrain", "Print", "Put",
    "Read", "Replay", "Run", "Set", "Show", "Take", "Tell", "Train", "Use", "Write",
}  # fmt: skip


def commands(group: click.Group, name: str = "groupclip") -> Iterator[tuple[str, click.Command]]:
    """Every command with its whole name. The paper's tables are titled by their captions, and share one set of options."""
    context = click.Context(group)
    for each in group.list_commands(context):
        command = group.get_command(context, each)
        assert command is not None
        yield f"{name} {each}", command
        if isinstance(command, click.Group):
            yield from commands(command, f"{name} {each}")


COMMANDS = dict(commands(app))
OPTIONS = [(name, option) for name, command in COMMANDS.items() for option in command.params]


def begins_with_a_verb(text: str | None) -> bool:
    return re.split(r"\W", text or "", maxsplit=1)[0] in VERBS


def test_commands_and_options_were_found() -> None:
    assert {"groupclip train", "groupclip reproduce sigma", "groupclip reproduce vision"} <= set(COMMANDS)
    assert len(OPTIONS) > 150


@pytest.mark.parametrize("name", [name for name, c in COMMANDS.items() if " ".join(name.split()[:2]) != "groupclip reproduce"])
def test_a_command_says_what_it_does_with_a_verb(name: str) -> None:
    command = COMMANDS[name]
    for text in (command.help, command.short_help or command.help):
        assert begins_with_a_verb(text), text
    assert (command.help or "").split("\n\n")[0].endswith(".")


@pytest.mark.parametrize("name", ["groupclip reproduce", "groupclip reproduce sigma", "groupclip reproduce tables"])
def test_so_do_the_commands_of_the_paper(name: str) -> None:
    assert begins_with_a_verb(COMMANDS[name].help)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_says_what_it_does_with_a_verb(name: str) -> None:
    """So it can be read alone: "Of sgd." needs the line above. What an argument is, the text of the command tells."""
    options = [param for param in COMMANDS[name].params if not isinstance(param, click.Argument)]
    told = {option.name: getattr(option, "help", None) for option in options}
    wrong = {option: text for option, text in told.items() if not begins_with_a_verb(text) or not str(text).endswith(".")}
    assert not wrong


@pytest.mark.parametrize("name", COMMANDS)
def test_every_argument_is_told_of_by_its_command(name: str) -> None:
    for argument in COMMANDS[name].params:
        if isinstance(argument, click.Argument):
            assert str(argument.metavar).rstrip(".") + " is " in (COMMANDS[name].help or "")


def test_twin_a_fragment_is_seen() -> None:
    assert not begins_with_a_verb("Of sgd.") and not begins_with_a_verb(None) and begins_with_a_verb("Set the momentum of sgd.")
