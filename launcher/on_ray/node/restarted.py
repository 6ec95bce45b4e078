"""Returns whether Ray has restarted an actor."""

import warnings

import ray


def was_restarted() -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this function of Ray calls a deprecated function of Ray
        return bool(ray.get_runtime_context().was_current_actor_reconstructed)
