"""Tests of the Neuron host: a strict double of the plugin, a small runner, and what they drive."""
