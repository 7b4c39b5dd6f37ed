"""What a version of vLLM has, and how versions differ: found in its source, bridged in one place each.

features        what a version has and how it computes, found by feature detection
compat          one function for each thing that versions do in different ways
as_on_gpu       replacements of what a CPU or shadow layers cannot run as it is
old_releases    what only releases before 0.28 need: platform, stand-ins for CUDA, V1 runner
wrapping        helpers to wrap and replace functions
"""
