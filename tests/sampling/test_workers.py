"""Worker processes that read the data: nothing of what is drawn is theirs to decide, and they end with the iterator."""

import contextlib
import gc
import itertools
import multiprocessing
import os
import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import groupclip
from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling import batches as sampling
from groupclip.sampling import workers
from groupclip.sampling.batches import logical_batches, poisson_batches
from groupclip.sampling.claims import Owner
from groupclip.sampling.readers import Fetch

KEY = bytes(range(32))
PLAN = Mechanism(dataset_size=200, expected_batch_size=20, steps=5)
TENSORS = (torch.randn(200, 3, generator=torch.Generator().manual_seed(0)), torch.arange(200))


class Items:
    """Samples of every kind of leaf, made one at a time. ``broken``: the one that can't be read."""

    def __init__(self, broken=None, error=ValueError):
        self.broken, self.error = broken, error

    def __len__(self):
        return 200

    def __getitem__(self, index):
        if index == self.broken:
            raise self.error(f"x-{index} is torn")
        return {"x": torch.full((2, 3), float(index)).sqrt(), "y": index, "z": index / 7, "name": f"sample {index}"}


class Peculiar(Exception):
    """Can't be pickled: made of two arguments, told of one."""

    def __init__(self, text, code=None, *, needed=None):
        super().__init__(text)
        self.open_file = sys.stdout


def joined(samples):
    return [sample["y"] for sample in samples]


def same(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[name], other[name]) for name in one)
    if isinstance(one, (list, tuple)):
        return type(one) is type(other) and all(itertools.starmap(same, zip(one, other, strict=True)))
    return one == other


def contents(batches):
    return [list(batch) for batch in batches]


def ended():
    """Whether the workers are gone; ending takes a moment."""
    gc.collect()
    for worker in multiprocessing.active_children():
        worker.join(600)
    return not multiprocessing.active_children()


USERS = [user for user in range(60) for _ in range(1 + user % 4)]
BY_USER = Mechanism(dataset_size=60, expected_batch_size=10, steps=3, unit="user")
TRUNCATED = Mechanism(
    dataset_size=200,
    expected_batch_size=20,
    steps=3,
    sampling="truncated-poisson",
    adjacency="zero-out",
    max_batch_size=30,
)


@pytest.mark.parametrize(
    ("number", "make"),
    [
        (2, lambda n: poisson_batches(Items(), PLAN, 7, key=KEY, start=1, num_workers=n)),
        (1, lambda n: logical_batches(TensorDataset(torch.arange(150)), BY_USER, 8, users=USERS, samples_per_user=2, key=KEY,
                                      num_workers=n, prefetch=1)),
        (1, lambda n: logical_batches(Items(), TRUNCATED, 16, padded=True, collate=joined, key=KEY, num_workers=n)),
    ],
    ids=["items", "users", "padded"],
)  # fmt: skip
def test_workers_change_nothing(number, make):
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    alone, together = contents(make(0)), contents(make(number))
    assert same(alone, together)
    assert any(len(step) > 1 for step in alone)
    assert ended()
    assert torch.equal(states[0], torch.get_rng_state()) and states[1] == random.getstate()
    assert np.array_equal(states[2], np.random.get_state()[1])


