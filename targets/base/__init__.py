"""What every target shares: the trace it is fed, the observations it returns, the protocol, the registry."""
