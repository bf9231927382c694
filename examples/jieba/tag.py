"""python examples/jieba/tag.py TEXT...: words and tags by jieba's paddle mode."""

import sys

import tagger  # noqa: F401, enables it
from jieba import posseg

for text in sys.argv[1:]:
    print(*(f"{word}/{tag}" for word, tag in posseg.cut(text, use_paddle=True)))
