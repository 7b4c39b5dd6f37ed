"""Writes a failure as a test of vLLM's scheduler alone, without a worker.

The script of a failure runs with the scheduler's methods wrapped (`recorder`): each call of one becomes a line of a
test, with what the worker sampled as a literal. The same lines run on a tree with the patch. The test ends at the
first step whose tokens differ, and asserts that they are not the wrong ones.

writing         puts the test together
recorder        from a script's calls to the lines of a test
calls           which answers are compared, and which of them matter most
source          values as Python source

`writing` runs in our process, with the constants of `calls`; the others run in the engine's.
"""
