"""The suite judges the code, not the machine it is run on."""

import ast
import itertools
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.conftest import in_default_suite

HERE = Path(__file__).parent
CLOCKS = {"monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "process_time_ns", "thread_time",
          "thread_time_ns", "time_ns", "default_timer", "getrusage"}  # fmt: skip
# the page on mutants says how long its run took
MAY_READ_A_CLOCK = {"mutants/plant.py"}


def read(source: str) -> set[str]:
    """The clocks that a program names: of the module ``time`` and those that stand for them elsewhere."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Attribute(value=ast.Name(id="time" as of), attr="time" as name):
                found.add(f"{of}.{name}")
            case ast.Attribute(value=ast.Name(id="os" as of), attr="times" as name):
                found.add(f"{of}.{name}")
            case ast.Attribute(attr=name) | ast.Name(id=name) if name in CLOCKS:
                found.add(name)
            case ast.ImportFrom(module="time" | "timeit" | "resource", names=names):
                found |= {each.name for each in names} & (CLOCKS | {"time"})
    return found


def test_no_test_reads_a_clock():
    """A slow or a busy machine would fail it: count calls, points or terms instead, or measure in benchmarks/."""
    files = {path.relative_to(HERE).as_posix(): path.read_text(encoding="utf-8") for path in HERE.rglob("*.py")}
    assert len(files) > 100
    assert {name for name, source in files.items() if read(source)} == MAY_READ_A_CLOCK


@pytest.mark.parametrize(
    "line",
    [
        "import time\nassert time.monotonic() < 5",
        "import time\nassert time.time() < 5",
        "from time import perf_counter\nassert perf_counter() < 5",
        "import time as t\nassert t.process_time() < 5",
        "import timeit\nassert timeit.default_timer() < 5",
        "import resource\nassert resource.getrusage(0).ru_utime < 5",
        "import os\nassert os.times().user < 5",
    ],
)
def test_twin_a_clock_is_seen(line):
    assert read(line)
    assert not read("import time\ntime.sleep(1)")


def test_drawn_examples_may_take_their_time():
    """hypothesis fails an example that takes 200 ms, unless CI is set, and a test whose examples are slow to make."""
    assert settings().deadline is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_what_is_thinned_out_keeps_every_value():
    grid = itertools.product(range(10), range(4), range(3))
    kept = [each for each in grid if in_default_suite(list(each), 3)]
    assert len(kept) == 40
    assert [len(set(axis)) for axis in zip(*kept, strict=True)] == [10, 4, 3]


@pytest.mark.one_in(3, first=1)
@pytest.mark.parametrize(("letter", "again"), [("a", "A"), ("b", "B"), ("c", "C")])
@pytest.mark.parametrize("digit", range(3))
def test_what_is_thinned_out_is_slow(letter, again, digit, request):
    kept = "slow" not in {mark.name for mark in request.node.iter_markers()}
    assert kept == (("abc".index(letter) + digit) % 3 == 1)

