"""Sources of a small engine, inlined into stand-alone reproducers (`repro`): vLLM and torch, no hybridfuzz."""
