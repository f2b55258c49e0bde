"""The parts of the small runner: options, caches, block tables, inputs, compilation, one rank."""
