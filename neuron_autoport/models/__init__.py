"""From a model's configuration to a model: resolve, build on meta or small and real, derive tiny.

`source.load_model_config` resolves what the user typed, `build.meta_model` and `build.real_model`
make modules of it, `tiny.tiny_config` shrinks any decoder-only configuration, and
`weights.adversarial_` fills a module with values that do not hide a wrong rewrite.
"""
