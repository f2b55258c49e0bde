"""What is installed here, what will run where, and what would not work: `autoport doctor`.

`facts.py` gathers an `Environment`, a plain value; `checks.py` and `verdict.py` judge it and look at nothing
else, so tests hand in environments of their own; `schema.py` is what `--json` prints; `view.py` prints it.
"""
