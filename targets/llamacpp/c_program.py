"""The same calls as a C program, for whoever builds llama.cpp. Only copied into scripts.

Its parameters are set by name with the header of the build that it is compiled with.
"""

from __future__ import annotations

from collections.abc import Sequence

from .context_sizes import Sizes

PROGRAM = """\
// cc repro.c -I llama.cpp/include -I llama.cpp/ggml/include -L llama.cpp/build/bin -lllama -lm -o repro
// ./repro tiny.gguf
// Exit status 1 if log-probabilities are not those of the same tokens alone.
#include "llama.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { SEQUENCES = @n_seq_max@, SNAPSHOTS = @n_rs_seq@, SAVED = 64 };
// alone: the greedy token of the same tokens alone, and its log-probability; -1 where no logits are wanted
struct row { int sequence, position, token, alone; double logprob; };
static struct llama_context * ctx;
static llama_memory_t mem;
static int n_vocab, wrong;
static uint8_t * saved[SAVED];
static size_t size[SAVED];

static void decode(const struct row * rows, int n) {
    struct llama_batch batch = llama_batch_init(n, 0, 1);
    batch.n_tokens = n;
    for (int i = 0; i < n; i++) {
        batch.token[i] = rows[i].token;
        batch.pos[i] = rows[i].position;
        batch.n_seq_id[i] = 1;
        batch.seq_id[i][0] = rows[i].sequence;
        batch.logits[i] = rows[i].alone >= 0;
    }
    if (llama_decode(ctx, batch)) exit(2);
    for (int i = 0; i < n; i++) {
        if (rows[i].alone < 0) continue;
        const float * logits = llama_get_logits_ith(ctx, i);
        int best = 0;
        for (int t = 1; t < n_vocab; t++) if (logits[t] > logits[best]) best = t;
        double sum = 0;
        for (int t = 0; t < n_vocab; t++) sum += exp(logits[t] - logits[best]);
        const double logprob = logits[rows[i].alone] - logits[best] - log(sum);
        const int differs = fabs(logprob - rows[i].logprob) > 0.01;
        printf("sequence %d after %d tokens: greedy token %d, alone %d; log-probability of %d: %.3f, alone %.3f%s\\n",
            rows[i].sequence, rows[i].position + 1, best, rows[i].alone, rows[i].alone, logprob, rows[i].logprob,
            differs ? "  WRONG" : "");
        wrong += differs;
    }
    llama_batch_free(batch);
}

static void save(int k, int sequence, int flags) {
    size[k] = llama_state_seq_get_size_ext(ctx, sequence, flags);
    saved[k] = malloc(size[k]);
    llama_state_seq_get_data_ext(ctx, saved[k], size[k], sequence, flags);
}

static void restore(int k, int sequence, int flags) {
    llama_state_seq_set_data_ext(ctx, saved[k], size[k], sequence, flags);
}

// What was in memory before: some tokens in each sequence, which are then removed.
static void fill(void) {
    enum { COUNT = SNAPSHOTS + 2 };
    struct row rows[SEQUENCES * COUNT];
    for (int i = 0; i < SEQUENCES * COUNT; i++) {
        rows[i] = (struct row) { i / COUNT, i % COUNT, (97 + 31 * (i / COUNT) + 7 * (i % COUNT)) % n_vocab, -1, 0 };
    }
    decode(rows, SEQUENCES * COUNT);
    llama_memory_clear(mem, false);
}

int main(int argc, char ** argv) {
    struct llama_model * model = llama_model_load_from_file(argv[argc - 1], llama_model_default_params());
    if (!model) return 2;
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = @n_ctx@;
    params.n_batch = @n_batch@;
    params.n_ubatch = @n_ubatch@;
    params.n_seq_max = SEQUENCES;
    params.kv_unified = @kv_unified@;
    params.swa_full = @swa_full@;
@snapshots@    params.n_threads = params.n_threads_batch = 1;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.type_k = params.type_v = GGML_TYPE_F32;
    ctx = llama_init_from_model(model, params);
    mem = llama_get_memory(ctx);
    n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    fill();
@calls@
    printf("%d wrong\\n", wrong);
    return wrong > 0;
}
"""


def c_program(sizes: Sizes, calls: Sequence[str]) -> str:
    """Return the program that makes these calls."""
    values = {
        **{name: str(value).lower() for name, value in sizes._asdict().items()},
        "snapshots": "    params.n_rs_seq = SNAPSHOTS;\n" if sizes.n_rs_seq else "",
        "calls": "\n".join(f"    {call}" for call in calls),
    }
    program = PROGRAM
    for name, value in values.items():
        program = program.replace(f"@{name}@", value)
    return program
