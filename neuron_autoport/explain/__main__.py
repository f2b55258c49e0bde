"""Print the page of all reason codes as Markdown: `python -m neuron_autoport.explain > docs/codes.md`."""

from __future__ import annotations

from neuron_autoport.explain.render import codes_document

print(codes_document(), end="")
