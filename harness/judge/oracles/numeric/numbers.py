"""The oracles on bytes: S7 NaN, S4 three fills, S2, S3 and S6 on numbers, S1, M5 guard pages, bit-exact moves.

They check `Numeric` records, which come before the `Forward` of the same step. Numbers alone decide whether something
is wrong; tags only explain it.
"""

from __future__ import annotations

import numpy as np

from .....reference.numeric.tiny_model import TinyModel
from .....reference.numeric.truth import NumericTruth, StateTrack
from .....reference.prefix_cache import Key
from .....reference.request import Life
from .....reference.tokens import Truth
from .....targets.base.numbers import Bytes, LayerOutput, NumericRow
from .....targets.base.observe import Numeric, StateWrite, View
from .....targets.base.protocol import NumericTarget
from ...violation import Violation
from ..base import Context, Oracle
from .provenance import explain, model_of


class Numbers(Oracle):
    """S7: in a numeric run, no output is NaN or infinite. S4: in a numeric run, unused memory is filled three ways and
    every output has the same bits; a zeroed page reads as zero. S2, S3, S6: in a numeric run, outputs are within the
    rounding bound of the float64 model on the request's own tokens, the sampled token is the model's unless rounding
    could change it, and copies are bit-exact. S1: in a numeric run, the bytes of a published block are those that its
    key names. M5: in a numeric run, guard pages around the pool keep their pattern. M3: in a numeric run, slots and
    pages that kernels compute from block tables are those that the tables name."""

    ids = ("S7", "S4", "S2", "S3", "S6", "S1", "M5", "M3")
    title = "bytes"
    needs = frozenset({"numeric"})

    def __init__(self) -> None:
        super().__init__()
        self._truths: dict[int, NumericTruth] = {}
        self._model: TinyModel | None = None
        self._sound: dict[int, Key] = {}
        """Published blocks whose bytes are right."""
        self._stored: set[Key] = set()
        """Keys stored outside the pool whose bytes were checked."""

    def on_numeric(self, context: Context, numeric: Numeric) -> Violation | None:
        self._model = model_of(numeric)
        self.count("M5")
        self.count("M3", len(numeric.outputs))
        violation = self._guards(context, numeric) or self._moves(context, numeric)
        if violation or not context.facts:
            return violation
        lives = [context.facts.lives.get(row.request) if row.request else None for row in numeric.rows]
        judged = [(output, life) for output in numeric.outputs if (life := lives[output.row]) is not None]
        for judge in (self._finite, self._same_bits, self._close):
            for output, life in judged:
                violation = judge(context, numeric, output, life)
                if violation:
                    return violation
        for row, one in zip(numeric.rows, lives, strict=True):
            violation = self._read_out(context, row, one) if one else None
            if violation:
                return violation
        return None

    def _guards(self, context: Context, numeric: Numeric) -> Violation | None:
        if not numeric.guards:
            return None
        where = numeric.guards[0]
        writer = ""
        for access in numeric.accesses:
            if isinstance(access, StateWrite) and access.block == context.null:
                writer = f"; row {access.row} stored a state of layer {access.layer} of group {access.group} there"
                break
        return self.violation(
            context, "guard", f"the device wrote into {where}{writer}", expected="the guard pattern",
            observed="other bytes", oracle="M5",
        )  # fmt: skip

    def _moves(self, context: Context, numeric: Numeric) -> Violation | None:
        self.count("S3", numeric.moves)
        if not numeric.failed:
            return None
        what = numeric.failed[0]
        if what.startswith("computing"):
            return self.violation(
                context, "indices", f"{what} on the device gave entries that differ from the block tables",
                expected="the entries of the tables", observed="other entries", oracle="M3",
            )  # fmt: skip
        zeroing = what.startswith("zeroing")
        return self.violation(
            context, "moved-bytes", f"{what} is not bit-exact", expected="equal bytes", observed="other bytes",
            oracle="S4" if zeroing else "S3",
        )  # fmt: skip

    def _finite(self, context: Context, numeric: Numeric, output: LayerOutput, life: Life) -> Violation | None:
        self.count("S7")
        if np.isfinite(output.values).all():
            return None
        return self._wrong(context, numeric, output, life, "S7", "nan", "computes NaN", "finite numbers", "NaN")

    def _same_bits(self, context: Context, numeric: Numeric, output: LayerOutput, life: Life) -> Violation | None:
        self.count("S4")
        if output.agree:
            return None
        return self._wrong(
            context, numeric, output, life, "S4", "fills", "computes other bits when unused memory holds other bytes",
            "the same bits", "other bits",
        )  # fmt: skip

    def _close(self, context: Context, numeric: Numeric, output: LayerOutput, life: Life) -> Violation | None:
        row = numeric.rows[output.row]
        count = self._own_tokens(row, life)
        oracle = "S6" if not life.settled else "S2" if life.resumed else "S3"
        if not count:
            return None
        self.count(oracle)
        expected = self._truth(context, life.truth).expected(
            output.group, output.layer, row.position, row.position + count
        )
        distance = abs(output.values[:count] - expected.values)
        off = distance > expected.bounds
        if not off.any():
            return None
        token, feature = (int(index[0]) for index in np.nonzero(off))
        wanted, seen = expected.values[token, feature], output.values[token, feature]
        return self._wrong(
            context, numeric, output, life, oracle, "numbers",
            f"computes {seen:.6g} at position {row.position + token} where float64 gives {wanted:.6g} "
            f"(rounding error at most {expected.bounds[token, feature]:.1g})",
            f"{wanted:.6g}", f"{seen:.6g}",
        )  # fmt: skip

    def _read_out(self, context: Context, row: NumericRow, life: Life) -> Violation | None:
        truth = self._truth(context, life.truth)
        for index in range(self._own_tokens(row, life)):
            token, certain = truth.choice(row.position + index)
            if not certain:
                continue
            self.count("S6")
            if row.choices[index] != token:
                return self.violation(
                    context,
                    "read-out",
                    f"{life.name} samples token {row.choices[index]} after position {row.position + index}, expected "
                    f"{token} by the float64 model",
                    expected=token,
                    observed=row.choices[index],
                    request=life.name,
                    oracle="S6",
                )
        return None

    @staticmethod
    def _own_tokens(row: NumericRow, life: Life) -> int:
        """Return how many of the row's first tokens are the request's own; a wrong draft ends them."""
        life.truth.reach(row.position + len(row.tokens))
        for index, token in enumerate(row.tokens):
            if token != life.truth.tokens[row.position + index]:
                return index
        return len(row.tokens)

    def _truth(self, context: Context, truth: Truth) -> NumericTruth:
        assert self._model
        if id(truth) not in self._truths:
            self._truths[id(truth)] = NumericTruth(self._model, context.layout.groups, truth)
        return self._truths[id(truth)]

    def _wrong(
        self, context: Context, numeric: Numeric, output: LayerOutput, life: Life, oracle: str, field: str, what: str,
        expected: str, observed: str,
    ) -> Violation:  # fmt: skip
        why, block = explain(context, numeric, output, life)
        return self.violation(
            context,
            field,
            f"{life.name} {what} in layer {output.layer} of group {output.group}: {why}",
            expected=expected,
            observed=observed,
            request=life.name,
            group=output.group,
            block=block,
            oracle=oracle,
        )

    def on_view(self, context: Context, view: View) -> Violation | None:
        sound = {block: key for block, key in self._sound.items() if view.published.get(block) == key}
        self._sound, not_due = sound, context.reference.not_due()
        for block, key in view.published.items():
            if block in sound or not self._model or block in not_due:
                continue
            truth = context.reference.truths.get(key)
            if truth is None:
                continue
            violation = self._checkpoint(context, block, key, self._truth(context, truth))
            if violation:
                return violation
            sound[block] = key
        for key in view.stored:
            context.reference.know(key)
            if key in self._stored or not self._model or key not in context.reference.truths:
                continue
            self._stored.add(key)
            violation = self._outside(context, key, self._truth(context, context.reference.truths[key]))
            if violation:
                return violation
        return None

    def _outside(self, context: Context, key: Key, truth: NumericTruth) -> Violation | None:
        target: NumericTarget = context.target  # type: ignore[assignment]  # a target that observes "numeric" is one
        self.count("S1")
        for layer in range(context.layout.groups[key.group].layers):
            content = target.read_stored(key, layer)
            part = differing_part(content, truth, key, layer) if content else ""
            if part:
                return self.violation(
                    context,
                    "stored-" + part,
                    f"content is stored outside the pool as depth {key.depth} of a prefix, but its "
                    f"{part.replace('-', ' ')} in layer {layer} differ from that prefix's",
                    expected=f"state@{key.depth}",
                    observed="other numbers",
                    group=key.group,
                    oracle="S1",
                )
        return None

    def _checkpoint(self, context: Context, block: int, key: Key, truth: NumericTruth) -> Violation | None:
        self.count("S1")
        target: NumericTarget = context.target  # type: ignore[assignment]  # a target that observes "numeric" is one
        for layer in range(context.layout.groups[key.group].layers):
            part = differing_part(target.read_bytes(key.group, layer, block), truth, key, layer)
            if part:
                return self.violation(
                    context,
                    part,
                    f"block {block} is published as depth {key.depth} of a prefix, but its {part.replace('-', ' ')} "
                    f"differ from that prefix's: {context.reference.ledger.describe(block, layer)}",
                    expected=f"state@{key.depth}",
                    observed="other numbers",
                    group=key.group,
                    block=block,
                    oracle="S1",
                )
        return None


def differing_part(content: Bytes, truth: NumericTruth, key: Key, layer: int) -> str:
    """Return the part of a page whose bytes are not what the key names, "" if all are right.

    A recurrent state may be off by its rounding bound; everything else is compared bit for bit.
    """
    track = truth.track(key.group, layer, key.depth)
    if isinstance(track, StateTrack):
        (state, window), bound = track.page(0, key.depth), track.states[key.depth][1]
        if not (abs(content.first - state) <= bound).all():
            return "state-bytes"
        return "" if np.array_equal(content.second, window) else "window-bytes"
    # A partial key names the first slots of its block.
    keys, values = track.page((key.depth - 1) // len(content.first) * len(content.first), key.depth)
    if not np.array_equal(content.first[: len(keys)], keys):
        return "key-bytes"
    return "" if np.array_equal(content.second[: len(values)], values) else "value-bytes"
