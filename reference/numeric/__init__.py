"""The arithmetic of a hybrid model in float64, with bounds for the error of float32 arithmetic.

Models one request at a time: contiguous tokens, no blocks, no batch. Each function returns the exact values and, of
the same shape, a bound that every correct implementation with float32 arithmetic keeps, whatever the order of its
sums and however it cuts the tokens. The bounds follow from the inputs and the formats alone; nothing is fitted.

attention    causal softmax attention
mixers       convolution, Mamba 2 scan, gated delta rule
recurrences  the recurrences of the tiny model, token by token
formats      number formats and the elementary error terms
tiny_model   the model whose arithmetic the numeric run executes: shapes, weights, inputs
truth        expected numbers of a numeric run

Rules used throughout, for u = 2**-24 (Higham, Accuracy and Stability of Numerical Algorithms, chapter 3):

    n roundings                relative error of each product path at most gamma(n) = n u / (1 - n u)
    a sum of n products        gamma(n) times the sum of the absolute products, in any order
    exp(x) on a GPU            exp2 of a product: 2 u |x| for the product and its constant, u |x| for the argument, and
                               4 u for ex2.approx: u (4 |x| + 8) with room for second order
    a value through a cache    the format's unit roundoff times the value, plus half its smallest step

The error of float64 is 2**-29 of these and is neglected. Copies have no bound: they are compared bit for bit.
"""

from .attention import attention
from .formats import BFLOAT16, FLOAT16, FLOAT32, FP8_E4M3, Bounded, Format
from .mixers import convolution, delta_rule, last_window, scan

__all__ = [
    "BFLOAT16",
    "FLOAT16",
    "FLOAT32",
    "FP8_E4M3",
    "Bounded",
    "Format",
    "attention",
    "convolution",
    "delta_rule",
    "last_window",
    "scan",
]
