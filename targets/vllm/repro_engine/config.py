"""Prepares the process of a script.

(This file is inlined into reproducers, behind `settings`; nothing imports it.)
"""

import atexit
import json
import os
import shutil
import tempfile
from pathlib import Path

import torch
from vllm.config import VllmConfig, set_current_vllm_config
from vllm.distributed.parallel_state import ensure_model_parallel_initialized, init_distributed_environment
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker import mamba_utils
from vllm.v1.worker.gpu import model_runner

from .layers import takes


def prepare(runner, model):
    """Prepare the process, once; return the folder of the model."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "1" if runner == "v2" else "0"
    Path(f"{folder}/config.json").write_text(json.dumps(model), encoding="utf-8")
    torch.set_num_threads(1)
    with set_current_vllm_config(VllmConfig()):
        init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        ensure_model_parallel_initialized(1, 1)
    mamba_utils._TEMPORAL_TILES = 1  # a state is 8 bytes
    Sampler.greedy_sample = staticmethod(lambda logits: logits.argmax(dim=-1).view(-1))  # otherwise a compiled operator
    return folder


def drafts_as_eagle():
    """Return True if this release's V2 runner refuses the n-gram method: then the drafter passes as MTP."""
    return not takes(model_runner.init_speculator, "req_states")
