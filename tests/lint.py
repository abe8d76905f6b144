#!/usr/bin/env python3
"""lint.py FILE.py...: that each compiles without a warning, imports nothing that it does not use,
and has lines of at most 100 columns."""

import ast
import sys
import warnings
from pathlib import Path

COLUMNS = 100


def unused_imports(tree):
    """Names that are bound by an import and never read. A package's __init__ imports for others."""
    bound = {}
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            for name in node.names:
                bound[(name.asname or name.name).split(".")[0]] = node.lineno
    read = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    return [(line, f"{name} is imported and not used")
            for name, line in bound.items() if name not in read]


def faults(path):
    text = path.read_text()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            compile(text, str(path), "exec")
        except (SyntaxError, Warning) as e:
            return [(getattr(e, "lineno", 1) or 1, str(e))]
    found = [(i, f"more than {COLUMNS} columns")
             for i, line in enumerate(text.splitlines(), 1) if len(line) > COLUMNS]
    return found + (unused_imports(ast.parse(text)) if path.name != "__init__.py" else [])


def main():
    n_faults = 0
    for path in map(Path, sys.argv[1:]):
        for line, what in sorted(faults(path)):
            print(f"{path}:{line}: {what}")
            n_faults += 1
    return n_faults > 0


if __name__ == "__main__":
    sys.exit(main())
