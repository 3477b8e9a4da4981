"""``import groupclip``: every public name, each loaded when it is asked for."""

import subprocess
import sys

import pytest

import groupclip


def in_a_new_process(program: str) -> str:
    return subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", groupclip.__all__)
def test_a_name_is_found_as_an_attribute_and_by_from(name: str) -> None:
    scope: dict[str, object] = {}
    exec(f"from groupclip import {name}", scope)
    assert scope[name] is getattr(groupclip, name)
    assert name in dir(groupclip)


def test_importing_it_does_not_load_torch() -> None:
    assert in_a_new_process("import sys, groupclip; print('torch' in sys.modules)") == "False\n"


def test_all_names_come_from_a_star() -> None:
    told = in_a_new_process("from groupclip import *; print(attach.__module__, callable(partition), clipping.__name__)")
    assert told == "groupclip.engine.attach True groupclip.clipping\n"


def test_partition_is_the_function_whatever_was_imported_first() -> None:
    program = "import groupclip.partition, groupclip as gc; print(gc.partition.__name__, gc.partition.__module__)"
    assert in_a_new_process(program) == "partition groupclip.partition.choose\n"


def test_modules_are_attributes_too() -> None:
    assert in_a_new_process("import groupclip as gc; print(gc.noise.InsecureNoise.__name__)") == "InsecureNoise\n"


def test_the_model_card_is_found_where_the_docs_name_it() -> None:
    program = "import groupclip as gc; print(gc.statement.model_card.__name__, gc.statement.PrivacyRecord.__name__)"
    assert in_a_new_process(program) == "model_card PrivacyRecord\n"


def test_what_is_not_there_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'groupclip' has no attribute 'atach'"):
        _ = groupclip.atach
    assert not hasattr(groupclip, "__wrapped__")


def test_an_import_that_fails_inside_a_module_is_not_hidden() -> None:
    program = """
import sys
sys.modules["numpy"] = None
import groupclip
try:
    groupclip.noise.keystream
except ImportError as error:
    print(error.name)
"""
    assert in_a_new_process(program) == "numpy\n"
