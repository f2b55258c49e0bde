"""A roofline model of one decode step: a model, never a measurement."""
