"""An engine for the tests of this folder."""
