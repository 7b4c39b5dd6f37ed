"""Sources that only stand-alone reproducers have (`repro`): clients of the engine that they share with the adapter."""
