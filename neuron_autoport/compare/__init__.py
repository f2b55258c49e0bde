"""Two models side by side: `autoport diff A B`, the first step of any port.

`flat.py` has a model's operations as one graph; `stream.py` follows its residual stream; `attention.py`,
`blocks.py` and `ends.py` read from operations what each layer does; `reading.py` folds that into values by
name. `fields.py` compares configurations, `points.py` knows the checklist, `build.py` puts it together,
`schema.py` is what `--json` prints and `view.py` what the terminal shows.
"""
