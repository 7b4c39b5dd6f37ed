"""Writes a failure as a test of vLLM's scheduler alone, without a worker.

The script of a failure runs with `recorder` behind its engine: each call that it makes of the scheduler becomes a line
of a test, in which what the worker sampled is given. The same lines run on a tree with the patch. The test ends at the
first step whose tokens differ, and asserts that they are not the wrong ones.

writing         puts the test together
recorder        from a script's calls to the lines of a test
calls           which answers are compared, and which of them matter most
source          values as Python source

`writing` runs in our process, the others in the engine's.
"""