def holds(pid, secret):
    """Whether the writable memory of a process holds some bytes."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        for line in maps:
            span, rights = line.split()[:2]
            if rights.startswith("rw"):
                start, end = (int(part, 16) for part in span.split("-"))
                memory.seek(start)
                with contextlib.suppress(OSError):
                    if secret in memory.read(end - start):
                        return True
    return False


class Marked(Items):
    def __init__(self, mark):
        super().__init__()
        self.mark = mark


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="the memory of another process is read from /proc")
def test_no_key_reaches_a_worker(monkeypatch):
    """Its memory is searched. The twin: what the data set holds is found there."""
    key, mark = os.urandom(32), os.urandom(32)
    monkeypatch.setattr(sampling, "new_key", lambda: key)
    run = iter(poisson_batches(Marked(mark), PLAN, 7, num_workers=1))
    list(next(run))
    (worker,) = multiprocessing.active_children()
    assert holds(os.getpid(), key)
    assert holds(worker.pid, mark)
    assert not holds(worker.pid, key)
    del run
    assert ended()


def test_steps_on_batches_that_workers_read_are_groupclips():
    torch.manual_seed(0)
    plan = Mechanism(dataset_size=200, expected_batch_size=20, steps=5, noise_multiplier=1.0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    engine = groupclip.attach(model, optimizer, "all-layer", plan)
    for batch in poisson_batches(TensorDataset(*TENSORS), plan, 7, num_workers=1):
        for x, y in batch:
            engine.backward(torch.nn.functional.cross_entropy(model(x), y % 2, reduction="none"))
        optimizer.step()
        optimizer.zero_grad()
    assert engine.ledger.steps_by_sampler == {"groupclip": 5, "user": 0}
    engine.detach()
    assert ended()


def test_batches_read_in_part_late_or_in_another_order(monkeypatch):
    """What is skipped is kept by nobody, and a part of a batch is no batch."""
    monkeypatch.setattr(sampling, "new_key", lambda: KEY)
    expected = contents(poisson_batches(list(range(200)), PLAN, 5, key=KEY))
    assert min(map(len, expected)) > 1  # of this key
    engine = Owner(PLAN)
    run = iter(poisson_batches(list(range(200)), PLAN, 5, num_workers=1))
    first = next(run)
    assert same(list(itertools.islice(first, 1)), expected[0][:1])
    assert not engine.fits(sum(map(len, expected[0])))
    assert same(list(first.again(3)), [piece for part in expected[0] for piece in part.split(3)])
    second, third = next(run), next(run)
    assert same(list(third), expected[2])
    assert same(list(second), expected[1])
    *_, last = run  # the iterator has ended, and the workers with it
    assert ended()
    assert same(list(last), expected[4])


def test_an_item_that_can_not_be_read_is_named_and_ends_the_workers():
    everything = Mechanism(dataset_size=200, expected_batch_size=200, steps=1)
    caught = []
    for number in (0, 1):
        with pytest.raises(ValueError, match="x-150 is torn") as one:
            contents(poisson_batches(Items(150), everything, 40, num_workers=number))
        caught.append(one.value)
    alone, apart = caught
    assert type(apart) is type(alone) and str(apart) == str(alone)
    assert alone.__notes__ == apart.__notes__ == ["groupclip was reading item 150 of the data set"]
    assert "in __getitem__" in str(apart.__cause__)  # where it happened, in the worker
    assert ended()


def failed(dataset, collate=None):
    """What a worker sends back of an error."""
    return workers._Read(Fetch(dataset, collate))[workers._Order(0, 0, [7])].samples


def test_an_error_that_can_not_be_sent_says_the_same():
    told = failed(Items(7, Peculiar))
    assert type(told.error) is RuntimeError and str(told.error) == "Peculiar: x-7 is torn"
    assert told.error.__notes__ == ["groupclip was reading item 7 of the data set"]
    assert "in __getitem__" in told.text


def test_workers_end_when_the_loop_is_left():
    with contextlib.closing(iter(poisson_batches(list(range(200)), PLAN, 5, num_workers=1))) as run:
        next(iter(next(run)))
        assert len(multiprocessing.active_children()) == 1
    assert ended()
    with pytest.raises(KeyError):
        for batch in poisson_batches(list(range(200)), PLAN, 5, num_workers=1):
            next(iter(batch))
            raise KeyError
    del batch
    assert ended()


class Deadly(Items):
    def __getitem__(self, index):
        os._exit(3)


def test_a_worker_that_dies_is_no_silence():
    with pytest.raises(RuntimeError, match=r"ended by itself: .*(?s:.)*below `if __name__ == '__main__':`"):
        contents(poisson_batches(Deadly(), PLAN, 5, num_workers=1))
    assert ended()


class Graph(Items):
    def __getitem__(self, index):
        return torch.ones(2, requires_grad=True) * index


class Locked(Items):
    def __getitem__(self, index):
        return [lambda: None]


def test_what_can_not_be_sent_is_refused():
    """Torch would print it in a thread of its own, and wait for the sample for ever."""
    with pytest.raises(
        TypeError, match=r"can't be sent to worker processes: .* Define both at the top level of a module"
    ):
        contents(poisson_batches(list(range(200)), PLAN, 5, collate=lambda samples: samples, num_workers=1))
    assert "a tensor with a graph, which can't leave its process: detach()" in str(failed(Graph(), list).error)
    assert "pickle" in str(failed(Locked(), list).error)
    assert not isinstance(failed(Items()), workers._Failed)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"num_workers": -1}, ValueError, "num_workers=-1 must be >= 0"),
        ({"num_workers": 1.0}, TypeError, r"num_workers=1\.0 must be a whole number"),
        ({"num_workers": True}, TypeError, "num_workers=True must be a whole number"),
        ({"prefetch": 0}, ValueError, "prefetch=0 must be >= 1"),
        ({"num_workers": 10**6}, ValueError, "num_workers=1000000 must be <= 1024"),
        ({"prefetch": 10**9}, ValueError, "prefetch=1000000000 must be <= 1024"),
    ],
)
def test_wrong_numbers(arguments, error, message):
    with pytest.raises(error, match=message):
        poisson_batches(list(range(200)), PLAN, **arguments)


INTERRUPTED = """
import multiprocessing, os, signal, sys, threading
from groupclip.privacy.mechanism import Mechanism
from groupclip.sampling.batches import poisson_batches

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # it may be ignored where this began: in the background of a shell
    plan = Mechanism(dataset_size=200, expected_batch_size=20, steps=500)
    run = iter(poisson_batches(list(range(200)), plan, 5, num_workers=1))
    list(next(run))
    (worker,) = multiprocessing.active_children()
    print(worker.pid, flush=True)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.killpg(0, signal.SIGINT)  # as a terminal does: to all of its processes
    for _ in range(20):
        list(next(run))  # the worker goes on, for the main process may be finishing its step
    signal.signal(signal.SIGINT, before)
    threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
    for batch in run:
        list(batch)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
