"""splits.py PRE: how the texts of tests/data/tokens.json are cut into words in this way: a line for
each text, of the words' bytes."""

import json
import sys
from pathlib import Path

from cb.encode import words_of

for text in json.loads(Path("tests/data/tokens.json").read_text())["texts"]:
    print(*[len(word.encode()) for word in words_of(text, int(sys.argv[1]))])
