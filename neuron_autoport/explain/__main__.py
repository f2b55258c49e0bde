"""Print a page of the documentation as Markdown: `python -m neuron_autoport.explain codes > docs/codes.md`.

The pages are `codes`, `rules` and `words`; each is all that `autoport explain` knows of its kind.
"""

from __future__ import annotations

import sys

from neuron_autoport.explain.render import DOCUMENTS, document

if len(sys.argv) != 2 or sys.argv[1] not in DOCUMENTS:
    sys.exit(f"usage: python -m neuron_autoport.explain {'|'.join(DOCUMENTS)} > docs/NAME.md")
print(document(sys.argv[1]), end="")