def test_ctrl_c_is_the_main_processs_to_answer(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED.replace("steps=500", "steps=100000"))
    source = str(Path(groupclip.__file__).parent.parent)
    process = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert process.returncode in (-signal.SIGINT, 130), process.stderr
    assert process.stderr.count("Traceback") == 1 and "KeyboardInterrupt" in process.stderr
    with pytest.raises(ProcessLookupError):
        os.kill(int(process.stdout), 0)


@pytest.mark.parametrize(("error", "said"), [(EOFError(), ""), (ConnectionResetError(), ""), (ValueError("odd"), "odd")])
def test_a_main_process_that_leaves_while_it_fetches_is_no_error_of_the_worker(error, said, capsys):
    workers._main_process_left(type(error), error, None)
    assert said in (printed := capsys.readouterr().err) and bool(said) == bool(printed)


@pytest.mark.slow
def test_a_script_without_its_guard_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        textwrap.dedent(INTERRUPTED.split("if __name__")[0])
        + textwrap.dedent("""
        plan = Mechanism(dataset_size=200, expected_batch_size=20, steps=5)
        for batch in poisson_batches(list(range(200)), plan, 5, num_workers=1):
            list(batch)
    """)
    )
    source = str(Path(groupclip.__file__).parent.parent)
    process = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": source},
    )
    assert process.returncode == 1
    assert "what it does must stand below `if __name__ == '__main__':`" in process.stderr
