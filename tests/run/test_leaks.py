"""Nothing without noise leaves a run: keys, records, losses, norms and batch sizes are searched for by value."""

import base64
import csv
import secrets

import pytest
import torch
import yaml

from groupclip.cli.app import run as command_line
from groupclip.engine.engine import Engine
from groupclip.run import RunInterrupted, resume, start
from groupclip.run.metrics import noisy_norms
from small_runs import SELDOM, StopAfter

MARKER = "zyxmarkerqv"
DIGITS = 10  # of a number searched for: 1,000 numbers and 300 places "0." agree somewhere with probability 3e-5


def spellings(secret):
    """How a secret may stand in a file."""
    if isinstance(secret, bytes):
        return [secret, secret.hex().encode(), base64.b64encode(secret)[:-2], str(list(secret)).encode()]
    return [secret.encode()]


def found(folder, secrets_):
    """(file, secret) for every secret that occurs in a file below ``folder``."""
    hits = []
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        content = path.read_bytes()
        if path.name == "report.html":  # its figures are encoded
            for part in content.split(b"base64,")[1:]:
                content += base64.b64decode(part.split(b'"')[0])
        hits += [(path.name, s) for s in secrets_ if any(form in content for form in spellings(s))]
    return hits


def number(value):
    return repr(abs(float(value)))[: DIGITS + 2]


@pytest.fixture
def watched(tmp_path, monkeypatch):
    """A run on marked texts, and every secret that came up in it."""
    keys: list[bytes] = []
    draw_key = secrets.token_bytes

    def token_bytes(count=None):
        keys.append(draw_key(count))
        return keys[-1]

    monkeypatch.setattr("secrets.token_bytes", token_bytes)
    numbers: set[str] = set()
    sizes: list[int] = []
    backward = Engine.backward

    def watched_backward(engine, losses):
        numbers.update(number(v) for v in losses.detach())
        numbers.add(number(losses.detach().mean()))
        sizes.append(len(losses))
        backward(engine, losses)
        for norms in engine._looks.norms.values():
            numbers.update(number(v) for v in norms)
        numbers.update(number(v) for v in noisy_norms(engine).values() if v)  # which have no noise yet

    monkeypatch.setattr(Engine, "backward", watched_backward)
    data = tmp_path / "patients.csv"
    with data.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows([f"{MARKER}{i} was seen in ward {i % 7}", "ill" if i % 2 else "well"] for i in range(150))
    request = {
        "task": f"csv:{data}", "model": "mlp", "task_options": {"vocabulary": 64, "max_length": 6}, "batch_size": 40,
        "clipping": "layer-wise", "epsilon": 3.0, "steps": 6, "eval_every": 2, "device": "cpu",
    }  # fmt: skip
    return request, tmp_path / "run", keys, numbers, sizes


def test_no_secret_is_written(watched, tmp_path):
    request, out, keys, numbers, sizes = watched
    with pytest.raises(RunInterrupted):
        start(request, out, checkpoint_seconds=SELDOM).train(StopAfter(3))
    resume(out).train(keep_resume=True)
    assert len(keys) >= 4  # of noise and of sampling, twice
    assert len(numbers) > 100
    assert len(sizes) == 6
    assert found(out, [*keys, *numbers, MARKER]) == []
    assert found(out / "release", [str(tmp_path), "patients"]) == []
    assert found(out / "release", [k[:16] for k in keys]) == []


def test_a_planted_secret_is_found(watched):
    """The must-reject twin: the search sees a key, a loss or a record that does get out, in each spelling."""
    request, out, keys, numbers, _ = watched
    start(request, out).train()
    planted = {
        "key.bin": b"x" + keys[0] + b"y",
        "key.hex": keys[0].hex().encode(),
        "key.b64": base64.b64encode(keys[0]),
        "loss.json": b'{"loss": ' + next(iter(numbers)).encode() + b"}",
        "text.txt": b"... " + MARKER.encode() + b"7 was seen ...",
        "report.html": b'<img src="data:image/svg+xml;base64,' + base64.b64encode(MARKER.encode()) + b'">',
    }
    for name, content in planted.items():
        (out / name).write_bytes(content)
    assert {name for name, _ in found(out, [*keys, *numbers, MARKER])} == set(planted)


def test_no_secret_is_shown(watched, capfd):
    request, out, keys, numbers, _ = watched
    settings = out.parent / "run.yaml"
    settings.write_text(yaml.safe_dump(request))
    assert command_line(["train", "--config", str(settings), "--out", str(out)]) == 0
    shown = "".join(capfd.readouterr())
    assert "step 6/6" in shown
    assert [s for s in [*map(bytes.hex, keys), *numbers, MARKER] if s in shown] == []


def test_noise_and_sampling_do_not_follow_any_seed(watched):
    request, out, keys, *_ = watched
    torch.manual_seed(0)
    start({**request, "seed": 5}, out).train()
    first = list(keys)
    torch.manual_seed(0)
    start({**request, "seed": 5}, out.with_name("second")).train()
    assert len(set(keys)) == len(keys) >= 2 * len(first) - 2
