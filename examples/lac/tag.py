"""Words and tags of Chinese texts by LAC, whose code knows nothing but Paddle."""

import sys

from LAC import LAC

lac = LAC(mode="lac")
for words, tags in lac.run(sys.argv[1:] or [line.strip() for line in sys.stdin]):
    print(*(f"{word}/{tag}" for word, tag in zip(words, tags, strict=True)))
