"""Lines of real engines: a few traces reach their cache modules, and each release has what is excluded by name."""

import os
from pathlib import Path

import pytest

from hybridfuzz.harness.measure.coverage.report import write_report
from hybridfuzz.harness.record.reached_lines import SavedLines
from hybridfuzz.harness.workers.messages import Fuzz
from hybridfuzz.harness.workers.worker_client import WorkerClient
from hybridfuzz.targets.base.coverage_tool import with_coverage
from hybridfuzz.targets.base.registry import coverage_scope, prepare

pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]
TRACES = 3
OVERRIDES = {"vllm@0.33.0": {"runner": "v2"}}
REACHED = {
    "vllm@0.33.0": {
        "vllm/v1/core/sched/scheduler.py": "Scheduler.schedule",
        "vllm/v1/core/single_type_kv_cache_manager.py": "MambaManager.allocate_new_blocks",
        "vllm/v1/worker/gpu/block_table.py": "_compute_slot_mappings_kernel",  # a Triton kernel, interpreted
    },
    "sglang@0.5.23": {"sglang/srt/mem_cache/unified_radix_cache.py": "UnifiedRadixCache.match_prefix"},
    "transformers@5.23.0": {"transformers/cache_utils.py": "LinearAttentionLayer.update_conv_state"},
}


@pytest.mark.parametrize("target", REACHED)
def test_lines_of_an_engine_are_recorded(target: str, tmp_path: Path) -> None:
    """Each line comes once for the whole process; the report knows the statements of functions that never ran."""
    launch, scope = with_coverage(prepare(target, print), print), coverage_scope(target)
    lines: dict[str, list[int]] = {}
    with WorkerClient(target, launch, trace_seconds=300) as worker:
        worker.start()
        for ran in worker.fuzz(Fuzz(1, 0, TRACES, OVERRIDES.get(target, {}), modules=scope.modules)):
            for module, new in ran.lines.items():
                assert not set(new) & set(lines.get(module, []))
                lines[module] = lines.get(module, []) + list(new)
    saved = SavedLines(target, launch.version, 1, TRACES, lines)
    report = write_report(tmp_path, saved, scope, launch.python, {**os.environ, **launch.env})
    assert not report.missing
    assert not report.unknown
    modules = {module.module: module for module in report.modules}
    for name, function in REACHED[target].items():
        ran_in = {each.name for each in modules[name].functions if each.reached}
        assert function in ran_in
    assert any(module.never for module in report.modules), "three traces do not reach every function"
