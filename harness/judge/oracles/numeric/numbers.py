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
from ...verdict import Prefix, Quoted, StateOf, Value
from ...violation import Violation
from ..base import Context, Oracle
from ..rules import Rule
from .provenance import explain, model_of


class Numbers(Oracle):
    """Checks the bytes of a numeric run."""

    rules = (
        Rule(
            "S7",
            "In a numeric run, no output is NaN or infinite.",
            fields=frozenset({"nan"}),
        ),
        Rule(
            "S4",
            "In a numeric run, unused memory is filled three ways and every output has the same bits; a zeroed "
            "page reads as zero.",
            fields=frozenset({"fills", "moved-bytes"}),
        ),
        Rule(
            "S2",
            "In a numeric run, outputs are within the rounding bound of the float64 model on the request's own "
            "tokens, the sampled token is the model's unless rounding could change it, and copies are bit-exact.",
            fields=frozenset({"numbers", "read-out"}),
        ),
        Rule(
            "S3",
            "In a numeric run, outputs are within the rounding bound of the float64 model on the request's own "
            "tokens, the sampled token is the model's unless rounding could change it, and copies are bit-exact.",
            fields=frozenset({"numbers", "moved-bytes"}),
        ),
        Rule(
            "S6",
            "In a numeric run, outputs are within the rounding bound of the float64 model on the request's own "
            "tokens, the sampled token is the model's unless rounding could change it, and copies are bit-exact.",
            fields=frozenset({"numbers", "read-out"}),
        ),
        Rule(
            "S1",
            "In a numeric run, the bytes of a published block are those that its key names.",
            fields=frozenset(
                {
                    "state-bytes",
                    "window-bytes",
                    "key-bytes",
                    "value-bytes",
                    "stored-state-bytes",
                    "stored-window-bytes",
                    "stored-key-bytes",
                    "stored-value-bytes",
                }
            ),
        ),
        Rule(
            "M5",
            "In a numeric run, guard pages around the pool keep their pattern.",
            fields=frozenset({"guard"}),
        ),
        Rule(
            "M3",
            "In a numeric run, slots and pages that kernels compute from block tables are those that the tables name.",
            fields=frozenset({"indices"}),
        ),
    )
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
        writes = (one for one in numeric.accesses if isinstance(one, StateWrite) and one.block == context.null)
        first = next(writes, None)
        return self.violation(
            context,
            "guard",
            where=Quoted(numeric.guards[0]),
            row=first.row if first else None,
            layer=first.layer if first else None,
            writing=first.group if first else None,
            oracle="M5",
        )

    def _moves(self, context: Context, numeric: Numeric) -> Violation | None:
        self.count("S3", numeric.moves)
        if not numeric.failed:
            return None
        what = numeric.failed[0]
        if what.startswith("computing"):
            return self.violation(context, "indices", what=Quoted(what), oracle="M3")
        zeroing = what.startswith("zeroing")
        return self.violation(context, "moved-bytes", what=Quoted(what), oracle="S4" if zeroing else "S3")

    def _finite(self, context: Context, numeric: Numeric, output: LayerOutput, life: Life) -> Violation | None:
        self.count("S7")
        if np.isfinite(output.values).all():
            return None
        return self._wrong(context, numeric, output, life, "S7", "nan", "computes-nan")

    def _same_bits(self, context: Context, numeric: Numeric, output: LayerOutput, life: Life) -> Violation | None:
        self.count("S4")
        if output.agree:
            return None
        return self._wrong(context, numeric, output, life, "S4", "fills", "computes-other-bits")

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
        return self._wrong(
            context, numeric, output, life, oracle, "numbers", "computes-number", position=row.position + token,
            expected=float(expected.values[token, feature]), observed=float(output.values[token, feature]),
            bound=float(expected.bounds[token, feature]),
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
                    position=row.position + index,
                    expected=int(token),
                    observed=int(row.choices[index]),
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
        self, context: Context, numeric: Numeric, output: LayerOutput, life: Life, oracle: str, field: str,
        relation: str, **details: Value,
    ) -> Violation:  # fmt: skip
        why, block = explain(context, numeric, output, life)
        return self.violation(
            context,
            relation,
            field=field,
            layer=output.layer,
            why=why,
            request=life.name,
            group=output.group,
            block=block,
            oracle=oracle,
            **details,
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
                    "stored-bytes",
                    field="stored-" + part,
                    depth=key.depth,
                    part=part.replace("-", " "),
                    layer=layer,
                    expected=StateOf(Prefix(cached=key.depth), key.depth),
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
                    "published-bytes",
                    field=part,
                    depth=key.depth,
                    part=part.replace("-", " "),
                    past=context.past(block, layer),
                    expected=StateOf(Prefix(cached=key.depth), key.depth),
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
