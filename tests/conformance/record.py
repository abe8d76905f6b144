#!/usr/bin/env python3
"""record.py CASES.json GROUP < OUTCOMES: puts what a runner printed into the file, as expected.
For cases that are new, or whose answers have changed for a reason. Read the difference: whatever is
recorded here is what every client must say from then on.
"""

import json
import sys
from pathlib import Path


def compact(value):
    return json.dumps(value, ensure_ascii=False)


def lines_of(key, items):
    """A list with an item a line."""
    return f'"{key}": [\n        ' + ",\n        ".join(map(compact, items)) + "]"


def case_text(case):
    fields = [f'"name": {compact(case["name"])}']
    if "lane" in case:
        fields.append(f'"lane": {compact(case["lane"])}')
    fields += [lines_of(key, case[key]) for key in ("do", "expect") if key in case]
    return "    {" + ",\n      ".join(fields) + "}"


def group_text(name, group):
    return (f'{compact(name)}: {{\n  "settings": {compact(group["settings"])},\n  "cases": [\n'
            + ",\n".join(map(case_text, group["cases"])) + "\n  ]}")


def main():
    path, group = Path(sys.argv[1]), sys.argv[2]
    groups = json.loads(path.read_text())
    outcomes = {line["name"]: line["outcomes"] for line in map(json.loads, sys.stdin)}
    for case in groups[group]["cases"]:
        old = case.get("expect", [])
        case["expect"] = [keep(old[i] if i < len(old) else {}, outcome)
                          for i, outcome in enumerate(outcomes[case["name"]])]
    path.write_text("{" + ",\n\n".join(group_text(*g) for g in groups.items()) + "}\n")


def keep(expected, outcome):
    """An outcome that differs from run to run is told by hand: it stays."""
    return expected if "prefix_of" in expected else outcome


if __name__ == "__main__":
    main()
