"""`autoport port`: a rewritten model as a package of readable source, and what such a package imports."""
