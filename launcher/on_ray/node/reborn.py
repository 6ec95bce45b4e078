"""Tells whether Ray has started an actor again."""

import warnings

import ray


def is_reborn() -> bool:
    """Tells whether the actor that runs this has died before; whoever is made anew has not."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Ray's about another of its functions, which this one calls
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
