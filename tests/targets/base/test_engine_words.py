"""Sentences of scripts and reports have the words of the engine that they are about."""

import pytest

from hybridfuzz.targets.base.engine_words import Phrases, in_words
from hybridfuzz.targets.sglang.deployment import PHRASES as SGLANG
from hybridfuzz.targets.transformers.deployment import PHRASES as TRANSFORMERS
from hybridfuzz.targets.vllm.deployment import PHRASES as VLLM

RESUMES = (
    "r0 resumes from the state of r1 after 7 tokens in block 3 (column 2), expected the state of r0 after 10 tokens; "
    "the block was last written by r0 in step 2 (step 3)"
)
PUBLISHED = "block 4 is published as depth 8 of a prefix, but holds the state after 12 tokens: last written by r0"
COLUMN = "the device reads block 3 in column 1 of r0's mamba group 0, where the scheduler's table holds block 4"


@pytest.mark.parametrize(
    ("phrases", "text", "expected"),
    [
        (
            VLLM,
            RESUMES,
            "r0 resumes from the state of r1 after 7 tokens in KV cache block 3 (entry 2 of its block-table row), "
            "expected the state of r0 after 10 tokens; the block was last written by r0 in step 2 (step 3)",
        ),
        (
            VLLM,
            PUBLISHED,
            "KV cache block 4 is in the prefix cache as the end of the first 8 tokens of a prefix, but holds the state "
            "after 12 tokens: last written by r0",
        ),
        (
            VLLM,
            COLUMN,
            "the device reads KV cache block 3 in block-table entry 1 of r0's KV cache group 0 (mamba), where the "
            "scheduler's table holds KV cache block 4",
        ),
        (VLLM, "r0 gets block 7 (column 2 of mamba group 0)",
         "r0 gets KV cache block 7 (block-table entry 2 of KV cache group 0 (mamba))"),
        (
            SGLANG,
            RESUMES,
            "r0 resumes from the state of r1 after 7 tokens in Mamba slot 3, expected the state of r0 after 10 tokens; "
            "it was last written by r0 in step 2 (step 3)",
        ),
        (
            SGLANG,
            PUBLISHED,
            "Mamba slot 4 is in the radix tree as the end of the first 8 tokens of a prefix, but holds the state after "
            "12 tokens: last written by r0",
        ),
        (SGLANG, "r0 attends to position 5 in block 3 and reads zeroed memory",
         "r0 attends to position 5 in KV page 3 and reads zeroed memory"),
        (
            TRANSFORMERS,
            RESUMES,
            "r0 resumes from the state of r1 after 7 tokens in its row of the cache, expected the state of r0 after 10 "
            "tokens (forward 3)",
        ),
        (
            TRANSFORMERS,
            "r1 has computed 1 token, but layer 0 of mamba group 0 in its cache (id 5) holds at its recurrent state: "
            "the state of r0 after 1 token (step 0)",
            "r1 has computed 1 token, but the recurrent state of its row in the cache (state layer 0) is the state of "
            "r0 after 1 token (forward 0)",
        ),
    ],
)  # fmt: skip
def test_a_place_has_the_name_of_the_engine(phrases: Phrases, text: str, expected: str) -> None:
    """A maintainer read of blocks and columns of a library that has neither."""
    assert in_words(text, phrases) == expected
