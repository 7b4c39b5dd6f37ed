# Everything below is public API of vLLM: a generated tiny model with random weights, one engine, greedy tokens.
import json
import os
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

UNSURE = 0.05
"""Two tokens whose log-probabilities are closer than this may change places by rounding: no verdict from there on."""


def fill_weights(model):
    """Random weights, the same in every process, large enough that tokens depend on the state."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
            values = torch.randn(parameter.shape, generator=generator)
            last = name.rsplit(".", 1)[-1]
            if last == "A":
                values = -0.2 * values.exp()
            elif last in ("dt_bias", "D"):
                values = 0.3 * values
            elif "norm" in name:
                values = 1 + 0.1 * values
            elif "embed_tokens" in name:
                values = 0.5 * values
            else:
                values = 1.5 * values / float(values.shape[-1]) ** 0.5 if values.dim() > 1 else 0.1 * values
            parameter.data.copy_(values.to(parameter.dtype))


def serve(plan, engine_arguments):
    """Greedy tokens and their distance to the second choice, by request; `plan`: (step, name, prompt, count)."""
    from vllm import EngineArgs, LLMEngine, SamplingParams

    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(MODEL))
        engine = LLMEngine.from_engine_args(
            EngineArgs(
                model=folder, skip_tokenizer_init=True, load_format="dummy", dtype=DTYPE, max_model_len=512,
                max_num_seqs=8, mamba_cache_mode="align", mamba_ssm_cache_dtype="float32",
                gpu_memory_utilization=0.1, kv_cache_memory_bytes=256 << 20, async_scheduling=False, seed=0,
                disable_log_stats=True, **engine_arguments,
            )
        )  # fmt: skip
    engine.apply_model(fill_weights)
    waiting, step, answers = sorted(plan), 0, {}
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0][0] <= step:
            _, name, prompt, count = waiting.pop(0)
            parameters = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False, logprobs=2)
            engine.add_request(name, {"prompt_token_ids": prompt}, parameters)
        for output in engine.step():
            chosen = output.outputs[0]
            best = [sorted((one.logprob for one in top.values()), reverse=True) for top in chosen.logprobs]
            answers[output.request_id] = list(chosen.token_ids), [first - second for first, second, *_ in best]
        step += 1
    return answers


def main():
    """Serve the requests in the engine under test, then each alone in a plain one; compare."""
    if len(sys.argv) > 1:
        plan, engine_arguments = json.loads(sys.argv[1])
        print("ANSWERS", json.dumps(serve(plan, engine_arguments)), flush=True)
        os._exit(0)
    plain = {
        "attention_backend": ENGINE["attention_backend"], "enforce_eager": True, "enable_prefix_caching": True,
        "max_num_batched_tokens": 512,
    }  # fmt: skip
    batch = start(PLAN, ENGINE, RUNNER)
    single = {name: start([(0, name, prompt, count)], plain, "1") for _, name, prompt, count in PLAN}
    together = answers_of(batch)
    failed = False
    for name, process in single.items():
        alone, margins = answers_of(process)[name]
        tokens = together[name][0]
        at = next((i for i, (one, other) in enumerate(zip(alone, tokens, strict=False)) if one != other), None)
        differs = at is not None and margins[at] > UNSURE
        failed |= differs
        print(f"{name}: alone {alone}")
        print(f"{name}: here  {tokens}" + (f"  WRONG from token {at} on" if differs else ""))
    if failed:
        sys.exit("the defect is here: tokens differ from those of the same request alone")
    print("passed: the defect is not here")
    return 0


def start(plan, engine_arguments, runner):
    """An engine in a process of its own, which starts with empty memory."""
    environment = {
        **os.environ, "VLLM_USE_V2_MODEL_RUNNER": runner, "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_ALLOW_INSECURE_SERIALIZATION": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1",
        "VLLM_LOGGING_LEVEL": "ERROR", "VLLM_USE_FLASHINFER_SAMPLER": "0",
    }  # fmt: skip
    command = [sys.executable, __file__, json.dumps([plan, engine_arguments])]
    return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def answers_of(process):
    """What the engine answered."""
    output = process.communicate()[0]
    for line in output.splitlines():
        if line.startswith("ANSWERS "):
            return json.loads(line.removeprefix("ANSWERS "))
    print(f"the engine did not start:\n{output[-6000:]}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    sys.exit(main())
