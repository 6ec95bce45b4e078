"""Runs one system for `benchmarks.peers`: `python -m benchmarks.peers.runners NAME MODEL DTYPE THREADS LONGEST FORM`.

NAME is a module of this package; `NAME-ngram` drafts tokens from the text itself, each system by its own means. The
streams are taken before the module is imported, as libraries print what they like.
"""

from importlib import import_module

from benchmarks.peers.runners.protocol import arguments, serve, take_streams

if __name__ == "__main__":  # vLLM's worker processes import this file again
    streams = take_streams()
    name, given = arguments()
    module, _, ngram = name.partition("-")
    serve(streams, import_module(f"benchmarks.peers.runners.{module}").load(given, ngram=bool(ngram)))
