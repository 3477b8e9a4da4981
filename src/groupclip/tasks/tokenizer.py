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

    vocabulary: number of ids. max_length: words and marks kept; the rest of a long text is dropped.
    prefix: that many first letters of a longer word have an id of their own, which follows the word's; 0: no such ids.
        So "moving" and "movies" share something, and short words, which are common and say little, weigh less in a bag.
    """

    vocabulary: int = 8192
    max_length: int = 64
    prefix: int = 0

    def __post_init__(self) -> None:
        if self.vocabulary < 2:
            raise ValueError(f"vocabulary={self.vocabulary} must be at least 2: padding and one bucket")
        if self.max_length < 1:
            raise ValueError(f"max_length={self.max_length} must be at least 1 token")
        if self.prefix < 0:
            raise ValueError(f"prefix={self.prefix} must be at least 0 letters")

    @property
    def row_length(self) -> int:
        """Ids in a row of :meth:`encode`."""
        return 2 * self.max_length if self.prefix else self.max_length

    def ids(self, text: str) -> list[int]:
        """Return ids in [1, vocabulary) of one text, at most ``row_length`` of them; may be empty."""
        words = _TOKEN.findall(unicodedata.normalize("NFC", text).lower())[: self.max_length]
        return [1 + _bucket(part) % (self.vocabulary - 1) for word in words for part in self._parts(word)]

    def _parts(self, word: str) -> tuple[str, ...]:
        # no word has a hyphen in it, so that a prefix is never taken for one
        return (word, f"{word[: self.prefix]}-") if 0 < self.prefix < len(word) else (word,)

    def encode(self, texts: list[str]) -> Tensor:
        """Return texts as int64 ``[len(texts), row_length]``, padded on the right with 0."""
        out = torch.full((len(texts), self.row_length), PADDING)
        for row, text in enumerate(texts):
            ids = self.ids(text)
            out[row, : len(ids)] = torch.tensor(ids, dtype=torch.int64)
        return out


@lru_cache(maxsize=1 << 16)
def _bucket(word: str) -> int:
    # blake2b, not hash(): the built-in one is salted anew in every process
    return int.from_bytes(blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")
