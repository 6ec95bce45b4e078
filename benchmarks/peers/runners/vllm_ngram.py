"""Runs vLLM's offline `LLM` with its own n-gram guesses, for `benchmarks.speculation.peers`."""

from benchmarks.peers.runners.protocol import take_streams

if __name__ == "__main__":
    STREAMS = take_streams()

from benchmarks.peers.runners.vllm import run

NGRAM = {"method": "ngram", "num_speculative_tokens": 8, "prompt_lookup_min": 2, "prompt_lookup_max": 4}

if __name__ == "__main__":  # its worker processes import this file again
    run(STREAMS, NGRAM)
