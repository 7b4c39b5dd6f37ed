"""Sources that are inlined into stand-alone reproducers (`repro`): plain vLLM and torch, nothing of ours."""
