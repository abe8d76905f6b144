"""words.py "STATUS A B STATUS A B ...": each status with its two numbers in words, a line each."""

import sys

from cb.errors import explain

numbers = list(map(int, sys.argv[1].split()))
for status, *detail in zip(numbers[0::3], numbers[1::3], numbers[2::3]):
    print(explain(status, detail))
