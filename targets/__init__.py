"""Targets: implementations under test, one folder each, behind the protocol in `base`."""
