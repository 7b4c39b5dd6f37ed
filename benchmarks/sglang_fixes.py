"""Fixes of the known causes of SGLang 0.5.20 and 0.5.23 (docs/explanation/sglang.md), as the truth of identity.py.

They serve the benchmark alone: each makes one cause impossible, in as few lines as do it. They are no proposals for
SGLang; two of them give a session's record up where a repair would keep it.

    retracted-turn-behind-its-state   a record that is ahead of the next prompt is released
    turn-ends-inside-accepted-drafts  with drafts, a turn gives its record back whenever it may be ahead of its output
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import unified_diff
from pathlib import Path

from hybridfuzz.targets.base.launch import Launch
from hybridfuzz.targets.base.patches import Patch, parse_patch
from trees import Edit

SCHEDULER = "sglang/srt/managers/scheduler.py"
BATCH = "sglang/srt/managers/schedule_batch.py"
RESULTS = "sglang/srt/managers/scheduler_components/batch_result_processor.py"
SESSIONS = "sglang/srt/session/streaming_session.py"
VERIFY = "sglang/srt/speculative/spec_utils.py"

SWAP = Edit(
    RESULTS,
    "        should_update = completed_mamba_boundary if lazy else known_mamba_boundary\n",
    "        should_update = completed_mamba_boundary\n",
)
IN_PLACE = Edit(
    BATCH,
    "                req.kv.mamba_next_track_idx = other_idx\n\n    def mamba_lazy_spec_prepare",
    "                req.kv.mamba_next_track_idx = other_idx\n"
    "            else:\n"
    "                req.kv.mamba_last_track_seqlen = None\n\n    def mamba_lazy_spec_prepare",
)
FRESH_SLOT = Edit(
    SCHEDULER,
    '                    if req.kv.holds_mamba and not getattr(req, "session", None):\n',
    "                    if req.kv.holds_mamba and self.tree_cache.session.borrowed_slot(req) is None:\n",
)
AHEAD_OF_PROMPT = Edit(
    SESSIONS,
    "        # Lend the record; the slot keeps the tree lock. A rejected chunked\n",
    "        if slot.kv.holds_mamba and slot.kv.kv_committed_len > len(params.key):\n"
    "            self.release_session(req.session.session_id)\n"
    "            return None\n\n"
    "        # Lend the record; the slot keeps the tree lock. A rejected chunked\n",
)
NOT_ENDED = Edit(
    SESSIONS,
    "        req.session.finish_req(req)\n",
    "        if req.finished():\n            req.session.finish_req(req)\n",
)
OVERSHOOT = Edit(
    SESSIONS,
    "        if isinstance(req.finished_reason, FINISH_ABORT):\n            # Hand the record",
    "        length = len(req.output_ids) if req.finished_len is None else req.finished_len\n"
    "        ahead = req.kv.kv_allocated_len >= len(req.origin_input_ids) + length\n"
    "        if ahead and req.finished() and not isinstance(req.finished_reason, FINISH_ABORT):\n"
    "            del self.slots[req.session.session_id]\n"
    "            req.lock, slot.lock = slot.lock, None\n"
    "            req.output_ids = req.output_ids[:length]\n"
    "            req.session.finish_req(req)\n"
    "            return False\n"
    "        if isinstance(req.finished_reason, FINISH_ABORT):\n            # Hand the record",
)
IN_FLIGHT = Edit(
    VERIFY,
    "    set_mamba_track_indices_from_reqs(batch, track_positions)\n    batch.mamba_track_mask = None\n",
    "    else:\n"
    "        grid, track_positions = mamba_track_grid(batch.tree_cache.page_size), []\n"
    "        for req, length in zip(batch.reqs, batch.seq_lens.tolist()):\n"
    "            done = len(req.origin_input_ids) + max(len(req.output_ids) - 1, 0)\n"
    "            end = len(req.origin_input_ids) + req.sampling_params.max_new_tokens - 1\n"
    "            swapped = min(length, end) // grid != done // grid\n"
    "            track_positions.append((req.kv.mamba_next_track_idx or 0) ^ swapped)\n"
    "    set_mamba_track_indices_from_reqs(batch, track_positions)\n    batch.mamba_track_mask = None\n",
)

FIXES: Mapping[str, Mapping[str, Edit]] = {
    "0.5.20": {"snapshot-slots-not-swapped": SWAP, "lazy-slot-overwritten": IN_PLACE},
    "0.5.23": {
        "snapshot-slots-not-swapped": SWAP,
        "two-crossings-in-flight": IN_FLIGHT,
        "session-slot-not-cleared": FRESH_SLOT,
        "retracted-turn-behind-its-state": AHEAD_OF_PROMPT,
        "retracted-turn-never-closed": NOT_ENDED,
        "turn-ends-inside-accepted-drafts": OVERSHOOT,
    },
}
"""Release -> cause -> the edit without which it cannot happen."""


def fixes_of(launch: Launch) -> dict[str, Patch]:
    """Return the fixes of a release by the name of their cause. Raises ValueError if one does not fit its tree."""
    return {name: _patch(name, edit, Path(launch.tree)) for name, edit in FIXES[launch.version].items()}


def _patch(name: str, edit: Edit, tree: Path) -> Patch:
    text = (tree / edit.file).read_text(encoding="utf-8")
    if text.count(edit.old) != 1:
        raise ValueError(f"{name}: the text to exchange stands {text.count(edit.old)} times in {edit.file}")
    lines = [each.splitlines(keepends=True) for each in (text, text.replace(edit.old, edit.new))]
    return parse_patch("".join(unified_diff(*lines, f"a/{edit.file}", f"b/{edit.file}")), name)
