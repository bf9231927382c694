"""Letters as numbers and tags as words: what training and segmenting must agree on."""

import re
import string
from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import ArrayLike, NDArray

LETTERS = string.ascii_lowercase
# A letter begins a word, is inside one, ends one, or is one by itself.
TAGS = "BMES"
BEGIN, MIDDLE, END, SINGLE = range(len(TAGS))

Ids = NDArray[np.int64]


def letters_of(text: str) -> str:
    """The letters of the text, lower-cased; the model knows no others than a to z."""
    return re.sub("[^a-z]", "", text.lower())


def letter_ids(letters: str) -> Ids:
    """The number of each letter, a = 0: (W,)."""
    if letters_of(letters) != letters:
        raise ValueError(f"letters: expected a to z only, got {letters!r}; letters_of drops others")
    return np.frombuffer(letters.encode("ascii"), np.uint8).astype(np.int64) - ord("a")


def word_tags(words: Iterable[str]) -> Ids:
    """The tag of each letter of these words: (W,)."""
    tags: list[int] = []
    for word in words:
        tags += [BEGIN, *[MIDDLE] * (len(word) - 2), END] if len(word) > 1 else [SINGLE]
    return np.array(tags, np.int64)


def words_of(letters: str, tags: ArrayLike) -> list[str]:
    """The words these tags, (W,) or (W, 1), cut the letters into: one starts at each B and S."""
    flat = np.asarray(tags).reshape(-1)
    if flat.size != len(letters):
        raise ValueError(f"tags: expected one a letter, {len(letters)}, got {flat.size}")
    starts = np.flatnonzero((flat == BEGIN) | (flat == SINGLE)).tolist()
    # The first letter starts a word whatever its tag says.
    cuts = sorted({0, *starts, len(letters)})
    return [letters[start:end] for start, end in pairwise(cuts)]
