"""Words to numbers without a vocabulary: a hash decides, so nothing is learned from private text.

A vocabulary collected from the records says which words occur in them. A public hash function says nothing:
two words may share a number, which costs a little accuracy and no privacy.
"""

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

PADDING = 0
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class HashTokenizer:
    """Lower-cased words and single punctuation marks, hashed into ``vocabulary - 1`` buckets; 0 is padding.

    vocabulary: number of ids. max_length: tokens kept; the rest of a long text is dropped.
    """

    vocabulary: int = 8192
    max_length: int = 64

    def __post_init__(self) -> None:
        if self.vocabulary < 2:
            raise ValueError(f"vocabulary={self.vocabulary} must be at least 2: padding and one bucket")
        if self.max_length < 1:
            raise ValueError(f"max_length={self.max_length} must be at least 1 token")

    def ids(self, text: str) -> list[int]:
        """Ids in [1, vocabulary) of one text, at most ``max_length`` of them; may be empty."""
        words = _TOKEN.findall(unicodedata.normalize("NFC", text).lower())
        return [1 + _bucket(word) % (self.vocabulary - 1) for word in words[: self.max_length]]

    def encode(self, texts: list[str]) -> Tensor:
        """Texts as int64 ``[len(texts), max_length]``, padded on the right with 0."""
        out = torch.full((len(texts), self.max_length), PADDING)
        for row, text in enumerate(texts):
            ids = self.ids(text)
            out[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        return out


@lru_cache(maxsize=1 << 16)
def _bucket(word: str) -> int:
    # blake2b, not hash(): the built-in one is salted anew in every process
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
