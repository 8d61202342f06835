"""Runs the code cells of a notebook in order, as a kernel would: run_notebook.py FILE."""

import json
import sys

with open(sys.argv[1], encoding="utf-8") as file:
    notebook = json.load(file)
scope = {"__name__": "__main__"}
count = 0
for cell in notebook["cells"]:
    if cell["cell_type"] == "code":
        count += 1
        exec(compile("".join(cell["source"]), f"cell {count}", "exec"), scope)
assert 0.02 < scope["gain"] < 0.6, scope["gain"]
print(f"{count} cells ran")
